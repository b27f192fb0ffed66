"""Streamed execution: a lookup tile by tile, exactly, in memory linear in queries and keys.

Every tile runs the stages of the lookup as they run on the whole table. A running state of row
maximum, denominator and numerator absorbs one tile after the other (Dao et al. 2022).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Float, PyTree

from ..core.apply import Apply
from ..core.context import Context, Execution
from ..core.dtypes import counts_as
from ..core.errors import CompositionError
from ..core.execution import Run, put, select
from ..core.leaf import Leaf
from ..core.marks import Marks, Range, Rows, numbers
from ..core.mesh import divided_as, undivided
from ..core.parameter import Declarations, Parameter, is_parameter
from ..core.records import Entries, Scores, Weights
from ..core.types import Outputs, Params, Value
from ..mask import mask
from ..softmax import LogSumExp, lowest
from ..wrappers import Everywhere
from .block_pairs import tile_of
from .block_plan import survey
from .derivatives import fold
from .grid import Grid, Side, Slicing, Tile
from .linear_attention import feature_map, in_part, summed
from .partial import Partial, merge
from .recognize import Step, Streamed, within
from .sweep import Fold

__all__ = ["BranchRun", "Captured", "answer", "finished", "leading", "masks", "opened", "planned"]

EXPONENTIAL = 16
"""The cost of an exponential, in simple operations."""


class Captured(CompositionError):
    """Raised for a lookup with a function that captures a traced array: it runs on one table."""


class Unmasked(Apply):
    """The plain call without masks, for tiles of which every pair is visible."""

    def leaf(self, term: Leaf, x: Value, context: Context) -> Value:
        return x if isinstance(term, mask) else super().leaf(term, x, context)


class AllActive(Apply):
    """The plain call for lookups in which every query sees a key and every key is seen.

    Masks then need not tell the later stages which queries and keys are active.
    """

    def leaf(self, term: Leaf, x: Value, context: Context) -> Value:
        y = super().leaf(term, x, context)
        return y.replace(active_keys=None, active_queries=None) if isinstance(term, mask) else y


class Operands:
    """The operands of a sweep, flattened to arrays, each with its slicing.

    `key` holds everything in them that is not an array, for the key of the sweep.
    """

    def __init__(self):
        self.arrays: list[Array] = []
        self.slicings: list[Slicing] = []
        self.key: tuple[Hashable, ...] = ()

    def add(
        self, tree: PyTree, side: Side, length: int = -1
    ) -> Callable[[Sequence[Array]], PyTree]:
        """Add the arrays of a tree; return the function from a tile's slices back to the tree.

        Arrays with `length` rows are cut along `side`, all others are whole.
        """
        leaves, structure = jax.tree.flatten(tree)
        takes = [self.take(leaf, side, length) for leaf in leaves]
        fixed = tuple(leaf for leaf in leaves if not isinstance(leaf, Array))
        self.key += (structure, fixed, len(self.arrays))
        return lambda parts: jax.tree.unflatten(structure, [take(parts) for take in takes])

    def take(self, leaf: object, side: Side, length: int) -> Callable[[Sequence[Array]], object]:
        """Add one leaf; return the function that takes it from a tile's slices."""
        if not isinstance(leaf, Array):
            return lambda parts: leaf
        number, restore = len(self.arrays), lambda x: x
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            restore = partial(jax.random.wrap_key_data, impl=jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        self.arrays.append(leaf)
        self.slicings.append(Slicing(side if leaf.shape[:1] == (length,) else Side.WHOLE))
        return lambda parts: restore(parts[number])


def restricted(tree: Params | Declarations, steps: Sequence[Step]) -> Outputs:
    """The parameter tree with the parameters of the given steps alone."""
    kept: Outputs = {}
    for step in steps:
        part = reduce(select, step.path, tree)
        for name in reversed(step.path):
            part = put({}, name, dict(part))
        kept = put(kept, "", dict(part))
    return kept


def planned(steps: Sequence[Step], x: Entries, context: Context, block: tuple[int, int]) -> Grid:
    """The grid of a table whose blocks have at most `block` rows and columns."""
    shape = x.query.shape[0], x.key.shape[0]
    block = min(block[0], shape[0]), min(block[1], shape[1])
    # Deciding a pair must not cost more than a pair of attention: two products, one exponential.
    affordable = x.query.shape[-1] + x.value.shape[-1] + EXPONENTIAL
    found = survey(masks(steps), x.marks, context, block, affordable)
    return Grid(shape, block, found.parts, undecided=found.undecided)


def masks(steps: Sequence[Step]) -> list[mask]:
    """The masks among the stages of some steps, at any depth."""
    return list(within((step.stage for step in steps), mask))


class BranchRun:
    """Runs one branch of a stream: the partial result over one dictionary, whole or tile by tile.

    `column` is the index of the dictionary's first key among the keys of all dictionaries.
    """

    def __init__(self, stream: Streamed, branch: int, column: int = 0):
        self.stream, self.branch, self.steps = stream, branch, stream.branches[branch].tiled
        self.column = column

    def sums(
        self, run: Apply, scores: Scores, marks: Marks, context: Context, reference: Array
    ) -> tuple[Array, ...]:
        """The denominator (t,) and, if values are asked for, the numerator (t, e)."""
        weight = self.stream.how.weigh(scores.score, scores.visible, reference)
        denominator = weight.sum(-1)
        if isinstance(self.stream.end, LogSumExp):
            return (denominator,)
        key = dataclasses.replace(marks.key, index=self.column + numbers(marks.key.index))
        weights = Weights(weight, scores.value, Marks(marks.query, key), scores.active_keys)
        for step in self.stream.after:
            weights = step.run(run, weights, context)
        return denominator, weights.mixed(weights.value)

    def state(
        self, run: Apply, scores: Scores, marks: Marks, context: Context, old: Array | None = None
    ) -> Partial:
        """The partial result over some keys; its reference is at least `old`, if that is given."""
        reference = self.stream.how.reference(scores.score, scores.visible)
        if old is not None:
            reference = jnp.maximum(old, reference)
        return Partial(reference, *self.sums(run, scores, marks, context, reference))

    def whole(self, run: Apply, x: Value, query: Rows, context: Context) -> Partial:
        """The partial result over entries, or over a table of scores, at once."""
        for step in self.steps:
            x = step.run(run, x, context)
        x = self.stream.how.prepared(x)
        keys = Range(0, x.score.shape[1])
        return self.state(run, x, Marks(query, Rows(keys, keys)), context)

    def tiled(self, run: Apply, x: Entries, context: Context, grid: Grid) -> Partial:
        """The partial result over entries, tile by tile."""
        parts = []
        if self.stream.features is not None:
            phi = feature_map(self.stream.features, context)
            # Blocks of rows are cut here, which rows that an explicit axis divides cannot be.
            whole = x.replace(query=undivided(x.query))
            denominator, numerator = (
                divided_as(rows, x.query) for rows in summed(phi, whole, grid)
            )
            parts = [Partial(jnp.zeros_like(denominator), denominator, numerator)]
            grid = in_part(grid)
        operands = Operands()
        function = TileFunction(self, run, x, context, grid, operands)
        parts = [Partial(*fold(function.fold(operands), operands.arrays)), *parts]
        return reduce(partial(merge, self.stream.how), parts)


class TileFunction:
    """The computation of one tile, as functions of its slices of the operands.

    It holds no array, since a Fold holds it, and jit caches programs by their folds.
    """

    def __init__(
        self, branch: BranchRun, run: Apply, x: Entries, context: Context, grid: Grid,
        operands: Operands,
    ):  # fmt: skip
        self.branch, self.how = branch, branch.stream.how
        self.grid = grid if grid.known else dataclasses.replace(grid, plan=None)
        used = (*branch.steps, *branch.stream.after)
        stages = masks(branch.steps)
        self.masked = AllActive if all(all(stage.diagonal(x.marks)) for stage in stages) else Apply
        labels = {part.label for part in within((step.stage for step in used), Everywhere)}
        root, self.of_root = ({label: tree[label] for label in labels} for tree in run.root)
        self.declared = restricted(run.declared, used)
        self.path, self.aliases = run.path, run.aliases
        context = context.only(names_read(used)).within(execution=Execution())

        if not grid.known:  # a sweep expects such a plan as its first operand
            operands.add(grid.plan, Side.WHOLE)
        self.whole = operands.add((restricted(run.params, used), root, context), Side.WHOLE)
        self.along_rows = operands.add((x.query, x.marks.query), Side.ROWS, grid.shape[0])
        self.along_columns = operands.add(
            (x.key, x.value, x.marks.key), Side.COLUMNS, grid.shape[1]
        )

    def scored(self, tile: Tile, parts: Sequence[Array]) -> tuple[Apply, Scores, Marks, Context]:
        """A tile after the stages before the normalizer, as they run on the whole table."""
        params, root, context = self.whole(parts)
        query, query_rows = self.along_rows(parts)
        key, value, key_rows = self.along_columns(parts)
        kind = Unmasked if tile.full else self.masked
        run = kind(params, self.declared, (root, self.of_root), self.path, self.aliases)
        marks = Marks(
            tile_of(query_rows, tile.row, tile.rows),
            tile_of(key_rows, tile.column, tile.columns),
        )
        scores: Value = Entries(query, key, value, marks)
        for step in self.branch.steps:
            scores = step.run(run, scores, context)
        return run, self.how.prepared(scores), marks, context

    def contribution(self, tile: Tile, *parts: Array) -> Sequence[Array]:
        """A tile's denominator and numerator, relative to the reference: the last of `parts`."""
        return self.branch.sums(*self.scored(tile, parts[:-1]), parts[-1])

    def absorb(self, tile: Tile, old: tuple[Any, ...], *parts: Array) -> list[Array]:
        """The running state after one more tile; `old` holds None for a row's first tile."""
        new = self.branch.state(*self.scored(tile, parts), old[0])
        if old[0] is not None:
            # The new reference is at least the old, so only the old state is rescaled.
            new = Partial(*old).relative(self.how, new.reference) + new
        return jax.tree.leaves(new)

    def results(self, operands: Operands) -> list[jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the running state of one row of tiles."""
        tile = Tile(0, 0, *self.grid.block, False)
        pairs = zip(operands.arrays, operands.slicings, strict=True)
        parts = [jax.ShapeDtypeStruct(cut.shape(x.shape, tile), x.dtype) for x, cut in pairs]
        first = lambda *parts: self.absorb(tile, (None,), *parts)  # noqa: E731
        traced, shapes = jax.make_jaxpr(first, return_shape=True)(*parts)
        if any(isinstance(value, Tracer) for value in traced.consts):
            raise Captured(
                "a function inside this lookup captures a traced array, which a stream cannot cut: "
                "pass it as context, read(name), or learn it"
            )
        return shapes

    def fold(self, operands: Operands) -> Fold:
        """The sweep over all tiles."""
        results, slicings = self.results(operands), tuple(operands.slicings)
        branch, grid = self.branch, self.grid
        plan = grid.plan.tobytes() if grid.known else None
        key = (
            (branch.stream, branch.branch, branch.column, self.path, *self.aliases.items()),
            (self.masked, grid.shape, grid.block, grid.reach, plan, operands.key, slicings),
            hashed((self.declared, self.of_root)),
        )
        return Fold(
            grid,
            self.absorb,
            slicings,
            (Slicing(Side.ROWS),) * len(results),
            tuple(jax.ShapeDtypeStruct((grid.shape[0], *x.shape[1:]), x.dtype) for x in results),
            key=key,
            initial=(lowest(results[0]), 0, 0)[: len(results)],
            contribution=self.contribution,
        )


def hashed(declared: PyTree[Parameter]) -> tuple[tuple[Parameter, ...], Hashable]:
    """A hashable key of a tree of declarations."""
    leaves, structure = jax.tree.flatten(declared, is_leaf=is_parameter)
    return tuple(leaves), structure


def names_read(steps: Sequence[Step]) -> frozenset[str]:
    """The names in the context that steps read, and `rng`, which every term may read."""
    return frozenset({"rng"}).union(*(step.stage.reads for step in steps))


def opened(stream: Streamed, run: Run, x: Value, context: Context) -> list[Value]:
    """Every dictionary of a stream after its whole steps: entries, or a table of scores."""
    values = []
    for branch in stream.branches:
        value = x
        for step in branch.whole:
            value = step.run(run, value, context)
        values.append(value)
    return values


def leading(stream: Streamed, values: list[Value]) -> int | None:
    """The index of the dictionary that chooses the block size for all; None if none has tiles.

    It is the first without whole steps, or else the one with the most keys.
    """
    tiled = [i for i, value in enumerate(values) if isinstance(value, Entries)]
    direct = [i for i in tiled if not stream.branches[i].whole]
    return next(iter(direct), max(tiled, key=lambda i: len(values[i].key), default=None))


def answer(
    stream: Streamed, run: Apply, x: Value, context: Context, grid: Grid
) -> Float[Array, "T *e"]:
    """The answer of all dictionaries of a stream together; `grid` is that of the leading one."""
    values = opened(stream, run, x, context)
    lead = leading(stream, values)
    question = x if isinstance(x, Entries) or lead is None else values[lead]
    parts, column = [], 0
    for number, value in enumerate(values):
        branch = BranchRun(stream, number, column)
        if isinstance(value, Entries):
            own = grid
            if number != lead:
                own = planned(branch.steps, value, context, grid.block)
            parts.append(branch.tiled(run, value, context, own))
            column += len(value.key)
        else:
            parts.append(branch.whole(run, value, question.marks.query, context))
            column += value.score.shape[1]
    return finished(stream, reduce(partial(merge, stream.how), parts), counts_as(question.value))


def finished(stream: Streamed, state: Any, dtype: DTypeLike) -> Float[Array, "T *e"]:
    """The answer (T, e), or the log-sum-exp (T,), from the state after all keys."""
    if isinstance(stream.end, LogSumExp):
        return stream.end.value(state.reference, state.denominator)
    return (state.numerator / stream.how.divisor(state.denominator)[:, None]).astype(dtype)
