"""The values that flow: Entries --score--> Scores --normalize--> Weights --aggregate--> array.

A record carries more than its stage needs; a stage acts on its part and passes the rest along.
That is what lets the five words be written point-free.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
from jax import Array

from .dtypes import counts_as, floating, wide
from .marks import Marks, record

__all__ = ["Entries", "Scores", "Weights"]


def kept(rows: Array, which: Array | None) -> Array:
    """The rows, with zeros in place of those that take no part: even NaN there reaches nothing."""
    return rows if which is None else jnp.where(which[:, None], rows, jnp.zeros_like(rows[:1]))


def covered(score: Array, visible: Array | None) -> Array:
    """The scores, each hidden one replaced by the largest visible one of its row.

    A function that is finite on visible scores, with a finite derivative, is then so everywhere:
    the cotangent of a hidden score is 0, and 0 times infinity would be NaN. A row that sees nothing
    takes the largest visible score of the other rows.
    """
    if visible is None or not score.size:
        return score
    least = jnp.finfo(score.dtype).min
    shown = jax.lax.stop_gradient(jnp.where(visible, score, least))
    largest = jnp.max(shown, -1, keepdims=True)
    known = (largest > least) & (largest < jnp.inf)
    borrowed = jnp.max(jnp.where(known, largest, least))
    borrowed = jnp.where(known.any(), borrowed, 1)
    return jnp.where(visible, score, jnp.where(known, largest, borrowed))


def both(a: Array | None, b: Array | None) -> Array | None:
    """a and b, where None is true everywhere."""
    return a & b if a is not None and b is not None else b if a is None else a


def either(a: Array | None, b: Array | None) -> Array | None:
    """a or b, where None is true everywhere."""
    return None if a is None or b is None else a | b


class Record:
    """What the three records have in common."""

    marks: Any
    order: Array | None

    @property
    def sorting(self) -> Array | None:
        """The permutation (S,) that puts the keys in the order of their positions; None where they
        stand in it."""
        if self.order is not None or self.marks is None:
            return self.order
        position = self.marks.key.position
        return jnp.argsort(position) if isinstance(position, Array) else None

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(cast(Any, self), **changes)


@record
class Entries(Record):
    """A question to a dictionary, before it is scored.

    query (T, d), key (S, d), value (S, e); `visible` (T, S) is what the masks leave, None where
    nothing is masked; `live` (S,) marks the keys that some query sees, None where all are seen;
    `awake` (T,) the queries that see some key, None where all do; `order` (S,) sorts the keys by
    position where their marks do not.
    """

    query: Any
    key: Any
    value: Any
    marks: Any
    visible: Array | None = None
    live: Array | None = None
    awake: Array | None = None
    order: Array | None = None


@record
class Scores(Record):
    """How well each query matches each key: score (T, S) with `visible`, value (S, e)."""

    score: Any
    value: Any
    marks: Any
    visible: Array | None = None
    live: Array | None = None
    awake: Array | None = None
    order: Array | None = None

    @property
    def covered(self) -> Array:
        """The scores as functions of them take them: see `covered`."""
        return covered(self.score, self.visible)


@record
class Weights(Record):
    """How much of each value each query takes: weight (T, S), value (S, e).

    Weights are a function of values, `weights(values)`: normalizing yields a function, and
    aggregating applies it.
    """

    weight: Any
    value: Any
    marks: Any = None
    live: Array | None = None
    order: Array | None = None

    def __call__(self, value: Array) -> Array:
        """weights(value)[t] = sum over s of weight[t, s] value[s]: (S, e) -> (T, e).

        The sum runs in at least float32 and is rounded once, to the type of the values; integers
        and booleans count as float32. Values that no query sees are replaced before they are
        multiplied: even NaN stays out.
        """
        return self.mixed(value).astype(counts_as(value))

    def in_order(self) -> Weights:
        """The same weights and values, the keys in the order of their positions."""
        order = self.sorting
        if order is None:
            return self
        live = None if self.live is None else self.live[order]
        marks = self.marks and Marks(self.marks.query, self.marks.key.permuted(order))
        return Weights(self.weight[:, order], self.value[order], marks, live)

    def mixed(self, value: Array) -> Array:
        """The sum before it is rounded."""
        value = kept(floating(value), self.live)
        sums = wide(self.weight, value)
        return jnp.matmul(self.weight.astype(value.dtype), value, preferred_element_type=sums)
