"""Lookback: how far back a lookup sees, and whether it sees ahead, read off its predicates.

A predicate is a function of marks, so it is evaluated on marks of our choice: first on rows of
which only distances are known; then, where that is undecided, on positions themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cache, reduce
from typing import NamedTuple

import numpy as np
from jax import Array

from ..arithmetic import Pointwise
from ..compose import Compose
from ..core.lookup import Lookup
from ..core.marks import Rows
from ..core.records import Scores
from ..core.term import Term
from ..intervals.span import Span
from ..intervals.three_valued import Truths
from ..mask import mask
from ..project import slots
from ..union import sink

__all__ = [
    "Lookback", "blamed", "can_step", "horizon", "lookback", "sees", "span_rows", "stages",
    "subterms",
]  # fmt: skip

HORIZON = 2**20
"""The largest distance at which a predicate is evaluated key by key."""
LAST = 2**30 - 1
"""The largest distance of all: `Span` computes with int32, and a sum of two must not overflow."""


class Lookback(NamedTuple):
    """`back`: the rows that a query sees up to its own, None if unbounded. `ahead`: whether it
    sees later ones."""

    back: int | None
    ahead: bool


def span_rows(positions: np.ndarray | Array, base: int = 0) -> Rows:
    """Rows at known positions (T, 1) or (1, S); with a base, only their distances are known."""
    span = Span.point(positions.astype(np.int32)[..., None, None], base)
    return Rows(span, span)


# The keys that a query may see


def sees(lookup: Lookup, query: Rows, key: Rows) -> Truths:
    """Where a query may see a key of the sequence, (T, S), as far as positions decide it."""
    return reduce(operator.and_, (seen_after(stage, query, key) for stage in stages(lookup)))


def seen_after(stage: Term, query: Rows, key: Rows) -> Truths:
    """Where a query may see a key of the sequence after one stage."""
    if isinstance(stage, mask):
        return stage.predicate.ask(query, key).some
    if isinstance(stage, (slots, sink)):
        return np.False_  # later stages see learned keys, none of the sequence
    parts = [part for part in stage.parts if not part.constant]
    if not parts:
        return np.True_
    # A composition, and arithmetic of score tables, hide a key that any of their parts hides;
    # other forms, such as union, show a key that any of their parts shows.
    together = isinstance(stage, Compose) or (
        isinstance(stage, Pointwise) and all(isinstance(p.flow(None), Scores) for p in parts)
    )
    tables = [seen_after(part, query, key) for part in parts]
    return reduce(operator.and_ if together else operator.or_, tables)


@cache
def lookback(lookup: Lookup) -> Lookback:
    """The lookback of a lookup, as far as distances decide it.

    >>> from combinax.combinators import causal, window
    >>> lookback(Lookup(((0, mask(causal & window(4))),)))
    Lookback(back=4, ahead=False)
    >>> lookback(Lookup(((0, mask(causal)),)))
    Lookback(back=None, ahead=False)
    """
    distance = np.arange(-HORIZON, HORIZON + 1)[None]  # key position - query position
    table = sees(lookup, span_rows(np.zeros((1, 1)), base=1), span_rows(distance, base=1))
    visible = distance[np.broadcast_to(table, distance.shape)]
    back = 1 - int(visible.min(initial=0))
    # A window that ends near the horizon cannot be told from one that the horizon cuts off.
    return Lookback(back if back <= HORIZON // 2 else None, bool((visible > 0).any()))


@cache
def horizon(lookup: Lookup) -> int:
    """The number of positions for which the lookback of `lookback` holds.

    Distances past HORIZON are evaluated as two spans, one on each side. If no key of either may be
    seen, positions end with int32 alone.
    """

    def may_see(least: int, most: int) -> bool:
        ends = np.array([[least]], np.int32), np.array([[most]], np.int32)
        key = Span(*(end[..., None, None] for end in ends), base=1)
        query = span_rows(np.zeros((1, 1)), base=1)
        return bool(np.any(sees(lookup, query, Rows(key, key))))

    return HORIZON if may_see(-LAST, -HORIZON) or may_see(HORIZON, LAST) else LAST


# Lookups that see ahead

NEAR = 256
"""Queries per evaluated table, and the least number of keys ahead of each that it holds."""


def can_step(lookup: Lookup, capacity: int, one_by_one: int | None) -> bool:
    """Whether steps can answer a lookup that may see ahead, as one behind a prefix.

    A chunk may end where no query waits for a later key. One such position below the capacity is
    enough; rows that come one by one from position `one_by_one` on need every position from there.
    """
    pieces = complete(lookup, capacity)
    if one_by_one is None:
        return any(piece.any() for piece in pieces)
    return bool(np.concatenate([*pieces])[one_by_one - 1 : -1].all())


def complete(lookup: Lookup, capacity: int) -> Iterator[np.ndarray]:
    """For each position below the capacity, NEAR at a time: whether no query up to it waits for a
    later key, as at the end of a prefix or of a block."""
    farthest = -1
    for start in range(0, capacity, NEAR):
        query = np.arange(start, min(start + NEAR, capacity))[:, None]
        key = np.arange(start, start + 2 * NEAR)[None]
        table = sees(lookup, span_rows(query), span_rows(key))
        last = np.where(table, key, farthest).max(1, keepdims=True)
        awaited = np.maximum.accumulate(last)
        yield (awaited <= query)[:, 0]
        farthest = int(awaited[-1, 0])


# The stages of a lookup


def stages(lookup: Lookup) -> tuple[Term, ...]:
    return tuple(stage for _, stage in lookup.stages)


def subterms(terms: tuple[Term, ...], which: Callable[[Term], bool]) -> Iterator[Term]:
    """The terms, and their parts at every depth, for which `which` is true."""
    for term in terms:
        if which(term):
            yield term
        yield from subterms(term.parts, which)


def blamed(lookup: Lookup) -> Term:
    """The stage that an error names: the last mask, or the first stage without one."""
    first, *_ = every = stages(lookup)
    return [first, *subterms(every, lambda stage: isinstance(stage, mask))][-1]
