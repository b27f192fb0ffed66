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
from jaxtyping import Bool, Float, Int, Shaped

from .dtypes import counts_as, floating, wide
from .marks import Marks, record
from .types import Table, Visible

__all__ = ["Entries", "Scores", "Weights"]


def zero_inactive(
    rows: Shaped[Array, "T d"], active: Bool[Array, "T"] | None
) -> Shaped[Array, "T d"]:
    """Rows (T, d), with zeros where `active` (T,) is false: a NaN there must not reach a product.

    `active` is None where all rows are active.
    """
    return rows if active is None else jnp.where(active[:, None], rows, jnp.zeros_like(rows[:1]))


def covered(score: Table, visible: Visible) -> Table:
    """Scores (T, S), each hidden one replaced by the largest visible score of its row.

    A function may be infinite at a hidden score. That score's cotangent is 0, and 0 times an
    infinite derivative would be NaN. A row without a visible score takes the largest visible score
    of the other rows.
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


def both(a: Bool[Array, "*s"] | None, b: Bool[Array, "*s"] | None) -> Bool[Array, "*s"] | None:
    """a and b, where None is true everywhere."""
    return a & b if a is not None and b is not None else b if a is None else a


def either(a: Bool[Array, "*s"] | None, b: Bool[Array, "*s"] | None) -> Bool[Array, "*s"] | None:
    """a or b, where None is true everywhere."""
    return None if a is None or b is None else a | b


class Record:
    """The base of the three records. In place of an array, the kind of a record has a Width, and an
    abstract record a ShapeDtypeStruct."""

    value: Any
    marks: Any
    order: Int[Array, "S"] | None

    @property
    def sorting(self) -> Int[Array, "S"] | None:
        """The permutation (S,) that sorts the keys by position; None if they are sorted."""
        if self.order is not None or self.marks is None:
            return self.order
        position = self.marks.key.position
        return jnp.argsort(position) if isinstance(position, Array) else None

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(cast(Any, self), **changes)


@record
class Entries(Record):
    """Queries, keys and values, before they are scored.

    query (T, d), key (S, d), value (S, e). `visible` (T, S) is true where no mask hides the key
    from the query, and None without a mask. `active_keys` (S,) are those that a query sees, None if
    all are; `active_queries` (T,) those that see a key, None if all do. `order` (S,) sorts the keys
    by position, as cached keys need; None where the marks do.
    """

    query: Shaped[Any, "T d"]
    key: Shaped[Any, "S d"]
    value: Shaped[Any, "S e"]
    marks: Any
    visible: Visible = None
    active_keys: Bool[Array, "S"] | None = None
    active_queries: Bool[Array, "T"] | None = None
    order: Int[Array, "S"] | None = None


@record
class Scores(Record):
    """A score for each pair of a query and a key: score (T, S), value (S, e); else as Entries."""

    score: Float[Any, "T S"]
    value: Shaped[Any, "S e"]
    marks: Any
    visible: Visible = None
    active_keys: Bool[Array, "S"] | None = None
    active_queries: Bool[Array, "T"] | None = None
    order: Int[Array, "S"] | None = None

    @property
    def covered(self) -> Table:
        """The scores, with hidden ones replaced: the argument of every function of scores."""
        return covered(self.score, self.visible)


@record
class Weights(Record):
    """A weight for each pair of a query and a value: weight (T, S), value (S, e).

    Weights are a function of values, `weights(values)`: normalizing yields a function, and
    aggregating applies it.
    """

    weight: Float[Any, "T S"]
    value: Shaped[Any, "S e"]
    marks: Any = None
    active_keys: Bool[Array, "S"] | None = None
    order: Int[Array, "S"] | None = None

    def __call__(self, value: Shaped[Array, "S e"]) -> Float[Array, "T e"]:
        """weights(value)[t] = sum over s of weight[t, s] value[s]: (S, e) -> (T, e).

        The sum runs in at least float32 and is rounded once, to the type of the values; integers
        and booleans count as float32. Values that no query sees are replaced by zeros before the
        product, so a NaN in them reaches no row.
        """
        return self.mixed(value).astype(counts_as(value))

    def in_order(self) -> Weights:
        """The same weights and values, sorted by the keys' positions."""
        order = self.sorting
        if order is None:
            return self
        active = None if self.active_keys is None else self.active_keys[order]
        marks = self.marks and Marks(self.marks.query, self.marks.key.permuted(order))
        return Weights(self.weight[:, order], self.value[order], marks, active)

    def mixed(self, value: Shaped[Array, "S e"]) -> Float[Array, "T e"]:
        """weights(value) before it is rounded to the type of the values."""
        value = zero_inactive(floating(value), self.active_keys)
        kind = wide(self.weight, value)
        return jnp.matmul(self.weight.astype(value.dtype), value, preferred_element_type=kind)
