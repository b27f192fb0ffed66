"""A table that is never made, in tiles: where each lies, and which of them take part."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = [
    "ALL", "NONE", "SOME", "Band", "Block", "Grid", "Layout", "Place", "Side", "bands", "cut_all",
    "put_all", "reach",
]  # fmt: skip

NONE, SOME, ALL = 0, 1, 2
"""How much of a tile takes part."""

WIDE, SLENDER, LITTLE = 2**18, 3, 1.25
"""What a row of tiles sees is one tile, if that has at most so many elements, is at most so many
times as wide as high, and is at most so many times what is seen."""


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


class Block(NamedTuple):
    """Rows and columns of a tile; where it may be wide, all that a row sees may be one tile."""

    rows: int
    columns: int
    wide: bool = False

    @property
    def area(self) -> int:
        """Its elements."""
        return self.rows * self.columns

    def within(self, rows: int, columns: int) -> Block:
        """The block, or as much of it as there is."""
        return self._replace(rows=min(self.rows, rows), columns=min(self.columns, columns))


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
    """A table of rows and columns in blocks, and which of its tiles take part, if that is known.

    `plan` has NONE, SOME or ALL for every tile. Where it is None the first operand is the plan.
    """

    shape: tuple[int, int]
    block: Block
    plan: np.ndarray | None

    @property
    def area(self) -> int:
        """The elements of a tile."""
        return self.block.area * reach(self.block, self.plan)

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
    number = reach(grid.block, plan)
    if number > 1:
        yield of_reach(grid, plan, number)
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


def reach(block: Block, plan: Any) -> int:
    """How many blocks lie in a tile that holds all that a row sees, and little else; or 1."""
    if not block.wide or not isinstance(plan, np.ndarray):
        return 1
    seen = plan != NONE
    last = plan.shape[1] - seen[:, ::-1].argmax(1)
    number = int(np.where(seen.any(1), last - seen.argmax(1), 1).max())
    fits = number * block.area <= WIDE and number * block.columns <= SLENDER * block.rows
    return number if fits and number * len(plan) <= LITTLE * np.count_nonzero(seen) else 1


def of_reach(grid: Grid, plan: np.ndarray, number: int) -> Band:
    """One tile for every row, of so many blocks."""
    width = min(number * grid.block[1], grid.shape[1])
    first = (plan != NONE).argmax(1) * grid.block[1]
    starts = np.minimum(first, grid.shape[1] - width)
    full = bool(((plan == ALL).sum(1) == number).all() and (starts == first).all())
    return Band(width, full, starts[:, None].astype(np.int32), np.ones(len(plan), np.int32))
