"""Prefill and decode: each lookup of a term keeps a KV cache, everything else is stateless.

    state    = stepwise(term).start(params, x, capacity)
    state, y = stepwise(term).step(params, state, x)        chunk after chunk

`stepping/execution.py` says what a step does inside a term, `stepping/cache.py` how rows are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Int, PyTree

from ..compose import Compose
from ..core.apply import call
from ..core.arguments import as_term, at_least
from ..core.check import check_context, check_integers, check_names, check_numbers, entering
from ..core.context import Context, OwnNames
from ..core.dtypes import row_numbers
from ..core.errors import CompositionError, ContextError, ParameterError
from ..core.kinds import show, spec
from ..core.term import Term
from ..core.types import Params, Value
from ..repeat import Each
from ..wrappers import Given, Wrapper
from .execution import Plan, Starting, Stepped, Stepping, reads_once

__all__ = ["Stepwise", "stepwise"]

State = dict[str, PyTree[Array]]
"""`position`: the next one. `memory`: the caches. `given`: what `start` read, as shapes."""


@dataclasses.dataclass(frozen=True)
class Starter:
    """`stepwise(term).start`, which equals, and hashes like, that of an equal term."""

    term: Term
    rewind: int = 0
    dtype: DTypeLike | None = None
    one_by_one: int | None = None

    def __call__(self, params: Params, x: Value, /, capacity: int, **context: Value) -> State:
        at_least(1, "start", capacity=capacity)
        plan = Plan(capacity, self.rewind, self.dtype, self.one_by_one)
        given = {name: v for name, v in context.items() if name != "rng" and v is not None}
        for name in ("dtype", "one_by_one", "rewind"):
            if name in given.keys() - self.term.reads:
                raise ContextError(
                    f"no stage reads {name!r}, and start does not take it: write "
                    f"stepwise(term, {name}=…)"
                )
        check_context(self.term, Context(given))
        x, context = entering(self.term, spec(x), given)
        x = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), x)
        # An array of shape (0, …) takes no memory and records a shape and a type.
        given = {
            name: jnp.zeros((0, *jnp.shape(context[name])), jnp.result_type(context[name]))
            for name in read_once(self.term) & context.keys()
        }
        caches = started(self.term, plan, params, x, context)
        return {"position": jnp.zeros((), jnp.int32), "memory": caches, "given": given}


@partial(jax.jit, static_argnums=(0, 1))
def started(
    term: Term, plan: Plan, params: Params, x: Value, context: dict[str, Value]
) -> PyTree[Array]:
    """The state before the first chunk: empty caches, and keys and values read from context."""
    context = {"positions": positions_from(term, x, 0), **context}
    _, outputs = call(term, params, x, context, Starting.of(plan=plan), Stepped)

    # The example chunk is erased from the caches; keys and values that were read stay. A cache is
    # told by its array `length`: users may name a part so, but a part holds a dict.
    is_cache = lambda node: isinstance(node, dict) and isinstance(node.get("length"), Array)  # noqa: E731
    empty = lambda node: jax.tree.map(jnp.zeros_like, node) if is_cache(node) else node  # noqa: E731
    return jax.tree.map(empty, outputs, is_leaf=is_cache)


@dataclasses.dataclass(frozen=True)
class Stepper:
    """`stepwise(term).step`, which equals, and hashes like, that of an equal term."""

    term: Term
    __signature__ = OwnNames()

    def __call__(
        self, params: Params, state: State, x: Value, /, *, positions: ArrayLike | None = None,
        **context: Value,
    ) -> tuple[State, Value]:  # fmt: skip
        if not isinstance(state, Mapping) or "given" not in state:
            raise ParameterError(
                "step takes parameters, then the state that start or the last step gave, and then "
                "rows: step(params, state, x)"
            )
        check_numbers("a step", x)
        for name in sorted(state["given"].keys() & context.keys()):
            raise ContextError(
                f"{name} was given to start, which reads it for all steps: leave it out of step"
            )
        first = state["position"]
        if positions is not None:
            first = jnp.asarray(row_numbers("positions", positions))
            check_integers(first)
        rows = first if jnp.ndim(first) else positions_from(self.term, x, first)
        # Zeros stand in for context that start has read: a step declares it and never computes it.
        given = {k: jnp.zeros(v.shape[1:], v.dtype) for k, v in state["given"].items()}
        context = {**given, **context, "positions": rows}
        execution = Stepping.of(plan=None, state=state["memory"])
        y, caches = call(self.term, params, x, context, execution, Stepped)
        position = jnp.max(rows).astype(jnp.int32) + 1 if rows.size else state["position"]
        return {**state, "position": position, "memory": caches}, y


def positions_from(term: Term, x: Value, first: int | Array) -> Int[Array, "*T"]:
    """The positions first, first + 1, … of the rows of x, repeated along axes that `each` maps."""
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
        inner = positions_from(term.term, row, first)
        return jnp.repeat(jnp.expand_dims(inner, axis), shape[axis], axis)
    return first + jnp.arange(sum(shapes[0][:1]) if shapes else 0, dtype=jnp.int32)


def read_once(term: Term) -> frozenset[str]:
    """The names in the context that only keys and values read: `start` reads them for all steps."""
    return term.reads - read_again(term, frozenset())


def read_again(term: Term, made: frozenset[str]) -> frozenset[str]:
    """The names in the context that every step reads. Names in `made` hold rows computed from
    the sequence, so keys and values made of them are new at every step."""
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

    def __call__(self, *args: object, **context: object) -> NoReturn:
        raise CompositionError("stepwise gives two functions: start, step = stepwise(term)")


def stepwise(
    term: Term, *, rewind: int = 0, dtype: DTypeLike | None = None, one_by_one: int | None = None
) -> Stepwise:
    """A pair of pure functions that run a term chunk by chunk, so that the steps equal the whole:

        start, step = stepwise(term, rewind=0, dtype=None, one_by_one=None)
        state    = start(params, x, capacity, **context)
        state, y = step(params, state, x, positions=None, **context)

    `start` takes an example chunk, abstract if you like, and gives the state with empty KV caches.
    `step` takes the next rows x, (T, d) with T of any size, and gives y, the rows of
    `term(params, whole)` at their positions. Every step takes the context; names that only keys
    and values read, such as the memory of cross-attention, go to `start` instead.

    The state is a tree of arrays, which may be jitted, donated, saved and forked. A lookup over
    the sequence caches keys, values and row metadata in `capacity` slots. A lookup that sees `back`
    rows at most, as under a window, caches the last `back + rewind` and runs past the capacity.
    `dtype` is the type of cached keys and values.

    `positions` is one integer per row, or that of the first row; without it, rows follow those of
    the last step. An earlier position rewinds: to any position where all rows are cached, by up to
    `rewind` rows under a window. If rows come one by one from position `one_by_one` on, `start`
    refuses a mask under which one of their queries waits for a later key. For a batch use `each`,
    or `jax.vmap` of both functions; its sequences may then stand at different positions.

    Raises ContextError for a term that reads `capacity`, which `start` takes for itself.
    Raises CompositionError for a term that looks ahead, and for a step past the capacity where all
    rows are cached, after a gap, or that rewinds too far. A step whose positions are traced cannot
    raise and gives NaN.

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
