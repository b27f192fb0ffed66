"""Choosing: terms from logits to logits that say which tokens may be drawn, and how likely.

    choose = keep_top_p(0.9) @ keep_top_k(40) @ temperature(0.8)

The token is drawn from softmax of what comes out. They compose like all terms, and `identity` draws
from the model as it is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..combinators import CompositionError, Leaf, pointwise, softmax
from ..combinators.dtypes import widened
from ..combinators.project import at_least
from ..combinators.simplex import foremost
from ..combinators.written import documented

__all__ = ["greedy", "keep_top_k", "keep_top_p", "log_probability"]


class Choice(Leaf):
    """Logits (…, V) to logits (…, V), each row by itself."""

    rowwise = True

    def flow(self, kind: Any) -> Any:
        super().flow(kind)
        return kind


def only(logits: Array, kept: Array) -> Array:
    """The logits that are kept; the others are never drawn."""
    return jnp.where(kept, logits, -jnp.inf)


def largest_alone(logits: Array) -> Array:
    best = jnp.argmax(logits, -1, keepdims=True)
    return only(logits, jnp.arange(logits.shape[-1]) == best)


greedy = documented(
    "Only the largest logit, the earlier one among equals: (…, V) -> (…, V).",
    pointwise(largest_alone, "greedy"),
)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class keep_top_k(Choice):
    """Only the k largest logits, the earlier first among equals: (…, V) -> (…, V) (Fan et al.
    2018).

    Raises CompositionError for k below 1.

    >>> keep_top_k(2)({}, jnp.array([1.0, 3.0, 2.0]))
    Array([-inf,   3.,   2.], dtype=float32)
    """

    count: int

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, count=self.count)

    def apply(self, params: Any, x: Array, context: Any) -> Array:
        return only(x, foremost(x, None, self.count))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class keep_top_p(Choice):
    """Only the most likely tokens that together reach the probability p: (…, V) -> (…, V)
    (Holtzman et al. 2020).

    The token with which p is reached is the last one kept; the most likely always stays.

    Raises CompositionError unless 0 < p <= 1.

    >>> keep_top_p(0.7)({}, jnp.log(jnp.array([0.5, 0.1, 0.4])))[1]
    Array(-inf, dtype=float32)
    """

    share: float

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.share, (int, float)) or not 0 < self.share <= 1:
            raise CompositionError(f"keep_top_p keeps a share 0 < p <= 1, not {self.share!r}")

    def apply(self, params: Any, x: Array, context: Any) -> Array:
        order = jnp.argsort(-x, -1, stable=True)
        likely = jnp.take_along_axis(softmax({}, wide(x)), order, -1)
        before = jnp.cumsum(likely, -1) - likely
        kept = jnp.take_along_axis(before < self.share, jnp.argsort(order, -1), -1)
        return only(x, kept)


def wide(logits: Array) -> Array:
    """Logits in at least float32: noise of fewer bits leaves tokens of a vocabulary out."""
    return widened(logits)


def log_probability(logits: Array, token: Array) -> Array:
    """How likely the model itself finds a token: (V,), () -> (), as `generate(keep=…)` wants it.

    >>> log_probability(jnp.zeros(4), 1)
    Array(-1.3862944, dtype=float32)
    """
    return jax.nn.log_softmax(wide(logits))[token]
