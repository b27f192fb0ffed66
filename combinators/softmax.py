"""Row normalizers, whose weights depend on the other scores of the row, and those that stream.

A row normalizer gives the weights of a whole table. One that streams says what one block of keys
contributes, how two blocks merge, and what the weights are divided by in the end; the whole table
is the case of one block. Softmax is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from .core.arguments import floats
from .core.context import Context
from .core.dtypes import widened
from .core.errors import CompositionError
from .core.kinds import Kind, Width, mistaken
from .core.leaf import Leaf, SameShape
from .core.records import Scores, Weights, both
from .core.term import form
from .core.types import Table, Visible

__all__ = ["RowNormalizer", "Streaming", "log_sum_exp", "row_sum", "softmax"]


class RowNormalizer(SameShape):
    """A normalizer whose weights depend on the whole row. On an array it acts on the last axis.

    `weights(score, visible)` gives the weights of a table, (T, S); `visible` may be None. What
    `parameters(scores)` declares comes as keywords, `weights(score, visible, sharpness)`.
    """

    rowwise = True
    ordered: ClassVar[bool] = True
    """Whether weights may depend on the order of the keys, as among equals: columns then come in
    the order of positions."""

    def weights(self, score: Table, visible: Visible, *args: Any, **params: Any) -> Table:
        raise NotImplementedError(f"{type(self).__name__} does not define weights")

    def prepared(self, x: Scores) -> Scores:
        """The scores as the equation takes them: -inf is hidden, and hidden scores are covered."""
        return prepared(x)

    def flow(self, kind: Kind) -> Kind:
        if isinstance(kind, (Scores, Weights)):
            raise CompositionError(f"{self!r} acts on arrays; on scores write normalize({self!r})")
        return super().flow(kind)

    def apply(
        self, params: Mapping[str, Array], x: Float[Array, "*T S"], context: Context
    ) -> Float[Array, "*T S"]:
        floats(self, x)
        rows = self.prepared(Scores(widened(x.reshape(-1, x.shape[-1])), None, None))
        weight = self.weights(rows.score, rows.visible, **params)
        return shown(weight, rows.visible, 0).reshape(x.shape).astype(x.dtype)


def prepared(x: Scores) -> Scores:
    """The scores with -inf hidden, and with hidden ones replaced by visible ones."""
    x = without_infinity(x)
    return x.replace(score=x.covered)


def without_infinity(x: Scores) -> Scores:
    """The scores, with those of -inf hidden."""
    return x.replace(visible=both(x.visible, x.score != -jnp.inf))


class Streaming(RowNormalizer):
    """A row normalizer that can take its keys block by block.

    A weight is `weigh(score, visible, reference)`, a function of that score alone relative to one
    number for the row, over `divisor(total)`, total being the sum of the row's `weigh`. Two blocks
    of keys merge by `rescale`: what was weighed relative to one reference counts so much relative
    to another. Together they are a monoid, of which the whole table is the case of one block.
    """

    ordered = False

    def reference(
        self, score: Table, visible: Visible, *args: Any, **params: Any
    ) -> Float[Array, "t"]:
        """One number per row, (t,), to weigh relative to; the larger one of two blocks stands."""
        raise NotImplementedError(f"{type(self).__name__} does not define reference")

    def weigh(
        self, score: Table, visible: Visible, reference: Float[Array, "t"],
        *args: Any, **params: Any,
    ) -> Table:  # fmt: skip
        """(t, s) scores to weights that still have to be scaled; 0 where not visible."""
        raise NotImplementedError(f"{type(self).__name__} does not define weigh")

    def rescale(self, old: Float[Array, "t"], new: Float[Array, "t"]) -> Float[Array, "t"]:
        """The factor by which weights relative to `old` become weights relative to `new`."""
        raise NotImplementedError(f"{type(self).__name__} does not define rescale")

    def divisor(self, total: Float[Array, "t"]) -> Float[Array, "t"]:
        """The divisor of the row's weights: 1 where they are all 0."""
        return jnp.where(total == 0, 1, total)

    def weights(self, score: Table, visible: Visible, *args: Any, **params: Any) -> Table:
        reference = self.reference(score, visible, **params)
        weight = self.weigh(score, visible, reference, **params)
        return weight / self.divisor(weight.sum(-1))[:, None]


