"""Sweeps over the tiles of a table that is never made, with every derivative a sweep again.

A function of one tile of rows and one of columns gives numbers that are summed over all tiles.
Such a sum is closed under differentiation (the tangent of a sum is the sum of the tangents), under
transposition (what was cut is added up, what was added up is cut) and under mapping (one more axis
to walk along). So derivatives of every order take memory linear in the rows and columns: each tile
is computed again where it is needed, and nothing of it is kept (Chen et al. 2016, Dao et al. 2022).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .dtypes import wide
from .grid import Band, Grid, Layout, Place, Side, bands, cut_all, put_all
from .kinds import symbolic
from .mesh import compiler_divides, lowering, partitions, type_like, varying_alike

__all__ = ["SHARED", "Fold", "Sum", "fold", "joined"]

SHARED, ROOM = 2**14, 2**20
"""From so many elements on, a CPU's cores share the work on a tile, but for the products of small
ones, and have to be woken for it: copies are then joined to tiles of up to so many elements, for
fewer and longer pieces of work."""


def joined(area: int) -> int:
    """How many copies of a tile of so many elements are one tile."""
    return max(ROOM // area, 1) if area >= SHARED else 1


Body = Callable[[Place, tuple[Array | None, ...], tuple[Array, ...]], Sequence[Array]]
"""From a place, its part of all results so far and of all operands: the new part of all results.
There is none so far of what belongs to a row that has this tile alone."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """A walk over the tiles of a grid, for every index of the mapped axes.

    `function` sees the operands cut as `inputs` say; its results lie in arrays as `outputs` say.
    """

    grid: Grid
    function: Callable[..., Sequence[Array]]
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    sizes: tuple[int, ...] = ()
    key: Any = None
    """What the sweep is made of: two of equal keys are equal, and compiled once."""
    order: int = 0
    """Of the derivative: from the second on a tile holds so much that copies are not joined."""

    def __eq__(self, other: object) -> bool:
        if self.key is None or not isinstance(other, type(self)):
            return self is other
        return self.key == other.key

    def __hash__(self) -> int:
        return id(self) if self.key is None else hash((type(self), self.key))

    def run(self, *operands: Array) -> list[Array]:
        """The results."""
        raise NotImplementedError

    def walk(self, operands: Sequence[Array], results: list[Array], body: Body) -> list[Array]:
        """One group of copies after the other: what is in hand stays in the cache."""

        def copy(number: Any, results: list[Array]) -> list[Array]:
            index = jnp.unravel_index(number, self.sizes) if self.sizes else ()
            return self.table(index, operands, results, body)

        total = math.prod(self.sizes)
        if not total:
            return results
        return copy(0, results) if total == 1 else jax.lax.fori_loop(0, total, copy, results)

    def table(self, copy: Any, operands: Any, results: list[Array], body: Body) -> list[Array]:
        """Row after row of tiles."""
        grid = self.grid
        whole = Place(0, 0, *grid.shape, False)
        plan = self.inputs[0].cut(operands[0], copy, whole) if grid.plan is None else grid.plan
        for first, count, rows in grid.runs(0):
            along = list(bands(grid, plan[first : first + count]))

            def row(number, results, first=first, rows=rows, along=along):
                place = Place(first * grid.block[0] + number * rows, 0, rows, grid.shape[1], False)
                return self.row(copy, place, number, along, operands, results, body)

            results = row(0, results) if count == 1 else jax.lax.fori_loop(0, count, row, results)
        return results

    def row(
        self,
        copy: Any,
        place: Place,
        number: Any,
        along: list[Band],
        operands: Any,
        results: Any,
        body: Body,
    ):
        """One row of tiles: what belongs to the row is cut once and held in hand."""
        cut = cut_all(self.inputs, operands, copy, place, Side.ROWS)
        held: Any = cut_all(self.outputs, results, copy, place, Side.ROWS)
        if along and along[0].single:  # what is of this row alone is not there before
            pairs = zip(self.outputs, held, strict=True)
            held = [None if lies.side is Side.ROWS and all(lies.maps) else x for lies, x in pairs]
        for band in along:
            starts, live = jnp.asarray(band.starts)[number], jnp.asarray(band.live)[number]

            def tile(n, held, band=band, starts=starts):
                here = Place(place.row, starts[n], place.rows, band.width, band.full)
                tiles = cut_all(self.inputs, cut, copy, here, Side.COLUMNS, Side.WHOLE)
                old = cut_all(self.outputs, held, copy, here, Side.COLUMNS, Side.WHOLE)
                new = body(here, tuple(old), tuple(tiles))
                return put_all(self.outputs, held, new, copy, here, Side.COLUMNS, Side.WHOLE)

            held = tile(0, held) if band.single else jax.lax.fori_loop(0, live, tile, held)
        return put_all(self.outputs, results, held, copy, place, Side.ROWS)

    # The same with one more mapped axis, or one less.

    def mapped(self, size: int, along: Sequence[bool]) -> Self:
        """One more axis, in front of some operands and of every result."""
        more = lambda layout, has: Layout(layout.side, (int(has), *layout.maps))  # noqa: E731
        return dataclasses.replace(
            self,
            inputs=tuple(map(more, self.inputs, along)),
            outputs=tuple(more(layout, True) for layout in self.outputs),
            shapes=tuple(jax.ShapeDtypeStruct((size, *s.shape), s.dtype) for s in self.shapes),
            sizes=(size, *self.sizes),
            key=("mapped", self.key, size, tuple(along)),
        )

    def in_groups(self) -> Self:
        """The same with about as many copies in a tile as it has room for, if they share a plan."""
        what, room = self, joined(self.grid.area) if self.order < 2 else 1
        for axis, size in reversed(list(enumerate(self.sizes))):  # the last one lies closest
            if self.grid.plan is None and self.inputs[0].maps[axis]:
                continue
            most = 2 if symbolic((size,)) else 2 * room
            divisors = (n for n in range(1, most) if size % n == 0)
            number = min(divisors, key=lambda n: abs(n - room))
            what, room = what.grouped(axis, number), max(room // number, 1)
        return what

    def grouped(self, axis: int, number: int) -> Self:
        """The same with so many indices of a mapped axis in a tile."""
        if number == 1:
            return self

        def function(place, *tiles):
            results = jax.vmap(partial(self.function, place), self.in_axes(axis))(*tiles)
            pairs = zip(results, self.outputs, strict=True)
            return [x if layout.maps[axis] else x.sum(0) for x, layout in pairs]

        def more(layout: Layout) -> Layout:
            maps = (n * number if i == axis else n for i, n in enumerate(layout.maps))
            return Layout(layout.side, tuple(maps))

        sizes = (n // number if i == axis else n for i, n in enumerate(self.sizes))
        return dataclasses.replace(
            self,
            function=function,
            inputs=tuple(map(more, self.inputs)),
            outputs=tuple(map(more, self.outputs)),
            sizes=tuple(sizes),
            key=None,
        )

    def in_axes(self, axis: int) -> tuple[int | None, ...]:
        """Which arguments of the function of a tile have a mapped axis."""
        return tuple(0 if layout.maps[axis] else None for layout in self.inputs)

    def side_by_side(self, *operands: Array) -> list[Array]:
        """The results, with all indices of the mapped axes at once."""
        if not self.sizes:
            return self.run(*operands)
        less = lambda layout: Layout(layout.side, layout.maps[1:])  # noqa: E731
        has = [bool(layout.maps[0]) for layout in self.outputs]
        one = dataclasses.replace(
            self,
            inputs=tuple(map(less, self.inputs)),
            outputs=tuple(map(less, self.outputs)),
            shapes=tuple(
                jax.ShapeDtypeStruct(s.shape[h:], s.dtype)
                for s, h in zip(self.shapes, has, strict=True)
            ),
            sizes=self.sizes[1:],
            key=None,
        )
        axes = Sweep.in_axes(self, 0)
        results = jax.vmap(one.side_by_side, axes, axis_size=self.sizes[0])(*operands)
        return [x if h else x.sum(0) for x, h in zip(results, has, strict=True)]


@dataclasses.dataclass(frozen=True, eq=False)
class Sum(Sweep):
    """The sum over all tiles of `function(place, *tiles)`, in at least float32."""

    def run(self, *operands: Array) -> list[Array]:
        sums = [jnp.zeros(s.shape, wide(s)) for s in self.shapes]

        def body(place, old, tiles):
            new = self.function(place, *tiles)
            pairs = zip(old, new, sums, strict=True)
            return [b.astype(s.dtype) if a is None else a + b.astype(s.dtype) for a, b, s in pairs]

        sums = self.walk(operands, sums, body)
        return [x.astype(s.dtype) for x, s in zip(sums, self.shapes, strict=True)]

    def tangent(self, active: Sequence[bool]) -> Sum:
        """The derivative along the active operands, whose tangents follow all operands."""

        def function(place, *tiles):
            x, dx = tiles[: len(active)], tiles[len(active) :]
            along = lambda *some: tuple(self.function(place, *put_in(x, active, some)))  # noqa: E731
            return jax.jvp(along, tuple(taken(x, active)), dx)[1]

        inputs = (*self.inputs, *taken(self.inputs, active))
        key = ("tangent", self.key, tuple(active))
        order = self.order + 1
        return dataclasses.replace(self, function=function, inputs=inputs, key=key, order=order)

    def transposed(
        self, linear: Sequence[bool], avals: Sequence[Any], active: Sequence[bool]
    ) -> Sum:
        """From cotangents of the active results, which follow the other operands, to those of the
        linear operands: what was cut is added up, and what was added up is cut."""
        known = [not is_linear for is_linear in linear]
        lying = taken(self.inputs, linear)

        def function(place, *tiles):
            given = tiles[sum(known) :]
            fixed = put_in([None] * len(linear), known, tiles[: sum(known)])

            def forward(*some):
                return tuple(taken(self.function(place, *put_in(fixed, linear, some)), active))

            zeros = [
                jnp.zeros(layout.shape(a.shape, place), a.dtype)
                for layout, a in zip(lying, avals, strict=True)
            ]
            made, back = jax.vjp(forward, *zeros)
            return back(tuple(g.astype(y.dtype) for g, y in zip(given, made, strict=True)))

        return dataclasses.replace(
            self,
            function=function,
            inputs=(*taken(self.inputs, known), *taken(self.outputs, active)),
            outputs=tuple(lying),
            shapes=tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals),
            key=("transposed", self.key, tuple(linear), tuple(active)),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Fold(Sweep):
    """Columns absorbed block by block, where the first result is what all others are relative to.

    `function(place, old, *tiles)` gives the new results of a row, which begin as `initial` says; of
    a row of one tile they are None before. To derivatives the first result, once found, is a
    constant, and the others are the sum over all tiles of `contribution(place, *tiles, first)`.
    """

    initial: tuple[float, ...] = ()
    contribution: Any = None

    def run(self, *operands: Array) -> list[Array]:
        pairs = zip(self.shapes, self.initial, strict=True)
        results = [jnp.full(s.shape, x, s.dtype) for s, x in pairs]
        absorb = lambda place, old, tiles: self.function(place, old, *tiles)  # noqa: E731
        return self.walk(operands, results, absorb)

    def in_axes(self, axis: int) -> tuple[int | None, ...]:
        return (0, *super().in_axes(axis))

    @property
    def sum(self) -> Sum:
        """The results after the first, as a sum of contributions."""
        inputs = (*self.inputs, self.outputs[0])
        outputs, shapes = self.outputs[1:], self.shapes[1:]
        key = ("sum", self.key)
        return Sum(self.grid, self.contribution, inputs, outputs, shapes, self.sizes, key)


def taken(values: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    """The values in the chosen places."""
    return [value for value, take in zip(values, chosen, strict=True) if take]


def put_in(values: Sequence[Any], chosen: Sequence[bool], new: Sequence[Any]) -> list[Any]:
    """The values, with new ones in the chosen places."""
    rest = iter(new)
    return [next(rest) if take else value for value, take in zip(values, chosen, strict=True)]


# The two primitives: how they run, and what their derivatives and maps are


def one_after_other(*operands: Array, what: Sweep) -> list[Array]:
    return what.in_groups().run(*operands)


def side_by_side(*operands: Array, what: Sweep) -> list[Array]:
    return what.side_by_side(*operands)


def batch(primitive: Primitive, operands: Any, dims: Any, *, what: Sweep) -> tuple[Any, Any]:
    along = [d is not None for d in dims]
    (size,) = {x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None}
    pairs = zip(operands, dims, strict=True)
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in pairs]
    results = primitive.bind(*moved, what=what.mapped(size, along))
    return results, [0] * len(results)


def sweeping(name: str) -> Primitive:
    """A primitive that runs a sweep. On a CPU one group of copies after the other is faster, for
    then a tile stays in the cache. Elsewhere all copies run side by side, and so they do where the
    compiler divides them among devices: in a loop over copies each device would need all of them.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    @partial(jax.jit, static_argnames="what")
    def compiled(*operands: Array, what: Sweep) -> list[Array]:
        if any(isinstance(x, Tracer) for x in operands):
            return primitive.bind(*operands, what=what)
        return one_after_other(*operands, what=what)  # under jax.disable_jit

    together, alone = lowering(side_by_side), lowering(one_after_other)

    def on_cpu(context: Any, *operands: Any, what: Sweep) -> Any:
        rule = alone if partitions(context) == 1 else together
        return rule(context, *operands, what=what)

    primitive.def_impl(compiled)
    primitive.def_abstract_eval(
        lambda *operands, what: [type_like(operands[0], s.shape, s.dtype) for s in what.shapes]
    )
    batching.primitive_batchers[primitive] = partial(batch, primitive)
    mlir.register_lowering(primitive, together)
    mlir.register_lowering(primitive, on_cpu, platform="cpu")
    return primitive


