"""Partial results: what queries have gathered from some of the keys, and how two of them merge."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ..core.marks import record
from ..normalize import Streaming

__all__ = ["Partial", "merge"]


@record
class Partial:
    """What queries have gathered from some of the keys.

    `total` (T,) and `mixed` (T, e) are the sums of the weights and of the weighted values, relative
    to `reference` (T,). Where only the total is asked for, mixed is None.
    """

    reference: Array
    total: Array
    mixed: Array | None = None

    def relative(self, how: Streaming, reference: Array) -> Partial:
        """The same relative to another reference."""
        x = how.rescale(self.reference, reference)
        mixed = None if self.mixed is None else self.mixed * x[:, None]
        return Partial(reference, self.total * x, mixed)

    def __add__(self, other: Partial) -> Partial:
        """Both together, where they are relative to one reference."""
        mixed = None
        if self.mixed is not None and other.mixed is not None:
            mixed = self.mixed + other.mixed
        return Partial(self.reference, self.total + other.total, mixed)


def merge(how: Streaming, a: Partial, b: Partial) -> Partial:
    """What queries have gathered from the keys of both: associative, in whatever order.

    >>> nothing = Partial(jnp.array([-1e30]), jnp.zeros(1), jnp.zeros((1, 2)))
    >>> some = Partial(jnp.array([2.0]), jnp.ones(1), jnp.ones((1, 2)))
    >>> merge(softmax, nothing, some).mixed
    Array([[1., 1.]], dtype=float32)
    """
    reference = jnp.maximum(a.reference, b.reference)
    return a.relative(how, reference) + b.relative(how, reference)
