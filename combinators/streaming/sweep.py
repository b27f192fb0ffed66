"""Sweeps: loops over the tiles of a table, and the functions of tiles that they sum or fold.

    for index in batch:          # Sweep.walk: batch elements, one by one or in groups
        for tile in the table:   # Walk.table: row after row
            results[tile] = body(tile, results[tile], operands[tile])

A sum over tiles is closed under differentiation: the tangent of a sum is the sum of the tangents.
It is closed under transposition: operands that were cut are results that are added to, and the
reverse. It is closed under vmap: one more batch axis. So derivatives of every order take memory
linear in rows and columns. Each tile is computed again where it is needed, as remat does
(Chen et al. 2016, Dao et al. 2022).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.typing import ArrayLike

from ..core.dtypes import wide
from ..core.kinds import symbolic
from .grid import Grid, Number, Slicing
from .walk import Body, Walk

__all__ = ["Cores", "Fold", "Sum", "Sweep", "batch_per_tile", "put_in", "taken"]

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Cores:
    """When a CPU's cores share the work on a tile.

    `shared`: elements of a tile from which cores share its elementwise work. Each piece of work
    then has to wake them, so batch elements are joined to larger tiles: fewer and longer pieces.
    `room`: elements up to which batch elements are joined.
    """

    shared: int
    room: int


CPU = Cores(shared=2**14, room=2**20)


def batch_per_tile(area: int) -> int:
    """The number of batch elements that share a tile, where one of them has `area` elements."""
    return max(CPU.room // area, 1) if area >= CPU.shared else 1


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """A loop over the tiles of a grid, for every index of the batch axes.

    `function(tile, *parts)` sees the operands cut as `inputs` say. `outputs` say where its results
    lie in arrays of `shapes`; `sizes` are the lengths of the batch axes.
    """

    grid: Grid
    function: Callable[..., Sequence[Array]]
    inputs: tuple[Slicing, ...]
    outputs: tuple[Slicing, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    sizes: tuple[int, ...] = ()
    key: Hashable = None
    """Sweeps of equal keys are equal, so jit compiles them once; None compares by identity."""
    order: int = 0
    """The order of the derivative: from 2 on, tiles are so large that batch elements stay apart."""

    def __eq__(self, other: object) -> bool:
        if self.key is None or not isinstance(other, type(self)):
            return self is other
        return self.key == other.key

    def __hash__(self) -> int:
        return id(self) if self.key is None else hash((type(self), self.key))

    def run(self, *operands: Array) -> list[Array]:
        """The results, in arrays of `shapes`."""
        raise NotImplementedError

    def walk(self, operands: Sequence[Array], results: list[Array], body: Body) -> list[Array]:
        """Visit the batch one index after the other, so that a tile stays in the cache."""

        def visit(number: Number, results: list[Array]) -> list[Array]:
            index = jnp.unravel_index(number, self.sizes) if self.sizes else ()
            walk = Walk(self.grid, self.inputs, self.outputs, index, operands, body)
            return walk.table(results)

        total = math.prod(self.sizes)
        if not total:
            return results
        return visit(0, results) if total == 1 else jax.lax.fori_loop(0, total, visit, results)

    # The same sweep with one more batch axis, or one less.

    def mapped(self, size: int, along: Sequence[bool]) -> Self:
        """The sweep with a new first batch axis, of every result and of the operands `along`."""
        more = lambda slicing, has: Slicing(slicing.side, (int(has), *slicing.batch))  # noqa: E731
        return dataclasses.replace(
            self,
            inputs=tuple(map(more, self.inputs, along)),
            outputs=tuple(more(slicing, True) for slicing in self.outputs),
            shapes=tuple(jax.ShapeDtypeStruct((size, *s.shape), s.dtype) for s in self.shapes),
            sizes=(size, *self.sizes),
            key=("mapped", self.key, size, tuple(along)),
        )

    def in_groups(self) -> Self:
        """The sweep with about as many batch elements in a tile as it has room for.

        Heads of shape (512, 256) have 2**17 elements, so 8 of them fill a tile of 2**20. Batch
        elements with plans of their own visit different tiles, and are not joined.
        """
        what, room = self, batch_per_tile(self.grid.area) if self.order < 2 else 1
        for axis, size in reversed(list(enumerate(self.sizes))):  # the last axis is contiguous
            if self.grid.plan is None and self.inputs[0].batch[axis]:
                continue
            most = 2 if symbolic((size,)) else 2 * room
            divisors = (n for n in range(1, most) if size % n == 0)
            number = min(divisors, key=lambda n: abs(n - room))
            what, room = what.grouped(axis, number), max(room // number, 1)
        return what

    def grouped(self, axis: int, number: int) -> Self:
        """The sweep with `number` indices of a batch axis side by side in a tile."""
        if number == 1:
            return self

        def function(tile, *parts):
            results = jax.vmap(partial(self.function, tile), self.in_axes(axis))(*parts)
            pairs = zip(results, self.outputs, strict=True)
            return [x if slicing.batch[axis] else x.sum(0) for x, slicing in pairs]

        def more(slicing: Slicing) -> Slicing:
            batch = (n * number if i == axis else n for i, n in enumerate(slicing.batch))
            return Slicing(slicing.side, tuple(batch))

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
        """vmap's in_axes for the arguments of `function` after the tile, along a batch axis."""
        return tuple(0 if slicing.batch[axis] else None for slicing in self.inputs)

    def side_by_side(self, *operands: Array) -> list[Array]:
        """The results, with all indices of the batch axes at once."""
        if not self.sizes:
            return self.run(*operands)
        less = lambda slicing: Slicing(slicing.side, slicing.batch[1:])  # noqa: E731
        has = [bool(slicing.batch[0]) for slicing in self.outputs]
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
        # Whole operands are mapped here, not their slices: a fold's old results are no operand.
        axes = Sweep.in_axes(self, 0)
        results = jax.vmap(one.side_by_side, axes, axis_size=self.sizes[0])(*operands)
        return [x if h else x.sum(0) for x, h in zip(results, has, strict=True)]


