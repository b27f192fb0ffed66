"""Row normalizers that need the whole row at once: their weights are a point of the simplex."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from .core.arguments import at_least
from .core.kinds import symbolic
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
        ordered, rank = in_order(z)
        inside, size = support(z, ordered, (jnp.cumsum(ordered, -1) - 1) / rank)
        tau = (jnp.sum(z, -1, where=inside, keepdims=True) - 1) / size
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
        ordered, rank = in_order(z)
        mean = jnp.cumsum(ordered, -1) / rank
        spread = jnp.cumsum(jnp.square(ordered), -1) - rank * jnp.square(mean)
        inside, size = support(z, ordered, mean - root((1 - spread) / rank))
        mean = jnp.sum(z, -1, where=inside, keepdims=True) / size
        spread = jnp.sum(jnp.square(z - mean), -1, where=inside, keepdims=True)
        tau = mean - root((1 - spread) / size)
        return shown(jnp.square(jnp.maximum(z - tau, 0)), visible, 0)


def in_order(z: Table) -> tuple[Table, Array]:
    """The scores of each row in descending order, as constants, and their ranks from 1."""
    ordered = -jnp.sort(-jax.lax.stop_gradient(z), -1)
    return ordered, jnp.arange(1, z.shape[-1] + 1, dtype=z.dtype)


def support(z: Table, ordered: Table, tau: Table) -> tuple[Bool[Array, "t s"], Table]:
    """Where the support of each row is, and its size; `tau` holds the threshold for each size.

    The threshold follows from the support, so no derivative passes through a sort. The support is
    what lies above the threshold of its size. It is not compared with its own least score, which a
    compiler may have computed with another rounding.
    """
    last = jnp.maximum(jnp.sum(tau < ordered, -1, keepdims=True), 1)
    sizes = jnp.arange(1, tau.shape[-1] + 1)
    inside = ~(z <= jnp.sum(tau, -1, where=sizes == last, keepdims=True))  # NaN stays visible
    return inside, jnp.sum(inside, -1, keepdims=True, dtype=z.dtype)


def root(x: Table) -> Table:
    """√max(x, 0), with derivative 0 where it is 0."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)


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
    ranked = shown(jnp.where(jnp.isnan(above), jnp.inf, above), visible, least)
    last = nth_largest(ranked, count)
    larger, level = ranked > last, ranked == last
    room = count - jnp.sum(larger, -1, keepdims=True)
    chosen = larger | level & (jnp.cumsum(level, -1) <= room)
    return chosen if visible is None else chosen & visible


def nth_largest(table: Table, count: int) -> Table:
    """The `count`-th largest number of each row, or the least of a row with fewer: (t, 1)."""
    columns = table.shape[-1]
    if symbolic((columns,)):  # top_k takes a number, which a symbol may fall short of
        table = jnp.pad(table, ((0, 0), (0, count)), constant_values=lowest(table))
        columns = count
    return jax.lax.top_k(table, min(count, columns))[0][:, -1:]
