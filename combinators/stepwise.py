"""Step by step: a lookup keeps its keys, values and marks; everything else is stateless.

    state    = stepwise(term).start(params, x, capacity)
    state, y = stepwise(term).step(params, state, x)        chunk after chunk

A step is the reference meaning on the queries of a chunk and all keys so far, so nothing is
computed by another formula and nothing about stepping is written in a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from .apply import Apply, call
from .compose import Join
from .errors import CompositionError, ContextError
from .kinds import show, spec
from .lookup import Lookup
from .mask import mask
from .memory import Memory, blank, joined, positions_at, write
from .norm import dropout
from .project import Project, at_least
from .records import Entries, Marks, Rows, Weights
from .repeat import Each
from .run import Context, Name, Run, put, select
from .sight import HORIZON, Sight, found, pauses, sees, sight, stages_of
from .term import Leaf, Term, as_term
from .wrap import Given, Wrapper

__all__ = ["Stepwise", "stepwise"]

State = dict[str, Any]


class Plan(NamedTuple):
    """What `start` was asked for."""

    capacity: int
    slack: int
    dtype: Any


class Start(Apply):
    """Run a term on one example chunk, keeping what its lookups keep; refuse what looks ahead.

    A row belongs to the sequence where the context says at which positions the rows stand: what
    is learned or read has none.
    """

    plan: Plan

    @classmethod
    def of(cls, **given: Any) -> Callable[[Any, Any], Self]:
        """An execution as `call` wants it."""

        def run(params: Any, declared: Any) -> Self:
            made = cls(params, declared)
            made.__dict__.update(given)
            return made

        return run

    def at(self, params: Any, declared: Any, place: tuple | None = None) -> Self:
        run = super().at(params, declared, place)
        run.__dict__.update({k: v for k, v in self.__dict__.items() if k in ("plan", "state")})
        return run

    def leaf(self, term: Leaf, x: Any, context: Context) -> Any:
        if "positions" in context:
            check_leaf(term, x, context)
        return super().leaf(term, x, context)

    def part(self, form: Term, index: int, x: Any, context: Context) -> Any:
        if isinstance(form, Given) and index == 0:
            context = {**context, "inside": frozenset(dict(form.sources))}
        if isinstance(form, Project) and index and form.parts[index].reads:
            if form.parts[index].constant:
                return self.read_once(form, index, x, context)
        y = super().part(form, index, x, context)
        if isinstance(form, Join) and "positions" in context and form.axis % y.ndim == 0:
            raise CompositionError(
                f"{form!r} adds rows to a sequence at every step; where they are keys and values, "
                "write union(…, … @ slots(n))"
            )
        return y

    def read_once(self, form: Term, index: int, x: Any, context: Context) -> Any:
        """Keys or values from the context: computed at the start, and kept."""
        if names := form.parts[index].reads & context.get("inside", frozenset()):
            raise CompositionError(
                f"{' and '.join(sorted(names))} is made inside the term from the rows of each "
                "chunk; a term that runs step by step reads its keys from outside"
            )
        y = super().part(form, index, x, context)
        self.keep(form.names[index], {"kept": y})
        return y

    def keep(self, name: Name, what: dict[str, Any]) -> None:
        self.outputs = put(self.outputs, single(name), what)

    def lookup(
        self, form: Term, lookup: Lookup, x: Any, context: Context, step: Callable[[int, Any], Any]
    ) -> Any:
        positions = context.get("positions")
        if positions is None or not isinstance(x, Entries):
            return super().lookup(form, lookup, x, context, step)
        ours = Rows(positions, positions)
        query, key = (rows.position is positions for rows in (x.marks.query, x.marks.key))
        if key and not query:
            raise CompositionError(
                "queries that do not come from the sequence ask all of it at once, and not step "
                "by step"
            )
        if not key:  # a dictionary that is learned, or was read: nothing to keep
            asked = x.replace(marks=Marks(ours if query else x.marks.query, x.marks.key))
            return super().lookup(form, lookup, asked, context, step)
        seen, name = sight(lookup), form.names[lookup.stages[0][0]]
        chunk = {"key": x.key, "value": x.value, **facts(lookup, context, len(x.key))}
        before = self.memory(name, lookup, chunk, seen)
        if not len(positions):
            self.keep(name, {"memory": before})
            return super().lookup(form, lookup, x, context, step)
        after = write(before, chunk, positions[0])
        self.keep(name, {"memory": after})
        sound = self.check(lookup, before, positions, seen)
        asked = remembered(x, ours, before, after, chunk, seen)
        return checked(super().lookup(form, lookup, asked, context, step), sound)

    def memory(self, name: Name, lookup: Lookup, chunk: Any, seen: Sight) -> Memory:
        """A new memory of as many rows as the lookup sees back, but no more than the capacity."""
        if seen.ahead and not pauses(lookup, self.plan.capacity):
            raise CompositionError(ahead(lookup))
        rows = self.plan.capacity
        if seen.back is not None:
            rows = min(rows, seen.back + self.plan.slack)
        return blank(rows, self.typed(chunk))

    def typed(self, tree: Any) -> Any:
        def one(leaf: Array) -> Array:
            floats = jnp.issubdtype(leaf.dtype, jnp.floating)
            return leaf.astype(self.plan.dtype) if floats and self.plan.dtype else leaf

        return jax.tree.map(one, tree)

    def check(self, lookup: Lookup, memory: Memory, positions: Array, seen: Sight) -> Any:
        return True

    def look(self, one: Callable, arguments: tuple, axes: tuple) -> None:
        """Note what is the same for all copies: it is kept once."""
        self.alike = alike(lambda *moved: one(*moved)[1], arguments, axes)

    def regain(self, kept: Any, name: str | None, size: int) -> dict[str, Any]:
        if name is None:
            return kept
        return jax.tree.map(lambda leaf, once: leaf[:1] if once else leaf, kept, self.alike)


class Step(Start):
    """Run a term on one chunk with the state that the chunks before it left."""

    state: Any

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
            state = jax.tree.map(lambda leaf, row: leaf.at[number].set(row), state, new)
            return (x, state), None

        # In the carry, state is updated in place; as scanned input and output it is copied.
        carry, _ = jax.lax.scan(form.remat(one), (x, self.state), layers, length=form.periods)
        return carry

    def copies(self, name: str | None) -> tuple[Any, Any, Callable[[Any], Run]]:
        arguments, axes, resume = super().copies(name)
        once = jax.tree.map(lambda leaf: name is not None and len(leaf) == 1, self.state)
        state = jax.tree.map(lambda leaf, one: leaf[0] if one else leaf, self.state, once)
        places = jax.tree.map(lambda one: None if one else 0, once)

        def resumed(arguments: Any) -> Run:
            run: Any = resume(arguments[0])
            run.state = arguments[1]
            return run

        return (arguments, state), (axes, places), resumed

    def look(self, one: Callable, arguments: tuple, axes: tuple) -> None:
        self.alike = jax.tree.map(lambda leaf: len(leaf) == 1, self.state)

    def read_once(self, form: Term, index: int, x: Any, context: Context) -> Any:
        kept = select(self.state, single(form.names[index]))
        self.keep(form.names[index], dict(kept))
        return kept["kept"]

    def memory(self, name: Name, lookup: Lookup, chunk: Any, seen: Sight) -> Memory:
        return select(self.state, single(name))["memory"]

    def check(self, lookup: Lookup, memory: Memory, positions: Array, seen: Sight) -> Any:
        """Whether the chunk can be asked: an error where that is known, False where it is traced."""
        # What is known by number stays so inside scan, where an array becomes abstract.
        known = positions if isinstance(positions, Tracer) else np.asarray(positions)
        first, last = known[0], known[-1]
        rows, length, reach = len(memory["rows"]["key"]), memory["length"], memory["reach"]
        goes_round = seen.back is not None and rows >= seen.back
        limit = HORIZON if goes_round else rows
        sound = require(
            last < limit, lambda: f"position {last} is past the capacity of {limit} positions"
        )
        follow = (known == first + np.arange(len(known))).all()
        sound &= require(follow, lambda: "the positions of a step follow each other by one")
        sound &= require(
            first <= length,
            lambda: f"position {length} comes next, and a step at position {first} leaves a gap",
        )
        if goes_round:
            slack = rows - (seen.back or 0)
            sound &= require(
                (reach - first <= slack) | (reach <= rows),
                lambda: f"{reach - first} positions back is more than the slack of {slack} for "
                f"which {named(lookup)!r} keeps rows",
            )
        if seen.ahead:
            earlier = jnp.arange(rows)[:, None]
            waited = sees(stages_of(lookup), Rows(earlier, earlier), Rows(*2 * (positions[None],)))
            sound &= require(
                ~jnp.any(waited & (earlier < first)),
                lambda: f"{named(lookup)!r} lets queries before position {first} see keys from "
                "there on: give them in one chunk",
            )
        return sound


# What a lookup asks with


def remembered(
    x: Entries, ours: Rows, before: Memory, after: Memory, chunk: Any, seen: Sight
) -> Entries:
    """The entries with the keys in memory in place of the chunk's own."""
    first, last, rows = ours.position[0], ours.position[-1], len(after["rows"]["key"])
    spare = rows - (seen.back or 0) + 1
    if seen.back is None or rows < seen.back or len(x.key) <= spare:
        table, position = after["rows"], positions_at(last, rows)
    else:  # the chunk takes the place of keys that its first queries see
        table = joined(before, chunk)
        position = jnp.concatenate([positions_at(first - 1, rows), ours.position])
    key = Rows(position, position, table.get("facts", {}))
    visible = jnp.broadcast_to(position >= 0, (len(x.query), len(position)))
    return x.replace(
        key=table["key"].astype(x.key.dtype),
        value=table["value"].astype(x.value.dtype),
        marks=Marks(ours, key),
        visible=visible,
        live=position >= 0,
    )


