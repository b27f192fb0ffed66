"""normalize: scores become weights. Scores -> Weights, weight 0 wherever a key is not visible.

A normalizer is elementwise (`gelu`, `sigmoid`: each score for itself; useless hints are cut) or
works on rows (`softmax`: hints compete). A row normalizer says what one block of keys
contributes, how two blocks merge, and what the weights are divided by in the end; the whole
table is the case of one block.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from .core.arguments import as_function, floats
from .core.context import Context
from .core.dtypes import widened
from .core.errors import CompositionError
from .core.kinds import Width, mistaken, show
from .core.leaf import Leaf
from .core.parameter import Parameter
from .core.printing import Write
from .core.records import Scores, Weights, both
from .core.source import documented, reference
from .core.term import form
from .primitives import pointwise

__all__ = [
    "RowNormalizer", "gelu", "gelu_tanh", "log_sum_exp", "normalize", "relu", "relu_squared",
    "row_sum", "sigmoid", "silu", "softmax",
]  # fmt: skip


# Functions of this module, so that terms made of them can be pickled.


def rectified(x: Array) -> Array:
    return jax.nn.relu(x)


def logistic(x: Array) -> Array:
    return jax.nn.sigmoid(x)


def swish(x: Array) -> Array:
    return jax.nn.silu(x)


def tanh_gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


def squared_relu(x: Array) -> Array:
    return jnp.square(jax.nn.relu(x))


def exact_gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


# Elementwise normalizers are pointwise terms: on an array they are the activation itself.

relu = documented("max(x, 0).", pointwise(rectified, "relu"))
relu_squared = documented("max(x, 0)² (So et al. 2021).", pointwise(squared_relu, "relu_squared"))
gelu = documented("x Φ(x), exact (Hendrycks and Gimpel 2016).", pointwise(exact_gelu, "gelu"))
gelu_tanh = documented(
    "The tanh form of gelu (Hendrycks and Gimpel 2016).", pointwise(tanh_gelu, "gelu_tanh")
)
silu = documented("x sigmoid(x) (Elfwing et al. 2017).", pointwise(swish, "silu"))
sigmoid = documented("1 / (1 + exp(-x)).", pointwise(logistic, "sigmoid"))


# Row normalizers


class RowNormalizer(Leaf):
    """A normalizer whose weights depend on the whole row. On an array it acts on the last axis.

    `weights(score, visible)` gives the weights of a table, (T, S); `visible` may be None. What
    `parameters(scores)` declares comes as keywords, `weights(score, visible, sharpness)`.
    """

    rowwise = True
    ordered: ClassVar[bool] = True
    """Whether weights may depend on the order of the keys, as among equals: columns then come in
    the order of positions."""

    def weights(self, score: Array, visible: Array | None, *args: Any, **params: Any) -> Array:
        raise NotImplementedError(f"{type(self).__name__} does not define weights")

    def prepared(self, x: Scores) -> Scores:
        """The scores as the equation takes them: -inf is hidden, and hidden scores are covered."""
        return prepared(x)

    def flow(self, kind: Any) -> Any:
        if isinstance(kind, (Scores, Weights)):
            raise CompositionError(f"{self!r} acts on arrays; on scores write normalize({self!r})")
        super().flow(kind)
        return kind

    def apply(self, params: Any, x: Array, context: Context) -> Array:
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

    def reference(self, score: Array, visible: Array | None, *args: Any, **params: Any) -> Array:
        """One number per row, (t,), to weigh relative to; the larger one of two blocks stands."""
        raise NotImplementedError(f"{type(self).__name__} does not define reference")

    def weigh(
        self, score: Array, visible: Array | None, reference: Array, *args: Any, **params: Any
    ) -> Array:
        """(t, s) scores to weights that still have to be scaled; 0 where not visible."""
        raise NotImplementedError(f"{type(self).__name__} does not define weigh")

    def rescale(self, old: Array, new: Array) -> Array:
        """The factor by which weights relative to `old` become weights relative to `new`."""
        raise NotImplementedError(f"{type(self).__name__} does not define rescale")

    def divisor(self, total: Array) -> Array:
        """What the row's weights are divided by in the end: 1 where they are all 0."""
        return jnp.where(total == 0, 1, total)

    def weights(self, score: Array, visible: Array | None, *args: Any, **params: Any) -> Array:
        reference = self.reference(score, visible, **params)
        weight = self.weigh(score, visible, reference, **params)
        return weight / self.divisor(weight.sum(-1))[:, None]


