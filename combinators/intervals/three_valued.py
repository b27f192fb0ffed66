"""Truths that are not known of every pair: may it hold, and does it certainly (Kleene 1938)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

__all__ = ["ANYTHING", "Maybe", "truth"]


@dataclasses.dataclass(frozen=True, eq=False)
class Maybe:
    """What is known of some pairs together: whether it may hold for any, and does for every one."""

    some: Any
    every: Any

    def __and__(self, other: Maybe) -> Maybe:
        return Maybe(self.some & other.some, self.every & other.every)

    def __or__(self, other: Maybe) -> Maybe:
        return Maybe(self.some | other.some, self.every | other.every)

    def __invert__(self) -> Maybe:
        return Maybe(~self.every, ~self.some)


def truth(value: Any) -> Any:
    """A truth value that `~` negates, which it does not do to Python's own."""
    return np.bool_(value) if isinstance(value, bool) else value


ANYTHING = Maybe(np.True_, np.False_)
"""Nothing is known."""