def shown(score: Table, visible: Visible, otherwise: ArrayLike) -> Table:
    return score if visible is None else jnp.where(visible, score, otherwise)


def largest_visible(score: Table, visible: Visible) -> Float[Array, "t"]:
    """The largest visible score of each row, and a finite one where all are -inf: a constant to
    derivatives."""
    least = lowest(score)
    return jax.lax.stop_gradient(jnp.max(shown(score, visible, least), -1, initial=least))


def lowest(score: Array | jax.ShapeDtypeStruct) -> ArrayLike:
    """The unit of max. What is visible is told by a mask, never by this number."""
    return jnp.finfo(score.dtype).min


def below(score: Table, largest: Float[Array, "t 1"]) -> Table:
    """score - largest, and exactly 0 for the largest score itself; `largest` is a constant.

    A compiler may form the difference of score / t and a number with one rounding in place of two.
    The largest score then differs from itself by as much as its last digit is worth: at a
    temperature of 1e-12 by more than exp can take. A rule of its own (`jax.custom_jvp`) would say
    this as well, but the second derivative of a scan loses such rules (JAX 0.10).
    """
    zero = score - jax.lax.stop_gradient(score)  # with the derivative of the score
    return jnp.where(score >= largest, zero, score - largest)


UNSEEN = -1000.0
"""Relative to the largest score of a row: its exponential is exactly 0, in float64 as well."""


@form
class Softmax(Streaming):
    """exp(x) / sum of exp(x), computed relative to the largest visible score.

    A hidden score counts as one so far below the largest that its exponential is exactly 0.
    """

    word = "softmax"
    bare = True

    def prepared(self, x: Scores) -> Scores:
        """As they are: the exponential of -inf is 0, and so is its derivative."""
        return x

    def reference(self, score: Table, visible: Visible) -> Float[Array, "t"]:
        return largest_visible(score, visible)

    def weigh(self, score: Table, visible: Visible, reference: Float[Array, "t"]) -> Table:
        return jnp.exp(shown(below(score, reference[:, None]), visible, UNSEEN))

    def rescale(self, old: Float[Array, "t"], new: Float[Array, "t"]) -> Float[Array, "t"]:
        return jnp.exp(old - new)


@form
class RowSum(Streaming):
    """x / sum of x: for scores that are positive already, as those of linear attention."""

    word = "row_sum"
    bare = True

    def prepared(self, x: Scores) -> Scores:
        return without_infinity(x)

    def reference(self, score: Table, visible: Visible) -> Float[Array, "t"]:
        return jnp.zeros_like(score, shape=score.shape[:1])

    def weigh(self, score: Table, visible: Visible, reference: Float[Array, "t"]) -> Table:
        return shown(score, visible, 0)

    def rescale(self, old: Float[Array, "t"], new: Float[Array, "t"]) -> Float[Array, "t"]:
        return jnp.ones_like(old)


softmax = Softmax()
row_sum = RowSum()


@form
class LogSumExp(Leaf):
    """log of the sum of exp over a row's visible scores: Scores -> (T,); -inf if it sees none."""

    rowwise = True
    word = "log_sum_exp"
    bare = True

    def flow(self, kind: Kind) -> Kind:
        if kind is not None and not isinstance(kind, Scores):
            raise CompositionError(mistaken(self, "scores", kind))
        return Width()

    def apply(self, params: Mapping[str, Array], x: Scores, context: Context) -> Float[Array, "T"]:
        if not x.score.shape[-1]:
            return jnp.full(x.score.shape[:1], -jnp.inf, x.score.dtype)
        score = widened(x.score)
        largest = softmax.reference(score, x.visible)
        return self.value(largest, softmax.weigh(score, x.visible, largest).sum(-1))

    def value(self, reference: Float[Array, "t"], total: Float[Array, "t"]) -> Array:
        """From the sum of exponentials relative to a reference; it is 0 where nothing is seen."""
        value = reference + jnp.log(softmax.divisor(total))
        return jnp.where(total == 0, -jnp.inf, value)


log_sum_exp = LogSumExp()
