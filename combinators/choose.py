"""How a lookup runs: on one table or as a stream, chosen by its shapes when it is traced."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import jax

from .apply import Apply
from .context import Execution
from .errors import CompositionError
from .fused import by_kernel
from .gather import Captured, answer, leading, opened, planned
from .grid import Grid
from .kinds import symbolic, told
from .lookup import Lookup, inner
from .project import Project, at_least, slots
from .reassociate import in_part
from .records import Entries
from .run import Context, Run
from .stream import Step, Streamed, streamed_form
from .term import Term, as_term, form
from .tiles import joined
from .union import Union
from .wrap import Wrapper

__all__ = ["Choose", "Decision", "decide", "materialized", "inside_copies", "streamed"]

BLOCKS = (512, 256), (256, 256), (128, 128)
"""Queries and keys of a tile: large ones run fastest, small ones skip more of what is hidden."""

# What the ways cost, in elements of a large tile: measured on a CPU (`tests/bench`).

TABLE = 2.5
"""An element of a table."""
SMALL, ALONE, APIECE = 2**17, 1.5, 15_000
"""Products of a tile of fewer elements run on one core: what an element costs then, and a tile."""
LARGE = 20_000
"""A larger tile, beside its elements."""

FITS = 2**26
"""Up to so many elements of all tables a platform that is not a CPU takes a table: not measured."""

MOST = 2**20
"""Of smaller blocks than the first at most so many are considered."""


@dataclasses.dataclass(frozen=True, eq=False)
class Decision:
    """How a lookup runs: with a grid as a stream, without one on one table; and why."""

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
    """What a lookup asks: the entries whose tiles are planned, the steps that run on these tiles,
    and the number of keys in all its dictionaries."""

    entries: Entries
    steps: tuple[Step, ...]
    keys: int


def question(stream: Streamed, run: Run, x: Any, context: Context) -> Question | None:
    """The question of a stream; None if its dictionaries give tables of scores alone."""
    if isinstance(x, Entries):
        return Question(x, stream.first.tiled if stream.first else (), x.key.shape[0])
    values = opened(stream, run, x, context)
    entries = [value for value in values if isinstance(value, Entries)]
    keys = sum(value.key.shape[0] for value in entries)
    if symbolic((keys,)):
        return Question(entries[0], (), keys)
    lead = leading(stream, values)
    return None if lead is None else Question(values[lead], stream.branches[lead].tiled, keys)


def asks(form: Any, lookup: Lookup, x: Any) -> bool:
    """Whether a lookup begins with entries, or with dictionaries that make their own of x."""
    place, _ = lookup.stages[0]
    return isinstance(x, Entries) or isinstance(form.parts[place], Union)


def decide(form: Any, lookup: Lookup, x: Any, context: Context, run: Run) -> Decision:
    """How a lookup is to run. Where the dictionaries of a union make entries of their own, `run`
    runs the steps that make them."""
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
    if not execution.copies * table:
        return Decision("there is nothing to stream")
    tiles = partial(best, stream, asked, context, execution)
    if execution.pin == "streamed":
        return Decision("as pinned", stream, tiles(), pinned=True)
    on_cpu = jax.default_backend() == "cpu"
    small = TABLE * table < APIECE if on_cpu else execution.copies * table < FITS
    if small:
        return Decision("the table is small", stream)
    if learns_keys(form, lookup):
        return Decision("its keys are learned", stream)
    grid = tiles()
    if on_cpu and TABLE * table < cost(grid, stream, execution.copies):
        return Decision("the table costs less", stream)
    return Decision("the table is large", stream, grid)


def undecided(lengths: tuple[Any, Any], pin: str) -> Decision:
    """How a lookup runs whose lengths are symbols: no grid can be drawn without numbers."""
    if pin == "streamed":
        raise CompositionError(
            f"this lookup cannot be streamed: it has {lengths[0]} queries and {lengths[1]} keys, "
            "and a stream cuts numbers of rows into blocks; write materialized(…) in place of "
            "streamed(…), or export it for one length"
        )
    return Decision("its lengths are symbols", pinned=pin == "materialized")


def best(stream: Streamed, asked: Question, context: Context, execution: Execution) -> Grid:
    """The grid that costs least, or the one that is pinned."""
    x, steps = asked.entries, asked.steps
    if execution.block:
        return planned(steps, x, context, execution.block)
    found: list[Grid] = []
    for block in BLOCKS:
        if found and x.query.shape[0] * x.key.shape[0] > MOST * math.prod(block):
            break
        grid = planned(steps, x, context, block)
        found.append(grid.widened() if stream.features is None else grid)
    return min(found, key=lambda grid: cost(grid, stream, execution.copies))


def cost(grid: Grid, stream: Streamed, copies: int) -> float:
    """What the tiles of one of so many copies cost."""
    if stream.features is not None:  # what is seen whole is summed up
        grid = in_part(grid)
    if grid.area < SMALL:
        return grid.tiles * (APIECE + ALONE * grid.area)
    return grid.tiles * (LARGE / min(copies, joined(grid.area)) + grid.area)


def learns_keys(form: Any, lookup: Lookup) -> bool:
    """Whether keys are parameters: the table then grows with the queries alone."""
    first, _ = lookup.stages[0]
    before = inner(form.parts[first - 1]) if first else None
    of_project = isinstance(before, Project) and before.key.constant and not before.key.reads
    return isinstance(before, slots) or of_project


class Choose(Apply):
    """The plain call: every lookup runs as is best for its shapes, or as it is pinned."""

    def lookup(self, form: Any, lookup: Lookup, x: Any, context: Context, step: Any) -> Any:
        table = partial(super().lookup, form, lookup)
        if not asks(form, lookup, x):
            return table(x, context, step)
        decision = decide(form, lookup, x, context, self)

        def ask(x: Any) -> Any:
            if decision.grid is None:
                return table(x, context, step)
            try:
                return answer(decision.stream, self, x, context, decision.grid)
            except Captured:
                if decision.pinned:
                    raise
                return table(x, context, step)

        if decision.pinned or not isinstance(x, Entries):
            return ask(x)
        rows = lambda query, key, value: ask(x.replace(query=query, key=key, value=value))  # noqa: E731
        return by_kernel(decision.stream, x, rows)

    def mapped(self, form, x, context, size, axis, given, copies) -> Any:
        return super().mapped(form, x, inside_copies(context, size), size, axis, given, copies)


def inside_copies(context: Context, size: int) -> Context:
    """The context inside so many copies."""
    execution = context.scope.execution
    size = 1 if symbolic((size,)) else size
    return context.within(execution=dataclasses.replace(execution, copies=execution.copies * size))


# Pins


class Pin(Wrapper):
    """A form that says how the lookups inside it run."""

    term: Term

    def changes(self) -> dict[str, Any]:
        """What it says, as fields of Execution."""
        raise NotImplementedError

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        execution = dataclasses.replace(context.scope.execution, **self.changes())
        return run.part(self, 0, x, context.within(execution=execution))


@form
class Materialized(Pin):
    """See `materialized`."""

    term: Term
    word = "materialized"

    def changes(self) -> dict[str, Any]:
        return {"pin": "materialized", "block": None}


@form
class Stream(Pin):
    """See `streamed`."""

    term: Term
    block: tuple[int, int] | None = None
    word = "streamed"

    def changes(self) -> dict[str, Any]:
        return {"pin": "streamed", "block": self.block}


def materialized(term: Term) -> Term:
    """The same term, each of its lookups on one table of all queries and keys.

    >>> from combinax.combinators import linear
    >>> materialized(linear(3))
    materialized(linear(3))
    """
    return Materialized(as_term(term, "materialized"))


def streamed(term: Term, block: int | tuple[int, int] | None = None) -> Term:
    """The same term, each of its lookups streamed: exact, in memory linear in queries and keys
    (Dao et al. 2022), in blocks of so many queries and keys.

    Raises CompositionError for a block below 1, and when it runs for a lookup that cannot be
    streamed, with the reason.

    >>> from combinax.combinators import aggregate, normalize, project, score, scaled_dot, softmax
    >>> head = aggregate() @ normalize(softmax) @ score(scaled_dot) @ project(4)
    >>> import jax, jax.numpy as jnp
    >>> x = jnp.ones((5, 4))
    >>> params = head.init(jax.random.key(0), x)
    >>> bool(jnp.allclose(streamed(head, 2)(params, x), head(params, x)))
    True
    """
    term = as_term(term, "streamed")
    sizes = (block, block) if isinstance(block, int) else block
    if sizes is not None:
        if not isinstance(sizes, tuple) or len(sizes) != 2:
            raise CompositionError(f"block of streamed is a number or a pair, not {told(block)}")
        for size in sizes:
            at_least(1, "streamed", block=size)
    return Stream(term, sizes)
