"""Reassociated execution: (φ(Q) φ(K)ᵀ) V = φ(Q) (φ(K)ᵀ V), in time linear in the rows.

Where scores are products of features, and weights are the scores, keys and values can be summed up
before they are asked (Katharopoulos et al. 2020). Here the blocks of keys that a block of queries
sees whole are; tiles that it sees in part stay a stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.context import Context
from ..core.dtypes import floating, wide
from ..core.records import Entries, zero_inactive
from ..score import features
from .grid import ALL, NONE, Grid

__all__ = ["ask", "feature_map", "in_part", "summed", "sums"]


def in_part(grid: Grid) -> Grid:
    """The grid without the blocks that are seen whole."""
    where = np.where if grid.known else jnp.where
    plan = where(grid.plan == ALL, NONE, grid.plan).astype(np.int8)
    return dataclasses.replace(grid, plan=plan)


def summed(phi: Callable[[Array], Array], x: Entries, grid: Grid) -> tuple[Array, Array]:
    """From blocks that are seen whole, each query's sum of weights (T,) and of values (T, e)."""
    whole, block = jnp.asarray(grid.plan == ALL), grid.block
    query, key, value = x.query, x.key, x.value
    asks, asked = (
        jnp.repeat(whole.any(1 - axis), size)[: len(rows)]
        for axis, (size, rows) in enumerate(zip(block, (query, key), strict=True))
    )
    query, key = (phi(zero_inactive(rows, which)) for rows, which in ((query, asks), (key, asked)))
    of_blocks = sums(
        blocks(zero_inactive(key, asked), block[1]), blocks(zero_inactive(value, asked), block[1])
    )
    of_rows = (jnp.tensordot(whole.astype(x.dtype), x, 1) for x in of_blocks)
    total, mixed = ask(blocks(query, block[0]), *of_rows)
    rows = len(query)
    return total.reshape(-1)[:rows], mixed.reshape(-1, mixed.shape[-1])[:rows]


def sums(key: Array, value: Array) -> tuple[Array, Array]:
    """Keys summed up: Σ φ(k), (…, d), and Σ φ(k) vᵀ, (…, d, e), over (…, s, d) and (…, s, e)."""
    key, value = floating(key), floating(value)
    kind = wide(key, value)
    mixed = jnp.einsum("...sd,...se->...de", key, value, preferred_element_type=kind)
    return key.sum(-2, dtype=kind), mixed


def ask(query: Array, total: Array, mixed: Array) -> tuple[Array, Array]:
    """What φ(q) gets from keys that are summed up: φ(q) · total and φ(q) mixed."""
    query = query.astype(total.dtype)
    return (
        jnp.einsum("...td,...d->...t", query, total),
        jnp.einsum("...td,...de->...te", query, mixed),
    )


def feature_map(of: features, context: Context) -> Callable[[Array], Array]:
    """φ, a function of rows."""
    return partial(of.map.apply, {}, context=context)


def blocks(rows: Array, size: int) -> Array:
    """Rows in blocks of one size, the last filled up with zeros."""
    filled = jnp.pad(rows, ((0, -len(rows) % size), (0, 0)))
    return filled.reshape(-1, size, rows.shape[-1])
