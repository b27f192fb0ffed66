"""Scores -> Scores: biases by position or from a table, soft-caps and temperatures."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from .dtypes import counts_as, floating, widened
from .errors import CompositionError
from .guards import as_names
from .kinds import Width, fits
from .mesh import entries_at
from .pairs import check_pairs
from .parameter import Parameter
from .project import at_least, boolean
from .records import Marks, Scores
from .run import Context
from .term import Leaf, Stage, Term, as_function, form, spread
from .values import Source, read
from .written import Write

__all__ = [
    "Bias", "alibi", "alibi_slopes", "bias", "relative", "softcap", "t5_buckets", "temperature",
]  # fmt: skip


class Elementwise(Stage):
    """A stage that needs nothing but the numbers: it acts on plain arrays, too."""

    def flow(self, kind: Any) -> Any:
        return kind if isinstance(kind, Width) else super().flow(kind) if kind else None

    def apply(self, params: Any, x: Any, context: Context) -> Any:
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
        if not self.cap > 0:
            raise CompositionError(f"cap is a positive number, not {self.cap!r}")

    def tile(self, operands: Any, score: Array, marks: Marks | None) -> Array:
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
        if not isinstance(self.inner, Source) and not self.inner > 0:
            raise CompositionError(f"temperature is a positive number, not {self.inner!r}")

    @property
    def reads(self) -> frozenset[str]:
        return self.inner.reads if isinstance(self.inner, Source) else frozenset()

    def parameters(self, x: Any) -> dict[str, Parameter]:
        return self.inner.parameters(x) if isinstance(self.inner, Source) else {}

    def operands(self, params: Mapping[str, Array], context: Context) -> Any:
        if not isinstance(self.inner, Source):
            return self.inner
        value = self.inner.apply(params, None, context)
        known = isinstance(self.inner, read) and not isinstance(value, Tracer)
        if known and not (np.asarray(value) > 0).all():
            raise CompositionError(f"temperature is positive, and {self.inner!r} is {value}")
        return value

    def tile(self, operands: Any, score: Array, marks: Marks | None) -> Array:
        table = marks is not None and jnp.ndim(operands)
        wide = widened(score)
        divided = wide / as_scores(cut(operands, marks) if table else operands, wide)
        return divided.astype(counts_as(score))

    def apply(self, params: Any, x: Any, context: Context) -> Any:
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

    def operands(self, params: Mapping[str, Array], context: Context) -> Any:
        if isinstance(self.what, Source):
            return self.what.apply(params, None, context)
        return self.what.operands(params, context) if isinstance(self.what, Bias) else None

    def tile(self, operands: Any, score: Array, marks: Any) -> Array:
        if isinstance(self.what, Source):
            added = cut(operands, marks)
        elif isinstance(self.what, Bias):
            added = self.what.tile(operands, marks)
        else:
            added = self.what(marks.query, marks.key)
        if not fits(jnp.shape(added), score.shape):
            raise CompositionError(
                f"{self!r} adds one number per query and key, {score.shape}, where an axis of size "
                f"1 counts for all; this one gives {jnp.shape(added)}"
            )
        return score + as_scores(added, score)

    def apply(self, params: Any, x: Scores, context: Context) -> Scores:
        operands = self.operands(params, context)
        if isinstance(self.what, Source):
            check_table(self, operands, x)
        elif not isinstance(self.what, Term) and not (x.marks and x.marks.in_part):
            pairs: Any = spread(self, x.marks, context)
            check_pairs(repr(self), self.what, pairs)
        score = self.tile(operands, x.score, spread(self, x.marks, context))
        return x.replace(score=score)


def as_scores(value: Any, score: Array) -> Array:
    """Numbers that are computed with scores, in the type of the scores."""
    return floating(jnp.asarray(value)).astype(score.dtype)


def check_table(stage: Term, table: Any, x: Scores) -> None:
    in_part = x.marks and x.marks.in_part  # of a tile the whole table is not known
    shape = jnp.shape(table)
    if not in_part and not fits(shape, x.score.shape):
        raise CompositionError(
            f"{stage!r} needs a table of shape {x.score.shape}, where an axis of size 1 counts for "
            f"all; it has shape {shape}. A table per head or sequence is mapped with them: "
            "heads(n, f, name=…), each(f)"
        )


def cut(table: Any, marks: Marks | None) -> Array:
    """The part of a captured (T, S) table that belongs to a tile."""
    padded = jnp.reshape(table, (1,) * (2 - jnp.ndim(table)) + jnp.shape(table))
    if marks is None:
        return padded
    return marks.key.take(marks.query.take(padded, 0), 1)


class Bias(Leaf):
    """What `bias` adds, as a function of a tile's marks, with parameters if it likes."""

    def operands(self, params: Mapping[str, Array], context: Context) -> Any:
        return params

    def tile(self, operands: Any, marks: Marks) -> Array:
        raise NotImplementedError(f"{type(self).__name__} does not define tile")


