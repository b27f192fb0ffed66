"""Marks: positions and row metadata of the queries and the keys of a table of scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int, Shaped

from .context import Context
from .dtypes import row_numbers
from .errors import CompositionError, ContextError
from .mesh import undivided
from .types import Value

__all__ = ["Marks", "PairFunction", "Range", "Rows"]

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True)
def record(cls: type[Class]) -> type[Class]:
    """A frozen dataclass that is a pytree."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Range:
    """The integers start, start + 1, …, stop - 1: positions that are known while tracing."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length

    def array(self) -> Int[Array, "length"]:
        return jnp.arange(self.start, self.stop, dtype=jnp.int32)

    def take(self, table: Array, axis: int) -> Array:
        """The slice of a table at these integers along `axis`."""
        if table.shape[axis] == self.length:
            return table
        return jax.lax.slice_in_dim(table, self.start, self.stop, axis=axis)


@record
class Slice:
    """The integers start, …, start + length - 1, with a traced start: the rows of a tile."""

    start: int | Int[Array, ""]
    length: int = dataclasses.field(metadata={"static": True})

    def array(self) -> Int[Array, "length"]:
        return self.start + jnp.arange(self.length, dtype=jnp.int32)

    def take(self, table: Array, axis: int) -> Array:
        """The slice of a table at these integers along `axis`."""
        return jax.lax.dynamic_slice_in_dim(table, self.start, self.length, axis)


Index: TypeAlias = Array | Range | Slice
"""Positions, or numbers of rows."""


def numbers(rows: Index) -> Int[Array, "T"]:
    """Positions or indices as an array."""
    return rows if isinstance(rows, Array) else rows.array()


@record
class Rows:
    """Metadata of the queries, or of the keys, of a table of scores: one entry per row.

    `position` is compared by predicates and biases. `index` is the row's number in its sequence.
    `facts` holds row metadata that a stage read from the context: `rows["segments"]`. `span` is
    the index of rows that `spread` has made an array, if they follow one another.
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
        value = self.facts[name]
        if value is None:
            raise ContextError(
                f"{name} has one entry for each row of the other side of the table, and none for "
                f"these {jnp.size(self.index)}: name the rows of each side, such as "
                f"same({name!r}, 'memory_{name}')"
            )
        return value

    @property
    def length(self) -> int:
        return self.index.shape[0] if isinstance(self.index, Array) else self.index.length

    def read(
        self, names: tuple[str, ...], context: Mapping[str, Value], side: str,
        other: tuple[str, ...],
    ) -> Rows:  # fmt: skip
        """These rows with the named metadata from the context: one entry per row, or one for all.

        Metadata that the other side reads as well may have an entry for each of its rows only; then
        it is None here.
        """
        facts: dict[str, Array | None] = dict(self.facts)
        for name in names:
            if name in facts:  # cached rows bring their metadata
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
        """These rows with integers as int32."""
        facts = {name: row_numbers(name, value) for name, value in self.facts.items()}
        position, index = (row_numbers("positions", x) for x in (self.position, self.index))
        return dataclasses.replace(self, position=position, index=index, facts=facts)

    def spread(self, axis: int) -> Rows:
        """The same rows with their metadata as (T, 1) for axis 0, or (1, S) for axis 1."""

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
        """The slice of a table at these rows along `axis`; the table if it has length 1 there."""
        if table.shape[axis] == 1:
            return table
        if self.span is None:
            return jnp.take(table, jnp.ravel(self.index), axis)
        return self.span.take(table, axis)


@record
class Marks:
    """The rows of a table of scores (T, S): its queries and its keys, with their metadata."""

    query: Rows
    key: Rows

    def read(
        self, query: tuple[str, ...], key: tuple[str, ...], context: Mapping[str, Value]
    ) -> Marks:
        """These marks with named row metadata from the context, on either side."""
        read = Marks(
            self.query.read(query, context, "query", key),
            self.key.read(key, context, "key", query),
        )
        for name in query:
            if read.query.facts[name] is None and read.key.facts.get(name) is None:
                self.query.read((name,), context, "query", ())  # fits neither side: raises
        return read

    @property
    def in_part(self) -> bool:
        """Whether the rows are those of one tile of a larger table."""
        return isinstance(self.query.index, Slice)

    def spread(self) -> Marks:
        """The same marks with metadata as (T, 1) for queries and (1, S) for keys."""
        return Marks(self.query.spread(0), self.key.spread(1))


class PairFunction(Protocol):
    """A function of marks, such as a predicate or a bias: one entry for each query and key."""

    def __call__(self, query: Rows, key: Rows, /) -> Shaped[ArrayLike, "t s"]: ...


def rows_at(context: Context, count: int) -> Rows:
    """`count` rows at the positions in the context, by default 0, 1, …, count - 1."""
    positions = context.get("positions")
    index = Range(0, count)
    if positions is None:
        return Rows(index, index)
    length = positions.length if isinstance(positions, Range) else positions.shape[0]
    if length != count:
        raise CompositionError(f"positions has {length} entries and there are {count} rows")
    return Rows(positions, index)
