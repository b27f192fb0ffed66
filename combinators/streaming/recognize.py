"""Recognition: which lookups can be streamed, and their stages sorted by how they run.

A lookup can be streamed if its stages run on tiles and its normalizer merges partial results, which
form a monoid (Milakov and Gimelshein 2018, Rabe and Staats 2021).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

from ..aggregate import aggregate, weighted_sum
from ..arithmetic import Pointwise
from ..compose import Compose
from ..core.context import Context
from ..core.execution import Name, Run
from ..core.leaf import Stage
from ..core.lookup import Lookup, inner
from ..core.term import Term
from ..core.types import Value
from ..dropout import dropout
from ..mask import mask
from ..normalize import Elementwise, normalize
from ..primitives import Source, identity, pointwise
from ..score import features, score
from ..softmax import LogSumExp, Streaming, row_sum, softmax
from ..union import Union
from ..wrappers import Wrapper

__all__ = ["Step", "Streamed", "streamed_form", "within"]

Found = TypeVar("Found", bound=Term)


class Step(NamedTuple):
    """A stage of a lookup: `form.parts[place]`, and the names that lead to `form`."""

    names: tuple[Name, ...]
    form: Term
    place: int

    @property
    def stage(self) -> Term:
        return self.form.parts[self.place]

    @property
    def path(self) -> tuple[Name, ...]:
        return (*self.names, self.form.names[self.place])

    def run(self, run: Run, x: Value, context: Context) -> Value:
        for name in self.names:
            run = run.enter(name)
        return run.part(self.form, self.place, x, context)


class Branch(NamedTuple):
    """One dictionary of a lookup: steps that run on all its rows, then steps that run on tiles.

    The whole steps give entries, which the tiled steps take in tiles. A dictionary that cannot be
    cut gives its whole table of scores instead.
    """

    whole: tuple[Step, ...]
    tiled: tuple[Step, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Streamed:
    """A lookup as a stream.

    `branches` are its dictionaries and `how` normalizes the scores of all of them. `after` are the
    steps on weights, and `end` is the last stage: an aggregate or log_sum_exp.
    """

    branches: tuple[Branch, ...]
    how: Streaming
    after: tuple[Step, ...]
    end: aggregate | LogSumExp

    @property
    def first(self) -> Branch | None:
        """The first dictionary without whole steps."""
        return next((branch for branch in self.branches if not branch.whole), None)

    @property
    def features(self) -> features | None:
        """The feature map of linear attention; None if the lookup is not linear attention."""
        branch, *others = self.branches
        if others or self.after or not isinstance(self.end, aggregate):
            return None
        linear = self.how == row_sum or self.how == Elementwise(identity)
        stages = [inner(step.stage) for step in branch.tiled]
        scores = [stage for stage in stages if not isinstance(stage, mask)]
        match scores:
            case [score(function=features() as feature_map)] if linear:
                return feature_map
        return None


def tilewise(term: Term) -> bool:
    """Whether a term from entries or scores to scores gives on a tile the tile of its result."""
    if isinstance(term, (score, mask, Stage, pointwise, Source)):
        return True
    return isinstance(term, (Compose, Pointwise, Wrapper)) and all(map(tilewise, term.parts))


def branches(first: Step) -> Iterator[Branch]:
    """The dictionaries of a union, inner unions included; without a union the single one."""
    union = first.stage
    if not isinstance(union, Union):
        yield Branch((), (first,))
        return
    for place, part in enumerate(union.parts):
        here = Step(first.path, union, place)
        match part:
            case Union():
                yield from branches(here)
            case Compose(segments=(*whole, Lookup() as lookup)) if all(
                tilewise(part.parts[i]) for i in lookup.order
            ) and not any(isinstance(i, Lookup) for i in whole):
                steps = partial(Step, here.path, part)
                yield Branch(tuple(map(steps, whole)), tuple(map(steps, lookup.order)))
            case _ if tilewise(part):
                yield Branch((), (here,))
            case _:
                yield Branch((here,), ())


@lru_cache(maxsize=512)
def streamed_form(form: Term, lookup: Lookup) -> Streamed | str:
    """The lookup as a stream, or the reason why it cannot be streamed."""
    steps = [Step((), form, place) for place in lookup.order]
    stages = [inner(step.stage) for step in steps]
    at = next((i for i, s in enumerate(stages) if isinstance(s, (normalize, LogSumExp))), None)
    if not at or not isinstance(stages[-1], (aggregate, LogSumExp)):
        return "its scores or weights are asked for"
    how = getattr(stages[at], "rows", softmax)
    if not isinstance(how, Streaming):
        return f"{stages[at]!r} needs whole rows of scores"
    if how.learns:
        return f"{stages[at]!r} learns, and only normalizers that do not are streamed"
    if isinstance(stages[-1], aggregate) and stages[-1].fold is not weighted_sum:
        return f"{stages[-1]!r} needs whole rows of weights"
    (first, *rest), after = steps[:at], steps[at + 1 : -1]
    for step in after:
        if not isinstance(inner(step.stage), dropout):
            return f"{step.stage!r} needs whole rows of weights"
    for step in rest if isinstance(first.stage, Union) else steps[:at]:
        if not tilewise(step.stage):
            return f"{step.stage!r} may need whole rows of scores"
    parts = tuple(b._replace(tiled=(*b.tiled, *rest)) for b in branches(first))
    return Streamed(parts, how, tuple(after), stages[-1])


def within(terms: Iterator[Term], kind: type[Found]) -> Iterator[Found]:
    """All terms of a type among `terms` and their parts, at any depth."""
    for term in terms:
        if isinstance(term, kind):
            yield term
        yield from within(iter(term.parts), kind)
