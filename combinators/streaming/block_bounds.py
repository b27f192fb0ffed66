"""Marks of a table in blocks: bounds of the rows of each block, and of single rows of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..core.kinds import fits
from ..core.marks import Marks, Range, Rows
from ..intervals.span import Span, is_whole, larger, smaller
from ..logic import Predicate

__all__ = [
    "at", "at_each", "blocks_of", "bounds", "is_traced", "laid", "samples", "some", "with_facts",
]  # fmt: skip

WIDE = 256
"""The most numbers in one row of a fact that are bounded."""


def with_facts(marks: Marks, seen: Predicate, context: Mapping[str, Any]) -> Marks:
    """Marks with what a predicate asks of the context, where it has the shape of facts."""
    table = marks.query.length, marks.key.length

    def facts(rows: Rows, names: Iterable[str]) -> Rows:
        found = {}
        for name in names:
            value = rows.facts.get(name, context.get(name))
            if not isinstance(value, jax.Array):
                value = np.asarray(value, jnp.result_type(value))
            if jnp.issubdtype(value.dtype, jax.dtypes.extended):
                continue
            whole = table if name in seen.tables else (rows.length,)
            if len(whole) == 1 and not value.ndim:
                whole = ()
            shape = value.shape[: len(whole)]
            if len(shape) == len(whole) and fits(shape, whole):
                found[name] = jax.lax.stop_gradient(value) if is_traced(value) else value
        return dataclasses.replace(rows, facts=found)

    return Marks(facts(marks.query, seen.rows[0]), facts(marks.key, seen.rows[1]))


def is_traced(value: Any) -> bool:
    """Whether the numbers of an array are not known, or not here."""
    return isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True)


def laid(marks: Marks, tables: tuple[str, ...]) -> tuple[Rows, Rows]:
    """The arrays of marks along two axes of pairs, as (T or 1, S or 1, *shape): those that are
    known as NumPy has them."""

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


def is_bounded(value: Any) -> bool:
    """Whether the numbers of an array are bounded: of integers and truths, and not of many."""
    return is_whole(value.dtype) and math.prod(value.shape[2:]) <= WIDE


def bounds(whole: Any, block: tuple[int, int]) -> Any:
    """The least and the largest numbers of each block, as spans."""

    def bound(value: Any) -> Any:
        if not is_bounded(value):
            return jax.ShapeDtypeStruct(value.shape[2:], value.dtype)
        low = high = value
        for axis, size in enumerate(block):
            if value.shape[axis] > 1:
                low, high = folded(low, size, axis, smaller), folded(high, size, axis, larger)
        return Span(low, high)

    return jax.tree.map(bound, whole)


def folded(value: Any, size: int, axis: int, fold: Any) -> Any:
    """Every block of an axis folded to one number."""
    if isinstance(value, np.ndarray):
        ufunc = np.minimum if fold is smaller else np.maximum
        return ufunc.reduceat(value, np.arange(0, value.shape[axis], size), axis)
    pads = [(0, -n % size if i == axis else 0) for i, n in enumerate(value.shape)]
    padded = jnp.pad(value, pads, mode="edge")
    shape = (*value.shape[:axis], -1, size, *value.shape[axis + 1 :])
    return (jnp.min if fold is smaller else jnp.max)(padded.reshape(shape), axis + 1)


def some(ends: Any, step: slice) -> Any:
    """Spans of some rows of blocks."""

    def cut(span: Any) -> Any:
        if not isinstance(span, Span) or len(span.lo) == 1:
            return span
        return span.each(lambda end: end[step])

    return jax.tree.map(cut, ends)


def at(whole: Any, rows: Any, columns: Any) -> Any:
    """The marks of single pairs."""

    def take(value: Any) -> Any:
        if not is_bounded(value):
            return jax.ShapeDtypeStruct(value.shape[2:], value.dtype)
        places = tuple(
            place if n > 1 else np.int32(0)
            for n, place in zip(value.shape, (rows, columns), strict=False)
        )
        return Span.point(value[places] if np.ndim(places[0]) or np.ndim(places[1]) else value)

    return jax.tree.map(take, whole)


def at_each(whole: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    """The marks of pairs of rows (n, a) and columns (n, b) for each of n blocks: (n a, b)."""
    return at(whole, rows.reshape(-1, 1), columns.repeat(rows.shape[1], 0))


def samples(length: int, size: int, blocks: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The numbers of rows in some blocks: the last row in place of those that are missing there."""
    return np.minimum(blocks[:, None] * size + which, length - 1).astype(np.int32)


def blocks_of(marks: Marks, block: tuple[int, int]) -> tuple[int, int]:
    """How many blocks there are of queries and of keys."""
    return -(-marks.query.length // block[0]), -(-marks.key.length // block[1])
