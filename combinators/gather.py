"""Streamed execution: queries gather from a dictionary tile by tile, exactly, in linear memory.

The stages of the lookup run on tiles as they run on the whole table (Dao et al. 2022).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from .apply import Apply
from .context import Execution
from .dtypes import counts_as
from .errors import CompositionError
from .grid import Grid, Layout, Place, Side
from .mask import mask
from .normalize import LogSumExp, lowest
from .parameter import is_parameter
from .reassociate import feature_map, in_part, summed
from .records import Entries, Marks, Range, Rows, Scores, Weights, numbers
from .run import Context, Run, put, select
from .settle import tile_of
from .spans import survey
from .stream import Partial, Step, Streamed, merge, within
from .term import Leaf
from .tiles import Fold, fold
from .wrap import Everywhere

__all__ = ["Captured", "Reading", "answer", "finished", "leading", "masks", "opened", "planned"]


EXPONENTIAL = 16
"""Simple operations that cost about as much as an exponential."""


class Captured(CompositionError):
    """A lookup that works on one table alone: a function in it holds a traced array."""


class Unmasked(Apply):
    """The plain meaning where every mask is known to let everything pass."""

    def leaf(self, term: Leaf, x: Any, context: Context) -> Any:
        return x if isinstance(term, mask) else super().leaf(term, x, context)


class Alive(Apply):
    """The plain meaning where no key and no query has to be kept out of what is computed."""

    def leaf(self, term: Leaf, x: Any, context: Context) -> Any:
        y = super().leaf(term, x, context)
        return y.replace(live=None, awake=None) if isinstance(term, mask) else y


class Operands:
    """The arrays that a stream reads, each with its layout."""

    def __init__(self):
        self.arrays: list[Array] = []
        self.layouts: list[Layout] = []
        self.key: tuple[Any, ...] = ()  # what is no array

    def add(self, tree: Any, side: Side, length: int = -1) -> Callable[[Sequence[Array]], Any]:
        """Takes the arrays of a tree; gives the function from a tile's arrays back to the tree.

        Arrays with `length` rows lie along the side, all others are whole.
        """
        leaves, shape = jax.tree.flatten(tree)
        slots: list[Callable[[Sequence[Array]], Any]] = []
        for leaf in leaves:
            if not isinstance(leaf, Array):
                slots.append(lambda tiles, leaf=leaf: leaf)
                continue
            at, back = len(self.arrays), lambda x: x
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                back = partial(jax.random.wrap_key_data, impl=jax.random.key_impl(leaf))
                leaf = jax.random.key_data(leaf)
            self.arrays.append(leaf)
            self.layouts.append(Layout(side if leaf.shape[:1] == (length,) else Side.WHOLE))
            slots.append(lambda tiles, at=at, back=back: back(tiles[at]))
        fixed = tuple(leaf for leaf in leaves if not isinstance(leaf, Array))
        self.key += (shape, fixed, len(self.arrays))
        return lambda tiles: jax.tree.unflatten(shape, [slot(tiles) for slot in slots])


def restricted(tree: Any, steps: Sequence[Step]) -> Any:
    """The parameters of some steps, in the tree of all."""
    kept: dict[str, Any] = {}
    for step in steps:
        part = reduce(select, step.path, tree)
        for name in reversed(step.path):
            part = put({}, name, dict(part))
        kept = put(kept, "", dict(part))
    return kept


def planned(steps: Sequence[Step], x: Entries, context: Context, block: tuple[int, int]) -> Grid:
    """The table in blocks of at most so many rows and columns."""
    shape = x.query.shape[0], x.key.shape[0]
    block = min(block[0], shape[0]), min(block[1], shape[1])
    # An exponential is worth as many operations as are counted beside the products of a pair.
    affordable = x.query.shape[-1] + x.value.shape[-1] + EXPONENTIAL
    found = survey(masks(steps), x.marks, context, block, affordable)
    return Grid(shape, block, found.parts, undecided=found.undecided)


def masks(steps: Sequence[Step]) -> list[mask]:
    return list(within((step.stage for step in steps), mask))


class Reading:
    """How the queries of a stream gather from one of its dictionaries, whole or tile by tile."""

    def __init__(self, stream: Streamed, branch: int, column: int = 0):
        self.stream, self.branch, self.steps = stream, branch, stream.branches[branch].tiled
        self.column = column  # the first key's among those of all dictionaries

    def gathered(self, run: Apply, scores: Scores, marks: Marks, context: Context, reference: Any):
        """What some keys contribute: the sum of the weights, and of the weighted values."""
        weight = self.stream.how.weigh(scores.score, scores.visible, reference)
        total = weight.sum(-1)
        if isinstance(self.stream.end, LogSumExp):
            return (total,)
        key = dataclasses.replace(marks.key, index=self.column + numbers(marks.key.index))
        weights = Weights(weight, scores.value, Marks(marks.query, key), scores.live)
        for step in self.stream.after:
            weights = step.run(run, weights, context)
        return total, weights.mixed(weights.value)

    def found(
        self, run: Apply, scores: Scores, marks: Marks, context: Context, least: Any = None
    ) -> Partial:
        """What queries gather from some keys, relative to at least so much."""
        reference = self.stream.how.reference(scores.score, scores.visible)
        if least is not None:
            reference = jnp.maximum(least, reference)
        return Partial(reference, *self.gathered(run, scores, marks, context, reference))

    def whole(self, run: Apply, x: Any, query: Rows, context: Context) -> Partial:
        """What queries gather from entries, or from a table of scores, at once."""
        for step in self.steps:
            x = step.run(run, x, context)
        x = self.stream.how.prepared(x)
        keys = Range(0, x.score.shape[1])
        return self.found(run, x, Marks(query, Rows(keys, keys)), context)

    def tiled(self, run: Apply, x: Entries, context: Context, grid: Grid) -> Partial:
        """What queries gather from entries, tile by tile."""
        found = []
        if self.stream.features is not None:
            phi = feature_map(self.stream.features, context)
            total, mixed = summed(phi, x, grid)
            found = [Partial(jnp.zeros_like(total), total, mixed)]
            grid = in_part(grid)
        operands = Operands()
        tiles = Tiles(self, run, x, context, grid, operands)
        found = [Partial(*fold(tiles.fold(operands), operands.arrays)), *found]
        return reduce(partial(merge, self.stream.how), found)


class Tiles:
    """What a tile of a dictionary gives, as functions of its part of the operands.

    It holds no array, so that it may be part of a program that is kept.
    """

    def __init__(
        self, reading: Reading, run: Apply, x: Entries, context: Context, grid: Grid, operands: Any
    ):
        self.reading, self.how = reading, reading.stream.how
        self.grid = grid if grid.known else dataclasses.replace(grid, plan=None)
        used = (*reading.steps, *reading.stream.after)
        stages = masks(reading.steps)
        self.masked = Alive if all(all(stage.diagonal(x.marks)) for stage in stages) else Apply
        labels = {part.label for part in within((step.stage for step in used), Everywhere)}
        root, self.of_root = ({label: tree[label] for label in labels} for tree in run.root)
        self.declared = restricted(run.declared, used)
        self.path, self.aliases = run.path, run.aliases
        context = context.only(names_read(used)).within(execution=Execution())

        if not grid.known:
            operands.add(grid.plan, Side.WHOLE)
        self.whole = operands.add((restricted(run.params, used), root, context), Side.WHOLE)
        self.asking = operands.add((x.query, x.marks.query), Side.ROWS, grid.shape[0])
        self.asked = operands.add((x.key, x.value, x.marks.key), Side.COLUMNS, grid.shape[1])

    def scored(self, place: Place, tiles: Sequence[Array]) -> tuple[Apply, Scores, Marks, Context]:
        """A tile after the stages before the normalizer, as they run on the whole table."""
        params, root, context = self.whole(tiles)
        (query, query_rows), (key, value, key_rows) = self.asking(tiles), self.asked(tiles)
        kind = Unmasked if place.full else self.masked
        run = kind(params, self.declared, (root, self.of_root), self.path, self.aliases)
        marks = Marks(
            tile_of(query_rows, place.row, place.rows),
            tile_of(key_rows, place.column, place.columns),
        )
        scores: Any = Entries(query, key, value, marks)
        for step in self.reading.steps:
            scores = step.run(run, scores, context)
        return run, self.how.prepared(scores), marks, context

    def contribution(self, place: Place, *tiles: Array) -> Sequence[Array]:
        """What queries gather from a tile, relative to the last of the operands."""
        return self.reading.gathered(*self.scored(place, tiles[:-1]), tiles[-1])

    def absorb(self, place: Place, old: tuple[Any, ...], *tiles: Array) -> list[Array]:
        """What queries have gathered, if anything, with what they gather from one more tile."""
        new = self.reading.found(*self.scored(place, tiles), old[0])
        if old[0] is not None:
            new = Partial(*old).relative(self.how, new.reference) + new
        return jax.tree.leaves(new)

    def results(self, operands: Operands) -> list[Any]:
        """What is gathered from one tile, in shapes."""
        place = Place(0, 0, *self.grid.block, False)
        pairs = zip(operands.arrays, operands.layouts, strict=True)
        tiles = [jax.ShapeDtypeStruct(lies.shape(x.shape, place), x.dtype) for x, lies in pairs]
        alone = lambda *tiles: self.absorb(place, (None,), *tiles)  # noqa: E731
        traced, made = jax.make_jaxpr(alone, return_shape=True)(*tiles)
        if any(isinstance(value, Tracer) for value in traced.consts):
            raise Captured(
                "a function inside this lookup captures a traced array, which a stream cannot cut: "
                "pass it as context, read(name), or learn it"
            )
        return made

    def fold(self, operands: Operands) -> Fold:
        """The sweep over all tiles."""
        results, layouts = self.results(operands), tuple(operands.layouts)
        reading, grid = self.reading, self.grid
        plan = grid.plan.tobytes() if grid.known else None
        key = (
            (reading.stream, reading.branch, reading.column, self.path, *self.aliases.items()),
            (self.masked, grid.shape, grid.block, grid.reach, plan, operands.key, layouts),
            hashed((self.declared, self.of_root)),
        )
        return Fold(
            grid,
            self.absorb,
            layouts,
            (Layout(Side.ROWS),) * len(results),
            tuple(jax.ShapeDtypeStruct((grid.shape[0], *m.shape[1:]), m.dtype) for m in results),
            key=key,
            initial=(lowest(results[0]), 0, 0)[: len(results)],
            contribution=self.contribution,
        )


def hashed(declared: Any) -> Any:
    """Declarations as a key."""
    leaves, shape = jax.tree.flatten(declared, is_leaf=is_parameter)
    return tuple(leaves), shape


def names_read(steps: Sequence[Step]) -> frozenset[str]:
    """The context that steps read, or that every term may."""
    return frozenset({"rng"}).union(*(step.stage.reads for step in steps))


def opened(stream: Streamed, run: Run, x: Any, context: Context) -> list[Any]:
    """Each dictionary of a stream once its whole steps have run: entries, or a table of scores."""
    values = []
    for branch in stream.branches:
        value = x
        for step in branch.whole:
            value = step.run(run, value, context)
        values.append(value)
    return values


def leading(stream: Streamed, values: list[Any]) -> int | None:
    """The dictionary whose tiles are planned, the others in blocks of the same size: the first that
    is asked as it is, or else the one with the most keys. None if no dictionary has tiles."""
    tiled = [i for i, value in enumerate(values) if isinstance(value, Entries)]
    as_it_is = [i for i in tiled if not stream.branches[i].whole]
    return next(iter(as_it_is), max(tiled, key=lambda i: len(values[i].key), default=None))


def answer(stream: Streamed, run: Apply, x: Any, context: Context, grid: Grid) -> Array:
    """Ask a stream: what its dictionaries give together; the grid is that of the leading one."""
    values = opened(stream, run, x, context)
    lead = leading(stream, values)
    asking = x if isinstance(x, Entries) or lead is None else values[lead]
    found, column = [], 0
    for number, value in enumerate(values):
        reading = Reading(stream, number, column)
        if isinstance(value, Entries):
            own = grid
            if number != lead:
                own = planned(reading.steps, value, context, grid.block)
            found.append(reading.tiled(run, value, context, own))
            column += len(value.key)
        else:
            found.append(reading.whole(run, value, asking.marks.query, context))
            column += value.score.shape[1]
    return finished(stream, reduce(partial(merge, stream.how), found), counts_as(asking.value))


def finished(stream: Streamed, found: Any, kind: Any) -> Array:
    """The answer, once all is gathered."""
    if isinstance(stream.end, LogSumExp):
        return stream.end.value(found.reference, found.total)
    return (found.mixed / stream.how.divisor(found.total)[:, None]).astype(kind)
