"""Sight: how far back a lookup sees, and whether ahead, read off its predicates.

A predicate is a function of marks, so it is asked: first with positions of which nothing but their
distance is known, then, if it wants to know more, with positions themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cache, reduce
from typing import Any, NamedTuple

import numpy as np

from ..arithmetic import Pointwise
from ..compose import Compose
from ..core.lookup import Lookup
from ..core.marks import Rows
from ..core.records import Scores
from ..core.term import Term
from ..intervals.span import Span
from ..mask import mask
from ..project import slots
from ..union import sink

__all__ = ["Sight", "found", "horizon", "named", "pauses", "placed", "sees", "sight"]

HORIZON = 2**20
"""How far from a query a predicate is asked about keys, each by itself."""
LAST = 2**30 - 1
"""How far it is asked about all keys together: the largest distance that `Span` computes with."""


class Sight(NamedTuple):
    """How many rows back a query sees, its own included (None: any), and whether it sees ahead."""

    back: int | None
    ahead: bool


def placed(positions: Any, base: int = 0) -> Rows:
    """Rows at positions, laid along an axis of a table; with a base, only distances between them
    are known."""
    span = Span.point(positions.astype(np.int32)[..., None, None], base)
    return Rows(span, span)


# Which keys may be seen


def sees(lookup: Lookup, query: Rows, key: Rows) -> Any:
    """Where a query may see a key of the sequence, as far as positions tell."""
    return reduce(operator.and_, (seen(stage, query, key) for stage in stages(lookup)))


def seen(stage: Term, query: Rows, key: Rows) -> Any:
    """Where a query may see a key of the sequence after one stage."""
    if isinstance(stage, mask):
        return stage.predicate.ask(query, key).some
    if isinstance(stage, (slots, sink)):
        return np.False_  # from here on, keys are no longer those of the sequence
    parts = [part for part in stage.parts if not part.constant]
    if not parts:
        return np.True_
    # Stages one after the other, and tables of scores put together, hide what one of them hides.
    together = isinstance(stage, Compose) or (
        isinstance(stage, Pointwise) and all(isinstance(p.flow(None), Scores) for p in parts)
    )
    tables = [seen(part, query, key) for part in parts]
    return reduce(operator.and_ if together else operator.or_, tables)


@cache
def sight(lookup: Lookup) -> Sight:
    """How far a lookup sees, as far as distances tell.

    >>> from combinax.combinators import causal, window
    >>> sight(Lookup(((0, mask(causal & window(4))),)))
    Sight(back=4, ahead=False)
    >>> sight(Lookup(((0, mask(causal)),)))
    Sight(back=None, ahead=False)
    """
    apart = np.arange(-HORIZON, HORIZON + 1)[None]  # from the query to the key
    table = sees(lookup, placed(np.zeros((1, 1)), base=1), placed(apart, base=1))
    where = apart[np.broadcast_to(table, apart.shape)]
    back = 1 - int(where.min(initial=0))
    return Sight(back if back <= HORIZON // 2 else None, bool((where > 0).any()))


@cache
def horizon(lookup: Lookup) -> int:
    """How many positions there may be for what `sight` says to hold.

    Keys farther than it asked about are asked about together, as spans of distances: where none
    of them is seen for certain, nothing but the numbers of 32 bits ends the positions.
    """

    def farther(least: int, most: int) -> bool:
        ends = np.array([[least]], np.int32), np.array([[most]], np.int32)
        key = Span(*(end[..., None, None] for end in ends), base=1)
        query = placed(np.zeros((1, 1)), base=1)
        return bool(np.any(sees(lookup, query, Rows(key, key))))

    return HORIZON if farther(-LAST, -HORIZON) or farther(HORIZON, LAST) else LAST


NEAR = 256
"""How far ahead a query is asked about, and how many queries are asked at once."""


def pauses(lookup: Lookup, capacity: int, alone: int | None) -> bool:
    """Whether a lookup that may see ahead can be answered step by step: where no query waits at
    some place below the capacity; or, where rows come one by one from `alone` on, at all from there
    on."""
    pieces = rests(lookup, capacity)
    if alone is None:
        return any(piece.any() for piece in pieces)
    return bool(np.concatenate([*pieces])[alone - 1 : -1].all())


def rests(lookup: Lookup, capacity: int) -> Iterator[np.ndarray]:
    """For every place below the capacity, some at a time, whether no query up to there waits for a
    later key, as at the end of a prefix or of a block."""
    farthest = -1
    for start in range(0, capacity, NEAR):
        query = np.arange(start, min(start + NEAR, capacity))[:, None]
        key = np.arange(start, start + 2 * NEAR)[None]
        table = sees(lookup, placed(query), placed(key))
        last = np.where(table, key, farthest).max(1, keepdims=True)
        awaited = np.maximum.accumulate(last)
        yield (awaited <= query)[:, 0]
        farthest = int(awaited[-1, 0])


# The stages of a lookup


def stages(lookup: Lookup) -> tuple[Term, ...]:
    return tuple(stage for _, stage in lookup.stages)


def found(terms: tuple[Term, ...], which: Callable[[Term], bool]) -> Iterator[Term]:
    """The terms, and the parts of terms, of which something holds."""
    for term in terms:
        if which(term):
            yield term
        yield from found(term.parts, which)


def named(lookup: Lookup) -> Term:
    """The stage to name: the last mask, or else the first of all."""
    first, *_ = every = stages(lookup)
    return [first, *found(every, lambda stage: isinstance(stage, mask))][-1]
