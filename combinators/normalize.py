"""normalize: scores become weights. Scores -> Weights, weight 0 wherever a key is not visible.

A normalizer is elementwise (`gelu`, `sigmoid`: each score for itself; useless hints are cut) or
works on rows (`softmax`: hints compete).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Protocol

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from .core.arguments import as_function
from .core.context import Context
from .core.dtypes import widened
from .core.errors import CompositionError
from .core.kinds import Kind, Width, mistaken, show
from .core.leaf import Leaf
from .core.parameter import Parameter
from .core.printing import Write
from .core.records import Scores, Weights
from .core.source import reference
from .core.term import form
from .core.types import Table, Visible
from .primitives import pointwise
from .softmax import RowNormalizer, Streaming, prepared, shown, without_infinity

__all__ = ["normalize"]


@form
class Elementwise(Streaming):
    """Each score weighs by itself, whatever the others of its row are."""

    function: pointwise

    def prepared(self, x: Scores) -> Scores:
        if not self.function.label:
            return super().prepared(x)
        x = without_infinity(x)  # the functions of this package are finite at 0
        return x.replace(score=shown(x.score, x.visible, 0))

    def reference(self, score: Table, visible: Visible) -> Float[Array, "t"]:
        return jnp.zeros_like(score, shape=score.shape[:1])

    def weigh(self, score: Table, visible: Visible, reference: Float[Array, "t"]) -> Table:
        return shown(self.function.function(score), visible, 0)

    def rescale(self, old: Float[Array, "t"], new: Float[Array, "t"]) -> Float[Array, "t"]:
        return jnp.ones_like(old)

    def divisor(self, total: Float[Array, "t"]) -> Float[Array, "t"]:
        return jnp.ones_like(total)

    def weights(self, score: Table, visible: Visible) -> Table:
        return self.weigh(score, visible, score)


# The word


class NormalizerFunction(Protocol):
    """A function of a whole table of scores and of what is visible: its weights."""

    def __call__(self, score: Table, visible: Visible, /) -> Table: ...


def takes_visible(function: Callable) -> bool:
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

    how: pointwise | RowNormalizer | NormalizerFunction

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

    def flow(self, kind: Kind) -> Kind:
        if kind is None:
            return Weights(Width(), Width())
        if not isinstance(kind, Scores):
            raise CompositionError(mistaken(self, "scores", kind))
        return Weights(Width(), kind.value)

    @property
    def rows(self) -> RowNormalizer | NormalizerFunction:
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

    def weights(self, params: Mapping[str, Array], x: Scores) -> Table:
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
