"""Combining forms: compose, fanout, parallel, and the pointwise sum, difference and product."""

from __future__ import annotations

from functools import cached_property

from .core.arguments import as_term
from .core.context import Context
from .core.errors import Line, TermError, brief
from .core.execution import Run
from .core.kinds import Kind, Width, show, spec
from .core.lookup import Lookup, segments
from .core.printing import COMPOSITION, Write, bracketed, equation
from .core.records import Weights
from .core.source import file_line
from .core.term import Export, Term, form
from .core.types import Value
from .primitives import identity

__all__ = ["compose"]


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

    def flow(self, kind: Kind) -> Kind:
        done: list[Done] = []
        for part in self.parts:
            try:
                after = part.flow(kind)
            except TermError as error:
                raise blamed(error, part, done, kind) from error.__cause__
            done.append((part, kind, after))
            kind = after
        return kind

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        done: list[Done] = []

        def step(index: int, value: Value) -> Value:
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
    kinds: list[Kind] = [None]
    try:
        for part in parts:
            kinds.append(part.flow(kinds[-1]))
    except TermError:
        return False
    return isinstance(kinds[-1], Width) and any(isinstance(kind, Weights) for kind in kinds)


Done = tuple[Term, Value, Value]
"""A stage that has run, with what it took and what it gave."""


def blamed(error: TermError, part: Term, done: list[Done], value: Value) -> TermError:
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
    where = f"written at {file_line(*written.written)}" if written.written else ""
    return [*lines, Line(repr(last), where)]


def shape(value: Value) -> str:
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


# f + g, f - g, f · g