def facts(lookup: Lookup, context: Context, count: int) -> dict[str, Any]:
    """What the stages want to know of each key, by name."""
    marked = found(stages_of(lookup), lambda stage: hasattr(stage, "facts"))
    names = sorted({name for stage in marked for name in stage.facts[1]})  # type: ignore[attr-defined]
    values = {name: jnp.asarray(context[name]) for name in names}
    rows = {
        name: jnp.broadcast_to(value, (count, *value.shape[1:]))
        for name, value in values.items()
        if value.ndim
    }
    return {"facts": rows} if rows else {}


def named(lookup: Lookup) -> Term:
    """The stage to name: the last mask, or else the first of all."""
    stages = stages_of(lookup)
    return [*stages[:1], *found(stages, lambda stage: isinstance(stage, mask))][-1]


def ahead(lookup: Lookup) -> str:
    stage = named(lookup)
    fix = f"mask({stage.predicate!r} & causal)" if isinstance(stage, mask) else "mask(causal)"
    return (
        f"after {stage!r} a query sees keys that come later, so it cannot be answered step by "
        f"step; {fix} hides them"
    )


def check_leaf(term: Leaf, x: Any, context: Context) -> None:
    """Refuse a primitive that may look at other rows, or numbers them from 0."""
    if not term.rowwise:
        raise CompositionError(
            f"{term!r} may look at all rows at once, so it cannot run step by step; write "
            "pointwise(…) for a function of each row by itself, or rowwise = True in a primitive "
            "of yours"
        )
    if isinstance(term, dropout) and "rng" in context:
        weights = isinstance(x, Weights)
        if (x.marks is None) if weights else x.ndim != 2:
            raise CompositionError(
                f"{term!r} numbers rows and columns from 0 here, so it drops others step by step "
                "than at once; leave rng out, or put it where rows have marks"
            )


