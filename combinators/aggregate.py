"""aggregate: weights are applied to values. Weights -> array."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from .core.arguments import as_function
from .core.context import Context
from .core.dtypes import floating
from .core.errors import CompositionError
from .core.kinds import Kind, Width, mistaken
from .core.leaf import Leaf
from .core.records import Weights
from .core.term import form

__all__ = ["aggregate", "largest", "weighted_sum"]


def weighted_sum(weights: Weights) -> Float[Array, "T e"]:
    """sum over s of weight[t, s] value[s]: the weights applied to their values.

    >>> weighted_sum(Weights(jnp.array([[0.5, 0.25]]), jnp.array([[2.0], [8.0]])))
    Array([[3.]], dtype=float32)
    """
    return weights(weights.value)


def largest(weights: Weights) -> Float[Array, "T e"]:
    """The largest of the values that have a weight, number by number; 0 where none has.

    >>> largest(Weights(jnp.array([[1.0, 1.0, 0.0]]), jnp.array([[1.0], [2.0], [9.0]])))
    Array([[2.]], dtype=float32)
    """
    taken = weights.weight[:, :, None] != 0
    value = floating(weights.value)
    lowest = jnp.finfo(value.dtype).min
    best = jnp.max(jnp.where(taken, value, lowest), 1, initial=lowest)
    return jnp.where(taken.any(1), best, 0)


ORDERLESS = weighted_sum, largest
"""Folds of one value per key, to which it is one in which order keys stand."""


@form
class aggregate(Leaf):
    """Mixes the values: Weights -> (T, e).

    The weighted sum applies the function that normalizing yielded, `weights(value)`; another fold
    over values is a function of Weights, such as `largest`; it sees the keys in the order of their
    positions.

    >>> from combinax.combinators import Weights
    >>> aggregate()({}, Weights(jnp.array([[0.5, 0.5]]), jnp.array([[1.0], [3.0]])))
    Array([[2.]], dtype=float32)
    """

    role = "aggregates"

    rowwise = True

    fold: Callable[[Weights], Float[Array, "T e"]] = weighted_sum

    def __post_init__(self):
        super().__post_init__()
        as_function(self.fold, "aggregate", "a function of Weights, such as largest")

    def flow(self, kind: Kind) -> Kind:
        if kind is None:
            return Width()
        if not isinstance(kind, Weights):
            raise CompositionError(mistaken(self, "weights", kind))
        return kind.value if self.fold in ORDERLESS else Width()

    def apply(
        self, params: Mapping[str, Array], x: Weights, context: Context
    ) -> Float[Array, "T e"]:
        if not isinstance(x, Weights):
            raise CompositionError(mistaken(self, "weights", x))
        return self.fold(x if self.fold in ORDERLESS else x.in_order())
