"""Sight: how far back a lookup sees, and whether ahead, read off its predicates.

A predicate is a function of marks, so it is asked: first with positions of which nothing but their
distance is known, then, if it wants to know more, with positions themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cache, reduce
from typing import Any, NamedTuple

import jax
import numpy as np

from .arithmetic import Pointwise
from .compose import Compose
from .lookup import Lookup
from .mask import mask
from .predicates import Both, Either, Not, Predicate
from .records import Rows, Scores
from .term import Term
from .union import Union, sink
from .project import slots

__all__ = ["HORIZON", "Sight", "pauses", "sees", "sight"]

HORIZON = 2**20
"""How far from a query a predicate is asked about keys; no position of a ring lies beyond."""


class Sight(NamedTuple):
    """How many rows back a query sees, its own included (None: any), and whether it sees ahead."""

    back: int | None
    ahead: bool


class Place:
    """A position of which only the distance to another is known.

    What a predicate computes with it holds wherever it stands; asked for more, it refuses.
    """

    def __init__(self, offset: np.ndarray):
        self.offset = offset

    def apart(self, other: Any) -> np.ndarray:
        if not isinstance(other, Place):
            raise TypeError("only the distance between two positions is known")
        return self.offset - other.offset

    def __sub__(self, other: Any) -> Any:
        return self.apart(other) if isinstance(other, Place) else Place(self.offset - other)

    def __add__(self, steps: Any) -> Place:
        return Place(self.offset + steps)

    __radd__ = __add__

    def __lt__(self, other: Any) -> Any:
        return self.apart(other) < 0

    def __le__(self, other: Any) -> Any:
        return self.apart(other) <= 0

    def __gt__(self, other: Any) -> Any:
        return self.apart(other) > 0

    def __ge__(self, other: Any) -> Any:
        return self.apart(other) >= 0

    def __eq__(self, other: Any) -> Any:
        return self.apart(other) == 0

    def __ne__(self, other: Any) -> Any:
        return self.apart(other) != 0

    __hash__ = None  # type: ignore[assignment]


# Which keys may be seen


def allowed(predicate: Predicate, query: Rows, key: Rows) -> tuple[Any, Any]:
    """Where a predicate may be true, and where it certainly is: what it asks of the context, or
    of positions beyond their distance, is unknown (Kleene 1938)."""
    match predicate:
        case Both(first, second):
            pairs = zip(*(allowed(part, query, key) for part in (first, second)), strict=True)
            return tuple(a & b for a, b in pairs)  # type: ignore[return-value]
        case Either(first, second):
            pairs = zip(*(allowed(part, query, key) for part in (first, second)), strict=True)
            return tuple(a | b for a, b in pairs)  # type: ignore[return-value]
        case Not(inner):
            some, every = allowed(inner, query, key)
            return ~every, ~some
    if any(predicate.rows):
        return np.True_, np.False_
    try:
        seen = predicate(query, key)
    except TypeError:  # it asks more than a distance
        return np.True_, np.False_
    return seen, seen


def sees(stages: tuple[Term, ...], query: Rows, key: Rows) -> Any:
    """Where a query may see a key of the sequence after these stages, one after the other."""
    return reduce(operator.and_, (one_sees(stage, query, key) for stage in stages), np.True_)


def one_sees(stage: Term, query: Rows, key: Rows) -> Any:
    if isinstance(stage, mask):
        return allowed(stage.predicate, query, key)[0]
    if isinstance(stage, (slots, sink)):
        return np.False_  # from here on, keys are no longer those of the sequence
    parts = [part for part in stage.parts if not part.constant]
    tables = [one_sees(part, query, key) for part in parts]
    if not tables:
        return np.True_
    together = isinstance(stage, Compose) or (
        isinstance(stage, Pointwise) and all(isinstance(p.flow(None), Scores) for p in parts)
    )
    return reduce(operator.and_ if together else operator.or_, tables)


def stages_of(lookup: Lookup) -> tuple[Term, ...]:
    return tuple(stage for _, stage in lookup.stages)


@cache
def sight(lookup: Lookup) -> Sight:
    """How far a lookup sees, as far as distances tell.

    >>> from combinax.combinators import causal, scaled_dot, score, window
    >>> sight(Lookup(((0, mask(causal & window(4))),)))
    Sight(back=4, ahead=False)
    """
    apart = np.arange(-HORIZON, HORIZON + 1)  # from the query to the key
    query, key = (Place(offset) for offset in (np.zeros((1, 1), apart.dtype), apart[None]))
    with jax.ensure_compile_time_eval():
        seen = np.asarray(sees(stages_of(lookup), Rows(query, query), Rows(key, key)))
    where = apart[np.broadcast_to(seen, (1, len(apart)))[0]]
    back = 1 - min(where.min(initial=0), 0)
    return Sight(int(back) if back <= HORIZON // 2 else None, bool((where > 0).any()))


def pauses(lookup: Lookup, capacity: int) -> bool:
    """Whether a lookup that may see ahead has a place where no query waits for a later key: the
    end of a prefix, the end of a block. Looked for at the last places and at powers of two."""
    ends = {*range(max(0, capacity - NEAR), capacity), *powers(capacity)}
    with jax.ensure_compile_time_eval():
        return any(not np.any(waiting(lookup, end)) for end in sorted(ends))


NEAR = 64


def powers(limit: int) -> Iterator[int]:
    power = 1
    while power <= limit:
        yield power - 1
        power *= 2


def waiting(lookup: Lookup, end: int) -> Any:
    """Which queries up to a place may see which keys behind it, near to it."""
    query = np.arange(max(0, end + 1 - NEAR), end + 1)[:, None]
    key = np.arange(end + 1, end + 1 + NEAR)[None]
    return sees(stages_of(lookup), Rows(query, query), Rows(key, key))


def found(stages: tuple[Term, ...], which: Callable[[Term], bool]) -> Iterator[Term]:
    """The stages, and the parts of stages, of which something holds."""
    for stage in stages:
        if which(stage):
            yield stage
        yield from found(stage.parts, which)
