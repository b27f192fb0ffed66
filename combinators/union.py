"""Several dictionaries asked at once: their scores side by side under one normalizer."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from .branches import Branches
from .core.arguments import as_term, number
from .core.context import Context
from .core.dtypes import wide
from .core.errors import CompositionError
from .core.execution import Run
from .core.kinds import Kind, Width, mistaken, show, spec
from .core.leaf import Leaf
from .core.mesh import concatenated
from .core.parameter import Parameter
from .core.records import Entries, Scores, either
from .core.term import Term, form
from .core.types import Value

__all__ = ["sink", "union"]


@form
class Union(Branches):
    """See `union`."""

    parts: tuple[Term, ...]
    word = "union"

    def flow(self, kind: Kind) -> Kind:
        kinds = [part.flow(kind) for part in self.parts]
        for got in kinds:
            if got is not None and not isinstance(got, Scores):
                raise CompositionError(f"union joins scores, and a part gives {show(got)}")
        return next((k for k in kinds if k is not None), None)

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        tables = [run.part(self, i, x, context) for i in range(len(self.parts))]
        if len({(t.score.shape[0], t.value.shape[-1]) for t in tables}) > 1:
            raise CompositionError(
                "union joins scores of the same queries over values of one width: "
                + " and ".join(show(spec(t)) for t in tables)
            )
        return Scores(
            concatenated([t.score for t in tables]),
            jnp.concatenate([t.value for t in tables], 0),
            None,
            joined([(t.visible, t.score.shape) for t in tables]),
            joined([(t.active_keys, t.value.shape[:1]) for t in tables]),
            functools.reduce(either, [t.active_queries for t in tables]),
            one_after_another(tables),
        )


def one_after_another(tables: list[Scores]) -> Int[Array, "S"] | None:
    """The order of the keys of several dictionaries: those of each in their own order."""
    orders = [t.sorting for t in tables]
    if all(order is None for order in orders):
        return None
    counts = [t.score.shape[1] for t in tables]
    firsts = np.cumsum([0, *counts[:-1]])
    return jnp.concatenate([
        first + (jnp.arange(count) if order is None else order)
        for order, count, first in zip(orders, counts, firsts, strict=True)
    ])  # fmt: skip


def joined(masks: list[tuple[Array | None, tuple[int, ...]]]) -> Array | None:
    """Masks side by side, where None is true everywhere."""
    if all(mask is None for mask, _ in masks):
        return None
    filled = [jnp.ones(shape, bool) if mask is None else mask for mask, shape in masks]
    return concatenated(filled)


def union(*terms: Term) -> Term:
    """`union(f, g)` asks two dictionaries at once: their scores side by side, one normalizer.

    Each part turns the same input into Scores, with masks and biases of its own. Prefix tuning
    (Li and Liang 2021) is `union(score(scaled_dot), score(scaled_dot) @ slots(8))`; attention sinks
    are a union with `sink()`.

    Raises CompositionError where values differ in width.

    >>> from combinax.combinators import dot, project, score, slots
    >>> term = union(score(dot), score(dot) @ slots(3)) @ project(4)
    >>> x = jnp.zeros((5, 2))
    >>> term(term.init(jax.random.key(0), x), x).score.shape
    (5, 8)
    """
    return Union(tuple(as_term(term, "union") for term in terms))


@form
class sink(Leaf):
    """One more key that every query sees, with a learned score and value 0 (Xiao et al. 2023).

    `sink(0.0)` fixes the score instead: softmax divides by 1 + the sum of exponentials.

    >>> from combinax.combinators import project
    >>> (sink() @ project(2)).init(jax.random.key(0), jnp.zeros((3, 4)))["sink"]
    {'score': Array(0., dtype=float32)}
    """

    rowwise = True

    fixed: float | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.fixed is not None:
            number("the score of sink", self.fixed)

    def flow(self, kind: Kind) -> Kind:
        if kind is not None and not isinstance(kind, Entries):
            raise CompositionError(mistaken(self, "entries", kind))
        return Scores(Width(), kind.value if kind else Width(), None)

    def parameters(self, x: Entries) -> dict[str, Parameter]:
        return (
            {}
            if self.fixed is not None
            else {"score": Parameter((), jax.nn.initializers.zeros, ())}
        )

    def apply(self, params: Mapping[str, Array], x: Entries, context: Context) -> Scores:
        if not isinstance(x, Entries):
            raise CompositionError(mistaken(self, "entries", x))
        level = jnp.asarray(params["score"] if self.fixed is None else self.fixed, wide(x.query))
        value = jnp.zeros((1, x.value.shape[-1]), x.value.dtype)
        return Scores(jnp.full((x.query.shape[0], 1), level), value, None)