tile_sum, tile_fold = sweeping("tile_sum"), sweeping("tile_fold")


def sum_tangent(primals: Any, tangents: Any, *, what: Sum) -> Any:
    active = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    moved = tile_sum.bind(*primals, *taken(tangents, active), what=what.tangent(active))
    return tile_sum.bind(*primals, what=what), moved


def sum_transpose(cotangents: Any, *operands: Any, what: Sum) -> Any:
    linear = [ad.is_undefined_primal(x) for x in operands]
    avals = [x.aval for x in taken(operands, linear)]
    active = [not isinstance(cotangent, ad.Zero) for cotangent in cotangents]
    known = taken(operands, [not is_linear for is_linear in linear])
    back = what.transposed(linear, avals, active)
    got = tile_sum.bind(*known, *taken(cotangents, active), what=back)
    return put_in([None] * len(linear), linear, got)


def fold_tangent(primals: Any, tangents: Any, *, what: Fold) -> Any:
    results = tile_fold.bind(*primals, what=what)
    active = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    rate = what.sum.tangent([*active, False])
    moved = tile_sum.bind(*primals, results[0], *taken(tangents, active), what=rate)
    return results, [ad.Zero(jax.typeof(results[0])), *moved]


ad.primitive_jvps[tile_sum] = sum_tangent
ad.primitive_transposes[tile_sum] = sum_transpose
ad.primitive_jvps[tile_fold] = fold_tangent


def fold(what: Fold, operands: Sequence[Any]) -> list[Array]:
    """Run a fold. Its derivatives of every order, and maps of it, are sweeps as well."""
    pairs = zip(operands, what.inputs, strict=True)
    rows = next(x for x, layout in pairs if layout.side is Side.ROWS)
    run = compiler_divides(partial(tile_fold.bind, what=what), rows)
    return run(*varying_alike(operands))
