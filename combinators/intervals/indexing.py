"""Rules for primitives that move elements: changes of shape, and lookups `table[i, j]`.

They take the bounds of a `Span`, whose first two axes count the blocks of queries and of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.lax import GatherScatterMode

from .span import End, Options, Span, is_true, is_whole, larger, namespace, smaller

__all__ = ["SHAPES", "looked_up"]


# Shapes


def spread(options: Options, aval: ShapedArray, x: End) -> End:
    shape = [1] * aval.ndim
    for axis, size in zip(options["broadcast_dimensions"], x.shape[2:], strict=True):
        shape[axis] = size
    return namespace(x).broadcast_to(x.reshape(*x.shape[:2], *shape), (*x.shape[:2], *aval.shape))


def reshaped(options: Options, aval: ShapedArray, x: End) -> End:
    return x.reshape(*x.shape[:2], *aval.shape)


def transposed(options: Options, aval: ShapedArray, x: End) -> End:
    return x.transpose(0, 1, *(axis + 2 for axis in options["permutation"]))


def concatenated(options: Options, aval: ShapedArray, *parts: End) -> End:
    sides, xp = np.broadcast_shapes(*(x.shape[:2] for x in parts)), namespace(*parts)
    arrays = [xp.broadcast_to(x, sides + x.shape[2:]) for x in parts]
    return xp.concatenate(arrays, axis=options["dimension"] + 2)


def sliced(options: Options, aval: ShapedArray, x: End) -> End:
    strides = options["strides"] or (1,) * aval.ndim
    limits = zip(options["start_indices"], options["limit_indices"], strides, strict=True)
    return x[(slice(None), slice(None), *(slice(*limit) for limit in limits))]


def reduced(fold: str) -> Callable[..., End]:
    """The rule of a monotone reduction."""

    def apply(options: Options, aval: ShapedArray, x: End) -> End:
        return getattr(namespace(x), fold)(x, axis=tuple(axis + 2 for axis in options["axes"]))

    return apply


SHAPES: dict[str, Callable[..., End]] = {
    "broadcast_in_dim": spread, "reshape": reshaped, "squeeze": reshaped, "transpose": transposed,
    "concatenate": concatenated, "slice": sliced, "copy": reshaped, "reduce_or": reduced("any"),
    "reduce_and": reduced("all"), "reduce_max": reduced("max"), "reduce_min": reduced("min"),
}  # fmt: skip


# Tables

MAX_SPARSE_TABLE = 2**24
"""The most elements of a sparse table: the size of a table times its number of levels."""


def looked_up(options: Options, aval: ShapedArray, table: Span, indices: Span) -> Span | None:
    """The span of `table[i, j]` from the spans of the indices of its first axes.

    None for a table that is not constant, and for other kinds of gather.
    """
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
    """The span of the index of each axis.

    JAX concatenates indices before a gather. Where the concatenated spans are kept, they tell more.
    """
    parts: Sequence[Span] = indices.parts
    if len(parts) != count:
        parts = [indices.each(lambda end, i=i: end[..., i : i + 1]) for i in range(count)]
    return [part.each(lambda end: end[..., 0]) for part in parts]


def between(table: np.ndarray | Array, axes: Sequence[Span]) -> Span | None:
    """The span of a table's entries within spans of the indices of one or two axes."""
    if all(axis.known for axis in axes):
        indices = tuple(axis.lo for axis in axes)
        return Span.point(namespace(table, *indices).asarray(table)[indices])
    if table.size * max(table.shape).bit_length() > MAX_SPARSE_TABLE:
        return None
    folds = smaller, larger
    if len(axes) == 1:
        return Span(*(extremes(table, axes[0].lo, axes[0].hi, fold) for fold in folds))
    if len(axes) > 2 or not all(set(axis.shape) <= {1} for axis in axes):
        return None
    # Queries index one axis and keys the other: each pair of blocks takes a rectangle of the table.
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


Fold = Callable[[End, End], End]
"""`smaller` or `larger`."""


def extremes(table: np.ndarray | Array, first: End, last: End, fold: Fold) -> Any:
    """The minimum or maximum of the rows from `first` to `last`, for many such ranges.

    Two ranges whose length is a power of two cover each range (a sparse table): rows 2 to 7 are
    rows 2 to 5 and rows 4 to 7. `levels[k]` holds the extremes of all ranges of length 2**k.
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
