"""Truths that are not known of every pair: may it hold, and does it certainly (Kleene 1938)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

__all__ = ["ANYTHING", "Maybe", "as_maybe", "of_each", "truth"]


@dataclasses.dataclass(frozen=True, eq=False)
class Maybe:
    """What is known of some pairs together: whether it may hold for any, and does for every one."""

    some: Any
    every: Any

    def __and__(self, other: Any) -> Maybe:
        other = as_maybe(other)
        return Maybe(self.some & other.some, self.every & other.every)

    def __or__(self, other: Any) -> Maybe:
        other = as_maybe(other)
        return Maybe(self.some | other.some, self.every | other.every)

    def __invert__(self) -> Maybe:
        return Maybe(~self.every, ~self.some)

    def __eq__(self, other: Any) -> Any:
        return (self & other) | (~self & ~as_maybe(other))

    def __ne__(self, other: Any) -> Any:
        return ~(self == other)

    def __bool__(self) -> bool:
        raise TypeError("whether it holds differs from pair to pair")

    __rand__ = __and__
    __ror__ = __or__


def as_maybe(value: Any) -> Maybe:
    if isinstance(value, Maybe):
        return value
    if isinstance(value, (bool, np.bool_)):
        return of_each(value)
    raise TypeError(f"{value!r} is no truth about pairs")


def truth(value: Any) -> Any:
    """A truth value that `~` negates, which it does not do to Python's own."""
    return np.bool_(value) if isinstance(value, bool) else value


def of_each(value: Any) -> Maybe:
    """A truth of its own for each of the pairs."""
    return Maybe(truth(value), truth(value))


ANYTHING = Maybe(np.True_, np.False_)
"""Nothing is known."""
