"""The Lookup: the run of stages from entries to aggregate inside a composition."""

from __future__ import annotations

from .mask import mask
from .score import score
from .term import Stage, Term
from .values import pointwise

__all__ = ["hoisted"]


def hoisted(parts: tuple[Term, ...]) -> tuple[int, ...]:
    """The order in which stages run: as written, but masks before the score that they follow.

    A mask looks at marks alone, so it commutes with every stage up to the score. Known first, it
    tells the score which keys no query sees, and nothing is ever computed from those.
    """
    order: list[int] = []
    for index, part in enumerate(parts):
        at = len(order)
        if isinstance(part, mask):
            while at and isinstance(parts[order[at - 1]], (Stage, pointwise)):
                at -= 1
            at = at - 1 if at and isinstance(parts[order[at - 1]], score) else len(order)
        order.insert(at, index)
    return tuple(order)
