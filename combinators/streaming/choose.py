"""The choice of an execution: every lookup runs on one table or as a stream.

The shapes of a lookup and its plan decide at trace time; `materialized` and `streamed` pin it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from ..core.apply import Apply
from ..core.context import Context, Execution
from ..core.errors import CompositionError
from ..core.execution import Form, Run
from ..core.kinds import symbolic
from ..core.lookup import Lookup, inner
from ..core.records import Entries
from ..core.types import Value
from ..project import Project, slots
from ..union import Union
from .grid import Grid
from .kernels import by_kernel
from .linear_attention import in_part
from .recognize import Step, Streamed, streamed_form
from .sweep import batch_per_tile
from .tiled import Captured, answer, leading, opened, planned

__all__ = ["Choose", "Decision", "decide", "inside_copies"]

BLOCKS = (512, 256), (256, 256), (128, 128)
"""Queries and keys of a tile: large tiles run fastest, small tiles skip more hidden pairs."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """Costs of the two executions on a CPU, measured with `tests/bench`.

    The unit is the cost of one element of a large tile.

    `table_element`: an element of a table.
    `small_area`: elements below which the products of a tile run on one core.
    `small_element`, `small_tile`: an element of such a tile, and the tile itself.
    `large_tile`: a larger tile itself, beside its elements.
    """

    table_element: float
    small_area: int
    small_element: float
    small_tile: float
    large_tile: float

    def table(self, area: int) -> float:
        """The cost of a table of `area` elements."""
        return self.table_element * area

    def tiles(self, grid: Grid, copies: int) -> float:
        """The cost of a grid's tiles, for one of `copies` lookups side by side."""
        if grid.area < self.small_area:
            return grid.tiles * (self.small_tile + self.small_element * grid.area)
        shared = min(copies, batch_per_tile(grid.area))
        return grid.tiles * (self.large_tile / shared + grid.area)


