"""Step by step: a lookup keeps its keys, values and marks; everything else is stateless.

    state    = stepwise(term).start(params, x, capacity)
    state, y = stepwise(term).step(params, state, x)        chunk after chunk

What a step does inside a term is said in `stepping`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .apply import call
from .check import check_integers, check_names, check_numbers, entering
from .compose import Compose
from .context import OwnNames
from .dtypes import row_numbers
from .errors import CompositionError, ContextError, ParameterError
from .kinds import show, spec
from .project import at_least
from .repeat import Each
from .stepping import Plan, Starting, Stepped, Stepping, reads_once
from .term import Term, as_term
from .wrap import Given, Wrapper

__all__ = ["Stepwise", "stepwise"]

State = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Starter:
    """`stepwise(term).start`, which equals, and hashes like, that of an equal term."""

    term: Term
    rewind: int = 0
    dtype: Any = None
    one_by_one: int | None = None

    def __call__(self, params: Any, x: Any, /, capacity: int, **context: Any) -> State:
        at_least(1, "start", capacity=capacity)
        plan = Plan(capacity, self.rewind, self.dtype, self.one_by_one)
        given = {name: v for name, v in context.items() if name != "rng" and v is not None}
        x, context = entering(self.term, spec(x), given)
        x = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), x)
        # An array of shape (0, …) takes no room and remembers a shape and a type.
        given = {
            name: jnp.zeros((0, *jnp.shape(context[name])), jnp.result_type(context[name]))
            for name in read_once(self.term) & context.keys()
        }
        memory = started(self.term, plan, params, x, context)
        return {"position": jnp.zeros((), jnp.int32), "memory": memory, "given": given}


@partial(jax.jit, static_argnums=(0, 1))
def started(term: Term, plan: Plan, params: Any, x: Any, context: dict[str, Any]) -> Any:
    """What is kept after no chunk at all: memories that hold nothing, and what was read."""
    context = {"positions": counted(term, x, 0), **context}
    _, outputs = call(term, params, x, context, Starting.of(plan=plan), Stepped)

    # Keys and values that were read stay; what the example chunk left in a cache goes. Under a name
    # that a user may choose stands a dict, so an array called length tells a cache.
    is_cache = lambda node: isinstance(node, dict) and isinstance(node.get("length"), Array)  # noqa: E731
    empty = lambda node: jax.tree.map(jnp.zeros_like, node) if is_cache(node) else node  # noqa: E731
    return jax.tree.map(empty, outputs, is_leaf=is_cache)


@dataclasses.dataclass(frozen=True)
class Stepper:
    """`stepwise(term).step`, which equals, and hashes like, that of an equal term."""

    term: Term
    __signature__ = OwnNames()

    def __call__(
        self, params: Any, state: State, x: Any, /, *, positions: ArrayLike | None = None,
        **context: Any,
    ) -> tuple[State, Any]:  # fmt: skip
        if not isinstance(state, Mapping) or "given" not in state:
            raise ParameterError(
                "step takes parameters, then the state that start or the last step gave, and then "
                "rows: step(params, state, x)"
            )
        check_numbers("a step", x)
        for name in sorted(state["given"].keys() & context.keys()):
            raise ContextError(
                f"{name} was given to start, and what is read of it is kept: leave it out of steps"
            )
        first = state["position"]
        if positions is not None:
            first = jnp.asarray(row_numbers("positions", positions))
            check_integers(first)
        rows = first if jnp.ndim(first) else counted(self.term, x, first)
        given = {k: jnp.zeros(v.shape[1:], v.dtype) for k, v in state["given"].items()}
        context = {**given, **context, "positions": rows}
        execution = Stepping.of(plan=None, state=state["memory"])
        y, memory = call(self.term, params, x, context, execution, Stepped)
        position = jnp.max(rows).astype(jnp.int32) + 1 if rows.size else state["position"]
        return {**state, "position": position, "memory": memory}, y


def counted(term: Term, x: Any, first: Any) -> Array:
    """first, first + 1, …: a position for each row of x, and along the axes that `each` maps."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(spec(x))]
    while isinstance(term, Wrapper) and not isinstance(term, Each):
        term = term.term
    if isinstance(term, Compose) and all(isinstance(part, Each) for part in term.parts):
        raise CompositionError(
            "a batch that runs step by step is one each: write each(f @ g) for each(f) @ each(g)"
        )
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
    return term.reads - read_again(term, frozenset())


def read_again(term: Term, made: frozenset[str]) -> frozenset[str]:
    """The context that something else than keys and values reads, where some names are made of
    rows of the sequence."""
    if not term.parts:
        return term.reads
    if isinstance(term, Given):
        inner = read_again(term.term, term.made(made))
        needed = [g for name, g in term.sources if name in inner or g.follows(made)]
        outside = inner - {name for name, _ in term.sources}
        return outside.union(*(read_again(source, made) for source in needed))
    parts = enumerate(term.parts)
    again = [read_again(part, made) for i, part in parts if not reads_once(term, i, made)]
    return frozenset().union(*again)


class Stepwise(NamedTuple):
    """See `stepwise`."""

    start: Starter
    step: Stepper

    def __call__(self, *args: Any, **context: Any) -> Any:
        raise CompositionError("stepwise gives two functions: start, step = stepwise(term)")


def stepwise(
    term: Term, *, rewind: int = 0, dtype: Any = None, one_by_one: int | None = None
) -> Stepwise:
    """A term that looks only backwards, as a pair of pure functions whose steps are the whole:

        start, step = stepwise(term, rewind=0, dtype=None, one_by_one=None)
        state    = start(params, x, capacity, **context)
        state, y = step(params, state, x, positions=None, **context)

    `start` takes an example of one chunk, abstract if you like, and gives a state that holds
    nothing yet; `step` takes the next rows, any number of them, and gives what the term gives for
    these rows of the whole. What else a stage reads is passed to every step, except what only keys
    and values are made of (the memory of cross-attention), which goes to `start` alone.

    State is a plain tree of arrays: for every lookup that asks the sequence its keys, values and
    facts, `capacity` rows of them or, where the masks say how far it sees back, just so many and
    `rewind` more: such a window goes on past the capacity. State may be jitted, donated, saved,
    forked. `positions` is one per row, or the first one alone; rows follow each other from 0, and
    go on where the last step ended if not given. To go back, pass an earlier one: any where all
    rows are kept, up to `rewind` back in a window. `dtype` is the type in which keys and values are
    kept. Rows from position `one_by_one` on come one by one, so a query that waits for one of
    them is refused at once. A batch is `each`, or `jax.vmap` of both functions; its rows may stand
    at different positions.

    Raises ContextError for a term that reads `capacity`, which start takes for itself;
    CompositionError for a term that looks ahead, and for a step past the capacity where all
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
    check_names(as_term(term, "stepwise"), ("capacity",), "stepwise")
    at_least(0, "stepwise", rewind=rewind)
    kind = None if dtype is None else jnp.dtype(dtype)
    return Stepwise(Starter(term, rewind, kind, one_by_one), Stepper(term))
