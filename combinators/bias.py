"""Scores -> Scores: biases by position or from a table, soft-caps and temperatures."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import PyTree

from .core.arguments import as_function, positive
from .core.context import Context
from .core.dtypes import counts_as, floating, widened
from .core.errors import CompositionError
from .core.guards import as_names
from .core.kinds import Kind, Width, fits
from .core.leaf import Leaf, Stage, spread
from .core.marks import Marks, Rows
from .core.pairs import answered, check_pairs
from .core.parameter import Parameter
from .core.records import Scores
from .core.source import PACKAGE
from .core.term import Term, form
from .core.types import Table, Value
from .primitives import Source, read

__all__ = ["Bias", "bias", "softcap", "temperature"]


class Elementwise(Stage):
    """A stage that needs nothing but the numbers: it acts on plain arrays, too."""

    def flow(self, kind: Kind) -> Kind:
        return kind if isinstance(kind, Width) else super().flow(kind) if kind else None

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        if isinstance(x, Scores):
            return super().apply(params, x, context)
        return self.tile(self.operands(params, context), x, None)


@form
class softcap(Elementwise):
    """cap · tanh(x / cap): keeps scores within ±cap (Gemma 2, 2024); on arrays, too.

    >>> softcap(5.0)({}, jnp.array([0.0, 1e6]))
    Array([0., 5.], dtype=float32)
    """

    cap: float

    def __post_init__(self):
        super().__post_init__()
        positive("cap", self.cap)

    def tile(self, operands: PyTree[Array], score: Table, marks: Marks | None) -> Table:
        return self.cap * jnp.tanh(score / self.cap)


@form
class temperature(Elementwise):
    """score / t: below 1 sharpens, above 1 flattens; on arrays, logits for one, too, whose type of
    floats stays. t is a number, `learned(())` or `read(name)`; or a table, as `bias` takes it, such
    as `learned((T, 1))` for one of each query.

    >>> from combinax.combinators import learned
    >>> temperature(learned(())).inner
    learned(())
    """

    inner: float | Source

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.inner, Source):
            positive("temperature", self.inner)

    @property
    def reads(self) -> frozenset[str]:
        return self.inner.reads if isinstance(self.inner, Source) else frozenset()

    def parameters(self, x: Value) -> dict[str, Parameter]:
        return self.inner.parameters(x) if isinstance(self.inner, Source) else {}

    def operands(self, params: Mapping[str, Array], context: Context) -> PyTree[Array]:
        if not isinstance(self.inner, Source):
            return self.inner
        value = self.inner.apply(params, None, context)
        known = isinstance(self.inner, read) and not isinstance(value, Tracer)
        if known and not (np.asarray(value) > 0).all():
            raise CompositionError(f"temperature is positive, and {self.inner!r} is {value}")
        return value

    def tile(self, operands: PyTree[Array], score: Table, marks: Marks | None) -> Table:
        table = marks is not None and jnp.ndim(operands)
        wide = widened(score)
        divided = wide / as_scores(cut(operands, marks) if table else operands, wide)
        return divided.astype(counts_as(score))

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        if isinstance(x, Scores) and isinstance(self.inner, Source):
            check_table(self, self.operands(params, context), x)
        return super().apply(params, x, context)


@form
class bias(Stage):
    """Adds a number to each score: Scores -> Scores.

    `what` is any function of marks, `lambda query, key: -abs(query.position - key.position)`; a
    bias of the vocabulary (`alibi`, `relative(n)`, `t5_buckets()`); or a table, `learned(shape)` or
    `read(name)`, of shape (T, S), (S,) or (), where an axis of size 1 counts for all rows.
    Give the names of context rows that a function wants with `rows`: they are then in
    `query[name]` and `key[name]`.

    Raises CompositionError for a table, or what a function gives, of another shape.

    >>> bias(alibi)
    bias(alibi)
    """

    what: Any
    rows: str | tuple[str, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.what, Term) and not isinstance(self.what, (Source, Bias)):
            raise CompositionError(
                f"bias takes a function of marks, learned(shape) or read(name), not {self.what!r}"
            )
        if not isinstance(self.what, Term):
            as_function(self.what, "bias", "a function of marks, learned(shape) or read(name)")
        object.__setattr__(self, "rows", as_names(self.rows, "rows of bias"))

    @property
    def marked(self) -> bool:
        return not isinstance(self.what, Source)

    @property
    def facts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        rows = as_names(self.rows, "rows of bias")
        return rows, rows

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        return frozenset(self.facts[0]) | getattr(self.what, "reads", frozenset())

    def parameters(self, x: Scores) -> dict[str, Parameter]:
        return self.what.parameters(x) if isinstance(self.what, Leaf) else {}

    def operands(self, params: Mapping[str, Array], context: Context) -> PyTree[Array]:
        if isinstance(self.what, Source):
            return self.what.apply(params, None, context)
        return self.what.operands(params, context) if isinstance(self.what, Bias) else None

    def tile(self, operands: PyTree[Array], score: Table, marks: Any) -> Table:
        if isinstance(self.what, Source):
            added = cut(operands, marks)
        else:
            added = self.added(operands, marks.query, marks.key)
        if not fits(jnp.shape(added), score.shape):
            raise CompositionError(
                f"{self!r} adds one number per query and key, {score.shape}, where an axis of size "
                f"1 counts for all; this one gives {jnp.shape(added)}"
            )
        return score + as_scores(added, score)

    def added(self, operands: PyTree[Array], query: Rows, key: Rows) -> ArrayLike:
        """The numbers that a function of marks adds to the scores of a tile."""
        if isinstance(self.what, Bias):
            return self.what.tile(operands, Marks(query, key))
        return answered(self, self.what(query, key))

    def apply(self, params: Mapping[str, Array], x: Scores, context: Context) -> Scores:
        operands = self.operands(params, context)
        marks: Any = spread(self, x.marks, context)
        if isinstance(self.what, Source):
            check_table(self, operands, x)
        elif not type(self.what).__module__.startswith(PACKAGE) and not x.marks.in_part:
            check_pairs(repr(self), self.added, marks, operands)
        return x.replace(score=self.tile(operands, x.score, marks))


def as_scores(value: ArrayLike, score: Array) -> Array:
    """Numbers that are computed with scores, in the type of the scores."""
    return floating(jnp.asarray(value)).astype(score.dtype)


def check_table(stage: Term, table: ArrayLike, x: Scores) -> None:
    in_part = x.marks and x.marks.in_part  # of a tile the whole table is not known
    shape = jnp.shape(table)
    if not in_part and not fits(shape, x.score.shape):
        raise CompositionError(
            f"{stage!r} needs a table of shape {x.score.shape}, where an axis of size 1 counts for "
            f"all; it has shape {shape}. A table per head or sequence is mapped with them: "
            "heads(n, f, name=…), each(f)"
        )


def cut(table: ArrayLike, marks: Marks | None) -> Array:
    """The part of a captured (T, S) table that belongs to a tile."""
    padded = jnp.reshape(table, (1,) * (2 - jnp.ndim(table)) + jnp.shape(table))
    if marks is None:
        return padded
    return marks.key.take(marks.query.take(padded, 0), 1)


class Bias(Leaf):
    """What `bias` adds, as a function of a tile's marks, with parameters if it likes."""

    def operands(self, params: Mapping[str, Array], context: Context) -> PyTree[Array]:
        return params

    def tile(self, operands: PyTree[Array], marks: Marks) -> Table:
        raise NotImplementedError(f"{type(self).__name__} does not define tile")


small_normal = jax.nn.initializers.normal(0.02)