def shown(score: Array, visible: Array | None, otherwise: Any) -> Array:
    return score if visible is None else jnp.where(visible, score, otherwise)


def largest_visible(score: Array, visible: Array | None) -> Array:
    """The largest visible score of each row, and a finite one where all are -inf: a constant to
    derivatives."""
    least = lowest(score)
    return jax.lax.stop_gradient(jnp.max(shown(score, visible, least), -1, initial=least))


def lowest(score: Array) -> Any:
    """The unit of max. What is visible is told by a mask, never by this number."""
    return jnp.finfo(score.dtype).min


@jax.custom_jvp
def below(score: Array, largest: Array) -> Array:
    """score - largest, and exactly 0 for the largest score itself.

    A compiler may form the difference of score / t and a number with one rounding in place of two.
    The largest score then differs from itself by as much as its last digit is worth: at a
    temperature of 1e-12 by more than exp can take.
    """
    return jnp.where(score >= largest, jnp.zeros_like(score), score - largest)


@below.defjvp
def below_slope(given: Any, slopes: Any) -> tuple[Array, Array]:
    return below(*given), slopes[0] - slopes[1]


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

    def reference(self, score: Array, visible: Array | None) -> Array:
        return largest_visible(score, visible)

    def weigh(self, score: Array, visible: Array | None, reference: Array) -> Array:
        return jnp.exp(shown(below(score, reference[:, None]), visible, UNSEEN))

    def rescale(self, old: Array, new: Array) -> Array:
        return jnp.exp(old - new)


@form
class RowSum(Streaming):
    """x / sum of x: for scores that are positive already, as those of linear attention."""

    word = "row_sum"
    bare = True

    def prepared(self, x: Scores) -> Scores:
        return without_infinity(x)

    def reference(self, score: Array, visible: Array | None) -> Array:
        return jnp.zeros_like(score, shape=score.shape[:1])

    def weigh(self, score: Array, visible: Array | None, reference: Array) -> Array:
        return shown(score, visible, 0)

    def rescale(self, old: Array, new: Array) -> Array:
        return jnp.ones_like(old)


softmax = Softmax()
row_sum = RowSum()


@form
class Elementwise(Streaming):
    """Each score weighs by itself, whatever the others of its row are."""

    function: pointwise

    def prepared(self, x: Scores) -> Scores:
        if not self.function.label:
            return super().prepared(x)
        x = without_infinity(x)  # the functions of this package are finite at 0
        return x.replace(score=shown(x.score, x.visible, 0))

    def reference(self, score: Array, visible: Array | None) -> Array:
        return jnp.zeros_like(score, shape=score.shape[:1])

    def weigh(self, score: Array, visible: Array | None, reference: Array) -> Array:
        return shown(self.function.function(score), visible, 0)

    def rescale(self, old: Array, new: Array) -> Array:
        return jnp.ones_like(old)

    def divisor(self, total: Array) -> Array:
        return jnp.ones_like(total)

    def weights(self, score: Array, visible: Array | None) -> Array:
        return self.weigh(score, visible, score)


# The word


