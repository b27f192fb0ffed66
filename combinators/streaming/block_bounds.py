"""Bounds of row metadata: the least and largest number in each block of queries and keys.

Positions of 10 queries in blocks of 4 have the bounds lo = [0, 4, 8] and hi = [3, 7, 9].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Int32

from ..core.kinds import fits
from ..core.marks import Marks, Range, Rows
from ..core.types import Value
from ..intervals.span import Span, is_whole, larger, smaller
from ..logic import Predicate

__all__ = [
    "Sides", "along_sides", "at", "at_each", "blocks_of", "bounds", "is_traced", "samples", "some",
    "with_facts",
]  # fmt: skip

MAX_FACT_SIZE = 256
"""Numbers per row of a fact beyond which the fact is not bounded."""


Sides: TypeAlias = tuple[Rows, Rows]
"""Queries and keys whose metadata is laid along its side of a table; see `along_sides`."""


def with_facts(marks: Marks, seen: Predicate, context: Mapping[str, Value]) -> Marks:
    """Marks with the facts that a predicate reads from the context.

    A fact has one entry per row, or is one number or a table (T, S). Other shapes are left out:
    the mask itself raises for them.
    """
    table = marks.query.length, marks.key.length

    def facts(rows: Rows, names: Iterable[str]) -> Rows:
        known = {}
        for name in names:
            value = rows.facts.get(name, context.get(name))
            if not isinstance(value, jax.Array):
                value = np.asarray(value, jnp.result_type(value))
            if jnp.issubdtype(value.dtype, jax.dtypes.extended):
                continue
            expected = table if name in seen.tables else (rows.length,)
            if len(expected) == 1 and not value.ndim:
                expected = ()
            shape = value.shape[: len(expected)]
            if len(shape) == len(expected) and fits(shape, expected):
                known[name] = jax.lax.stop_gradient(value) if is_traced(value) else value
        return dataclasses.replace(rows, facts=known)

    return Marks(facts(marks.query, seen.rows[0]), facts(marks.key, seen.rows[1]))


def is_traced(value: object) -> bool:
    """Whether the numbers of an array cannot be read now, in this process."""
    return isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True)


def along_sides(marks: Marks, tables: tuple[str, ...]) -> Sides:
    """The arrays of marks with an axis for each side: (T, 1, *shape), (1, S, *shape) or (T, S).

    Arrays known at trace time are NumPy's.
    """

    def lay(value: Any, axis: int, table: bool = False) -> Any:
        if isinstance(value, Range):
            value = np.arange(value.start, value.stop, dtype=np.int32)
        elif not is_traced(value):
            value = np.asarray(value)
        if table or not value.ndim:
            return value[..., None, None] if table else value[None, None]
        value = value[:, None, None, None] if value.ndim == 1 else value[:, None, None]
        return value.swapaxes(0, axis)

    def side(rows: Rows, axis: int) -> Rows:
        facts = {name: lay(x, axis, name in tables) for name, x in rows.facts.items()}
        position = lay(rows.position, axis)
        same = isinstance(rows.index, Range) and rows.index == rows.position
        return Rows(position, position if same else lay(rows.index, axis), facts)

    return side(marks.query, 0), side(marks.key, 1)


def is_bounded(value: Array | np.ndarray) -> bool:
    """Whether bounds are taken of an array: integers or booleans, and few per row."""
    return is_whole(value.dtype) and math.prod(value.shape[2:]) <= MAX_FACT_SIZE


def bounds(whole: Sides, block: tuple[int, int]) -> Sides:
    """The least and the largest number of each block, as spans of shape (n, m, *shape)."""

    def bound(value: Array | np.ndarray) -> Span | jax.ShapeDtypeStruct:
        if not is_bounded(value):
            return jax.ShapeDtypeStruct(value.shape[2:], value.dtype)
        low = high = value
        for axis, size in enumerate(block):
            if value.shape[axis] > 1:
                low, high = by_block(low, size, axis, smaller), by_block(high, size, axis, larger)
        return Span(low, high)

    return jax.tree.map(bound, whole)


def by_block(value: Array | np.ndarray, size: int, axis: int, fold: Callable) -> Array | np.ndarray:
    """The fold of every block of an axis: (…, n, …) to (…, ⌈n / size⌉, …)."""
    if isinstance(value, np.ndarray):
        ufunc = np.minimum if fold is smaller else np.maximum
        return ufunc.reduceat(value, np.arange(0, value.shape[axis], size), axis)
    pads = [(0, -n % size if i == axis else 0) for i, n in enumerate(value.shape)]
    padded = jnp.pad(value, pads, mode="edge")
    shape = (*value.shape[:axis], -1, size, *value.shape[axis + 1 :])
    return (jnp.min if fold is smaller else jnp.max)(padded.reshape(shape), axis + 1)


def some(ends: Sides, step: slice) -> Sides:
    """The spans of the rows of blocks in a slice."""

    def cut(span: Any) -> Any:
        if not isinstance(span, Span) or len(span.lo) == 1:
            return span
        return span.each(lambda end: end[step])

    return jax.tree.map(cut, ends)


def at(whole: Sides, rows: np.ndarray, columns: np.ndarray) -> Sides:
    """The marks of single pairs, as spans of one number each."""

    def take(value: Array | np.ndarray) -> Span | jax.ShapeDtypeStruct:
        if not is_bounded(value):
            return jax.ShapeDtypeStruct(value.shape[2:], value.dtype)
        row, column = (
            index if n > 1 else np.int32(0)
            for n, index in zip(value.shape, (rows, columns), strict=False)
        )
        return Span.point(value[row, column] if np.ndim(row) or np.ndim(column) else value)

    return jax.tree.map(take, whole)


def at_each(
    whole: Sides, rows: Int32[np.ndarray, "n a"], columns: Int32[np.ndarray, "n b"]
) -> Sides:
    """The marks of a × b pairs in each of n blocks, (n a, b), from rows (n, a), columns (n, b)."""
    return at(whole, rows.reshape(-1, 1), columns.repeat(rows.shape[1], 0))


def samples(length: int, size: int, blocks: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The rows `which` of some blocks, (blocks, which).

    The last block may lack some: the last row stands in for them.
    """
    return np.minimum(blocks[:, None] * size + which, length - 1).astype(np.int32)


def blocks_of(marks: Marks, block: tuple[int, int]) -> tuple[int, int]:
    """The number of blocks of queries, and of keys."""
    return -(-marks.query.length // block[0]), -(-marks.key.length // block[1])
