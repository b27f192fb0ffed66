"""The KV cache of a lookup: a ring of slots, a row at position p in slot p mod `slots`.

The mask `causal & window(3)` looks 3 rows back; `rewind=1` adds a slot. After position 5:

    slot           0     1     2     3
                +-----+-----+-----+-----+
    position    |  4  |  5  |  2  |  3  |        position in slot s = last - (last - s) mod slots
                +-----+-----+-----+-----+
                         ^     ^
                last = 5 |     | position 6 overwrites 2, which no query from 5 on sees

>>> positions_at(jnp.int32(5), slots=4).tolist()
[4, 5, 2, 3]
>>> positions_at(jnp.int32(1), slots=4).tolist()  # a negative position is an empty slot
[0, 1, -2, -1]

Positions follow each other by one, so they are computed from `last` and never stored. Without a
window the cache has `capacity` slots, no position passes them, and no row is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Bool, Int, PyTree

from ..core.errors import CompositionError
from ..core.lookup import Lookup
from ..core.marks import Marks, Rows
from ..core.records import Entries
from .lookback import blamed, horizon, lookback, sees, span_rows

__all__ = [
    "Cache", "all_hold", "answerable", "cacheable", "empty_cache", "nan_unless", "with_cache",
    "write",
]  # fmt: skip

Cache = dict[str, PyTree[Array]]
"""`rows`: keys, values and row metadata by name, each (slots, …). `length`: the next position.
`reach`: the largest `length` so far, which exceeds `length` after a rewind."""


Condition = tuple[Array | np.bool_ | bool, Callable[[], str]]
"""Whether a step can be answered, and the error text where it cannot."""

Tree = TypeVar("Tree")


def empty_cache(slots: int, chunk: PyTree[Array]) -> Cache:
    """An empty cache of `slots` slots, each shaped like a row of `chunk`."""
    rows = jax.tree.map(lambda new: jnp.zeros((slots, *new.shape[1:]), new.dtype), chunk)
    zero = jnp.zeros((), jnp.int32)
    return {"rows": rows, "length": zero, "reach": zero}


def slots_of(cache: Cache) -> int:
    return len(cache["rows"]["key"])


def may_overflow(lookup: Lookup, cache: Cache) -> bool:
    """Whether positions may pass the slots: the lookback is bounded, and the slots hold it."""
    back = lookback(lookup).back
    return back is not None and slots_of(cache) >= back


def positions_at(last: Array, slots: int) -> Array:
    """The position in each slot, (slots,), once `last` is written; negative in an empty slot."""
    return last - (last - jnp.arange(slots, dtype=jnp.int32)) % slots


def write(cache: Cache, chunk: PyTree[Array], first: Array) -> Cache:
    """The cache after a chunk whose rows stand at positions first, first + 1, …"""
    length = first + len(chunk["key"])

    def put(table: Array, new: Array) -> Array:
        slots = len(table)
        new = new[-slots:].astype(table.dtype)  # a chunk longer than the ring overwrites itself
        at = length - len(new)
        if len(new) == 1:  # decoding writes one slot, which needs no scatter
            return jax.lax.dynamic_update_slice_in_dim(table, new, at % slots, 0)
        places = (at + jnp.arange(len(new), dtype=jnp.int32)) % slots
        return table.at[places].set(new, unique_indices=True)

    rows = jax.tree.map(put, cache["rows"], chunk)
    return {"rows": rows, "length": length, "reach": jnp.maximum(cache["reach"], length)}


def cacheable(key: Array, value: Array) -> dict[str, Array]:
    """Keys and values as the cache holds them, with every value finite.

    A value that is not finite becomes 0, and its key NaN: the NaN reaches the queries that see the
    row. Weight 0 times a NaN value would reach the others as well.
    """
    if not jnp.issubdtype(key.dtype, jnp.floating):
        return {"key": key, "value": value}
    finite = jnp.isfinite(value).all(-1, keepdims=True)
    return {"key": jnp.where(finite, key, jnp.nan), "value": jnp.where(finite, value, 0)}


def with_cache(
    entries: Entries, rows: Rows, lookup: Lookup, before: Cache, after: Cache,
    chunk: PyTree[Array],
) -> Entries:  # fmt: skip
    """The queries of a chunk, at `rows`, with the cached keys and values in place of their own."""
    first, last, slots = rows.position[0], rows.position[-1], slots_of(after)
    # The keys that a chunk sees span back + len(chunk) - 1 positions.
    longest = slots - (lookback(lookup).back or 0) + 1
    if len(entries.key) <= longest or not may_overflow(lookup, after):
        table, position = after["rows"], positions_at(last, slots)
    else:  # the chunk overwrote keys that its first queries see
        table = jax.tree.map(
            lambda old, new: jnp.concatenate([old, new.astype(old.dtype)]), before["rows"], chunk
        )
        position = jnp.concatenate([positions_at(first - 1, slots), rows.position])
    filled = position >= 0
    # Empty slots have negative positions, and are sorted behind all others.
    order = jnp.argsort(jnp.where(filled, position, jnp.iinfo(position.dtype).max))
    return entries.replace(
        key=table["key"].astype(entries.key.dtype),
        value=table["value"].astype(entries.value.dtype),
        marks=Marks(rows, Rows(position, position, table.get("facts", {}))),
        visible=jnp.broadcast_to(filled, (len(entries.query), len(filled))),
        order=order,
    )


# Steps that a cache cannot answer


def answerable(lookup: Lookup, cache: Cache, positions: Int[Array, "T"]) -> Bool[Array, ""]:
    """Whether a cache can answer a chunk at these positions (T,): a boolean, () where traced.

    Raises CompositionError where positions and cache are known and the answer is no.
    """
    # NumPy keeps known positions known inside a scan, where a jnp operation would trace them.
    known = positions if isinstance(positions, Tracer) else np.asarray(positions)
    first, last = known[0], known[-1]
    slots, length, reach = slots_of(cache), cache["length"], cache["reach"]
    back, ahead = lookback(lookup)
    overflows = may_overflow(lookup, cache)
    limit = horizon(lookup) if overflows else slots
    conditions: list[Condition] = [
        (last < limit, lambda: f"position {last} is past the capacity of {limit} positions"),
        (
            (known == first + np.arange(len(known))).all(),
            lambda: "the positions of a step follow each other by one",
        ),
        (
            first <= length,
            lambda: f"position {length} comes next, and a step at position {first} leaves a gap",
        ),
    ]
    if overflows:
        rewind = slots - (back or 0)
        conditions.append((
            (reach - first <= rewind) | (reach <= slots),
            lambda: f"a step at position {first} rewinds by {reach - first}, and the cache below "
            f"{blamed(lookup)!r} has slots for a rewind of {rewind}: stepwise takes rewind=…",
        ))  # fmt: skip
    if ahead:
        earlier, own = jnp.arange(slots)[:, None], positions[None]
        late = sees(lookup, span_rows(earlier), span_rows(own)) & (earlier < first)
        conditions.append((
            ~jnp.any(late),
            lambda: f"{blamed(lookup)!r} lets queries before position {first} see keys from "
            f"position {first} on: give them in one chunk",
        ))  # fmt: skip
    return all_hold(conditions)


def all_hold(conditions: list[Condition]) -> Bool[Array, ""]:
    """Whether all conditions hold; raises the text of the first that is known not to."""
    for holds, text in conditions:
        if not isinstance(holds, Tracer) and not holds:
            raise CompositionError(text())
    return jnp.all(jnp.stack([jnp.asarray(holds) for holds, _ in conditions]))


def nan_unless(sound: Array, y: Tree) -> Tree:
    """y where `sound` is true; NaN in place of its floats elsewhere, for traced code cannot
    raise."""

    def one(leaf: Array) -> Array:
        return jnp.where(sound, leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, y)
