"""Predicates on whole blocks of rows: intervals of marks, and what they leave of a tile.

A predicate is one function. Run on arrays it gives a mask, run on the least and the largest mark
of each block it tells, without a table, which tiles no query sees anything of, and which are seen
whole (interval arithmetic, Moore 1966, with the three values of Kleene 1938).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .grid import ALL, NONE, SOME
from .mask import mask
from .maybe import Maybe, as_maybe
from .records import Marks, Range, Rows
from .run import Context

__all__ = ["Span", "plan"]


def namespace(*values: Any) -> Any:
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def smaller(a: Any, b: Any) -> Any:
    return namespace(a, b).minimum(a, b)


def larger(a: Any, b: Any) -> Any:
    return namespace(a, b).maximum(a, b)


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """Integers of so many bits from lo to hi, both included, one such span for every block."""

    lo: Any
    hi: Any
    bits: int = 32

    def within(self, bits: int) -> Any:
        """Where no number has more bits, its sign not counted."""
        most = 2**bits - 1
        return (self.lo >= -most) & (self.hi <= most)

    def if_(self, safe: Any) -> Span:
        """The span where it is safe; elsewhere integers may have gone round, and be anything."""
        where, least = namespace(self.lo, self.hi, safe).where, -(2 ** (self.bits - 1))
        return Span(where(safe, self.lo, least), where(safe, self.hi, -1 - least), self.bits)

    def __neg__(self) -> Span:
        return Span(-self.hi, -self.lo, self.bits).if_(self.within(self.bits - 1))

    def __abs__(self) -> Span:
        ends = larger(abs(self.lo), abs(self.hi))
        least = larger(larger(self.lo, -self.hi), 0)
        return Span(least, ends, self.bits).if_(self.within(self.bits - 1))

    def __add__(self, other: Any) -> Span:
        one, other = self.meet(other)
        safe = one.within(one.bits - 2) & other.within(one.bits - 2)
        return Span(one.lo + other.lo, one.hi + other.hi, one.bits).if_(safe)

    def __sub__(self, other: Any) -> Span:
        return self + -self.meet(other)[1]

    def __rsub__(self, other: Any) -> Span:
        return self.meet(other)[1] - self

    def __mul__(self, other: Any) -> Span:
        one, other = self.meet(other)
        ends = [a * b for a in (one.lo, one.hi) for b in (other.lo, other.hi)]
        least, most = (reduce(fold, ends) for fold in (smaller, larger))
        half = one.bits // 2 - 1
        return Span(least, most, one.bits).if_(one.within(half) & other.within(half))

    def __floordiv__(self, divisor: Any) -> Span:
        positive(divisor, self.bits)
        return Span(self.lo // divisor, self.hi // divisor, self.bits)

    def __mod__(self, divisor: Any) -> Span:
        positive(divisor, self.bits)
        whole = (self.lo // divisor) == (self.hi // divisor)
        where = namespace(whole).where
        least, most = (
            where(whole, self.lo % divisor, 0),
            where(whole, self.hi % divisor, divisor - 1),
        )
        return Span(least, most, self.bits)

    def __lt__(self, other: Any) -> Maybe:
        _, other = self.meet(other)
        return Maybe(self.lo < other.hi, self.hi < other.lo)

    def __gt__(self, other: Any) -> Maybe:
        return self.meet(other)[1] < self

    def __le__(self, other: Any) -> Maybe:
        return ~(self > other)

    def __ge__(self, other: Any) -> Maybe:
        return ~(self < other)

    def __eq__(self, other: Any) -> Any:
        return (self <= other) & (self >= other)

    def __ne__(self, other: Any) -> Any:
        return ~(self == other)

    __radd__, __rmul__ = __add__, __mul__

    def meet(self, other: Any) -> tuple[Span, Span]:
        """Both in the wider of their types, as JAX promotes them."""
        other = as_span(other, self.bits)
        bits = max(self.bits, other.bits)
        return self.of_bits(bits), other.of_bits(bits)

    def of_bits(self, bits: int) -> Span:
        wide = lambda end: end.astype(np.int64) if bits > 32 and hasattr(end, "astype") else end  # noqa: E731
        return Span(wide(self.lo), wide(self.hi), bits)


def as_span(value: Any, bits: int) -> Span:
    """A span; of a Python integer one that has the bits of what it meets."""
    if isinstance(value, Span):
        return value
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no integer")
    if isinstance(value, np.integer):
        bits = size_of(value)
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise TypeError(f"{value!r} has more than {bits} bits")
    return Span(int(value), int(value), bits)


def size_of(value: Any) -> int:
    """The bits of integers as JAX has them."""
    return 8 * jax.dtypes.canonicalize_dtype(value.dtype).itemsize


def positive(divisor: Any, bits: int) -> None:
    if not isinstance(divisor, (int, np.integer)) or not 0 < divisor < 2 ** (bits - 1):
        raise TypeError(f"blocks are divided by a positive integer, not {divisor!r}")


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The rows of one side in blocks, as a predicate sees them: like `Rows`, with spans."""

    position: Span
    index: Span
    facts: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def take(self, table: Any, axis: int) -> Any:
        return table

    def at(self, rows: slice) -> Blocks:
        """Some of the blocks."""
        sides = self.position, self.index
        position, index = (Span(s.lo[rows], s.hi[rows], s.bits) for s in sides)
        return Blocks(position, index, self.facts)


