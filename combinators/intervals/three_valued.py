"""Three-valued logic (Kleene 1938): a predicate holds for all pairs of a block, for none, or maybe.

some   every
False  False    no pair
True   False    unknown
True   True     every pair
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

__all__ = ["ANYTHING", "Maybe", "truth"]


@dataclasses.dataclass(frozen=True, eq=False)
class Maybe:
    """A predicate on many pairs: `some` if it may hold for one, `every` if it holds for all."""

    some: Any
    every: Any

    def __and__(self, other: Maybe) -> Maybe:
        return Maybe(self.some & other.some, self.every & other.every)

    def __or__(self, other: Maybe) -> Maybe:
        return Maybe(self.some | other.some, self.every | other.every)

    def __invert__(self) -> Maybe:
        return Maybe(~self.every, ~self.some)


def truth(value: Any) -> Any:
    """The value as a boolean that `~` negates: `~True` of Python's own is -2."""
    return np.bool_(value) if isinstance(value, bool) else value


ANYTHING = Maybe(np.True_, np.False_)
"""The predicate may hold, or may not."""