def require(holds: Any, text: Callable[[], str]) -> Any:
    """The condition, where it is traced; where it is known and false, an error."""
    if not isinstance(holds, Tracer) and not holds:
        raise CompositionError(text())
    return holds


def checked(y: Any, sound: Any) -> Any:
    """y, or NaN in its place."""
    if not isinstance(sound, Tracer):
        return y

    def one(leaf: Array) -> Array:
        return jnp.where(sound, leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, y)


def single(name: Name) -> str:
    """The one place where a part leaves its state: its first, if it has several."""
    return name if isinstance(name, str) else next(iter(name.values()))


def alike(function: Callable[..., Any], arguments: tuple, axes: tuple) -> Any:
    """For each array that the function gives: whether it depends on nothing that is mapped."""
    places, outline = jax.tree.flatten(axes, is_leaf=lambda axis: axis is None)
    pairs = zip(places, outline.flatten_up_to(arguments), strict=True)
    spread = [axis for axis, part in pairs for _ in jax.tree.leaves(part)]
    leaves, tree = jax.tree.flatten(arguments)
    one = [
        leaf if axis is None else jnp.take(leaf, 0, axis)
        for leaf, axis in zip(leaves, spread, strict=True)
    ]
    closed, shape = jax.make_jaxpr(
        lambda *leaves: function(*jax.tree.unflatten(tree, leaves)), return_shape=True
    )(*one)
    pairs = zip(closed.jaxpr.invars, spread, strict=True)
    reached = {id(variable) for variable, axis in pairs if axis is not None}
    for equation in closed.jaxpr.eqns:
        if any(id(variable) in reached for variable in equation.invars):
            reached.update(map(id, equation.outvars))
    once = [id(variable) not in reached for variable in closed.jaxpr.outvars]
    return jax.tree.unflatten(jax.tree.structure(shape), once)


# The pair of functions