def takes_visible(function: Any) -> bool:
    """Whether a function asks for two arguments. A second one with a default is another's, such as
    an axis, unless it is called visible."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not known: what is wrong shows when it is called
        return True
    asked = [p for p in parameters if p.default is p.empty or p.name == "visible"]
    return len(asked) == 2 or any(p.kind is p.VAR_POSITIONAL for p in asked)


@form
class normalize(Leaf):
    """Turns scores into weights: Scores -> Weights, weight (T, S), 0 for keys not visible.

    It takes `softmax`, `sigmoid`, `relu`, `relu_squared`, `gelu`, `gelu_tanh`, `silu`, `identity`,
    `row_sum`, `sparsemax`, `entmax15`, `top_k(k)`, `hardmax`; `pointwise(fn)` of your own; or a
    function of a whole table, `fn(score, visible) -> weight`, where visible may be None. A score of
    -inf counts as hidden.

    >>> scores = Scores(jnp.zeros((1, 2)), jnp.ones((2, 1)), None)
    >>> normalize(softmax)({}, scores).weight
    Array([[0.5, 0.5]], dtype=float32)
    """

    role = "normalizes"

    rowwise = True

    how: Any

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.how, (pointwise, RowNormalizer)):
            takes = "a normalizer such as softmax, pointwise(fn), or a function of (score, visible)"
            function = as_function(self.how, "normalize", takes)
            if not takes_visible(function):
                raise CompositionError(
                    f"normalize takes a function of (score, visible), and {reference(function)} is "
                    "not one: write normalize(softmax) for softmax, normalize(pointwise(…)) for a "
                    "function of each score by itself"
                )

    def text(self, write: Write) -> str:
        return f"normalize({reference(self.how)})"

    def flow(self, kind: Any) -> Any:
        if kind is None:
            return Weights(Width(), Width())
        if not isinstance(kind, Scores):
            raise CompositionError(mistaken(self, "scores", kind))
        return Weights(Width(), kind.value)

    @property
    def rows(self) -> Any:
        """How a row of scores becomes weights: a RowNormalizer, or a function of a whole table."""
        return Elementwise(self.how) if isinstance(self.how, pointwise) else self.how

    def parameters(self, x: Scores) -> dict[str, Parameter]:
        if not isinstance(x, Scores):
            raise CompositionError(mistaken(self, "scores", x))
        return self.rows.parameters(x.score) if isinstance(self.rows, RowNormalizer) else {}

    def apply(self, params: Mapping[str, Array], x: Scores, context: Context) -> Weights:
        score = widened(x.score)
        order = x.sorting if getattr(self.rows, "ordered", True) else None
        if not score.shape[-1]:
            weight = score
        elif order is None:
            weight = self.weights(params, x.replace(score=score))
        else:
            visible = None if x.visible is None else x.visible[:, order]
            columns = x.replace(score=score[:, order], visible=visible)
            weight = self.weights(params, columns)[:, jnp.argsort(order)]
        return Weights(weight, x.value, x.marks, x.active_keys, x.order)

    def weights(self, params: Mapping[str, Array], x: Scores) -> Array:
        if isinstance(self.rows, RowNormalizer):
            x = self.rows.prepared(x)
            weight = self.rows.weights(x.score, x.visible, **params)
        else:
            x = prepared(x)
            weight = self.rows(x.score, x.visible)
        if weight.shape != x.score.shape:
            raise CompositionError(
                f"{self!r} gives weights {show(weight)} for scores {show(x.score)}"
            )
        # A stream weighs what is hidden as 0.
        return weight if isinstance(self.rows, Streaming) else shown(widened(weight), x.visible, 0)


@form
class LogSumExp(Leaf):
    """log of the sum of exp over a row's visible scores: Scores -> (T,); -inf if it sees none."""

    rowwise = True
    word = "log_sum_exp"
    bare = True

    def flow(self, kind: Any) -> Any:
        if kind is not None and not isinstance(kind, Scores):
            raise CompositionError(mistaken(self, "scores", kind))
        return Width()

    def apply(self, params: Any, x: Scores, context: Context) -> Array:
        if not x.score.shape[-1]:
            return jnp.full(x.score.shape[:1], -jnp.inf, x.score.dtype)
        score = widened(x.score)
        largest = softmax.reference(score, x.visible)
        return self.value(largest, softmax.weigh(score, x.visible, largest).sum(-1))

    def value(self, reference: Array, total: Array) -> Array:
        """From the sum of exponentials relative to a reference; it is 0 where nothing is seen."""
        value = reference + jnp.log(softmax.divisor(total))
        return jnp.where(total == 0, -jnp.inf, value)


log_sum_exp = LogSumExp()
