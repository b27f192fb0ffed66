"""Memory: the rows that a lookup keeps, each at its position modulo their number.

    row of position p = p mod rows,      position of row s = last - (last - s) mod rows

Positions follow each other by one, so where a row stands is computed, never stored; a negative
position is a row that nothing was written to yet. A window's memory goes round; one with as many
rows as there will ever be positions is the case that does not.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["blank", "joined", "positions_at", "write"]

Memory = dict[str, Any]
"""`rows`: keys, values and named facts, (rows, …) each. `length`: the position that comes next.
`reach`: the most that ever came, which is more after a step back."""


def blank(rows: int, chunk: Any) -> Memory:
    """Memory of so many rows for what a chunk has one row of each."""
    room = jax.tree.map(lambda new: jnp.zeros((rows, *new.shape[1:]), new.dtype), chunk)
    nothing = jnp.zeros((), jnp.int32)
    return {"rows": room, "length": nothing, "reach": nothing}


def positions_at(last: Array, rows: int) -> Array:
    """The position of every row when the last one written is `last`; negative where none is."""
    return last - (last - jnp.arange(rows, dtype=jnp.int32)) % rows


def write(memory: Memory, chunk: Any, first: Array) -> Memory:
    """The memory with the rows of a chunk, which stand at `first` and after."""
    count = len(jax.tree.leaves(chunk)[0])
    length = first + count

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


def joined(memory: Memory, chunk: Any) -> Any:
    """The rows in memory and, behind them, those of a chunk."""

    def one(table: Array, new: Array) -> Array:
        return jnp.concatenate([table, new.astype(table.dtype)])

    return jax.tree.map(one, memory["rows"], chunk)
