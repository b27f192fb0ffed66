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
import numpy as np
from jax import Array
from jax.core import Tracer

from .apply import Apply
from .errors import CompositionError
from .grid import Grid, Layout, Place, Side
from .mask import mask
from .normalize import LogSumExp, lowest
from .parameter import is_parameter
from .reassociate import feature_map, in_part, summed
from .records import Block, Entries, Marks, Range, Rows, Scores, Weights, numbers
from .run import Context, put, select
from .spans import plan
from .stream import Partial, Step, Streamed, merge, within
from .term import Leaf
from .tiles import Fold, fold
from .wrap import Everywhere

__all__ = ["Captured", "Reading", "answer", "finished", "masks", "planned"]


class Captured(CompositionError):
    """A lookup that works on one table alone: a function in it holds a traced array."""


class Unmasked(Apply):
    """The plain meaning where every mask is known to let everything pass."""

    def leaf(self, term: Leaf, x: Any, context: Context) -> Any:
        return x if isinstance(term, mask) else super().leaf(term, x, context)


class Alive(Apply):
    """The plain meaning where every key is known to be seen, and every query to see one."""

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


def tile_of(rows: Rows, start: Any, length: int) -> Rows:
    """Some of the rows, where those known without an array begin at `start`."""
    move = lambda x: Block(x.start + start, length) if isinstance(x, Range) else x  # noqa: E731
    return dataclasses.replace(rows, position=move(rows.position), index=move(rows.index))


def restricted(tree: Any, steps: Sequence[Step]) -> Any:
    """The parameters of some steps, in the tree of all."""
    kept: dict[str, Any] = {}
    for step in steps:
        part = reduce(select, step.path, tree)
        for name in reversed(step.path):
            part = put({}, name, dict(part))
        kept = put(kept, "", dict(part))
    return kept


