"""Executions of a term step by step: what each lookup keeps, and what it asks of what was kept.

A step is the reference meaning for the queries of a chunk and all keys so far, so no formula is
written twice, and nothing about stepping is written in a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array

from ..branches import Join
from ..core.apply import Apply
from ..core.context import Context
from ..core.declare import Declare
from ..core.dependence import alike
from ..core.errors import CompositionError
from ..core.execution import Name, Run, put, select
from ..core.leaf import Leaf
from ..core.lookup import Lookup
from ..core.marks import Marks, Rows
from ..core.records import Entries
from ..core.term import Term
from ..mask import mask
from ..project import Project
from ..streaming.recognize import Streamed
from . import linear_cache as sums
from .cache import Memory, answerable, blank, entered, only_if, recalled, write
from .linear_cache import summing
from .lookback import found, named, pauses, sight, stages
from .rowwise import check_leaf, check_promise

__all__ = ["Plan", "Starting", "Stepped", "Stepping", "reads_once"]


class Plan(NamedTuple):
    """What `start` was asked for."""

    capacity: int
    rewind: int
    dtype: Any
    one_by_one: int | None


class Stepped(Declare):
    """Declares a term, and refuses a primitive that cannot run step by step."""

    def leaf(self, term: Leaf, x: Any, context: Context) -> Any:
        if "positions" not in context:
            return super().leaf(term, x, context)
        check_leaf(term, x, context)
        y = super().leaf(term, x, context)
        check_promise(term, x, context)  # after what the primitive itself refuses
        return y


class Starting(Apply):
    """Run a term on one example chunk to see what there is to keep; refuse what looks ahead.

    Rows are those of the sequence where the context says at which positions they stand: what is
    learned, or read, has none.
    """

    plan: Plan
    state: Any = None

    @classmethod
    def of(cls, **given: Any) -> Callable[[Any, Any], Self]:
        """An execution as `call` wants it: a function of parameters and their declarations."""

        def run(params: Any, declared: Any) -> Self:
            made = cls(params, declared)
            vars(made).update(given)
            return made

        return run

    def at(self, params: Any, declared: Any, place: tuple | None = None) -> Self:
        run = super().at(params, declared, place)
        run.plan, run.state = self.plan, self.state
        return run

    def leaf(self, term: Leaf, x: Any, context: Context) -> Any:
        y = super().leaf(term, x, context)
        # Rows in memory stand where they were written, and may all be computed with.
        kept = isinstance(term, mask) and isinstance(x.marks.key.index, Array)
        return y.replace(live=None, awake=None) if kept else y

    def part(self, form: Any, index: int, x: Any, context: Context) -> Any:
        if reads_once(form, index, context.scope.made_inside):
            return self.once(form, index, x, context)
        y = super().part(form, index, x, context)
        if isinstance(form, Join) and "positions" in context and form.axis % y.ndim == 0:
            raise CompositionError(
                f"{form!r} adds rows to a sequence at every step; where they are keys and values, "
                "write union(…, … @ slots(n))"
            )
        return y

    def once(self, form: Term, index: int, x: Any, context: Context) -> Any:
        """Keys or values that are read from the context: computed at the start, and kept."""
        y = super().part(form, index, x, context)
        # An array without numbers takes no room and remembers the type.
        kept = {"read": floats_as(self.plan.dtype, y), "type": jnp.zeros(0, y.dtype)}
        self.keep(form.names[index], kept)
        return y

    def keep(self, name: Name, what: dict[str, Any]) -> None:
        self.outputs = put(self.outputs, single(name), what)

    def lookup(
        self, form: Any, lookup: Lookup, x: Any, context: Context, step: Callable[[int, Any], Any]
    ) -> Any:
        positions = context.get("positions")
        if positions is None or not isinstance(x, Entries):
            return super().lookup(form, lookup, x, context, step)
        ours = Rows(positions, positions)
        query, key = (rows.position is positions for rows in (x.marks.query, x.marks.key))
        if not key:  # a dictionary that is learned, or was read: there is nothing to keep
            x = x.replace(marks=Marks(ours if query else x.marks.query, x.marks.key))
            return super().lookup(form, lookup, x, context, step)
        if not query:
            raise CompositionError(
                "queries that do not come from the sequence ask all of it at once, and not step "
                "by step"
            )
        name = form.names[lookup.stages[0][0]]
        if stream := summing(form, lookup):
            return self.summed(name, stream, x.replace(marks=Marks(ours, ours)), context)
        chunk = {**entered(x.key, x.value), **facts(lookup, context, len(x.key))}
        before = self.memory(name, lambda: self.room(lookup, chunk))
        if not len(positions):
            self.keep(name, {"memory": before})
            return super().lookup(form, lookup, x, context, step)
        after = write(before, chunk, positions[0])
        self.keep(name, {"memory": after})
        asked = recalled(x, ours, lookup, before, after, chunk)
        y = super().lookup(form, lookup, asked, context, step)
        return self.sound(lambda: answerable(lookup, before, positions), y)

    def summed(self, name: Name, stream: Streamed, x: Entries, context: Context) -> Any:
        """Where sums over the keys are all that later queries need, no rows are kept."""
        before = self.memory(name, lambda: sums.empty(stream, x, context))
        self.keep(name, {"memory": sums.added(stream, before, x, context)})
        y = sums.asked(stream, self, before, x, context)
        return self.sound(lambda: sums.continues(before, x.marks.query.position), y)

    def memory(self, name: Name, new: Callable[[], Any]) -> Any:
        """What was kept so far: here nothing yet."""
        return new()

    def room(self, lookup: Lookup, chunk: Any) -> Memory:
        """A new memory of as many rows as the lookup sees back, if less than the capacity."""
        back, ahead = sight(lookup)
        if ahead and not pauses(lookup, self.plan.capacity, self.plan.one_by_one):
            raise CompositionError(looks_ahead(lookup))
        rows = self.plan.capacity
        rows = rows if back is None else min(rows, back + self.plan.rewind)
        return blank(rows, floats_as(self.plan.dtype, chunk))

    def sound(self, holds: Callable[[], Any], y: Any) -> Any:
        """The answer, if it can be given."""
        return y

    def look(self, one: Callable, arguments: tuple, axes: tuple) -> None:
        """Note what is the same for all copies: it is kept once."""
        self.alike = alike(lambda *moved: one(*moved)[1], arguments, axes)

    def regain(self, kept: Any, name: str | None, size: int) -> dict[str, Any]:
        if name is None:
            return kept
        return jax.tree.map(lambda leaf, once: leaf[:1] if once else leaf, kept, self.alike)


class Stepping(Starting):
    """Run a term on one chunk, with the state that the chunks before it left."""

    def enter(self, name: Name) -> Self:
        run = super().enter(name)
        run.state = select(self.state, name)
        return run

    def layer(self, name: Name, key: str) -> Self:
        run = super().layer(name, key)
        run.state = select(self.state, key)
        return run

    def scan(self, form: Any, period: Callable, x: Any, layers: Any) -> tuple[Any, Any]:
        def one(carry, layer):
            x, state = carry
            number, stacked = layer

            def take(run: Self) -> Self:
                run.state = jax.tree.map(lambda leaf: leaf[number], state)
                return run

            x, new = period(x, number, stacked, take)
            return (x, jax.tree.map(lambda leaf, row: leaf.at[number].set(row), state, new)), None

        # In the carry, state is updated in place; as scanned input and output it is copied.
        carry, _ = jax.lax.scan(form.remat(one), (x, self.state), layers, length=form.periods)
        return carry

    def copies(self, name: str | None) -> tuple[Any, Any, Callable[[Any], Run]]:
        params, axes, resume = super().copies(name)
        once = jax.tree.map(lambda leaf: name is not None and len(leaf) == 1, self.state)
        state = jax.tree.map(lambda leaf, same: leaf[0] if same else leaf, self.state, once)
        places = jax.tree.map(lambda same: None if same else 0, once)

        def resumed(arguments: Any) -> Run:
            run: Any = resume(arguments[0])
            run.state = arguments[1]
            return run

        return (params, state), (axes, places), resumed

    def look(self, one: Callable, arguments: tuple, axes: tuple) -> None:
        self.alike = jax.tree.map(lambda leaf: len(leaf) == 1, self.state)

    def once(self, form: Term, index: int, x: Any, context: Context) -> Any:
        kept = dict(select(self.state, single(form.names[index])))
        self.keep(form.names[index], kept)
        return kept["read"].astype(kept["type"].dtype)

    def memory(self, name: Name, new: Callable[[], Any]) -> Any:
        return select(self.state, single(name))["memory"]

    def sound(self, holds: Callable[[], Any], y: Any) -> Any:
        return only_if(holds(), y)


def reads_once(form: Term, index: int, made: frozenset[str]) -> bool:
    """Whether a part gives keys or values that the context alone makes, so that they are kept."""
    part = form.parts[index]
    return isinstance(form, Project) and index > 0 and not part.follows(made) and bool(part.reads)


def single(name: Name) -> str:
    """The one place where a part leaves its state: its first, if it has several."""
    return name if isinstance(name, str) else next(iter(name.values()))


def facts(lookup: Lookup, context: Context, count: int) -> dict[str, Any]:
    """What the stages want to know of each key, by name; one fact for all is not kept."""
    marked: Any = found(stages(lookup), lambda stage: hasattr(stage, "facts"))
    names = sorted({name for stage in marked for name in stage.facts[1]})
    values = {name: jnp.asarray(context[name]) for name in names}
    rows = {
        name: jnp.broadcast_to(value, (count, *value.shape[1:]))
        for name, value in values.items()
        if value.ndim
    }
    return {"facts": rows} if rows else {}


def floats_as(dtype: Any, tree: Any) -> Any:
    def one(leaf: Array) -> Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree) if dtype else tree


# What is refused


def looks_ahead(lookup: Lookup) -> str:
    stage = named(lookup)
    fix = f"mask({stage.predicate!r} & causal)" if isinstance(stage, mask) else "mask(causal)"
    return (
        f"after {stage!r} a query sees keys that come later, so it cannot be answered step by "
        f"step; {fix} hides them"
    )