@dataclasses.dataclass(frozen=True, eq=False)
class Sum(Sweep):
    """The sum over all tiles of `function(tile, *parts)`, in at least float32."""

    def run(self, *operands: Array) -> list[Array]:
        sums = [jnp.zeros(s.shape, wide(s)) for s in self.shapes]

        def body(tile, old, parts):
            new = self.function(tile, *parts)
            triples = zip(old, new, sums, strict=True)
            return [
                b.astype(s.dtype) if a is None else a + b.astype(s.dtype) for a, b, s in triples
            ]

        sums = self.walk(operands, sums, body)
        return [x.astype(s.dtype) for x, s in zip(sums, self.shapes, strict=True)]

    def tangent(self, active: Sequence[bool]) -> Sum:
        """The derivative along the active operands, whose tangents follow all operands."""

        def function(tile, *parts):
            x, dx = parts[: len(active)], parts[len(active) :]
            along = lambda *some: tuple(self.function(tile, *put_in(x, active, some)))  # noqa: E731
            return jax.jvp(along, tuple(taken(x, active)), dx)[1]

        inputs = (*self.inputs, *taken(self.inputs, active))
        key = ("tangent", self.key, tuple(active))
        order = self.order + 1
        return dataclasses.replace(self, function=function, inputs=inputs, key=key, order=order)

    def transposed(
        self, linear: Sequence[bool], avals: Sequence[ShapedArray], active: Sequence[bool]
    ) -> Sum:
        """The transpose in the linear operands, of shapes and dtypes `avals`.

        Its operands are those that are not linear, then the cotangents of the active results. Its
        results are the cotangents of the linear operands: inputs and outputs change sides.
        """
        known = [not is_linear for is_linear in linear]
        outputs = taken(self.inputs, linear)

        def function(tile, *parts):
            cotangents = parts[sum(known) :]
            fixed = put_in([None] * len(linear), known, parts[: sum(known)])

            def forward(*some):
                return tuple(taken(self.function(tile, *put_in(fixed, linear, some)), active))

            zeros = [
                jnp.zeros(slicing.shape(a.shape, tile), a.dtype)
                for slicing, a in zip(outputs, avals, strict=True)
            ]
            made, back = jax.vjp(forward, *zeros)
            return back(tuple(g.astype(y.dtype) for g, y in zip(cotangents, made, strict=True)))

        return dataclasses.replace(
            self,
            function=function,
            inputs=(*taken(self.inputs, known), *taken(self.outputs, active)),
            outputs=tuple(outputs),
            shapes=tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals),
            key=("transposed", self.key, tuple(linear), tuple(active)),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Fold(Sweep):
    """A running state that absorbs a row's tiles; all results are relative to the first, as the
    denominator and the numerator of softmax are to the row maximum.

    `function(tile, old, *parts)` gives a row's new results from the old, which begin as `initial`
    or, for a row's first tile, as None. Derivatives treat the first result as a constant. The
    others are the sum over all tiles of `contribution(tile, *parts, first)`.
    """

    initial: tuple[ArrayLike, ...] = ()
    contribution: Any = None

    def run(self, *operands: Array) -> list[Array]:
        pairs = zip(self.shapes, self.initial, strict=True)
        results = [jnp.full(s.shape, x, s.dtype) for s, x in pairs]
        absorb = lambda tile, old, parts: self.function(tile, old, *parts)  # noqa: E731
        return self.walk(operands, results, absorb)

    def in_axes(self, axis: int) -> tuple[int | None, ...]:
        return (0, *super().in_axes(axis))  # the old results come first

    @property
    def sum(self) -> Sum:
        """The results after the first, as a sum of contributions relative to the final first."""
        inputs = (*self.inputs, self.outputs[0])
        outputs, shapes = self.outputs[1:], self.shapes[1:]
        key = ("sum", self.key)
        return Sum(self.grid, self.contribution, inputs, outputs, shapes, self.sizes, key)


def taken(values: Sequence[Item], chosen: Sequence[bool]) -> list[Item]:
    """The values where `chosen` is true."""
    return [value for value, take in zip(values, chosen, strict=True) if take]


def put_in(values: Sequence[Item], chosen: Sequence[bool], new: Sequence[Item]) -> list[Item]:
    """The values, with the new ones where `chosen` is true."""
    rest = iter(new)
    return [next(rest) if take else value for value, take in zip(values, chosen, strict=True)]
