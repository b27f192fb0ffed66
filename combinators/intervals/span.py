"""Spans: the bounds of an array in every block of pairs.

Bounds known at trace time are NumPy arrays, others are JAX arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.typing import DTypeLike
from jaxtyping import Shaped

from .three_valued import Truths

__all__ = [
    "End", "Options", "Span", "anything", "ends", "is_signed", "is_true", "is_whole", "larger",
    "namespace", "smaller",
]  # fmt: skip


End: TypeAlias = Shaped[np.ndarray, "n m *shape"] | Shaped[Array, "n m *shape"]
"""The least, or the largest, number that each element may have, for each of n × m blocks."""


Options: TypeAlias = Mapping[str, Any]
"""The parameters of an operation of a jaxpr, such as its axes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """Bounds of an array in each of n × m blocks of pairs: all its elements lie in [lo, hi].

    `lo` and `hi` have shape (n, m, *shape), or 1 in place of n or m. They are the same object if
    the array itself is known.

    With a `base` other than 0, the array is `base` times one unknown number, plus what the bounds
    say: positions of which only the distances are known. `parts` are the spans whose concatenation
    this span is.
    """

    lo: End
    hi: End
    base: int = 0
    parts: tuple[Span, ...] = ()

    @classmethod
    def point(cls, value: End, base: int = 0) -> Span:
        """The span of a known array, up to `base` times the unknown number."""
        return cls(value, value, base)

    @property
    def known(self) -> bool:
        """Whether the array itself is known, not only its bounds."""
        return self.lo is self.hi and not self.base

    @property
    def dtype(self) -> np.dtype:
        return self.lo.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array in one block."""
        return self.lo.shape[2:]

    def each(self, function: Callable[[End], End]) -> Span:
        """The span of a monotone function of the array."""
        low = function(self.lo)
        return Span(low, low if self.lo is self.hi else function(self.hi), self.base)

    def where(self, safe: Truths) -> Span:
        """The span where `safe` holds, and all numbers of its dtype elsewhere."""
        if is_true(safe):
            return self
        choose, (least, most) = namespace(self.lo, self.hi, safe).where, ends(self.dtype)
        return Span(choose(safe, self.lo, least), choose(safe, self.hi, most))


def namespace(*values: object) -> Any:
    """jax.numpy if any value is a JAX array, else numpy."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def is_true(truths: Truths) -> bool:
    """Whether all of some booleans are known at trace time to be True."""
    return not isinstance(truths, jax.Array) and bool(np.all(truths))


def is_whole(dtype: DTypeLike) -> bool:
    """Whether a dtype is an integer or boolean dtype."""
    return dtype == np.bool_ or jnp.issubdtype(dtype, jnp.integer)


def is_signed(dtype: DTypeLike) -> bool:
    return jnp.issubdtype(dtype, jnp.signedinteger)


def ends(dtype: np.dtype) -> tuple[np.bool_ | np.integer, np.bool_ | np.integer]:
    """The least and the largest number of an integer or boolean dtype."""
    if dtype == np.bool_:
        return np.False_, np.True_
    return dtype.type(np.iinfo(dtype).min), dtype.type(np.iinfo(dtype).max)


def anything(aval: jax.ShapeDtypeStruct | ShapedArray) -> Span | None:
    """The span of all numbers of a dtype; None for floats, since NaN has no order."""
    if not is_whole(aval.dtype):
        return None
    low, high = (np.full((1, 1, *aval.shape), end) for end in ends(np.dtype(aval.dtype)))
    return Span(low, high)


def smaller(a: End, b: End) -> End:
    return namespace(a, b).minimum(a, b)


def larger(a: End, b: End) -> End:
    return namespace(a, b).maximum(a, b)
