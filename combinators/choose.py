"""How a lookup runs: on one table or as a stream, chosen by its shapes when it is traced."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from .apply import Apply
from .errors import CompositionError
from .fused import by_kernel
from .gather import Captured, answer, planned
from .grid import ALL, SOME, Block, reach
from .lookup import Lookup, inner
from .project import Project, at_least, slots
from .reassociate import in_part
from .records import Entries
from .run import Context, Run
from .stream import Streamed, streamed_form
from .term import Term, as_term, form
from .tiles import joined
from .wrap import Wrapper

__all__ = ["Choose", "Decision", "decide", "materialized", "inside_copies", "streamed"]

BLOCKS = Block(512, 256, True), Block(256, 256, True), Block(128, 128, True)
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


@dataclasses.dataclass(frozen=True)
class Execution:
    """What the forms around a lookup say of how it runs: a pin, and how many run side by side."""

    pin: str = ""
    block: Block | None = None
    copies: int = 1


class Tiling(NamedTuple):
    """A block, and which tiles of the table take part: a plan, if it is known before it runs."""

    block: Block
    plan: Any

    def count(self, sort: int) -> int:
        """How many tiles take part so: as long as that is not known, all in part."""
        if not isinstance(self.plan, np.ndarray):
            return math.prod(self.plan.shape) if sort == SOME else 0
        return int(np.count_nonzero(self.plan == sort))

    def cost(self, stream: Streamed, copies: int) -> float:
        """What the tiles of one of so many copies cost."""
        plan = self.plan if stream.features is None else in_part(self.plan)
        number, area = reach(self.block, plan), self.block.area
        if number > 1:
            tiles, area = len(plan), number * area
        else:
            tiles = self.count(SOME) + (self.count(ALL) if plan is self.plan else 0)
        if area < SMALL:
            return tiles * (APIECE + ALONE * area)
        return tiles * (LARGE / min(copies, joined(area)) + area)

    def __str__(self) -> str:
        shape, number = f"{self.block.rows} × {self.block.columns}", math.prod(self.plan.shape)
        if not isinstance(self.plan, np.ndarray):
            return f"in {shape}: which of {number:,} blocks, its context tells"
        full, masked = self.count(ALL), self.count(SOME)
        visited = f"{full + masked:,} of {number:,} blocks visited"
        return f"in {shape}: {visited} ({full:,} full, {masked:,} partial)"


@dataclasses.dataclass(frozen=True, eq=False)
class Decision:
    """How a lookup runs: with a tiling as a stream, without one on one table; and why."""

    why: str
    stream: Any = None
    tiling: Tiling | None = None
    pinned: bool = False

    def __str__(self) -> str:
        if self.tiling is None:
            return f"materialized: {self.why}"
        return f"{'streamed' if self.stream.features is None else 'reassociated'} {self.tiling}"


def decide(form: Any, lookup: Lookup, x: Any, context: Context) -> Decision:
    """How a lookup is to run on its entries."""
    execution: Execution = context.get("execution", Execution())
    table = len(x.query) * len(x.key)
    if not execution.copies * table:
        return Decision("there is nothing to stream")
    stream = streamed_form(form, lookup)
    if isinstance(stream, str):
        if execution.pin == "streamed":
            raise CompositionError(
                f"this lookup cannot be streamed: {stream}; write streamed(…) around the parts of "
                "a model that can be, such as streamed(heads(…))"
            )
        return Decision(stream)
    if execution.pin == "materialized":
        return Decision("as pinned", pinned=True)
    tiles = partial(best, stream, x, context, execution)
    if execution.pin == "streamed":
        return Decision("as pinned", stream, tiles(), pinned=True)
    on_cpu = jax.default_backend() == "cpu"
    small = TABLE * table < APIECE if on_cpu else execution.copies * table < FITS
    if small:
        return Decision("the table is small", stream)
    if learns_keys(form, lookup):
        return Decision("its keys are learned", stream)
    tiling = tiles()
    if on_cpu and TABLE * table < tiling.cost(stream, execution.copies):
        return Decision("the table costs less", stream)
    return Decision("the table is large", stream, tiling)


def best(stream: Streamed, x: Entries, context: Context, execution: Execution) -> Tiling:
    """The tiling that costs least."""
    found: list[Tiling] = []
    blocks = (execution.block,) if execution.block else BLOCKS
    for block in dict.fromkeys(block.within(len(x.query), len(x.key)) for block in blocks):
        if found and len(x.query) * len(x.key) > MOST * block.area:
            break
        found.append(Tiling(block, planned(stream, x, context, block)))
    return min(found, key=lambda tiling: tiling.cost(stream, execution.copies))


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
        if not isinstance(x, Entries):
            return table(x, context, step)
        decision = decide(form, lookup, x, context)

        def ask(query: Any, key: Any, value: Any) -> Any:
            entries = x.replace(query=query, key=key, value=value)
            if decision.tiling is None:
                return table(entries, context, step)
            try:
                return answer(decision.stream, self, entries, context, decision.tiling.block)
            except Captured:
                if decision.pinned:
                    raise
                return table(entries, context, step)

        if decision.pinned:
            return ask(x.query, x.key, x.value)
        return by_kernel(decision.stream, x, ask)

    def mapped(self, form, x, context, size, axis, given, copies) -> Any:
        return super().mapped(form, x, inside_copies(context, size), size, axis, given, copies)


def inside_copies(context: Context, size: int) -> Context:
    """The context inside so many copies."""
    execution = context.get("execution", Execution())
    return {
        **context,
        "execution": dataclasses.replace(execution, copies=execution.copies * size),
    }


# Pins


class Pin(Wrapper):
    """A form that says how the lookups inside it run."""

    term: Term

    def changes(self) -> dict[str, Any]:
        """What it says, as fields of Execution."""
        raise NotImplementedError

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        execution = context.get("execution", Execution())
        execution = dataclasses.replace(execution, **self.changes())
        return run.part(self, 0, x, {**context, "execution": execution})


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
        return {"pin": "streamed", "block": self.block and Block(*self.block)}


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
            raise CompositionError(f"block of streamed is a number or a pair, not {block!r}")
        for size in sizes:
            at_least(1, "streamed", block=size)
    return Stream(term, sizes)