def bounds(value: Any, size: int, axis: int) -> Span:
    """The least and the largest of every block, laid along an axis of the plan."""
    if isinstance(value, Range):
        starts = np.arange(value.start, value.stop, size)
        ends = smaller(starts + size, value.stop) - 1
        return Span(np.expand_dims(starts, 1 - axis), np.expand_dims(ends, 1 - axis))
    bits, value = size_of(value), value.astype(jnp.promote_types(value.dtype, jnp.int32))
    low, high = (reduced(value, size, 0, fold) for fold in (jnp.min, jnp.max))
    return Span(jnp.expand_dims(low, 1 - axis), jnp.expand_dims(high, 1 - axis), bits)


def reduced(value: Any, size: int, axis: int, fold: Callable) -> Any:
    """Every block of an axis folded to one number."""
    short = -value.shape[axis] % size
    pads = [(0, short if i == axis else 0) for i in range(value.ndim)]
    padded = jnp.pad(value, pads, mode="edge")
    shape = (*value.shape[:axis], -1, size, *value.shape[axis + 1 :])
    return fold(padded.reshape(shape), axis=axis + 1)


def fact(value: Any, lengths: tuple[int, int], block: tuple[int, int], axis: int) -> Any:
    """What is known of a piece of context in every block; None if nothing is."""
    if value.ndim == 0 or value.shape == (1,):
        value = value.reshape(1)
        return Maybe(value, value) if value.dtype == bool else bounds(value, 1, axis)
    if value.ndim == 1 and value.dtype == bool:
        some, every = (reduced(value, block[axis], 0, fold) for fold in (jnp.any, jnp.all))
        return Maybe(jnp.expand_dims(some, 1 - axis), jnp.expand_dims(every, 1 - axis))
    if value.ndim == 1:
        return bounds(value, block[axis], axis)
    table = Maybe(value, value)
    for side in (0, 1):
        if value.shape[side] > 1 or lengths[side] == 1:
            table = Maybe(
                reduced(table.some, block[side], side, jnp.any),
                reduced(table.every, block[side], side, jnp.all),
            )
    return table


def blocks(rows: Rows, names: Iterable[str], context: Context, lengths, block, axis: int) -> Blocks:
    facts = {}
    for name in names:
        value = jnp.asarray(rows.facts.get(name, context.get(name)))
        if value.dtype == bool or (
            value.ndim < 2 and jnp.issubdtype(value.dtype, jnp.signedinteger)
        ):
            facts[name] = fact(value, lengths, block, axis)
    return Blocks(
        bounds(rows.position, block[axis], axis), bounds(rows.index, block[axis], axis), facts
    )


def plan(masks: Iterable[mask], marks: Marks, context: Context, block: tuple[int, int]) -> Any:
    """NONE, SOME or ALL for every tile: known now (NumPy) or only when it runs (JAX)."""
    lengths = marks.query.length, marks.key.length
    counts = tuple(-(-length // size) for length, size in zip(lengths, block, strict=True))
    parts = np.full(counts, ALL, np.int8)
    for stage in masks:
        of_query, of_key = stage.facts
        query = blocks(marks.query, of_query, context, lengths, block, 0)
        key = blocks(marks.key, of_key, context, lengths, block, 1)
        parts = in_steps(partial(narrowed, stage), parts, query, key)
    return parts


def narrowed(stage: mask, parts: Any, query: Blocks, key: Blocks) -> Any:
    """What a mask leaves of the tiles of a plan."""
    seen = stage.predicate.ask(query, key, as_maybe)
    where = namespace(parts, seen.some, seen.every).where
    left = where(seen.every, ALL, where(seen.some, SOME, NONE))
    return smaller(parts, left).astype(np.int8)


def in_steps(narrow: Callable, parts: Any, query: Blocks, key: Blocks) -> Any:
    """The same, some rows at a time where a plan that is known is large."""
    size = max(1, 2**18 // parts.shape[1])
    known = isinstance(parts, np.ndarray) and isinstance(query.position.lo, np.ndarray)
    if not known or query.facts or key.facts or len(parts) <= size:
        return narrow(parts, query, key)
    steps = [slice(start, start + size) for start in range(0, len(parts), size)]
    return np.concatenate([narrow(parts[step], query.at(step), key) for step in steps])
