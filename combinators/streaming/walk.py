"""Walks: the loops over the tiles of one table.

    for row in rows of tiles:              # Walk.rows
        held = results[row]                # Walk.row: operands along rows are cut once, too
        for tile in active tiles of row:   # Walk.band
            held[tile] = body(tile, held[tile], operands[tile])
        results[row] = held

In attention, query and running state lie along rows, so one cut of each serves a row of tiles; key
and value lie along columns and are cut for every tile. In the gradient, the cotangents of key and
value lie along columns, and each tile adds to its slice of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .grid import Band, Grid, Number, Parts, Side, Slicing, Tile, bands, cut_all, put_all

__all__ = ["Body", "Walk"]

Body = Callable[[Tile, tuple[Array | None, ...], tuple[Array, ...]], Sequence[Array]]
"""`body(tile, old, parts)` gives the new slices of all results, from their old slices and those of
all operands. An old slice is None for a row's first tile, if every row is known to have one."""


class Walk(NamedTuple):
    """The loops over the table of one batch index."""

    grid: Grid
    inputs: tuple[Slicing, ...]
    outputs: tuple[Slicing, ...]
    index: Any
    operands: Sequence[Array]
    body: Body

    def table(self, results: list[Array]) -> list[Array]:
        """Visit every row of tiles; rows of one height share a loop."""
        plan = self.plan
        for first, count, height in self.grid.runs(0):
            results = self.rows(first, count, height, plan[first : first + count], results)
        return results

    @property
    def plan(self) -> Parts:
        """The grid's plan; the first operand where it is known only at run time."""
        if self.grid.plan is not None:
            return self.grid.plan
        whole = Tile(0, 0, *self.grid.shape, False)
        return self.inputs[0].cut(self.operands[0], self.index, whole)

    def rows(
        self, first: int, count: int, height: int, plan: Parts, results: list[Array]
    ) -> list[Array]:
        """Visit `count` rows of tiles of one height, from row `first` on."""
        grid, along = self.grid, list(bands(self.grid, plan))

        def row(number: Number, results: list[Array]) -> list[Array]:
            top = first * grid.block[0] + number * height
            return self.row(Tile(top, 0, height, grid.shape[1], False), number, along, results)

        return row(0, results) if count == 1 else jax.lax.fori_loop(0, count, row, results)

    def row(
        self, row: Tile, number: Number, along: list[Band], results: list[Array]
    ) -> list[Array]:
        """Visit the tiles of one row: slices along rows are cut once and held."""
        outputs = self.outputs
        cut = cut_all(self.inputs, self.operands, self.index, row, Side.ROWS)
        held: Any = cut_all(outputs, results, self.index, row, Side.ROWS)
        if along and along[0].single:  # the first tile starts the row's results, and adds to none
            pairs = zip(outputs, held, strict=True)
            own = lambda slicing: slicing.side is Side.ROWS and all(slicing.batch)  # noqa: E731
            held = [None if own(slicing) else x for slicing, x in pairs]
        for band in along:
            held = self.band(band, number, row, cut, held)
        return put_all(outputs, results, held, self.index, row, Side.ROWS)

    def band(
        self, band: Band, number: Number, row: Tile, operands: list[Array], held: list[Array]
    ) -> list[Array]:
        """Visit the tiles of one row that lie in a band."""
        inputs, outputs, sides = self.inputs, self.outputs, (Side.COLUMNS, Side.WHOLE)
        starts, live = jnp.asarray(band.starts)[number], jnp.asarray(band.live)[number]

        def visit(n: Number, held: list[Array]) -> list[Array]:
            tile = Tile(row.row, starts[n], row.rows, band.width, band.full)
            parts = cut_all(inputs, operands, self.index, tile, *sides)
            old = cut_all(outputs, held, self.index, tile, *sides)
            new = self.body(tile, tuple(old), tuple(parts))
            return put_all(outputs, held, new, self.index, tile, *sides)

        return visit(0, held) if band.single else jax.lax.fori_loop(0, live, visit, held)
