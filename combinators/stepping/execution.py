"""Executions of a term step by step: what each lookup caches, and how queries see the cache.

A step is the reference meaning of the queries of a chunk and all keys so far. No formula is written
twice, and no model says anything of stepping.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ..branches import Join
from ..core.apply import Apply
from ..core.context import Context
from ..core.declare import Declare
from ..core.dependence import unmapped
from ..core.errors import CompositionError
from ..core.execution import Mappable, Name, Repeated, Run, Step, put, select
from ..core.leaf import Leaf
from ..core.lookup import Lookup
from ..core.marks import Marks, Rows
from ..core.parameter import Declarations
from ..core.records import Entries
from ..core.term import Term
from ..core.types import Outputs, Params, Value
from ..mask import mask
from ..project import Project
from ..streaming.recognize import Streamed
from . import linear_cache
from .cache import Cache, answerable, cacheable, empty_cache, nan_unless, with_cache, write
from .linear_cache import LinearCache, linear_stream
from .lookback import blamed, can_step, lookback, stages, subterms
from .rowwise import check_leaf, check_promise

__all__ = ["Plan", "Starting", "Stepped", "Stepping", "reads_once"]


Tree = TypeVar("Tree")


class Plan(NamedTuple):
    """The arguments of `stepwise` and `start` that decide the size and the type of the cache."""

    capacity: int
    rewind: int
    dtype: DTypeLike | None
    one_by_one: int | None


class Stepped(Declare):
    """Declares a term, and refuses a primitive that cannot run step by step."""

    def leaf(self, term: Leaf, x: Value, context: Context) -> Value:
        if "positions" not in context:
            return super().leaf(term, x, context)
        check_leaf(term, x, context)
        y = super().leaf(term, x, context)
        check_promise(term, x, context)  # after what the primitive itself refuses
        return y


class Starting(Apply):
    """Run a term on one example chunk to make the caches of its lookups; refuse what looks ahead.

    Rows belong to the sequence if they stand at the positions in the context: rows that are
    learned, or read from the context, do not.
    """

    plan: Plan
    state: PyTree[Array] = None
    # In the tree of the state, a lookup's cache lies under the key "memory".

    @classmethod
    def of(cls, **given: Any) -> Callable[[Params, Declarations], Self]:
        """An execution as `call` takes it: a function of parameters and their declarations."""

        def run(params: Params, declared: Declarations) -> Self:
            made = cls(params, declared)
            vars(made).update(given)
            return made

        return run

    def at(self, params: Params, declared: Declarations, place: tuple | None = None) -> Self:
        run = super().at(params, declared, place)
        run.plan, run.state = self.plan, self.state
        return run

    def leaf(self, term: Leaf, x: Value, context: Context) -> Value:
        y = super().leaf(term, x, context)
        # Nothing has to be zeroed: cached values are finite, and a hidden NaN key reaches hidden
        # scores alone. An array indexes cached rows, a Range those of a plain call.
        cached = isinstance(term, mask) and isinstance(x.marks.key.index, Array)
        return y.replace(active_keys=None, active_queries=None) if cached else y

    def part(self, form: Any, index: int, x: Value, context: Context) -> Value:
        if reads_once(form, index, context.scope.made_inside):
            return self.read_part(form, index, x, context)
        y = super().part(form, index, x, context)
        if isinstance(form, Join) and "positions" in context and form.axis % y.ndim == 0:
            raise CompositionError(
                f"{form!r} adds rows to a sequence at every step; where they are keys and values, "
                "write union(…, … @ slots(n))"
            )
        return y

    def read_part(self, form: Term, index: int, x: Value, context: Context) -> Value:
        """Keys or values made of the context alone: computed by `start`, and kept in the state."""
        y = super().part(form, index, x, context)
        # An array of shape (0,) takes no memory and records the type, which `dtype` may change.
        kept = {"read": floats_as(self.plan.dtype, y), "type": jnp.zeros(0, y.dtype)}
        self.keep(form.names[index], kept)
        return y

    def keep(self, name: Name, state: dict[str, PyTree[Array]]) -> None:
        """Leave the new state of the part under `name` in the outputs."""
        self.outputs = put(self.outputs, single(name), state)

    def lookup(self, form: Any, lookup: Lookup, x: Value, context: Context, step: Step) -> Value:
        positions = context.get("positions")
        if positions is None or not isinstance(x, Entries):
            return super().lookup(form, lookup, x, context, step)
        rows = Rows(positions, positions)
        query, key = (side.position is positions for side in (x.marks.query, x.marks.key))
        if not key:  # learned or read keys are the same at every step: no cache
            x = x.replace(marks=Marks(rows if query else x.marks.query, x.marks.key))
            return super().lookup(form, lookup, x, context, step)
        if not query:
            raise CompositionError(
                "queries that do not come from the sequence ask all of it at once, and not step "
                "by step"
            )
        name = form.names[lookup.stages[0][0]]
        if stream := linear_stream(form, lookup):
            return self.linear(name, stream, x.replace(marks=Marks(rows, rows)), context)
        chunk = {**cacheable(x.key, x.value), **row_metadata(lookup, context, len(x.key))}
        before = self.cache(name, lambda: self.new_cache(lookup, chunk))
        if not len(positions):  # an empty chunk writes nothing
            self.keep(name, {"memory": before})
            return super().lookup(form, lookup, x, context, step)
        after = write(before, chunk, positions[0])
        self.keep(name, {"memory": after})
        asked = with_cache(x, rows, lookup, before, after, chunk)
        y = super().lookup(form, lookup, asked, context, step)
        return self.checked(lambda: answerable(lookup, before, positions), y)

    def linear(self, name: Name, stream: Streamed, x: Entries, context: Context) -> Array:
        """A lookup whose cache is the running state of linear attention."""
        before: LinearCache = self.cache(name, lambda: linear_cache.empty_state(stream, x, context))
        self.keep(name, {"memory": linear_cache.updated(stream, before, x, context)})
        y = linear_cache.answer(stream, self, before, x, context)
        return self.checked(lambda: linear_cache.continues(before, x.marks.query.position), y)

    def cache(self, name: Name, new: Callable[[], Cache]) -> Cache:
        """The cache before this chunk: here `new()`."""
        return new()

    def new_cache(self, lookup: Lookup, chunk: PyTree[Array]) -> Cache:
        """An empty cache of min(capacity, lookback + rewind) slots."""
        back, ahead = lookback(lookup)
        if ahead and not can_step(lookup, self.plan.capacity, self.plan.one_by_one):
            raise CompositionError(looks_ahead(lookup))
        slots = self.plan.capacity
        slots = slots if back is None else min(slots, back + self.plan.rewind)
        return empty_cache(slots, floats_as(self.plan.dtype, chunk))

    def checked(self, holds: Callable[[], Array], y: Tree) -> Tree:
        """The answer y, if the cache can give it; `start` discards y, so nothing is checked."""
        return y

    def inspect_mapped(self, one: Callable, arguments: tuple, axes: tuple) -> None:
        """Note which arrays of the state no mapped argument reaches: the state holds them once."""
        self.unmapped = unmapped(lambda *moved: one(*moved)[1], arguments, axes)

    def outputs_from_arrays(self, kept: PyTree[Array], name: str | None, size: int) -> Outputs:
        if name is None:
            return kept
        return jax.tree.map(lambda leaf, once: leaf[:1] if once else leaf, kept, self.unmapped)


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

    def scan(
        self, form: Repeated, period: Callable, x: Value, layers: PyTree[Array]
    ) -> tuple[Value, Outputs]:
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

    def for_vmap(self, name: str | None) -> Mappable:
        params, axes, resume = super().for_vmap(name)
        # An array that all heads share has an axis of length 1: vmap hands it to each of them.
        once = jax.tree.map(lambda leaf: name is not None and len(leaf) == 1, self.state)
        state = jax.tree.map(lambda leaf, shared: leaf[0] if shared else leaf, self.state, once)
        state_axes = jax.tree.map(lambda shared: None if shared else 0, once)

        def resumed(arguments: PyTree[Array]) -> Run:
            run: Any = resume(arguments[0])
            run.state = arguments[1]
            return run

        return (params, state), (axes, state_axes), resumed

    def inspect_mapped(self, one: Callable, arguments: tuple, axes: tuple) -> None:
        self.unmapped = jax.tree.map(lambda leaf: len(leaf) == 1, self.state)

    def read_part(self, form: Term, index: int, x: Value, context: Context) -> Value:
        kept = dict(select(self.state, single(form.names[index])))
        self.keep(form.names[index], kept)
        return kept["read"].astype(kept["type"].dtype)

    def cache(self, name: Name, new: Callable[[], Cache]) -> Cache:
        return select(self.state, single(name))["memory"]

    def checked(self, holds: Callable[[], Array], y: Tree) -> Tree:
        """y, or an error; NaN where positions are traced and no error can be raised."""
        return nan_unless(holds(), y)


def reads_once(form: Term, index: int, made: frozenset[str]) -> bool:
    """Whether a part makes keys or values of the context alone, so that `start` computes them."""
    part = form.parts[index]
    return isinstance(form, Project) and index > 0 and not part.follows(made) and bool(part.reads)


def single(name: Name) -> str:
    """The one name under which a part keeps its state: its first, if it has several."""
    return name if isinstance(name, str) else next(iter(name.values()))


def row_metadata(lookup: Lookup, context: Context, count: int) -> dict[str, PyTree[Array]]:
    """{"facts": {name: (count, …)}}: the row metadata that stages read of keys, such as segments;
    {} without any. A single number for all rows is read anew at every step."""
    marked: Any = subterms(stages(lookup), lambda stage: hasattr(stage, "facts"))
    names = sorted({name for stage in marked for name in stage.facts[1]})
    values = {name: jnp.asarray(context[name]) for name in names}
    rows = {
        name: jnp.broadcast_to(value, (count, *value.shape[1:]))
        for name, value in values.items()
        if value.ndim
    }
    return {"facts": rows} if rows else {}


def floats_as(dtype: DTypeLike | None, tree: Tree) -> Tree:
    """The tree with its float arrays in `dtype`, if one is given."""

    def one(leaf: Array) -> Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree) if dtype else tree


# Terms that cannot run step by step


def looks_ahead(lookup: Lookup) -> str:
    """Why a lookup cannot run step by step, and the mask that would let it."""
    stage = blamed(lookup)
    fix = f"mask({stage.predicate!r} & causal)" if isinstance(stage, mask) else "mask(causal)"
    return (
        f"after {stage!r} a query sees keys that come later, so it cannot be answered step by "
        f"step; {fix} hides them"
    )
