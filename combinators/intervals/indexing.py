"""Operations that move the elements of an array, on bounds in blocks: shapes, and tables by index.

Each takes arrays whose first two axes are those of the blocks, as a `Span` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from .span import Span, is_true, is_whole, larger, namespace, smaller

__all__ = ["SHAPES", "looked_up"]


# Shapes


def laid(options: Any, aval: Any, x: Any) -> Any:
    shape = [1] * aval.ndim
    for axis, size in zip(options["broadcast_dimensions"], x.shape[2:], strict=True):
        shape[axis] = size
    return namespace(x).broadcast_to(x.reshape(*x.shape[:2], *shape), (*x.shape[:2], *aval.shape))


def reshaped(options: Any, aval: Any, x: Any) -> Any:
    return x.reshape(*x.shape[:2], *aval.shape)


def transposed(options: Any, aval: Any, x: Any) -> Any:
    return x.transpose(0, 1, *(axis + 2 for axis in options["permutation"]))


def joined(options: Any, aval: Any, *parts: Any) -> Any:
    sides, xp = np.broadcast_shapes(*(x.shape[:2] for x in parts)), namespace(*parts)
    spread = [xp.broadcast_to(x, sides + x.shape[2:]) for x in parts]
    return xp.concatenate(spread, axis=options["dimension"] + 2)


def sliced(options: Any, aval: Any, x: Any) -> Any:
    strides = options["strides"] or (1,) * aval.ndim
    limits = zip(options["start_indices"], options["limit_indices"], strides, strict=True)
    return x[(slice(None), slice(None), *(slice(*limit) for limit in limits))]


def folded(fold: str) -> Callable[..., Any]:
    """A reduction that keeps the order of elements."""

    def apply(options: Any, aval: Any, x: Any) -> Any:
        return getattr(namespace(x), fold)(x, axis=tuple(axis + 2 for axis in options["axes"]))

    return apply


SHAPES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": laid, "reshape": reshaped, "squeeze": reshaped, "transpose": transposed,
    "concatenate": joined, "slice": sliced, "copy": reshaped, "reduce_or": folded("any"),
    "reduce_and": folded("all"), "reduce_max": folded("max"), "reduce_min": folded("min"),
}  # fmt: skip


# Tables

LARGE = 2**24
"""Extremes of all ranges are kept of a table of at most so many elements, counted for each power
of two that is the length of a range."""


def looked_up(options: Any, aval: Any, table: Span, indices: Span) -> Span | None:
    """Bounds of the entries of a table by bounds of the indices of its first axes, as `x[i, j]`
    has them; None for another table or another way to index it."""
    numbers, sizes = options["dimension_numbers"], table.shape
    count = len(numbers.start_index_map)
    first, last = tuple(range(count)), tuple(range(aval.ndim - len(sizes) + count, aval.ndim))
    plain = numbers.start_index_map == numbers.collapsed_slice_dims == first
    entry = tuple(options["slice_sizes"]) == (1,) * count + sizes[count:]
    constant = table.known and table.lo.shape[:2] == (1, 1) and is_whole(table.dtype)
    if not (plain and entry and constant and numbers.offset_dims == last and all(sizes)):
        return None
    axes = index_of_each(indices, count)
    inside = [(axis.lo >= 0) & (axis.hi < n) for axis, n in zip(axes, sizes, strict=False)]
    axes = [
        axis.each(lambda end, n=n: end.clip(0, n - 1).astype(np.int32))
        for axis, n in zip(axes, sizes, strict=False)
    ]
    found = between(table.lo[0, 0], axes)
    safe = reduce(and_, inside)
    if options["mode"] != GatherScatterMode.FILL_OR_DROP or is_true(safe):
        return found
    if found is None or found.known or len(sizes) > count:
        return None
    return found.where(safe)


def index_of_each(indices: Span, count: int) -> list[Span]:
    """The index of each axis: as they were before they were put side by side, if it is known."""
    parts: Sequence[Span] = indices.parts
    if len(parts) != count:
        parts = [indices.each(lambda end, i=i: end[..., i : i + 1]) for i in range(count)]
    return [part.each(lambda end: end[..., 0]) for part in parts]


def between(table: Any, axes: Sequence[Span]) -> Span | None:
    """The least and the largest entries of a table between two indices of one or two axes."""
    if all(axis.known for axis in axes):
        places = tuple(axis.lo for axis in axes)
        return Span.point(namespace(table, *places).asarray(table)[places])
    if table.size * max(table.shape).bit_length() > LARGE:
        return None
    folds = smaller, larger
    if len(axes) == 1:
        return Span(*(extremes(table, axes[0].lo, axes[0].hi, fold) for fold in folds))
    if len(axes) > 2 or not all(set(axis.shape) <= {1} for axis in axes):
        return None
    # Queries and keys each index an axis of their own: a rectangle for each pair of blocks.
    rows, columns = (axis.lo.shape[:2] for axis in axes)
    if (rows[0] > 1 and rows[1] > 1) or (columns[0] > 1 and columns[1] > 1):
        return None
    if any(n > 1 and m > 1 for n, m in zip(rows, columns, strict=True)):
        return None
    bounds = []
    for fold in folds:
        (top, bottom), (left, right) = ((axis.lo.ravel(), axis.hi.ravel()) for axis in axes)
        bands = extremes(table, top, bottom, fold).swapaxes(0, 1)
        found = extremes(bands, left, right, fold).swapaxes(0, 1)
        found = found if rows[1] == columns[0] == 1 else found.swapaxes(0, 1)
        bounds.append(found.reshape(*found.shape[:2], *axes[0].shape, *found.shape[2:]))
    return Span(*bounds)


def extremes(table: Any, first: Any, last: Any, fold: Callable[[Any, Any], Any]) -> Any:
    """The extreme of the rows from `first` to `last`, for many such ranges.

    Two ranges whose length is a power of two cover each (a sparse table).
    """
    xp = namespace(table, first, last)
    levels, length = [xp.asarray(table)], 1
    while 2 * length <= len(table):
        level = levels[-1]
        levels.append(fold(level, xp.concatenate([level[length:], level[-1:].repeat(length, 0)])))
        length *= 2
    level = xp.frexp((last - first + 1).astype(np.float32))[1] - 1
    stacked = xp.stack(levels)
    return fold(stacked[level, first], stacked[level, last + 1 - (1 << level)])
