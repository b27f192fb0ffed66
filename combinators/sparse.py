"""Row normalizers that need the whole row at once: their weights are a point of the simplex."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from .core.arguments import at_least
from .core.term import form
from .core.types import Table, Visible
from .softmax import RowNormalizer, largest_visible, lowest, shown, softmax

__all__ = ["entmax15", "hardmax", "sparsemax", "top_k"]


@form
class Sparsemax(RowNormalizer):
    """The nearest point of the simplex: max(x - τ, 0) with sum 1 (Martins and Astudillo 2016)."""

    word = "sparsemax"
    bare = True
    ordered = False

    def weights(self, score: Table, visible: Visible) -> Table:
        # Relative to the largest, a score at or below -1 has weight 0, and so has a hidden one.
        z = shown(score, visible, 0) - largest_visible(score, visible)[:, None]
        z = jnp.maximum(shown(z, visible, -2), -2)
        ordered = -jnp.sort(-z, -1)
        rank = jnp.arange(1, z.shape[-1] + 1, dtype=z.dtype)
        total = jnp.cumsum(ordered, -1)
        support = jnp.sum(1 + rank * ordered > total, -1, keepdims=True)
        least = jnp.take_along_axis(total, jnp.maximum(support - 1, 0), -1)
        tau = (least - 1) / support.astype(z.dtype)
        return shown(jnp.maximum(z - tau, 0), visible, 0)


@form
class Entmax15(RowNormalizer):
    """max(x/2 - τ, 0)² with sum 1: between softmax and sparsemax (Peters et al. 2019)."""

    word = "entmax15"
    bare = True
    ordered = False

    def weights(self, score: Table, visible: Visible) -> Table:
        z = (shown(score, visible, 0) - largest_visible(score, visible)[:, None]) / 2
        z = jnp.maximum(shown(z, visible, -2), -2)
        ordered = -jnp.sort(-z, -1)
        rank = jnp.arange(1, z.shape[-1] + 1, dtype=z.dtype)
        mean = jnp.cumsum(ordered, -1) / rank
        spread = jnp.cumsum(jnp.square(ordered), -1) - rank * jnp.square(mean)
        left = jnp.maximum((1 - spread) / rank, 0)
        tau = mean - jnp.where(left > 0, jnp.sqrt(jnp.where(left > 0, left, 1)), 0)
        support = jnp.sum(tau <= ordered, -1, keepdims=True)
        chosen = jnp.take_along_axis(tau, jnp.maximum(support - 1, 0), -1)
        return shown(jnp.square(jnp.maximum(z - chosen, 0)), visible, 0)


sparsemax = Sparsemax()


entmax15 = Entmax15()


@form
class top_k(RowNormalizer):
    """softmax over the k largest visible scores of a row, the earlier key first among equals.

    >>> (top_k(2)({}, jnp.array([[1.0, 2.0, 2.0]]))).tolist()
    [[0.0, 0.5, 0.5]]
    """

    count: int

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, count=self.count)

    def weights(self, score: Table, visible: Visible) -> Table:
        kept = foremost(score, visible, self.count)
        return softmax.weights(score, kept)


@form
class Hardmax(RowNormalizer):
    """1 for the largest visible score of a row, the earlier key first among equals, and 0 else."""

    word = "hardmax"
    bare = True

    def weights(self, score: Table, visible: Visible) -> Table:
        return foremost(score, visible, 1).astype(score.dtype)


hardmax = Hardmax()


def foremost(score: Table, visible: Visible, count: int) -> Bool[Array, "t s"]:
    """Where the `count` largest visible scores of each row stand, of equal ones the earlier."""
    least = jnp.asarray(lowest(score))
    above = jnp.maximum(jax.lax.stop_gradient(score) + 0.0, jnp.nextafter(least, 0.0))  # -0 is 0
    _, best = jax.lax.top_k(shown(above, visible, least), min(count, score.shape[-1]))
    chosen = jnp.put_along_axis(jnp.zeros(score.shape, bool), best, True, -1, inplace=False)
    return chosen if visible is None else chosen & visible