def planned(stream: Streamed, x: Entries, context: Context, block: tuple[int, int]) -> Any:
    """Which tiles of the table take part, of the first dictionary that has tiles."""
    steps = next((b.tiled for b in stream.branches if not b.whole), ())
    return plan(masks(steps), x.marks, context, block)


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

    def whole(self, run: Apply, x: Any, query: Rows, context: Context) -> Partial:
        """What queries gather from entries, or from a table of scores, at once."""
        for step in self.steps:
            x = step.run(run, x, context)
        keys = Range(0, x.score.shape[1])
        reference = self.stream.how.reference(x.score, x.visible)
        marks = Marks(query, Rows(keys, keys))
        return Partial(reference, *self.gathered(run, x, marks, context, reference))

    def tiled(self, run: Apply, x: Entries, context: Context, block: tuple[int, int]) -> Partial:
        """What queries gather from entries, tile by tile."""
        how, marks = self.stream.how, x.marks
        rows, columns = len(x.query), len(x.key)
        block = (min(block[0], rows), min(block[1], columns))
        used = (*self.steps, *self.stream.after)
        stages = masks(self.steps)
        which = plan(stages, marks, context, block)
        masked = Alive if all(all(stage.diagonal(marks)) for stage in stages) else Apply
        context = {name: context[name] for name in names_read(used) if name in context}
        summed_up = None
        if self.stream.features is not None:
            phi = feature_map(self.stream.features, context)
            total, mixed = summed(phi, x, which, block)
            summed_up = Partial(jnp.zeros_like(total), total, mixed)
            which = in_part(which)
        labels = {part.label for part in within((step.stage for step in used), Everywhere)}
        root, of_root = ({label: tree[label] for label in labels} for tree in run.root)
        declared, path, aliases = restricted(run.declared, used), run.path, run.aliases

        operands = Operands()
        if not isinstance(which, np.ndarray):
            operands.add(which, Side.WHOLE)
        whole = operands.add((restricted(run.params, used), root, context), Side.WHOLE)
        asking = operands.add((x.query, marks.query), Side.ROWS, rows)
        asked = operands.add((x.key, x.value, marks.key), Side.COLUMNS, columns)

        def scored(place: Place, tiles: Sequence[Array]) -> tuple[Apply, Scores, Marks, Context]:
            params, root, context = whole(tiles)
            (query, query_rows), (key, value, key_rows) = asking(tiles), asked(tiles)
            kind = Unmasked if place.full else masked
            here = kind(params, declared, (root, of_root), path, aliases)
            marks = Marks(
                tile_of(query_rows, place.row, place.rows),
                tile_of(key_rows, place.column, place.columns),
            )
            scores: Any = Entries(query, key, value, marks)
            for step in self.steps:
                scores = step.run(here, scores, context)
            return here, scores, marks, context

        def contribution(place: Place, *tiles: Array) -> Sequence[Array]:
            return self.gathered(*scored(place, tiles[:-1]), tiles[-1])

        def absorb(place: Place, old: tuple[Array, ...], *tiles: Array) -> list[Array]:
            block = block_of(place, tiles, old[0])
            return jax.tree.leaves(Partial(*old).relative(how, block.reference) + block)

        def block_of(place: Place, tiles: Sequence[Array], least: Any) -> Partial:
            found = scored(place, tiles)
            reference = how.reference(found[1].score, found[1].visible)
            reference = jnp.maximum(least, reference)
            return Partial(reference, *self.gathered(*found, reference))

        def alone(*tiles: Array) -> list[Array]:
            return jax.tree.leaves(block_of(first, tiles, -jnp.inf))

        first = Place(0, 0, *block, False)
        tiles = [
            jax.ShapeDtypeStruct(layout.shape(array.shape, first), array.dtype)
            for array, layout in zip(operands.arrays, operands.layouts, strict=True)
        ]
        traced, made = jax.make_jaxpr(alone, return_shape=True)(*tiles)
        if any(isinstance(value, Tracer) for value in traced.consts):
            raise Captured(
                "a function inside this lookup captures a traced array, which a stream cannot cut: "
                "pass it as context, read(name), or learn it"
            )
        what = Fold(
            Grid((rows, columns), block, which if isinstance(which, np.ndarray) else None),
            absorb,
            tuple(operands.layouts),
            (Layout(Side.ROWS),) * len(made),
            tuple(jax.ShapeDtypeStruct((rows, *m.shape[1:]), m.dtype) for m in made),
            key=(
                self.stream,
                self.branch,
                self.column,
                path,
                tuple(aliases.items()),
                masked,
                (rows, columns),
                block,
                which.tobytes() if isinstance(which, np.ndarray) else None,
                operands.key,
                tuple(operands.layouts),
                hashed((declared, of_root)),
            ),
            initial=(lowest(made[0]), 0, 0)[: len(made)],
            contribution=contribution,
        )
        streamed = Partial(*fold(what, operands.arrays))
        return streamed if summed_up is None else merge(how, streamed, summed_up)


def hashed(declared: Any) -> Any:
    """Declarations as a key."""
    leaves, shape = jax.tree.flatten(declared, is_leaf=is_parameter)
    return tuple(leaves), shape


def names_read(steps: Sequence[Step]) -> frozenset[str]:
    """The context that steps read, or that every term may."""
    return frozenset({"rng", "head", "precision"}).union(*(step.stage.reads for step in steps))


def answer(
    stream: Streamed, run: Apply, x: Entries, context: Context, block: tuple[int, int]
) -> Array:
    """Ask a stream: what its dictionaries give together."""
    found, column = [], 0
    for number, branch in enumerate(stream.branches):
        reading, value = Reading(stream, number, column), x
        for step in branch.whole:
            value = step.run(run, value, context)
        if isinstance(value, Entries):
            found.append(reading.tiled(run, value, context, block))
            column += len(value.key)
        else:
            found.append(reading.whole(run, value, x.marks.query, context))
            column += value.score.shape[1]
    return finished(stream, reduce(partial(merge, stream.how), found), x.value.dtype)


def finished(stream: Streamed, found: Any, kind: Any) -> Array:
    """The answer, once all is gathered."""
    if isinstance(stream.end, LogSumExp):
        return stream.end.value(found.reference, found.total)
    return (found.mixed / stream.how.divisor(found.total)[:, None]).astype(kind)
