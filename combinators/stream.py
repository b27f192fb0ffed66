"""Streamed execution: a lookup tile by tile, exact, in memory linear in its rows.

The stages of the lookup run on tiles as they run on the whole table. What a block of keys
contributes to a query merges with what other blocks contribute, as the normalizer says: a monoid
(Milakov and Gimelshein 2018, Rabe and Staats 2021, Dao et al. 2022).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .aggregate import aggregate, weighted_sum
from .apply import Apply
from .arithmetic import Pointwise
from .compose import Compose
from .lookup import Lookup, inner
from .mask import mask
from .norm import dropout, numbers
from .normalize import Elementwise, LogSumExp, Streaming, lowest, normalize, row_sum, softmax
from .reassociate import in_part, summed
from .records import Block, Entries, Marks, Range, Rows, Scores, Weights, record
from .run import Context, Name, put, select
from .score import features, score
from .spans import plan
from .term import Leaf, Stage, Term
from .tiles import Fold, Grid, Layout, Place, Side, fold
from .union import Union
from .values import Source, identity, pointwise
from .wrap import Everywhere, Wrapper

__all__ = ["Partial", "Streamed", "answer", "merge", "planned", "streamed_form"]


@record
class Partial:
    """What queries have gathered from some of the keys.

    `total` (T,) and `mixed` (T, e) are the sums of the weights and of the weighted values, relative
    to `reference` (T,). Where only the total is asked for, mixed is None.
    """

    reference: Array
    total: Array
    mixed: Array | None = None


def merge(how: Streaming, a: Partial, b: Partial) -> Partial:
    """What queries have gathered from the keys of both: associative, in whatever order.

    >>> nothing = Partial(jnp.array([-1e30]), jnp.zeros(1), jnp.zeros((1, 2)))
    >>> some = Partial(jnp.array([2.0]), jnp.ones(1), jnp.ones((1, 2)))
    >>> merge(softmax, nothing, some).mixed
    Array([[1., 1.]], dtype=float32)
    """
    reference = jnp.maximum(a.reference, b.reference)
    x, y = how.rescale(a.reference, reference), how.rescale(b.reference, reference)
    mixed = None
    if a.mixed is not None and b.mixed is not None:
        mixed = a.mixed * x[:, None] + b.mixed * y[:, None]
    return Partial(reference, a.total * x + b.total * y, mixed)


# Which lookups are streams


class Step(NamedTuple):
    """A stage: the names that lead to its form, the form, and the stage's place there."""

    names: tuple[Name, ...]
    form: Any
    place: int

    @property
    def stage(self) -> Term:
        return self.form.parts[self.place]

    @property
    def path(self) -> tuple[Name, ...]:
        return (*self.names, self.form.names[self.place])

    def run(self, run: Any, x: Any, context: Context) -> Any:
        for name in self.names:
            run = run.enter(name)
        return run.part(self.form, self.place, x, context)


class Branch(NamedTuple):
    """One of the dictionaries asked: steps on the whole of it, then steps tile by tile.

    The whole steps give its entries, or, where it has no tiles, its scores.
    """

    whole: tuple[Step, ...]
    tiled: tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class Streamed:
    """A lookup as a stream: its dictionaries, one normalizer for all, and what comes after."""

    branches: tuple[Branch, ...]
    how: Streaming
    after: tuple[Step, ...]
    end: Any

    @property
    def features(self) -> features | None:
        """The features that keys can be summed up by before they are asked, if they can."""
        if len(self.branches) > 1 or self.after or not isinstance(self.end, aggregate):
            return None
        linear = self.how == row_sum or self.how == Elementwise(identity)
        stages = [inner(step.stage) for step in self.branches[0].tiled]
        scores = [stage for stage in stages if not isinstance(stage, mask)]
        match scores:
            case [score(function=features() as found)] if linear:
                return found
        return None


def tilewise(term: Term) -> bool:
    """Whether a term turns entries into scores, or scores into scores, tile by tile."""
    if isinstance(term, (score, mask, Stage, pointwise, Source)):
        return True
    return isinstance(term, (Compose, Pointwise, Wrapper)) and all(map(tilewise, term.parts))


def branches(first: Step) -> Iterator[Branch]:
    """The dictionaries of a union; or the one that is asked."""
    union = first.stage
    if not isinstance(union, Union):
        yield Branch((), (first,))
        return
    for place, part in enumerate(union.parts):
        here = Step((*first.names, first.form.names[first.place]), union, place)
        match part:
            case Compose(segments=(*whole, Lookup() as lookup)) if all(
                tilewise(part.parts[i]) for i in lookup.order
            ) and not any(isinstance(i, Lookup) for i in whole):
                steps = partial(Step, here.path, part)
                yield Branch(tuple(map(steps, whole)), tuple(map(steps, lookup.order)))
            case _ if tilewise(part):
                yield Branch((), (here,))
            case _:
                yield Branch((here,), ())


