"""Combining forms: compose, fanout, parallel, and the pointwise sum, difference and product."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax.numpy as jnp

from .core.arguments import as_term
from .core.context import Context
from .core.errors import CompositionError, Line, TermError, brief
from .core.execution import Run
from .core.kinds import Width, show, spec
from .core.leaf import Leaf
from .core.lookup import Lookup, segments
from .core.printing import COMPOSITION, Write, bracketed, equation
from .core.records import Weights
from .core.source import place
from .core.term import Export, Term, form
from .primitives import identity

__all__ = ["compose", "fanout", "join", "parallel", "pick"]


def listed(term: Term, parts: tuple[Term, ...], write: Write) -> str:
    return f"{term.name}({', '.join(map(write, parts))})"


# f ∘ g


@form
class Compose(Term):
    """Stages in order of application; see `compose`."""

    parts: tuple[Term, ...]

    def __post_init__(self):
        super().__post_init__()
        try:
            self.flow(None)
        except TermError as error:
            if answers(self.parts[::-1]):
                order = compose(*self.parts)
                hint = f"{error.reason}; compose applies the last term first: write {order!r}"
                raise type(error)(hint, error.headline, error.pipeline) from None
            raise

    word = "compose"
    binding = COMPOSITION

    def text(self, write: Write) -> str:
        if write is equation:
            return " ∘ ".join(bracketed(part, COMPOSITION) for part in self.parts[::-1])
        return listed(self, self.parts[::-1], write)

    @property
    def exports(self) -> tuple[Export, ...]:
        return self.layout[1]

    @property
    def constant(self) -> bool:
        return any(part.constant for part in self.parts)

    @cached_property
    def segments(self) -> tuple[int | Lookup, ...]:
        return segments(self.parts)

    def flow(self, kind: Any) -> Any:
        done: list[Done] = []
        for part in self.parts:
            try:
                after = part.flow(kind)
            except TermError as error:
                raise blamed(error, part, done, kind) from error.__cause__
            done.append((part, kind, after))
            kind = after
        return kind

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        done: list[Done] = []

        def step(index: int, value: Any) -> Any:
            part = self.parts[index]
            try:
                after = run.part(self, index, value, context)
            except TermError as error:
                raise blamed(error, part, done, value) from error.__cause__
            done.append((part, value, after))
            return after

        for segment in self.segments:
            if isinstance(segment, Lookup):
                before = done[:]
                try:
                    x = run.lookup(self, segment, x, context, step)
                except TermError as error:
                    raise unanswered(error, segment, before, run.path) from error.__cause__
            else:
                x = step(segment, x)
                if not self.parts[segment].follows(context.scope.made_inside):
                    # Here x ends, and with it what is known of its rows.
                    context = context.without("positions")
        return x


def answers(parts: tuple[Term, ...]) -> bool:
    """Whether the parts in this order are a lookup that ends in an array."""
    kinds: list[Any] = [None]
    try:
        for part in parts:
            kinds.append(part.flow(kinds[-1]))
    except TermError:
        return False
    return isinstance(kinds[-1], Width) and any(isinstance(kind, Weights) for kind in kinds)


Done = tuple[Term, Any, Any]
"""A stage that has run, with what it took and what it gave."""


def blamed(error: TermError, part: Term, done: list[Done], value: Any) -> TermError:
    """The error with the pipeline up to the stage at fault."""
    giver = f"what {brief(repr(done[-1][0]))} gives" if done else shape(value)
    return error.placed(f"{brief(repr(part))} cannot read {giver}", pipeline(done, part, part))


def unanswered(
    error: TermError, lookup: Lookup, done: list[Done], path: tuple[str, ...]
) -> TermError:
    """The error of a lookup as a whole, of which no stage is at fault."""
    stages = [stage for _, stage in lookup.stages]
    whole = compose(*stages[::-1])
    which = f"the lookup at {'/'.join(path)!r}" if path else "this lookup"
    return error.placed(f"{which} cannot be answered", pipeline(done, whole, stages[0]))


def pipeline(done: list[Done], last: Term, written: Term) -> list[Line]:
    """The stages that have run, and the last one, with the place where it, or its first part, was
    written."""
    lines = [Line(repr(stage), f"{shape(took)} -> {shape(gave)}") for stage, took, gave in done]
    where = f"written at {place(*written.written)}" if written.written else ""
    return [*lines, Line(repr(last), where)]


def shape(value: Any) -> str:
    """A value or a kind in words, without its numbers."""
    return show(spec(value))


def compose(*terms: Term) -> Term:
    """`compose(f, g)(x)` is `f(g(x))`: apply the last term first. Also written `f @ g`.

    Compositions flatten, so bracketing changes neither the term nor its parameters; `compose()`
    is `identity` and `compose(f)` is `f` (Backus 1978). A wrong order is refused when written.

    Raises CompositionError when a stage cannot read what the stage before it gives.

    >>> from combinax.combinators import linear, rms_norm
    >>> compose(linear(4), compose(rms_norm(), identity)) == linear(4) @ rms_norm()
    True
    """
    parts: list[Term] = []
    for term in reversed(terms):
        term = as_term(term, "compose")
        parts.extend(term.parts if isinstance(term, Compose) else (term,))
    parts = [part for part in parts if part != identity]
    if len(parts) < 2:
        return parts[0] if parts else identity
    return Compose(tuple(parts))


# [f, g] and f × g


class Branches(Term):
    """A form whose parts stand side by side."""

    parts: tuple[Term, ...]

    def __post_init__(self):
        super().__post_init__()
        self.flow(None)

    def text(self, write: Write) -> str:
        return listed(self, self.parts, write)

    @property
    def constant(self) -> bool:
        return all(part.constant for part in self.parts)


@form
class Fanout(Branches):
    """See `fanout`."""

    parts: tuple[Term, ...]
    word = "fanout"

    def flow(self, kind: Any) -> Any:
        return tuple(part.flow(kind) for part in self.parts)

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        return tuple(run.part(self, i, x, context) for i in range(len(self.parts)))


def fanout(*terms: Term) -> Term:
    """`fanout(f, g)(x)` is `(f(x), g(x))` (Backus's construction).

    >>> import jax.numpy as jnp
    >>> fanout(identity, identity)({}, jnp.ones(1))
    (Array([1.], dtype=float32), Array([1.], dtype=float32))
    """
    return Fanout(tuple(as_term(term, "fanout") for term in terms))


@form
class Join(Branches):
    """See `join`."""

    parts: tuple[Term, ...]
    axis: int = -1
    word = "join"

    def text(self, write: Write) -> str:
        axis = f", axis={self.axis}" if self.axis != -1 else ""
        return f"join({', '.join(map(write, self.parts))}{axis})"

    def flow(self, kind: Any) -> Any:
        kinds = [part.flow(kind) for part in self.parts]
        widths = [k.width if isinstance(k, Width) else None for k in kinds]
        known = [width for width in widths if width is not None]
        return Width(sum(known) if self.axis == -1 and len(known) == len(widths) else None)

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        values = [run.part(self, i, x, context) for i in range(len(self.parts))]
        if len({across(value.shape, self.axis) for value in values}) > 1:
            raise CompositionError(
                f"join joins arrays that agree but for axis {self.axis}, and its parts give "
                + " and ".join(show(spec(value)) for value in values)
            )
        return jnp.concatenate(values, self.axis)


def across(shape: tuple[int, ...], axis: int) -> tuple[int, ...] | None:
    """The shape less one axis; None if it lacks the axis."""
    if not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


def join(*terms: Term, axis: int = -1) -> Term:
    """`join(f, g)(x)` is f(x) and g(x) joined into one array along `axis`.

    >>> import jax.numpy as jnp
    >>> join(identity, identity)({}, jnp.ones((1, 2))).shape
    (1, 4)
    """
    return Join(tuple(as_term(term, "join") for term in terms), axis)


@form
class Parallel(Branches):
    """See `parallel`."""

    parts: tuple[Term, ...]
    word = "parallel"

    def check(self, value: Any) -> None:
        if not isinstance(value, tuple) or len(value) != len(self.parts):
            raise CompositionError(
                f"parallel of {len(self.parts)} takes a tuple of {len(self.parts)} and gets "
                f"{show(value)}"
            )

    def flow(self, kind: Any) -> Any:
        kinds = (None,) * len(self.parts) if kind is None else kind
        self.check(kinds)
        return tuple(part.flow(k) for part, k in zip(self.parts, kinds, strict=True))

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        self.check(x)
        return tuple(run.part(self, i, x[i], context) for i in range(len(self.parts)))


def parallel(*terms: Term) -> Term:
    """`parallel(f, g)((x, y))` is `(f(x), g(y))`.

    >>> import jax.numpy as jnp
    >>> parallel(identity, pick(0))({}, (1.0, (2.0, 3.0)))
    (1.0, 2.0)
    """
    return Parallel(tuple(as_term(term, "parallel") for term in terms))


@form
class pick(Leaf):
    """`pick(i)` selects one component of a tuple (Backus's selector).

    Raises CompositionError for anything but a tuple that has that component.

    >>> pick(1)({}, (2.0, 3.0))
    3.0
    """

    rowwise = True

    index: int

    def flow(self, kind: Any) -> Any:
        return None if kind is None else self.apply({}, kind, Context())

    def apply(self, params: Any, x: Any, context: Context) -> Any:
        if not isinstance(x, tuple):
            raise CompositionError(f"pick takes a tuple and gets {show(x)}")
        if not -len(x) <= self.index < len(x):
            raise CompositionError(f"pick({self.index}) cannot select from a tuple of {len(x)}")
        return x[self.index]


# f + g, f - g, f · g