CPU = Costs(
    table_element=2.5, small_area=2**17, small_element=1.5, small_tile=15_000, large_tile=20_000
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Sizes beyond which the choice is made without comparing costs.

    `table`: elements of all tables up to which other platforms than a CPU use a table. It is not
    measured.
    `blocks`: blocks of a table up to which block sizes after the first are considered.
    """

    table: int
    blocks: int


LIMITS = Limits(table=2**26, blocks=2**20)


@dataclasses.dataclass(frozen=True, eq=False)
class Decision:
    """How a lookup runs, and why: as a stream over `grid`, or on one table if `grid` is None."""

    why: str
    stream: Any = None
    grid: Grid | None = None
    pinned: bool = False

    def __str__(self) -> str:
        if self.grid is None:
            return f"materialized: {self.why}"
        return f"{'streamed' if self.stream.features is None else 'reassociated'} {self.grid}"


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """What decides the execution of a lookup.

    The entries of the leading dictionary, the steps that run on its tiles, and the number of keys
    in all dictionaries.
    """

    entries: Entries
    steps: tuple[Step, ...]
    keys: int


def question(stream: Streamed, run: Run, x: Value, context: Context) -> Question | None:
    """The question of a stream; None if every dictionary gives a table of scores."""
    if isinstance(x, Entries):
        return Question(x, stream.first.tiled if stream.first else (), x.key.shape[0])
    values = opened(stream, run, x, context)
    entries = [value for value in values if isinstance(value, Entries)]
    keys = sum(value.key.shape[0] for value in entries)
    if symbolic((keys,)):
        return Question(entries[0], (), keys)
    lead = leading(stream, values)
    return None if lead is None else Question(values[lead], stream.branches[lead].tiled, keys)


def asks(form: Form, lookup: Lookup, x: Value) -> bool:
    """Whether a lookup begins with entries, or with a union that makes entries of x."""
    place, _ = lookup.stages[0]
    return isinstance(x, Entries) or isinstance(form.parts[place], Union)


def decide(form: Any, lookup: Lookup, x: Value, context: Context, run: Run) -> Decision:
    """How a lookup runs.

    `run` executes the whole steps of a union's dictionaries, which make their entries. Raises
    CompositionError, with the reason, if the lookup is pinned as streamed and cannot be.
    """
    execution = context.scope.execution
    stream = streamed_form(form, lookup)
    if isinstance(x, Entries) and 0 in (execution.copies, x.query.shape[0], x.key.shape[0]):
        return Decision("there is nothing to stream")
    if isinstance(stream, str):
        if execution.pin == "streamed":
            raise CompositionError(
                f"this lookup cannot be streamed: {stream}; write streamed(…) around the parts of "
                "a model that can be, such as streamed(heads(…))"
            )
        return Decision(stream)
    if execution.pin == "materialized":
        return Decision("as pinned", pinned=True)
    asked = question(stream, run, x, context)
    if asked is None:
        return Decision("its dictionaries give tables")
    lengths = asked.entries.query.shape[0], asked.keys
    if symbolic(lengths):
        return undecided(lengths, execution.pin)
    table = math.prod(lengths)
    tables = execution.copies * table
    if not tables:
        return Decision("there is nothing to stream")
    tiles = partial(best, stream, asked, context, execution)
    if execution.pin == "streamed":
        return Decision("as pinned", stream, tiles(), pinned=True)
    on_cpu = jax.default_backend() == "cpu"
    small = CPU.table(table) < CPU.small_tile if on_cpu else tables < LIMITS.table
    if small:
        return Decision("the table is small", stream)
    if learns_keys(form, lookup):
        return Decision("its keys are learned", stream)
    grid = tiles()
    if on_cpu and CPU.table(table) < cost(grid, stream, execution.copies):
        return Decision("the table costs less", stream)
    return Decision("the table is large", stream, grid)


def undecided(lengths: tuple[int, int], pin: str) -> Decision:
    """How a lookup runs whose lengths are symbols: no grid can be drawn without numbers."""
    if pin == "streamed":
        raise CompositionError(
            f"this lookup cannot be streamed: it has {lengths[0]} queries and {lengths[1]} keys, "
            "and a stream cuts numbers of rows into blocks; write materialized(…) in place of "
            "streamed(…), or export it for one length"
        )
    return Decision("its lengths are symbols", pinned=pin == "materialized")


def best(stream: Streamed, asked: Question, context: Context, execution: Execution) -> Grid:
    """The pinned grid, or the cheapest of those with blocks in BLOCKS."""
    x, steps = asked.entries, asked.steps
    if execution.block:
        return planned(steps, x, context, execution.block)
    grids: list[Grid] = []
    for block in BLOCKS:
        if grids and x.query.shape[0] * x.key.shape[0] > LIMITS.blocks * math.prod(block):
            break
        grid = planned(steps, x, context, block)
        grids.append(grid.widened() if stream.features is None else grid)
    return min(grids, key=lambda grid: cost(grid, stream, execution.copies))


def cost(grid: Grid, stream: Streamed, copies: int) -> float:
    """The cost of a stream's tiles, for one of `copies` lookups side by side."""
    if stream.features is not None:  # full blocks are summed up, not streamed
        grid = in_part(grid)
    return CPU.tiles(grid, copies)


def learns_keys(form: Any, lookup: Lookup) -> bool:
    """Whether keys are parameters: the table then grows linearly, with the queries alone."""
    place, _ = lookup.stages[0]
    before = inner(form.parts[place - 1]) if place else None
    constant = isinstance(before, Project) and before.key.constant and not before.key.reads
    return isinstance(before, slots) or constant


class Choose(Apply):
    """The plain call: every lookup runs as `decide` says."""

    def lookup(
        self, form: Any, lookup: Lookup, x: Value, context: Context,
        step: Callable[[int, Value], Value],
    ) -> Value:  # fmt: skip
        table = partial(super().lookup, form, lookup)
        if not asks(form, lookup, x):
            return table(x, context, step)
        decision = decide(form, lookup, x, context, self)

        def ask(x: Value) -> Value:
            if decision.grid is None:
                return table(x, context, step)
            try:
                return answer(decision.stream, self, x, context, decision.grid)
            except Captured:  # found only when a tile is traced
                if decision.pinned:
                    raise
                return table(x, context, step)

        if decision.pinned or not isinstance(x, Entries):
            return ask(x)
        rows = lambda query, key, value: ask(x.replace(query=query, key=key, value=value))  # noqa: E731
        return by_kernel(decision.stream, x, rows)

    def mapped(self, form, x, context, size, axis, given, copies) -> Value:
        return super().mapped(form, x, inside_copies(context, size), size, axis, given, copies)


def inside_copies(context: Context, size: int) -> Context:
    """The context inside `size` copies of a term."""
    execution = context.scope.execution
    size = 1 if symbolic((size,)) else size
    return context.within(execution=dataclasses.replace(execution, copies=execution.copies * size))
