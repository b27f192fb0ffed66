"""The Lookup: the stages that score, mask, normalize and aggregate, as one node.

A composition groups such stages, from entries to the answer. An execution runs the node as a whole,
so it may stream tiles or read a cache; `Run.lookup` is the reference meaning.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

from .kinds import Kind
from .records import Entries, Scores, Weights
from .term import Term

__all__ = ["Lookup", "segments"]


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Stages of a composition with their places in it, in the order of application."""

    stages: tuple[tuple[int, Term], ...]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The places in the order in which stages run: masks before the score that they follow.

        A mask reads marks alone, so it commutes with every stage back to the score. Run first, it
        tells the score which queries and keys are active, and the others enter no product.
        """
        order: list[tuple[int, Term]] = []
        for place, stage in self.stages:
            at = len(order)
            if inner(stage).role == "masks":
                while at and inner(order[at - 1][1]).role == "adjusts":
                    at -= 1
                scored = at and inner(order[at - 1][1]).role == "scores"
                at = at - 1 if scored else len(order)
            order.insert(at, (place, stage))
        return tuple(place for place, _ in order)


def inner(stage: Term) -> Term:
    """A stage without the wrappers that name it or share its parameters."""
    while len(stage.parts) == 1 and (stage.names == ("",) or stage.given):
        (stage,) = stage.parts
    return stage


def segments(parts: tuple[Term, ...]) -> tuple[int | Lookup, ...]:
    """The places of a composition's parts, with the stages of each lookup grouped into one node."""
    groups: list[int | Lookup] = []
    kind: Kind = None
    for place, part in enumerate(parts):
        asked = isinstance(kind, (Entries, Scores, Weights))
        kind = part.flow(kind)
        if asked or isinstance(kind, (Scores, Weights)) or inner(part).role == "aggregates":
            match groups:
                case [*_, Lookup(stages)]:
                    groups[-1] = Lookup((*stages, (place, part)))
                case _:
                    groups.append(Lookup(((place, part),)))
        else:
            groups.append(place)
    return tuple(groups)
