"""Linear attention: (φ(Q) φ(K)ᵀ) V = φ(Q) (φ(K)ᵀ V), in time linear in queries and keys.

Scores that are products of features, used as weights, allow keys and values to be summed up before
any query is known (Katharopoulos et al. 2020). Full blocks are summed up here; partial blocks are
streamed. In causal attention the partial blocks are those on the diagonal.
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
    """The grid with its partial blocks alone."""
    where = np.where if grid.known else jnp.where
    plan = where(grid.plan == ALL, NONE, grid.plan).astype(np.int8)
    return dataclasses.replace(grid, plan=plan)


def summed(phi: Callable[[Array], Array], x: Entries, grid: Grid) -> tuple[Array, Array]:
    """The denominator (T,) and the numerator (T, e) over all full blocks."""
    full, block = jnp.asarray(grid.plan == ALL), grid.block
    query, key, value = x.query, x.key, x.value
    # Rows without a full block are replaced, so that NaN in them reaches no sum and no gradient.
    active_queries, active_keys = (
        jnp.repeat(full.any(1 - axis), size)[: len(rows)]
        for axis, (size, rows) in enumerate(zip(block, (query, key), strict=True))
    )
    query = phi(zero_inactive(query, active_queries))
    key = zero_inactive(phi(zero_inactive(key, active_keys)), active_keys)
    value = zero_inactive(value, active_keys)
    of_blocks = sums(in_blocks(key, block[1]), in_blocks(value, block[1]))
    of_rows = (jnp.tensordot(full.astype(x.dtype), x, 1) for x in of_blocks)
    denominator, numerator = ask(in_blocks(query, block[0]), *of_rows)
    rows = len(query)
    return denominator.reshape(-1)[:rows], numerator.reshape(-1, numerator.shape[-1])[:rows]


def sums(key: Array, value: Array) -> tuple[Array, Array]:
    """The running state of keys φ(k), (…, s, d), and values v, (…, s, e).

    denominator = Σ φ(k), (…, d), and numerator = Σ φ(k) vᵀ, (…, d, e).
    """
    key, value = floating(key), floating(value)
    dtype = wide(key, value)
    numerator = jnp.einsum("...sd,...se->...de", key, value, preferred_element_type=dtype)
    return key.sum(-2, dtype=dtype), numerator


def ask(query: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
    """φ(q) · denominator, (…, t), and φ(q) numerator, (…, t, e), of queries φ(q), (…, t, d)."""
    query = query.astype(denominator.dtype)
    return (
        jnp.einsum("...td,...d->...t", query, denominator),
        jnp.einsum("...td,...de->...te", query, numerator),
    )


def feature_map(of: features, context: Context) -> Callable[[Array], Array]:
    """φ, from rows (n, d) to features (n, f)."""
    return partial(of.map.apply, {}, context=context)


def in_blocks(rows: Array, size: int) -> Array:
    """Rows (n, d) in blocks (⌈n / size⌉, size, d), the last one padded with zeros."""
    padded = jnp.pad(rows, ((0, -len(rows) % size), (0, 0)))
    return padded.reshape(-1, size, rows.shape[-1])
