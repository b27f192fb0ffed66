"""A table that is never made, in tiles: where each lies, and which of them take part."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

__all__ = [
    "ALL", "NONE", "SOME", "Band", "Grid", "Layout", "Place", "Side", "bands", "cut_all", "put_all",
]  # fmt: skip

NONE, SOME, ALL = 0, 1, 2
"""How much of a tile takes part."""

WIDE, SLENDER, LITTLE = 2**18, 3, 1.25
"""One tile a row has at most so many elements, that it stays in the cache; is at most so many times
as wide as high, for products of few rows are slow; and is at most so many times what is seen."""


class Side(enum.Enum):
    """How an array belongs to a table: cut along its rows, along its columns, or whole."""

    ROWS = 0
    COLUMNS = 1
    WHOLE = 2


class Place(NamedTuple):
    """A tile: where it begins in the table, how large it is, and whether all of it takes part."""

    row: Any
    column: Any
    rows: int
    columns: int
    full: bool


@dataclasses.dataclass(frozen=True)
class Layout:
    """How an array lies: its side, and how much of every mapped axis, in front, a tile takes.

    0 where the array lacks the axis, 1 for one index of it, more for some side by side.
    """

    side: Side
    maps: tuple[int, ...] = ()

    def window(self, shape: tuple[int, ...], copy: Sequence[Any], place: Place) -> tuple:
        """Where a tile's part of an array begins, and its shape."""
        start = [index * n for index, n in zip(copy, self.maps, strict=True) if n]
        size = [n for n in self.maps if n]
        rest = shape[len(start) :]
        if self.side is not Side.WHOLE:
            at = (
                (place.row, place.rows) if self.side is Side.ROWS else (place.column, place.columns)
            )
            start, size, rest = [*start, at[0]], [*size, at[1]], rest[1:]
        return [jnp.int32(x) for x in (*start, *[0] * len(rest))], (*size, *rest)

    def shape(self, shape: tuple[int, ...], place: Place) -> tuple[int, ...]:
        """The shape of a tile's part of an array."""
        return self.squeezed(self.window(shape, self.maps, place)[1])

    def squeezed(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """A shape without the mapped axes of which a tile takes one index."""
        mapped = sum(map(bool, self.maps))
        return (*(n for n in size[:mapped] if n > 1), *size[mapped:])

    def cut(self, array: Array, copy: Sequence[Any], place: Place) -> Array:
        """The part of an array that belongs to a tile."""
        start, size = self.window(array.shape, copy, place)
        part = array if size == array.shape else jax.lax.dynamic_slice(array, start, size)
        return part.reshape(self.squeezed(size))

    def put(self, array: Array, part: Array, copy: Sequence[Any], place: Place) -> Array:
        """The array with a tile's part in its place."""
        start, size = self.window(array.shape, copy, place)
        if size == array.shape:
            return part.reshape(size)
        return jax.lax.dynamic_update_slice(array, part.reshape(size), start)


def cut_all(
    layouts: Sequence[Layout], arrays: Sequence[Array], copy: Any, place: Place, *sides: Side
):
    """The arrays that lie along one of the sides cut, the others as they are."""
    pairs = zip(layouts, arrays, strict=True)
    return [layout.cut(x, copy, place) if layout.side in sides else x for layout, x in pairs]


def put_all(
    layouts: Sequence[Layout],
    arrays: Sequence[Array],
    parts: Sequence[Array],
    copy: Any,
    place: Place,
    *sides: Side,
):
    """The parts that lie along one of the sides put into their arrays, the others as they are."""
    triples = zip(layouts, arrays, parts, strict=True)
    return [
        layout.put(x, new, copy, place) if layout.side in sides else new
        for layout, x, new in triples
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """A table of rows and columns in blocks, and which of them take part.

    `plan` has NONE, SOME or ALL for every block: as NumPy has it where that is known, as JAX has it
    where it is known only when it runs, and None in a sweep whose first operand it then is. A tile
    is a block, or, where `reach` is more than 1, the only one of its row: so many blocks. Where
    blocks are `undecided`, some that are visited may hold nothing.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    plan: Any
    reach: int = 1
    undecided: bool = False

    @property
    def known(self) -> bool:
        return isinstance(self.plan, np.ndarray)

    @property
    def area(self) -> int:
        """The elements of a tile."""
        return math.prod(self.block) * self.reach

    def count(self, sort: int) -> int:
        """How many blocks take part so: as long as that is not known, all in part."""
        if not self.known:
            return math.prod(self.plan.shape) if sort == SOME else 0
        return int(np.count_nonzero(self.plan == sort))

    @property
    def tiles(self) -> int:
        """How many tiles take part."""
        return len(self.plan) if self.reach > 1 else self.count(SOME) + self.count(ALL)

    def __str__(self) -> str:
        (rows, columns), number = self.block, f"{math.prod(self.plan.shape):,}"
        everywhere = "; not understood block by block: every block is visited"
        if isinstance(self.plan, Tracer):
            note = everywhere if self.undecided else ""
            return f"in {rows} × {columns}: which of {number} blocks, its context tells{note}"
        # A plan that differs from call to call is known all the same where its context is.
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
        """The same with one tile a row, where what each row sees lies close together."""
        if not self.known:
            return self
        seen, (rows, columns) = self.plan != NONE, self.block
        last = seen.shape[1] - seen[:, ::-1].argmax(1)
        reach = int(np.where(seen.any(1), last - seen.argmax(1), 1).max())
        fits = reach * rows * columns <= WIDE and reach * columns <= SLENDER * rows
        if fits and reach * len(seen) <= LITTLE * np.count_nonzero(seen):
            return dataclasses.replace(self, reach=reach)
        return self

    def runs(self, axis: int) -> Iterator[tuple[int, int, int]]:
        """Blocks of one size along an axis: the number of the first, how many, and the size."""
        count, rest = divmod(self.shape[axis], self.block[axis])
        if count:
            yield 0, count, self.block[axis]
        if rest:
            yield count, 1, rest


class Band(NamedTuple):
    """The tiles of some rows of tiles that have one width and take part in one way.

    For every row `starts` lists their first columns, in front, and `live` says how many they are.
    """

    width: int
    full: bool
    starts: Any
    live: Any

    @property
    def single(self) -> bool:
        """Whether every row is known to have one of them."""
        return isinstance(self.live, np.ndarray) and bool((self.live == 1).all())


def bands(grid: Grid, plan: Any) -> Iterator[Band]:
    """Some rows of a plan: first the tiles that take part whole, as most do."""
    if grid.reach > 1:
        yield one_a_row(grid, plan)
        return
    xp = np if isinstance(plan, np.ndarray) else jnp
    for first, count, width in grid.runs(1):
        for sort in (ALL, SOME):
            chosen = plan[:, first : first + count] == sort
            live = chosen.sum(1).astype(np.int32)
            starts = (first + xp.argsort(~chosen, axis=1, stable=True)) * grid.block[1]
            if isinstance(plan, np.ndarray):
                starts = starts[:, : live.max()]
            if starts.shape[1]:
                yield Band(width, sort == ALL, starts.astype(np.int32), live)


def one_a_row(grid: Grid, plan: np.ndarray) -> Band:
    """One tile for every row, which holds all that it sees."""
    width = min(grid.reach * grid.block[1], grid.shape[1])
    first = (plan != NONE).argmax(1) * grid.block[1]
    starts = np.minimum(first, grid.shape[1] - width)
    full = bool(((plan == ALL).sum(1) == grid.reach).all() and (starts == first).all())
    return Band(width, full, starts[:, None].astype(np.int32), np.ones(len(plan), np.int32))
