"""Memory: the rows that a lookup keeps, each at its position modulo their number.

    row of position p = p mod rows,      position of row s = last - (last - s) mod rows

Positions follow each other by one, so where a row stands is computed, never stored; a negative
position is a row that nothing was written to yet. A window's memory goes round; one with as many
rows as there will ever be positions is the case that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from ..core.errors import CompositionError
from ..core.lookup import Lookup
from ..core.marks import Marks, Rows
from ..core.records import Entries
from .lookback import horizon, named, placed, sees, sight

__all__ = ["all_hold", "answerable", "blank", "entered", "only_if", "recalled", "write"]

Memory = dict[str, Any]
"""`rows`: keys, values and named facts, (rows, …) each. `length`: the position that comes next.
`reach`: the most that ever came next, which is more after a step back."""


def blank(rows: int, chunk: Any) -> Memory:
    """Memory of so many rows for what a chunk has one row of each."""
    room = jax.tree.map(lambda new: jnp.zeros((rows, *new.shape[1:]), new.dtype), chunk)
    nothing = jnp.zeros((), jnp.int32)
    return {"rows": room, "length": nothing, "reach": nothing}


def rows_of(memory: Memory) -> int:
    return len(memory["rows"]["key"])


def goes_round(lookup: Lookup, memory: Memory) -> bool:
    """Whether rows may be written over, because the lookup does not see back that far."""
    back = sight(lookup).back
    return back is not None and rows_of(memory) >= back


def positions_at(last: Array, rows: int) -> Array:
    """The position of every row when the last one written is `last`; negative where none is."""
    return last - (last - jnp.arange(rows, dtype=jnp.int32)) % rows


def write(memory: Memory, chunk: Any, first: Array) -> Memory:
    """The memory with the rows of a chunk, which stand at `first` and after."""
    length = first + len(chunk["key"])

    def put(table: Array, new: Array) -> Array:
        rows = len(table)
        new = new[-rows:].astype(table.dtype)  # of more than there is room for, the last stay
        at = length - len(new)
        if len(new) == 1:
            return jax.lax.dynamic_update_slice_in_dim(table, new, at % rows, 0)
        places = (at + jnp.arange(len(new), dtype=jnp.int32)) % rows
        return table.at[places].set(new, unique_indices=True)

    rows = jax.tree.map(put, memory["rows"], chunk)
    return {"rows": rows, "length": length, "reach": jnp.maximum(memory["reach"], length)}


def entered(key: Array, value: Array) -> dict[str, Array]:
    """Keys and values as they are kept: a row whose value is not finite has a NaN key in its place,
    which counts where it is seen, and not where its weight is 0."""
    if not jnp.issubdtype(key.dtype, jnp.floating):
        return {"key": key, "value": value}
    finite = jnp.isfinite(value).all(-1, keepdims=True)
    return {"key": jnp.where(finite, key, jnp.nan), "value": jnp.where(finite, value, 0)}


def recalled(
    entries: Entries, ours: Rows, lookup: Lookup, before: Memory, after: Memory, chunk: Any
) -> Entries:
    """The entries of a chunk, asking the keys in memory in place of its own."""
    first, last, rows = ours.position[0], ours.position[-1], rows_of(after)
    spare = rows - (sight(lookup).back or 0) + 1
    if len(entries.key) <= spare or not goes_round(lookup, after):
        table, position = after["rows"], positions_at(last, rows)
    else:  # the chunk was written over keys that its first queries see
        table = jax.tree.map(
            lambda old, new: jnp.concatenate([old, new.astype(old.dtype)]), before["rows"], chunk
        )
        position = jnp.concatenate([positions_at(first - 1, rows), ours.position])
    filled = position >= 0
    # Of a row that was not written yet the position is negative: it stands after all others.
    order = jnp.argsort(jnp.where(filled, position, jnp.iinfo(position.dtype).max))
    return entries.replace(
        key=table["key"].astype(entries.key.dtype),
        value=table["value"].astype(entries.value.dtype),
        marks=Marks(ours, Rows(position, position, table.get("facts", {}))),
        visible=jnp.broadcast_to(filled, (len(entries.query), len(filled))),
        order=order,
    )


# What cannot be answered


def answerable(lookup: Lookup, memory: Memory, positions: Array) -> Any:
    """Whether a chunk at these positions can be asked of a memory: an error where that is known
    by number, False where it is traced."""
    # What is known by number stays so inside scan, where an array becomes abstract.
    known = positions if isinstance(positions, Tracer) else np.asarray(positions)
    first, last = known[0], known[-1]
    rows, length, reach = rows_of(memory), memory["length"], memory["reach"]
    back, ahead = sight(lookup)
    round_and_round = goes_round(lookup, memory)
    limit = horizon(lookup) if round_and_round else rows
    conditions: list[tuple[Any, Callable[[], str]]] = [
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
    if round_and_round:
        rewind = rows - (back or 0)
        conditions.append((
            (reach - first <= rewind) | (reach <= rows),
            lambda: f"{reach - first} positions back is more than the {rewind} for which "
            f"{named(lookup)!r} keeps rows",
        ))  # fmt: skip
    if ahead:
        earlier, ours = jnp.arange(rows)[:, None], positions[None]
        late = sees(lookup, placed(earlier), placed(ours)) & (earlier < first)
        conditions.append((
            ~jnp.any(late),
            lambda: f"{named(lookup)!r} lets queries before position {first} see keys from there "
            "on: give them in one chunk",
        ))  # fmt: skip
    return all_hold(conditions)


def all_hold(conditions: list[tuple[Any, Callable[[], str]]]) -> Any:
    """Whether all conditions hold: an error with the text of one that is known not to."""
    for holds, text in conditions:
        if not isinstance(holds, Tracer) and not holds:
            raise CompositionError(text())
    return jnp.all(jnp.stack([jnp.asarray(holds) for holds, _ in conditions]))


def only_if(sound: Any, y: Any) -> Any:
    """y, with NaN in place of its numbers where it is not sound."""

    def one(leaf: Array) -> Array:
        return jnp.where(sound, leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, y)
