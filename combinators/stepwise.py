"""Step by step: a lookup keeps its keys, values and marks; everything else is stateless.

    state    = stepwise(term).start(params, x, capacity)
    state, y = stepwise(term).step(params, state, x)        chunk after chunk

A step is the reference meaning for the queries of a chunk and all keys so far, so no formula is
written twice, and nothing about stepping is written in a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from . import sums
from .alike import alike
from .apply import Alive, call
from .compose import Join
from .errors import CompositionError, ContextError, ParameterError
from .kinds import show, spec
from .lookup import Lookup
from .mask import mask
from .memory import Memory, answerable, blank, entered, only_if, recalled, write
from .norm import dropout
from .project import Project, at_least
from .records import Entries, Marks, Rows, Weights
from .repeat import Each
from .run import Context, Name, Run, put, select
from .sight import found, named, pauses, sight, stages
from .stream import Streamed
from .sums import summing
from .term import Leaf, Term, as_term
from .wrap import Given, Wrapper

__all__ = ["Stepwise", "stepwise"]

State = dict[str, Any]


class Plan(NamedTuple):
    """What `start` was asked for."""

    capacity: int
    slack: int
    dtype: Any
    alone: int | None


class Starting(Alive):
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
        if "positions" in context:
            check_leaf(term, x, context)
        return super().leaf(term, x, context)

    def part(self, form: Term, index: int, x: Any, context: Context) -> Any:
        part = form.parts[index]
        if isinstance(form, Given) and index == 0:
            context = {**context, "inside": frozenset(dict(form.sources))}
        if isinstance(form, Project) and index > 0 and part.constant and part.reads:
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
        if names := form.parts[index].reads & context.get("inside", frozenset()):
            raise CompositionError(
                f"{' and '.join(sorted(names))} is made inside the term from the rows of each "
                "chunk; a term that runs step by step reads its keys from outside"
            )
        y = super().part(form, index, x, context)
        self.keep(form.names[index], {"read": y})
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
        if ahead and not pauses(lookup, self.plan.capacity, self.plan.alone):
            raise CompositionError(looks_ahead(lookup))
        rows = self.plan.capacity
        rows = rows if back is None else min(rows, back + self.plan.slack)
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
        return kept["read"]

    def memory(self, name: Name, new: Callable[[], Any]) -> Any:
        return select(self.state, single(name))["memory"]

    def sound(self, holds: Callable[[], Any], y: Any) -> Any:
        return only_if(holds(), y)


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


def check_leaf(term: Leaf, x: Any, context: Context) -> None:
    """Refuse a primitive that may look at other rows, or numbers them from 0."""
    if not term.rowwise:
        raise CompositionError(
            f"{term!r} may look at all rows at once, so it cannot run step by step; write "
            "pointwise(…) for a function of each row by itself, or rowwise = True in a primitive "
            "of yours"
        )
    if isinstance(term, dropout) and "rng" in context and not numbered(x):
        raise CompositionError(
            f"{term!r} numbers rows and columns from 0 here, so it drops others step by step than "
            "at once; leave rng out, or put it where rows have marks"
        )


def numbered(x: Any) -> bool:
    """Whether dropout knows the place of each number in the whole."""
    return x.marks is not None if isinstance(x, Weights) else x.ndim == 2


# The pair of functions


@dataclasses.dataclass(frozen=True)
class Starter:
    """`stepwise(term).start`, which equals, and hashes like, that of an equal term."""

    term: Term

    def __call__(
        self, params: Any, x: Any, capacity: int, *, slack: int = 0, dtype: Any = None,
        alone: int | None = None, **context: Any,
    ) -> State:  # fmt: skip
        at_least(1, "start", capacity=capacity)
        at_least(0, "start", slack=slack)
        plan = Plan(capacity, slack, None if dtype is None else jnp.dtype(dtype), alone)
        context = {name: value for name, value in context.items() if name != "rng"}
        x = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec(x))
        # An array of shape (0, …) takes no room and remembers a shape and a type.
        given = {
            name: jnp.zeros((0, *jnp.shape(context[name])), jnp.result_type(context[name]))
            for name in read_once(self.term) & context.keys()
        }
        memory = started(self.term, plan, params, x, context)
        return {"position": jnp.zeros((), jnp.int32), "memory": memory, "given": given}


@partial(jax.jit, static_argnums=(0, 1))
def started(term: Term, plan: Plan, params: Any, x: Any, context: Context) -> Any:
    """What is kept after no chunk at all: memories that hold nothing, and what was read."""
    context = {"positions": counted(term, x, 0), **context}
    _, outputs = call(term, params, x, context, Starting.of(plan=plan))

    def emptied(path: Any, leaf: Array) -> Array:
        above, name = (entry.key for entry in path[-2:])
        return leaf if name == "read" and above != "facts" else jnp.zeros_like(leaf)

    return jax.tree_util.tree_map_with_path(emptied, outputs)


@dataclasses.dataclass(frozen=True)
class Stepper:
    """`stepwise(term).step`, which equals, and hashes like, that of an equal term."""

    term: Term

    def __call__(
        self, params: Any, state: State, x: Any, *, positions: ArrayLike | None = None,
        **context: Any,
    ) -> tuple[State, Any]:  # fmt: skip
        if not isinstance(state, Mapping) or "given" not in state:
            raise ParameterError(
                "step takes parameters, then the state that start or the last step gave, and then "
                "rows: step(params, state, x)"
            )
        for name in sorted(state["given"].keys() & context.keys()):
            raise ContextError(
                f"{name} was given to start, and what is read of it is kept: leave it out of steps"
            )
        first = state["position"] if positions is None else jnp.asarray(positions, jnp.int32)
        rows = first if jnp.ndim(first) else counted(self.term, x, first)
        given = {k: jnp.zeros(v.shape[1:], v.dtype) for k, v in state["given"].items()}
        context = {**given, **context, "positions": rows}
        execution = Stepping.of(plan=None, state=state["memory"])
        y, memory = call(self.term, params, x, context, execution)
        position = jnp.max(rows).astype(jnp.int32) + 1 if rows.size else state["position"]
        return {**state, "position": position, "memory": memory}, y


def counted(term: Term, x: Any, first: Any) -> Array:
    """first, first + 1, …: a position for each row of x, and along the axes that `each` maps."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(spec(x))]
    while isinstance(term, Wrapper) and not isinstance(term, Each):
        term = term.term
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
    """The context of which only keys and values are made: `start` reads it, no step needs it."""
    return term.reads - read_again(term)


