"""A law: two ways to write the same function, and how parameters move from one to the other.

A law reads a *line*: the stages of a composition in order of application, each with parameters of
its own. It knows neither heads nor layers: `rewrite` maps what it does to parameters over both.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ..compose import Compose, compose
from ..core.execution import put, select
from ..core.term import Term
from ..core.types import Value
from ..primitives import identity
from ..wrappers import named

__all__ = [
    "Answer", "Change", "Law", "Line", "Refusal", "Sample", "Stage", "answered", "branches",
    "ended", "joined", "line", "reformed", "unnamed", "windowed", "with_parts",
]  # fmt: skip

Tree = Mapping[str, Value]


class Stage(NamedTuple):
    """A term with parameters of its own: arrays, or their shapes where only these count."""

    term: Any  # a Term: a rule asks for its class, and then for its fields
    params: Tree


Line = Sequence[Stage]
"""Stages in the order in which they are applied."""


class Change(NamedTuple):
    """Stages `start` to `stop` of a line become those that `make` gives.

    `make` runs on shapes to learn the terms, and on arrays to move the parameters.
    """

    start: int
    stop: int
    make: Callable[[], Iterable[Stage]]


class Refusal(NamedTuple):
    """The stage at which a law almost holds, and the side condition that fails."""

    start: int
    reason: str


class Sample(NamedTuple):
    """A term on which a law is tested, the shape of its input, and the context's shapes."""

    term: Term
    shape: tuple[int, ...] = (5, 4)
    context: Mapping[str, tuple[int, ...]] = {}


Rule = Callable[[Line], Iterator[Change | Refusal]]


@dataclasses.dataclass(frozen=True)
class Law:
    """An equation between terms.

    `rule` rewrites the left side to the right one wherever it fits a line, `back` the other way. A
    law about an execution rewrites nothing: its `sides` are two functions of (term, params, x).
    `sample(random)` draws a term on which the law is tested. `cheaper` names the side that costs
    less: "right", "left", "by size", or "neither"; `simplify` uses a law only where one side does.
    """

    name: str
    statement: str
    sample: Callable[[Any], Sample]
    rule: Rule | None = None
    back: Rule | None = None
    sides: Callable[..., tuple[Any, Any]] | None = None
    condition: str = ""
    moves: str = ""
    cheaper: str = "neither"

    def __repr__(self) -> str:
        return f"{self.name}: {self.statement}"


def line(term: Term, params: Tree) -> list[Stage]:
    """The stages of a composition, or the term as the only one.

    >>> from combinax.combinators import linear, silu
    >>> [stage.term for stage in line(silu @ linear(3), {"linear": {}})]
    [linear(3), silu]
    """
    if not isinstance(term, Compose):
        return [] if term == identity else [Stage(term, params)]
    return [Stage(p, select(params, n)) for p, n in zip(term.parts, term.names, strict=True)]


def ended(stage: Stage) -> tuple[list[Stage], Stage]:
    """The stages of a composition before the last one, and the last one."""
    *rest, last = line(*stage) or [stage]
    return rest, last


def joined(stages: Iterable[Stage]) -> Stage:
    """The composition of stages, with their parameters under its names: the inverse of `line`."""
    flat = [inner for stage in stages for inner in line(*stage)]
    if len(flat) < 2:
        return flat[0] if flat else Stage(identity, {})
    return reformed(cast(Compose, compose(*(stage.term for stage in flat[::-1]))), flat)


def branches(form: Term, params: Tree) -> list[Stage]:
    """The parts of a form, each with parameters of its own."""
    return [Stage(p, select(params, n)) for p, n in zip(form.parts, form.names, strict=True)]


def reformed(form: Term, parts: Sequence[Stage]) -> Stage:
    """The form with other parts, and their parameters under its names: inverse of `branches`."""
    form = with_parts(form, [part.term for part in parts])
    params: dict[str, Any] = {}
    for name, part in zip(form.names, parts, strict=True):
        params = put(params, name, cast(dict, part.params))
    return Stage(form, params)


def with_parts(form: Term, parts: Sequence[Term]) -> Term:
    """A form of the same kind with other parts, in the order of `form.parts`."""
    rest = iter(parts)

    def one(value: Value) -> Any:
        if any(value is part for part in form.parts):
            return next(rest)
        return tuple(map(one, value)) if isinstance(value, tuple) else value

    fields = dataclasses.fields(cast(Any, form))
    return type(form)(**{field.name: one(getattr(form, field.name)) for field in fields})


def unnamed(stage: Stage) -> Stage:
    """A stage without the names that were given to it."""
    while isinstance(stage.term, named):
        ((term, params),) = branches(*stage)
        stage = Stage(term, params)
    return stage


def renamed(like: Term, stage: Stage) -> Stage:
    """A stage under the names that `like` was given."""
    if not isinstance(like, named):
        return stage
    return reformed(like, [renamed(like.term, stage)])


Answer = Callable[[], Iterable[Stage]] | str | None
"""The answer of a rule to a window: the new stages, the condition that fails, or nothing."""


def windowed(rule: Callable[..., Answer]) -> Rule:
    """A rule about as many stages as the function takes, at every place of a line.

    The function gives a function that makes the new stages, or the condition that fails as a text,
    or None. It sees stages without the names that `named` gave them; new stages of the same word
    get the names back.

    >>> from combinax.combinators import relu
    >>> def twice(f, g):
    ...     return (lambda: [f]) if f.term == g.term == relu else None
    >>> [change] = windowed(twice)(line(relu @ relu, {}))
    >>> [stage.term for stage in change.make()]
    [relu]
    """
    size = len(inspect.signature(rule).parameters)

    def found(stages: Line) -> Iterator[Change | Refusal]:
        for start in range(len(stages) - size + 1):
            window = stages[start : start + size]
            yield from answered(rule(*map(unnamed, window)), start, window)

    return found


def answered(answer: Answer, start: int, window: Line) -> Iterator[Change | Refusal]:
    """The answer of a rule to the window that begins at `start`."""
    if isinstance(answer, str):
        yield Refusal(start, answer)
    elif answer:
        yield Change(start, start + len(window), lambda: with_names([*answer()], window))


def with_names(new: list[Stage], old: Line) -> list[Stage]:
    """New stages under the names of the old ones of the same word, the last one first."""
    left, made = [stage.term for stage in old], []
    for stage in reversed(new):
        alone = len(old) == len(new) == 1
        like = [t for t in left if alone or type(word(t)) is type(stage.term)]
        if like:
            del left[len(left) - 1 - left[::-1].index(like[-1])]
            stage = renamed(like[-1], stage)
        made.append(stage)
    return made[::-1]


def word(term: Term) -> Term:
    """A term without the names that were given to it."""
    return word(term.term) if isinstance(term, named) else term