@dataclasses.dataclass(frozen=True)
class Starter:
    """See `stepwise`."""

    term: Term

    def __call__(
        self, params: Any, x: Any, capacity: int, *, slack: int = 0, dtype: Any = None,
        **context: Any,
    ) -> State:  # fmt: skip
        at_least(1, self.term, capacity=capacity)
        at_least(0, self.term, slack=slack)
        plan = Plan(capacity, slack, None if dtype is None else jnp.dtype(dtype))
        context.pop("rng", None)
        x = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec(x))
        given = {
            name: jnp.zeros((0, *jnp.shape(context[name])), jnp.result_type(context[name]))
            for name in read_once(self.term)
            if name in context
        }
        memory = started(self.term, plan, params, x, context)
        return {"position": jnp.zeros((), jnp.int32), "memory": memory, "given": given}


@partial(jax.jit, static_argnums=(0, 1))
def started(term: Term, plan: Plan, params: Any, x: Any, context: Context) -> Any:
    """What is kept after no chunk at all: memories without rows, and what was read."""
    if "positions" not in context:
        context = {**context, "positions": counted(term, x, 0)}
    _, outputs = call(term, params, x, context, Start.of(plan=plan))

    def emptied(path: Any, leaf: Array) -> Array:
        names = {entry.key for entry in path}
        return leaf if "kept" in names else jnp.zeros_like(leaf)

    return jax.tree_util.tree_map_with_path(emptied, outputs)


@dataclasses.dataclass(frozen=True)
class Stepper:
    """See `stepwise`."""

    term: Term

    def __call__(
        self, params: Any, state: State, x: Any, *, positions: ArrayLike | None = None,
        **context: Any,
    ) -> tuple[State, Any]:  # fmt: skip
        for name in sorted(state["given"].keys() & context.keys()):
            raise ContextError(
                f"{name} was given to start, and what is read of it is kept: leave it out of steps"
            )
        # An array of shape (0, …) takes no room and remembers the shape of what start was given.
        given = {k: jnp.zeros(v.shape[1:], v.dtype) for k, v in state["given"].items()}
        if positions is None or jnp.ndim(positions) == 0:
            positions = counted(self.term, x, state["position"] if positions is None else positions)
        positions = jnp.asarray(positions)
        y, memory = call(
            self.term, params, x, {**given, **context, "positions": positions},
            Step.of(plan=None, state=state["memory"]),
        )  # fmt: skip
        position = jnp.max(positions).astype(jnp.int32) + 1 if positions.size else state["position"]
        return {**state, "position": position, "memory": memory}, y


def counted(term: Term, x: Any, first: Any) -> Array:
    """first, first + 1, …: a position for each row of x, and along the axes that `each` maps."""
    while isinstance(term, Wrapper) and not isinstance(term, Each):
        term = term.term
    shapes = [leaf.shape for leaf in jax.tree.leaves(spec(x))]
    if len({shape[:1] for shape in shapes}) > 1:
        raise CompositionError(
            f"a step takes the next rows of one sequence, and gets {show(spec(x))}; a decoder runs "
            "step by step by itself, with the memory that it reads given to start"
        )
    if isinstance(term, Each) and shapes and len(shapes[0]) > term.axis:
        axis, shape = term.axis, shapes[0]
        row = jax.ShapeDtypeStruct(shape[:axis] + shape[axis + 1 :], jnp.int32)
        inner = counted(term.term, row, first)
        return jnp.repeat(jnp.expand_dims(inner, axis), shape[axis], axis)
    return first + jnp.arange(sum(shapes[0][:1]) if shapes else 0, dtype=jnp.int32)


def read_once(term: Term) -> frozenset[str]:
    """The context that only keys and values are made of: `start` reads it, no step needs it."""
    return term.reads - elsewhere(term)


def elsewhere(term: Term) -> frozenset[str]:
    """The context that something else than keys and values reads."""
    if not term.parts:
        return term.reads
    kept = [isinstance(term, Project) and part.constant and i > 0
            for i, part in enumerate(term.parts)]  # fmt: skip
    return frozenset().union(
        *(elsewhere(p) for p, once in zip(term.parts, kept, strict=True) if not once)
    )


class Stepwise(NamedTuple):
    """See `stepwise`."""

    start: Starter
    step: Stepper


def stepwise(term: Term) -> Stepwise:
    """A term that looks only backwards as a pair of pure functions: its steps are the whole.

        state    = stepwise(f).start(params, x, capacity)
        state, y = stepwise(f).step(params, state, x)
    """
    term = as_term(term, "stepwise")
    return Stepwise(Starter(term), Stepper(term))