@lru_cache(maxsize=512)
def streamed_form(form: Term, lookup: Lookup) -> Streamed | str:
    """The lookup as a stream, or the reason why it cannot be one."""
    steps = [Step((), form, place) for place in lookup.order]
    stages = [inner(step.stage) for step in steps]
    at = next((i for i, s in enumerate(stages) if isinstance(s, (normalize, LogSumExp))), None)
    if not at or not isinstance(stages[-1], (aggregate, LogSumExp)):
        return "its scores or weights are asked for"
    how = getattr(stages[at], "rows", softmax)
    if not isinstance(how, Streaming):
        return f"{stages[at]!r} needs whole rows of scores"
    if isinstance(stages[-1], aggregate) and stages[-1].fold is not weighted_sum:
        return f"{stages[-1]!r} needs whole rows of weights"
    (first, *rest), after = steps[:at], steps[at + 1 : -1]
    for step in after:
        if not isinstance(inner(step.stage), dropout):
            return f"{step.stage!r} needs whole rows of weights"
    for step in rest if isinstance(first.stage, Union) else steps[:at]:
        if not tilewise(step.stage):
            return f"{step.stage!r} may need whole rows of scores"
    parts = tuple(b._replace(tiled=(*b.tiled, *rest)) for b in branches(first))
    return Streamed(parts, how, tuple(after), stages[-1])


def within(terms: Iterator[Term], kind: type) -> Iterator[Any]:
    """All terms of a kind, at whatever depth."""
    for term in terms:
        if isinstance(term, kind):
            yield term
        yield from within(iter(term.parts), kind)


# Running them


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

    def __init__(self, stream: Streamed, steps: tuple[Step, ...], run: Apply, column: int):
        self.stream, self.steps, self.run = stream, steps, run
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

    def whole(self, x: Scores, query: Rows, context: Context) -> Partial:
        """What queries gather from a table of scores."""
        for step in self.steps:
            x = step.run(self.run, x, context)
        keys = Range(0, x.score.shape[1])
        reference = self.stream.how.reference(x.score, x.visible)
        marks = Marks(query, Rows(keys, keys))
        return Partial(reference, *self.gathered(self.run, x, marks, context, reference))

    def tiled(self, x: Entries, context: Context, block: tuple[int, int]) -> Partial:
        """What queries gather from entries, tile by tile."""
        run, how, marks = self.run, self.stream.how, x.marks
        rows, columns = len(x.query), len(x.key)
        block = (min(block[0], rows), min(block[1], columns))
        used = (*self.steps, *self.stream.after)
        stages = masks(self.steps)
        which = plan(stages, marks, context, block)
        masked = Alive if all(all(stage.diagonal(marks)) for stage in stages) else Apply
        context = {name: context[name] for name in names_read(used) if name in context}
        summed_up = None
        if self.stream.features is not None:
            phi = partial(self.stream.features.map.apply, {}, context=context)
            total, mixed = summed(phi, x, which, block)
            summed_up = Partial(jnp.zeros_like(total), total, mixed)
            which = in_part(which)
        labels = {part.label for part in within((step.stage for step in used), Everywhere)}
        root = {label: run.root[0][label] for label in labels}

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
            here = kind(params, run.declared, (root, run.root[1]), run.path, run.aliases)
            marks = Marks(
                tile_of(query_rows, place.row, place.rows),
                tile_of(key_rows, place.column, place.columns),
            )
            scores: Any = Entries(query, key, value, marks)
            for step in self.steps:
                scores = step.run(here, scores, context)
            return here, scores, marks, context

        def contribution(place: Place, *tiles: Array) -> Sequence[Array]:
            *tiles, reference = tiles
            return self.gathered(*scored(place, tiles), reference)

        def absorb(place: Place, old: tuple[Array, ...], *tiles: Array) -> list[Array]:
            found = scored(place, tiles)
            reference = how.reference(found[1].score, found[1].visible)
            reference = jnp.maximum(old[0], reference)
            new = Partial(reference, *self.gathered(*found, reference))
            return jax.tree.leaves(merge(how, Partial(*old), new))

        def alone(*tiles: Array) -> Sequence[Array]:
            found = scored(first, tiles)
            reference = how.reference(found[1].score, found[1].visible)
            return reference, *self.gathered(*found, reference)

        first = Place(0, 0, *block, False)
        tiles = [
            jax.ShapeDtypeStruct(layout.shape(array.shape, first), array.dtype)
            for array, layout in zip(operands.arrays, operands.layouts, strict=True)
        ]
        made = jax.eval_shape(alone, *tiles)
        what = Fold(
            Grid((rows, columns), block, which if isinstance(which, np.ndarray) else None),
            absorb,
            tuple(operands.layouts),
            (Layout(Side.ROWS),) * len(made),
            tuple(jax.ShapeDtypeStruct((rows, *m.shape[1:]), m.dtype) for m in made),
            initial=(lowest(made[0]), 0, 0)[: len(made)],
            contribution=contribution,
        )
        streamed = Partial(*fold(what, operands.arrays))
        return streamed if summed_up is None else merge(how, streamed, summed_up)


def names_read(steps: Sequence[Step]) -> frozenset[str]:
    """The context that steps read, or that every term may."""
    return frozenset({"rng", "head", "precision"}).union(*(step.stage.reads for step in steps))


def answer(
    stream: Streamed, run: Apply, x: Entries, context: Context, block: tuple[int, int]
) -> Array:
    """Ask a stream: what its dictionaries give together."""
    found, column = [], 0
    for branch in stream.branches:
        reading, value = Reading(stream, branch.tiled, run, column), x
        for step in branch.whole:
            value = step.run(run, value, context)
        if isinstance(value, Entries):
            found.append(reading.tiled(value, context, block))
            column += len(value.key)
        else:
            found.append(reading.whole(value, x.marks.query, context))
            column += value.score.shape[1]
    all_ = reduce(partial(merge, stream.how), found)
    if isinstance(stream.end, LogSumExp):
        return stream.end.value(all_.reference, all_.total)
    return (all_.mixed / stream.how.divisor(all_.total)[:, None]).astype(x.value.dtype)