@form
class Alibi(Bias):
    """-slope(head) · |distance| (Press et al. 2022): the farther, the lower, and linearly so.

    The slopes of n heads are `alibi_slopes(n)`; it stands inside `heads(n, …)`.
    """

    word = "alibi"

    def text(self, write: Write) -> str:
        return "alibi"

    def operands(self, params: Any, context: Context) -> Array:
        head = context.scope.head
        if head is None:
            raise CompositionError("alibi gives each head a slope: use it inside heads(n, …)")
        return entries_at(jnp.asarray(alibi_slopes(head.count)), head.index)

    def tile(self, operands: Array, marks: Marks) -> Array:
        apart = jnp.abs(marks.query.position - marks.key.position)
        return -operands * apart.astype(operands.dtype)


alibi = Alibi()


def alibi_slopes(heads: int) -> np.ndarray:
    """The slope of every head: 2^(-8/n), 2^(-16/n), … for n a power of two; otherwise those of the
    next lower power, then every other one of the next higher (Press et al. 2022).

    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    at_least(1, "alibi_slopes", heads=heads)
    lower = 2 ** int(np.log2(heads))
    powers = lambda n: 2.0 ** (-8 / n * np.arange(1, n + 1))  # noqa: E731
    return np.concatenate([powers(lower), powers(2 * lower)[::2][: heads - lower]])


small_normal = jax.nn.initializers.normal(0.02)


class Distances(Bias):
    """A learned number for each bucket of the distance key - query, clipped to ±reach."""

    reach: int

    def buckets(self) -> np.ndarray:
        """The entry of the table for every distance from -reach to reach."""
        raise NotImplementedError(f"{type(self).__name__} does not define buckets")

    def parameters(self, x: Any) -> dict[str, Parameter]:
        entries = int(self.buckets().max()) + 1
        return {"table": Parameter((entries,), small_normal, ("positions",))}

    def operands(self, params: Mapping[str, Array], context: Context) -> Array:
        return jnp.asarray(params["table"])[self.buckets()]

    def tile(self, operands: Array, marks: Marks) -> Array:
        apart = marks.key.position - marks.query.position
        return entries_at(operands, jnp.clip(apart, -self.reach, self.reach) + self.reach)


@form
class relative(Distances):
    """A learned number for each distance from -n to n, clipped beyond (Shaw et al. 2018).

    Raises CompositionError for an n below 0.

    >>> from combinax.combinators import dot, project, score
    >>> term = bias(relative(2)) @ score(dot) @ project(1)
    >>> term.init(jax.random.key(0), jnp.zeros((3, 1)))["bias"]["table"].shape
    (5,)
    """

    reach: int

    def __post_init__(self):
        super().__post_init__()
        at_least(0, self, reach=self.reach)

    def buckets(self) -> np.ndarray:
        return np.arange(2 * self.reach + 1)


@form
class t5_buckets(Distances):
    """A learned number for each bucket of distance (Raffel et al. 2020): the first half of the
    buckets one distance each, the others logarithmically wider up to `reach`. Without
    `bidirectional` all buckets look back, as in a decoder.

    >>> t5_buckets(8, 16, bidirectional=False).buckets()[:17].tolist()
    [7, 7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 4, 4, 3, 2, 1, 0]
    """

    count: int = 32
    reach: int = 128
    bidirectional: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        boolean(self, bidirectional=self.bidirectional)
        at_least(4 if self.bidirectional else 2, self, count=self.count)
        at_least(self.count // 2 + 1, self, reach=self.reach)

    def buckets(self) -> np.ndarray:
        apart = np.arange(-self.reach, self.reach + 1)
        count = self.count // 2 if self.bidirectional else self.count
        back = np.abs(apart) if self.bidirectional else np.maximum(-apart, 0)
        exact = count // 2
        far = np.log(np.maximum(back, 1) / exact) / np.log(self.reach / exact)
        far = exact + np.floor(far * (count - exact) + 1e-9).astype(int)
        bucket = np.where(back < exact, back, np.minimum(far, count - 1))
        return bucket + (count * (apart > 0) if self.bidirectional else 0)
