"""Partial results: attention over some of the keys, and the merge of two such results."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ..core.marks import record
from ..softmax import Streaming

__all__ = ["Partial", "merge"]


@record
class Partial:
    """The state of T queries after some of the keys.

    With weights w = weigh(score, reference), `denominator` (T,) is the sum of w over the keys and
    `numerator` (T, e) the sum of w v, or None for a lookup that asks for the denominator alone.
    The answer is numerator / divisor(denominator).

    `reference` (T,) is the row maximum for softmax, and 0 for row_sum and elementwise normalizers.
    """

    reference: Float[Array, "T"]
    denominator: Float[Array, "T"]
    numerator: Float[Array, "T e"] | None = None

    def relative(self, how: Streaming, reference: Array) -> Partial:
        """The same state relative to another reference."""
        factor = how.rescale(self.reference, reference)
        numerator = None if self.numerator is None else self.numerator * factor[:, None]
        return Partial(reference, self.denominator * factor, numerator)

    def __add__(self, other: Partial) -> Partial:
        """The sum of two states that are relative to the same reference."""
        numerator = None
        if self.numerator is not None and other.numerator is not None:
            numerator = self.numerator + other.numerator
        return Partial(self.reference, self.denominator + other.denominator, numerator)


def merge(how: Streaming, a: Partial, b: Partial) -> Partial:
    """The state after the keys of `a` and of `b`: associative and commutative.

    With m = max(a.reference, b.reference), both states are rescaled to m and added
    (Milakov and Gimelshein 2018).

    >>> nothing = Partial(jnp.array([-1e30]), jnp.zeros(1), jnp.zeros((1, 2)))
    >>> some = Partial(jnp.array([2.0]), jnp.ones(1), jnp.ones((1, 2)))
    >>> merge(softmax, nothing, some).numerator
    Array([[1., 1.]], dtype=float32)
    """
    reference = jnp.maximum(a.reference, b.reference)
    return a.relative(how, reference) + b.relative(how, reference)
