"""Three-valued logic (Kleene 1938): a predicate holds for all pairs of a block, for none, or maybe.

some   every
False  False    no pair
True   False    unknown
True   True     every pair
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool

__all__ = ["ANYTHING", "Maybe", "Truths", "truth"]


Truths: TypeAlias = np.bool_ | Bool[np.ndarray, "n m"] | Bool[Array, "n m"]
"""A truth for each of n × m blocks or pairs: of NumPy where it is known at trace time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Maybe:
    """A predicate on many pairs: `some` if it may hold for one, `every` if it holds for all."""

    some: Truths
    every: Truths

    def __and__(self, other: Maybe) -> Maybe:
        return Maybe(self.some & other.some, self.every & other.every)

    def __or__(self, other: Maybe) -> Maybe:
        return Maybe(self.some | other.some, self.every | other.every)

    def __invert__(self) -> Maybe:
        return Maybe(~self.every, ~self.some)


def truth(value: ArrayLike) -> Any:
    """The value as a boolean that `~` negates: `~True` of Python's own is -2."""
    return np.bool_(value) if isinstance(value, bool) else value


ANYTHING = Maybe(np.True_, np.False_)
"""The predicate may hold, or may not."""
