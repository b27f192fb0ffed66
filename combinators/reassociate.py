"""Reassociated execution: (φ(Q) φ(K)ᵀ) V = φ(Q) (φ(K)ᵀ V), in time linear in the rows.

Where scores are products of features, and weights are the scores, keys and values can be summed up
before they are asked (Katharopoulos et al. 2020). Here the blocks of keys that a block of queries
sees whole are; tiles that it sees in part stay a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from .records import Entries, kept
from .tiles import ALL, NONE

__all__ = ["in_part", "summed"]


def in_part(plan: Any) -> Any:
    """The plan without the tiles that are seen whole."""
    where = np.where if isinstance(plan, np.ndarray) else jnp.where
    return where(plan == ALL, NONE, plan).astype(np.int8)


def summed(
    features: Callable[[Array], Array], x: Entries, plan: Any, block: tuple[int, int]
) -> tuple[Array, Array]:
    """From tiles that are seen whole, each query's sum of weights (T,) and of values (T, e)."""
    whole = jnp.asarray(plan == ALL)
    query, key, value = x.query, x.key, x.value
    asks, asked = (
        jnp.repeat(whole.any(1 - axis), size)[: len(rows)]
        for axis, (size, rows) in enumerate(zip(block, (query, key), strict=True))
    )
    query, key = (features(kept(rows, which)) for rows, which in ((query, asks), (key, asked)))
    key, value = blocks(kept(key, asked), block[1]), blocks(kept(value, asked), block[1])
    sums = jnp.promote_types(jnp.promote_types(key.dtype, value.dtype), jnp.float32)
    totals = key.sum(1, dtype=sums)
    mixtures = jnp.einsum("ksd,kse->kde", key, value, preferred_element_type=sums)
    asking, chosen = blocks(query, block[0]).astype(sums), whole.astype(sums)
    total = jnp.einsum("qtd,qd->qt", asking, chosen @ totals)
    mixed = jnp.einsum("qtd,qde->qte", asking, jnp.einsum("qk,kde->qde", chosen, mixtures))
    rows = len(query)
    return total.reshape(-1)[:rows], mixed.reshape(-1, mixed.shape[-1])[:rows]


def blocks(rows: Array, size: int) -> Array:
    """Rows in blocks of one size, the last filled up with zeros."""
    filled = jnp.pad(rows, ((0, -len(rows) % size), (0, 0)))
    return filled.reshape(-1, size, rows.shape[-1])
