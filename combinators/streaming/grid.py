"""Grids: a table of scores cut into tiles, and which of them a sweep visits.

The table itself is never made. Causal attention of 10 queries and 10 keys in blocks of (4, 4):

                keys 0-3   4-7    8-9
    queries 0-3  ┌ SOME │ NONE │ NONE ┐     runs(0): 2 rows of tiles of 4 queries,
            4-7  │ ALL  │ SOME │ NONE │              then 1 row of tiles of 2 queries
            8-9  └ ALL  │ ALL  │ SOME ┘

    first two rows:  Band(width=4, full=True,  starts=[[.], [0]], live=[0, 1])   the ALL tiles
                     Band(width=4, full=False, starts=[[0], [4]], live=[1, 1])   the SOME tiles

A band holds the tiles of equal width and equal part, so that one loop visits them with one shape.
Tiles with ALL need no mask; tiles with NONE lie in no band.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Int32, Integer

__all__ = [
    "ALL", "NONE", "SOME", "Band", "Grid", "Number", "Parts", "Side", "Slicing", "Tile", "bands",
    "cut_all", "put_all",
]  # fmt: skip

NONE, SOME, ALL = 0, 1, 2
"""The part of a block that the masks let through: no pair, some pairs, all pairs."""


@dataclasses.dataclass(frozen=True)
class Widening:
    """Limits within which the blocks of a row become one wide tile.

    `elements`: a tile of at most this many elements stays in the cache.
    `aspect`: columns per row of a tile, for matrix products of few rows are slow.
    `waste`: elements of the wide tiles per element of the blocks that take part.
    """

    elements: int
    aspect: float
    waste: float


WIDENING = Widening(elements=2**18, aspect=3, waste=1.25)


Number: TypeAlias = int | Integer[Array, ""]
"""A row, a column or an index, known at trace time or not."""

Parts: TypeAlias = Integer[np.ndarray, "n m"] | Integer[Array, "n m"]
"""NONE, SOME or ALL for every block: of NumPy where it is known at trace time."""


class Side(enum.Enum):
    """The side of the table along which an array is cut, or WHOLE for an array that is not cut."""

    ROWS = 0
    COLUMNS = 1
    WHOLE = 2


class Tile(NamedTuple):
    """A tile: its first row and column, its shape, and whether all of its pairs take part."""

    row: Number
    column: Number
    rows: int
    columns: int
    full: bool


@dataclasses.dataclass(frozen=True)
class Slicing:
    """How an array is cut: along which side, and how many indices of each batch axis at once.

    Batch axes come first. `batch` holds 0 for an axis that the array lacks, 1 for an axis that a
    tile takes one index of, and n > 1 for n consecutive indices side by side.
    """

    side: Side
    batch: tuple[int, ...] = ()

    def window(
        self, shape: tuple[int, ...], index: Sequence[Number], tile: Tile
    ) -> tuple[list[Int32[Array, ""]], tuple[int, ...]]:
        """The start and the shape of a tile's slice; `index` counts steps along the batch axes."""
        start = [i * n for i, n in zip(index, self.batch, strict=True) if n]
        size = [n for n in self.batch if n]
        rest = shape[len(start) :]
        if self.side is not Side.WHOLE:
            first, length = (
                (tile.row, tile.rows) if self.side is Side.ROWS else (tile.column, tile.columns)
            )
            start, size, rest = [*start, first], [*size, length], rest[1:]
        return [jnp.int32(x) for x in (*start, *[0] * len(rest))], (*size, *rest)

    def shape(self, shape: tuple[int, ...], tile: Tile) -> tuple[int, ...]:
        """The shape of a tile's slice, as the function of a tile gets it."""
        return self.squeezed(self.window(shape, self.batch, tile)[1])

    def squeezed(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """A slice's shape without the batch axes of which it holds one index."""
        axes = sum(map(bool, self.batch))
        return (*(n for n in size[:axes] if n > 1), *size[axes:])

    def cut(self, array: Array, index: Sequence[Number], tile: Tile) -> Array:
        """A tile's slice of an array."""
        start, size = self.window(array.shape, index, tile)
        part = array if size == array.shape else jax.lax.dynamic_slice(array, start, size)
        return part.reshape(self.squeezed(size))

    def put(self, array: Array, part: Array, index: Sequence[Number], tile: Tile) -> Array:
        """The array with `part` in place of a tile's slice."""
        start, size = self.window(array.shape, index, tile)
        if size == array.shape:
            return part.reshape(size)
        return jax.lax.dynamic_update_slice(array, part.reshape(size), start)


def cut_all(
    slicings: Sequence[Slicing], arrays: Sequence[Array],
    index: Sequence[Number], tile: Tile, *sides: Side,
) -> list[Array]:  # fmt: skip
    """A tile's slices of the arrays that lie along one of `sides`; other arrays are unchanged."""
    pairs = zip(slicings, arrays, strict=True)
    return [slicing.cut(x, index, tile) if slicing.side in sides else x for slicing, x in pairs]


def put_all(
    slicings: Sequence[Slicing],
    arrays: Sequence[Array],
    parts: Sequence[Array],
    index: Sequence[Number],
    tile: Tile,
    *sides: Side,
) -> list[Array]:
    """The arrays along `sides` with `parts` put in; along another side the part is the array."""
    triples = zip(slicings, arrays, parts, strict=True)
    return [
        slicing.put(x, new, index, tile) if slicing.side in sides else new
        for slicing, x, new in triples
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """A table of shape `shape` in blocks of shape `block`, and the part of each that is visited.

    `plan` holds NONE, SOME or ALL for every block: a NumPy array where the plan is known at trace
    time, a JAX array where it is known at run time. In a sweep the latter is the first operand, and
    `plan` is None.

    A tile is one block. With `reach` > 1 each row has a single tile, `reach` blocks wide.
    `undecided` is True if blocks with SOME may turn out to hold no visible pair.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    plan: Any
    reach: int = 1
    undecided: bool = False

    @property
    def known(self) -> bool:
        """Whether the plan is known at trace time."""
        return isinstance(self.plan, np.ndarray)

    @property
    def area(self) -> int:
        """The number of elements of a tile."""
        return math.prod(self.block) * self.reach

    def count(self, part: int) -> int:
        """The number of blocks of a part; every block counts as SOME before the plan is known."""
        if not self.known:
            return math.prod(self.plan.shape) if part == SOME else 0
        return int(np.count_nonzero(self.plan == part))

    @property
    def tiles(self) -> int:
        """The number of tiles that a sweep visits."""
        return len(self.plan) if self.reach > 1 else self.count(SOME) + self.count(ALL)

    def __str__(self) -> str:
        (rows, columns), number = self.block, f"{math.prod(self.plan.shape):,}"
        everywhere = "; not understood block by block: every block is visited"
        if isinstance(self.plan, Tracer):
            note = everywhere if self.undecided else ""
            return f"in {rows} × {columns}: {number} blocks, selected by its context{note}"
        # A plan that depends on the context is a JAX array, known here if it is not traced.
        known = dataclasses.replace(self, plan=np.asarray(self.plan))
        full, masked = known.count(ALL), known.count(SOME)
        part = f"{full + masked:,} of {number} blocks"
        sorts = f"({full:,} full, {masked:,} partial)"
        if self.undecided and known.count(NONE):
            sorts += "; not understood in all of these: some may hold nothing"
        elif self.undecided:
            sorts += everywhere
        if self.reach == 1:
            return f"in {rows} × {columns}: {part} visited {sorts}"
        width = min(self.reach * columns, self.shape[1])
        return f"in {rows} × {width}, one tile a row: {part} of {rows} × {columns} seen {sorts}"

    def widened(self) -> Grid:
        """The same grid with one tile per row, if that stays within the limits of WIDENING.

        A causal window of 200 keys covers three blocks of 128 × 128 in each row: one wide tile
        replaces a loop over three, and few hidden pairs are computed with it.
        """
        if not self.known:
            return self
        seen, (rows, columns) = self.plan != NONE, self.block
        end = seen.shape[1] - seen[:, ::-1].argmax(1)
        reach = int(np.where(seen.any(1), end - seen.argmax(1), 1).max())
        width = reach * columns
        fits = width * rows <= WIDENING.elements and width <= WIDENING.aspect * rows
        if fits and reach * len(seen) <= WIDENING.waste * np.count_nonzero(seen):
            return dataclasses.replace(self, reach=reach)
        return self

    def runs(self, axis: int) -> Iterator[tuple[int, int, int]]:
        """Runs of equal blocks along an axis: the first block, the number of blocks, their size.

        >>> list(Grid((10, 8), (4, 4), None).runs(0))
        [(0, 2, 4), (2, 1, 2)]
        """
        count, rest = divmod(self.shape[axis], self.block[axis])
        if count:
            yield 0, count, self.block[axis]
        if rest:
            yield count, 1, rest


class Band(NamedTuple):
    """Tiles of consecutive rows that have one width and are all full, or all partial.

    `starts` (rows, n) lists the first columns of each row's tiles; only the first `live[row]` of
    them are visited.
    """

    width: int
    full: bool
    starts: Int32[np.ndarray, "rows n"] | Int32[Array, "rows n"]
    live: Int32[np.ndarray, "rows"] | Int32[Array, "rows"]

    @property
    def single(self) -> bool:
        """Whether every row is known to have exactly one tile of the band."""
        return isinstance(self.live, np.ndarray) and bool((self.live == 1).all())


def bands(grid: Grid, plan: Parts) -> Iterator[Band]:
    """The bands of some rows of a plan.

    Full tiles come first: most tiles are full, so a row with a full tile starts without a mask.

    >>> plan = np.array([[SOME, NONE], [ALL, SOME]])
    >>> [(band.full, band.live.tolist()) for band in bands(Grid((8, 8), (4, 4), plan), plan)]
    [(True, [0, 1]), (False, [1, 1])]
    """
    if grid.reach > 1:
        yield wide_tiles(grid, plan)
        return
    xp = np if isinstance(plan, np.ndarray) else jnp
    for first, count, width in grid.runs(1):
        for part in (ALL, SOME):
            chosen = plan[:, first : first + count] == part
            live = chosen.sum(1).astype(np.int32)
            # A stable sort moves the chosen blocks to the front and keeps their order.
            starts = (first + xp.argsort(~chosen, axis=1, stable=True)) * grid.block[1]
            if isinstance(plan, np.ndarray):
                starts = starts[:, : live.max()]
            if starts.shape[1]:
                yield Band(width, part == ALL, starts.astype(np.int32), live)


def wide_tiles(grid: Grid, plan: Parts) -> Band:
    """One tile for every row, over all blocks in which the row sees a key."""
    width = min(grid.reach * grid.block[1], grid.shape[1])
    first = (plan != NONE).argmax(1) * grid.block[1]
    # A tile that would pass the last column moves left, onto blocks that the row may not see.
    starts = np.minimum(first, grid.shape[1] - width)
    full = bool(((plan == ALL).sum(1) == grid.reach).all() and (starts == first).all())
    return Band(width, full, starts[:, None].astype(np.int32), np.ones(len(plan), np.int32))
