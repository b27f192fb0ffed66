"""Intervals: bounds of arrays in blocks, with NumPy where they are known and JAX where not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "Span", "anything", "ends", "is_signed", "is_true", "is_whole", "larger", "namespace",
    "smaller",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """Bounds of an array in each of n × m blocks of pairs: all its elements lie in [lo, hi].

    `lo` and `hi` have shape (n, m, *shape), or 1 in place of n or m; they are one object where the
    array is known. An unknown number counts `base` times in both. `parts` are the spans that were
    put side by side to make this one.
    """

    lo: Any
    hi: Any
    base: int = 0
    parts: tuple[Span, ...] = ()

    @classmethod
    def point(cls, value: Any, base: int = 0) -> Span:
        """An array that is known, but for its base."""
        return cls(value, value, base)

    @property
    def known(self) -> bool:
        return self.lo is self.hi and not self.base

    @property
    def dtype(self) -> Any:
        return self.lo.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.lo.shape[2:]

    def each(self, function: Callable[[Any], Any]) -> Span:
        """A function that keeps the order of numbers, of both bounds."""
        low = function(self.lo)
        return Span(low, low if self.lo is self.hi else function(self.hi), self.base)

    def where(self, safe: Any) -> Span:
        """The span where that is safe, and elsewhere all numbers of its type."""
        if is_true(safe):
            return self
        choose, (least, most) = namespace(self.lo, self.hi, safe).where, ends(self.dtype)
        return Span(choose(safe, self.lo, least), choose(safe, self.hi, most))


def namespace(*values: Any) -> Any:
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def is_true(truths: Any) -> bool:
    """Whether truths are known now, and all hold."""
    return not isinstance(truths, jax.Array) and bool(np.all(truths))


def is_whole(dtype: Any) -> bool:
    """Whether a type is that of integers or truths."""
    return dtype == np.bool_ or jnp.issubdtype(dtype, jnp.integer)


def is_signed(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.signedinteger)


def ends(dtype: Any) -> tuple[Any, Any]:
    """The least and the largest number of a type of integers or truths."""
    if dtype == np.bool_:
        return np.False_, np.True_
    return dtype.type(np.iinfo(dtype).min), dtype.type(np.iinfo(dtype).max)


def anything(aval: Any) -> Span | None:
    """What type and shape tell of an array; of floats, which may be no numbers, nothing."""
    if not is_whole(aval.dtype):
        return None
    low, high = (np.full((1, 1, *aval.shape), end) for end in ends(np.dtype(aval.dtype)))
    return Span(low, high)


def smaller(a: Any, b: Any) -> Any:
    return namespace(a, b).minimum(a, b)


def larger(a: Any, b: Any) -> Any:
    return namespace(a, b).maximum(a, b)
