"""The values that flow: Entries --score--> Scores --normalize--> Weights --aggregate--> array.

A record carries more than its stage needs; a stage acts on its part and passes the rest along.
That is what lets the five words be written point-free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self, TypeVar, cast, dataclass_transform

import jax
import jax.numpy as jnp
from jax import Array

from .dtypes import counts_as, floating, row_numbers, wide
from .errors import ContextError
from .mesh import undivided

__all__ = ["Entries", "Marks", "Range", "Rows", "Scores", "Weights"]


Class = TypeVar("Class")


@dataclass_transform(frozen_default=True)
def record(cls: type[Class]) -> type[Class]:
    """A frozen dataclass that is a pytree."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Range:
    """The integers start, start + 1, …: positions that are known without an array."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length

    def array(self) -> Array:
        return jnp.arange(self.start, self.stop, dtype=jnp.int32)

    def take(self, table: Array, axis: int) -> Array:
        """These rows of a table that has all rows along `axis`."""
        if table.shape[axis] == self.length:
            return table
        return jax.lax.slice_in_dim(table, self.start, self.stop, axis=axis)


@record
class Slice:
    """`length` integers from `start` on: the rows of a tile, where only running tells which."""

    start: Any
    length: int = dataclasses.field(metadata={"static": True})

    def array(self) -> Array:
        return self.start + jnp.arange(self.length, dtype=jnp.int32)

    def take(self, table: Array, axis: int) -> Array:
        """These rows of a table that has all rows along `axis`."""
        return jax.lax.dynamic_slice_in_dim(table, self.start, self.length, axis)


def numbers(rows: Any) -> Array:
    """Positions or indices as an array."""
    return rows if isinstance(rows, Array) else rows.array()


@record
class Rows:
    """Facts about the rows of one side of a table of scores, one entry per row.

    `position` is what predicates and biases compare; `index` is the row's place in its sequence;
    `facts` holds what a stage asked the context for, by name: `rows["segments"]`; `span` is the
    index where its rows follow one another.
    """

    position: Any
    index: Any
    facts: Mapping[str, Array | None] = dataclasses.field(default_factory=dict)
    span: Range | Slice | None = None

    def __getitem__(self, name: str) -> Array:
        if name not in self.facts:
            raise ContextError(
                f"marks hold {name!r} where a stage asks for it by name: "
                f"bias(fn, rows=({name!r},)), predicate(fn, ({name!r},))"
            )
        found = self.facts[name]
        if found is None:
            raise ContextError(
                f"{name} has one entry for each row of the other side of the table, and none for "
                f"these {jnp.size(self.index)}: name the rows of each side, such as "
                f"same({name!r}, 'memory_{name}')"
            )
        return found

    @property
    def length(self) -> int:
        return self.index.shape[0] if isinstance(self.index, Array) else self.index.length

    def read(
        self, names: tuple[str, ...], context: Mapping[str, Any], side: str, other: tuple[str, ...]
    ) -> Rows:
        """These rows with the named facts from the context: one per row, or one for all.

        A fact that the other side asks for as well may be of that side alone: it is None here.
        """
        facts: dict[str, Any] = dict(self.facts)
        for name in names:
            if name in facts:  # rows that were kept have theirs with them
                continue
            value = jnp.asarray(context[name])
            count = value.shape[0] if value.ndim else 1
            part = isinstance(self.index, Slice) and count != 1
            if part and count >= self.length:
                value = self.index.take(value, 0)
            elif count not in (1, self.length):
                if name in other:
                    facts[name] = None
                    continue
                raise ContextError(
                    f"{name} needs one entry for each of the {self.length} {side} rows, "
                    f"or one for all; it has shape {value.shape}"
                )
            facts[name] = value
        return dataclasses.replace(self, facts=facts)

    def numbered(self) -> Rows:
        """These rows with all integers as int32."""
        facts = {name: row_numbers(name, value) for name, value in self.facts.items()}
        position, index = (row_numbers("positions", x) for x in (self.position, self.index))
        return dataclasses.replace(self, position=position, index=index, facts=facts)

    def spread(self, axis: int) -> Rows:
        """The same rows with every per-row fact laid along `axis` of a (T, S) table."""

        def lay(value):
            if value is None:
                return None
            value = numbers(value)
            if value.ndim != 1:
                return value
            return jnp.expand_dims(undivided(value) if axis else value, 1 - axis)

        facts = {name: lay(value) for name, value in self.facts.items()}
        span = None if isinstance(self.index, Array) else self.index
        return Rows(lay(self.position), lay(self.index), facts, span)

    def permuted(self, order: Array) -> Rows:
        """The same rows in another order."""
        position, index = (numbers(rows)[order] for rows in (self.position, self.index))
        return Rows(position, index, {
            name: value[order] if value is not None and value.shape[:1] == order.shape else value
            for name, value in self.facts.items()
        })  # fmt: skip

    def take(self, table: Array, axis: int) -> Array:
        """These rows of a table that has all rows along `axis`, or one that counts for all."""
        if table.shape[axis] == 1:
            return table
        if self.span is None:
            return jnp.take(table, jnp.ravel(self.index), axis)
        return self.span.take(table, axis)


@record
class Marks:
    """What is known about the rows of a table of scores: those that ask, those that answer."""

    query: Rows
    key: Rows

    def read(
        self, query: tuple[str, ...], key: tuple[str, ...], context: Mapping[str, Any]
    ) -> Marks:
        read = Marks(
            self.query.read(query, context, "query", key),
            self.key.read(key, context, "key", query),
        )
        for name in query:
            if read.query.facts[name] is None and read.key.facts.get(name) is None:
                self.query.read((name,), context, "query", ())  # it fits neither side
        return read

    @property
    def in_part(self) -> bool:
        """Whether these are the rows of one tile of a larger table."""
        return isinstance(self.query.index, Slice)

    def spread(self) -> Marks:
        return Marks(self.query.spread(0), self.key.spread(1))


def kept(rows: Array, which: Array | None) -> Array:
    """The rows, with zeros in place of those that take no part: even NaN there reaches nothing."""
    return rows if which is None else jnp.where(which[:, None], rows, jnp.zeros_like(rows[:1]))


def covered(score: Array, visible: Array | None) -> Array:
    """The scores, each hidden one replaced by the largest visible one of its row.

    A function that is finite on visible scores, with a finite derivative, is then so everywhere:
    the cotangent of a hidden score is 0, and 0 times infinity would be NaN. A row that sees nothing
    takes the largest visible score of the other rows.
    """
    if visible is None or not score.size:
        return score
    least = jnp.finfo(score.dtype).min
    shown = jax.lax.stop_gradient(jnp.where(visible, score, least))
    largest = jnp.max(shown, -1, keepdims=True)
    known = (largest > least) & (largest < jnp.inf)
    borrowed = jnp.max(jnp.where(known, largest, least))
    borrowed = jnp.where(known.any(), borrowed, 1)
    return jnp.where(visible, score, jnp.where(known, largest, borrowed))


def both(a: Array | None, b: Array | None) -> Array | None:
    """a and b, where None is true everywhere."""
    return a & b if a is not None and b is not None else b if a is None else a


def either(a: Array | None, b: Array | None) -> Array | None:
    """a or b, where None is true everywhere."""
    return None if a is None or b is None else a | b


class Record:
    """What the three records have in common."""

    marks: Any
    order: Array | None

    @property
    def sorting(self) -> Array | None:
        """The permutation (S,) that puts the keys in the order of their positions; None where they
        stand in it."""
        if self.order is not None or self.marks is None:
            return self.order
        position = self.marks.key.position
        return jnp.argsort(position) if isinstance(position, Array) else None

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(cast(Any, self), **changes)


@record
class Entries(Record):
    """A question to a dictionary, before it is scored.

    query (T, d), key (S, d), value (S, e); `visible` (T, S) is what the masks leave, None where
    nothing is masked; `live` (S,) marks the keys that some query sees, None where all are seen;
    `awake` (T,) the queries that see some key, None where all do; `order` (S,) sorts the keys by
    position where their marks do not.
    """

    query: Any
    key: Any
    value: Any
    marks: Any
    visible: Array | None = None
    live: Array | None = None
    awake: Array | None = None
    order: Array | None = None


@record
class Scores(Record):
    """How well each query matches each key: score (T, S) with `visible`, value (S, e)."""

    score: Any
    value: Any
    marks: Any
    visible: Array | None = None
    live: Array | None = None
    awake: Array | None = None
    order: Array | None = None

    @property
    def covered(self) -> Array:
        """The scores as functions of them take them: see `covered`."""
        return covered(self.score, self.visible)


@record
class Weights(Record):
    """How much of each value each query takes: weight (T, S), value (S, e).

    Weights are a function of values, `weights(values)`: normalizing yields a function, and
    aggregating applies it.
    """

    weight: Any
    value: Any
    marks: Any = None
    live: Array | None = None
    order: Array | None = None

    def __call__(self, value: Array) -> Array:
        """weights(value)[t] = sum over s of weight[t, s] value[s]: (S, e) -> (T, e).

        The sum runs in at least float32 and is rounded once, to the type of the values; integers
        and booleans count as float32. Values that no query sees are replaced before they are
        multiplied: even NaN stays out.
        """
        return self.mixed(value).astype(counts_as(value))

    def in_order(self) -> Weights:
        """The same weights and values, the keys in the order of their positions."""
        order = self.sorting
        if order is None:
            return self
        live = None if self.live is None else self.live[order]
        marks = self.marks and Marks(self.marks.query, self.marks.key.permuted(order))
        return Weights(self.weight[:, order], self.value[order], marks, live)

    def mixed(self, value: Array) -> Array:
        """The sum before it is rounded."""
        value = kept(floating(value), self.live)
        sums = wide(self.weight, value)
        return jnp.matmul(self.weight.astype(value.dtype), value, preferred_element_type=sums)