def read_again(term: Term) -> frozenset[str]:
    """The context that something else than keys and values reads."""
    if not term.parts:
        return term.reads
    once = [isinstance(term, Project) and i > 0 and p.constant for i, p in enumerate(term.parts)]
    again = [read_again(p) for p, kept in zip(term.parts, once, strict=True) if not kept]
    return frozenset().union(*again)


class Stepwise(NamedTuple):
    """See `stepwise`."""

    start: Starter
    step: Stepper

    def __call__(self, *args: Any, **context: Any) -> Any:
        raise CompositionError("stepwise gives two functions: start, step = stepwise(term)")


def stepwise(term: Term) -> Stepwise:
    """A term that looks only backwards, as a pair of pure functions whose steps are the whole:

        state    = start(params, x, capacity, slack=0, dtype=None, alone=None, **context)
        state, y = step(params, state, x, positions=None, **context)

    `start` takes an example of one chunk, abstract if you like, and gives a state that holds
    nothing yet; `step` takes the next rows, any number of them, and gives what the term gives for
    these rows of the whole. What else a stage reads is passed to every step, except what only keys
    and values are made of (the memory of cross-attention), which goes to `start` alone.

    State is a plain tree of arrays: for every lookup that asks the sequence its keys, values and
    facts, `capacity` rows of them or, where the masks say how far it sees back, just so many and
    `slack` more: such a window goes on past the capacity. State may be jitted, donated, saved,
    forked. `positions` is one per row, or the first one alone; rows follow each other from 0, and
    go on where the last step ended if not given. To go back, pass an earlier one: any where all
    rows are kept, up to `slack` back in a window. `dtype` is the type in which keys and values are
    kept. Rows from position `alone` on are to come one by one, so a query that waits for one of
    them is refused at once. A batch is `each`, or `jax.vmap` of both functions; its rows may stand
    at different positions.

    Raises CompositionError for a term that looks ahead, and for a step past the capacity where all
    rows are kept, after a gap, or too far back. Where positions are traced nothing can be raised:
    the step gives NaN.

    >>> from combinax.combinators import causal, dot, project, score, softmax
    >>> from combinax.combinators import aggregate, normalize
    >>> head = aggregate() @ normalize(softmax) @ mask(causal) @ score(dot) @ project(2)
    >>> x = jnp.arange(12.0).reshape(4, 3) / 9
    >>> params, (start, step) = head.init(jax.random.key(0), x), stepwise(head)
    >>> state, y = step(params, start(params, x, capacity=8), x[:3])
    >>> state, z = step(params, state, x[3:])
    >>> bool(jnp.allclose(jnp.concatenate([y, z]), head(params, x), atol=1e-6))
    True
    """
    term = as_term(term, "stepwise")
    return Stepwise(Starter(term), Stepper(term))
