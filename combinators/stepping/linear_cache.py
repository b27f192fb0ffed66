"""Memory of constant size: where keys are summed up before they are asked, sums are all to keep.

total = Σ φ(k),    mixed = Σ φ(k) vᵀ        over all keys so far (Katharopoulos et al. 2020)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from ..core.context import Context
from ..core.dtypes import counts_as
from ..core.lookup import Lookup
from ..core.records import Entries
from ..predicates import causal
from ..streaming import linear_attention as reassociate
from ..streaming.linear_attention import feature_map
from ..streaming.partial import Partial, merge
from ..streaming.recognize import Streamed, streamed_form
from ..streaming.tiled import BranchRun, finished, masks, planned
from .cache import all_hold

__all__ = ["added", "asked", "continues", "empty", "summing"]

SHORT = 128
"""Rows of a chunk that are asked on one table; more of them in such blocks."""

Sums = dict[str, Any]
"""`total` (d,), `mixed` (d, e) and `length`, the position that comes next."""


def summing(form: Any, lookup: Lookup) -> Streamed | None:
    """The lookup as a stream, where the sums over its keys are all that later queries need."""
    stream = streamed_form(form, lookup)
    if isinstance(stream, str) or stream.features is None:
        return None
    seen = [stage.predicate for stage in masks(stream.branches[0].tiled)]
    return stream if seen == [causal] else None


def empty(stream: Streamed, x: Entries, context: Context) -> Sums:
    """The sums over no keys."""
    return over(stream, x.replace(key=x.key[:0], value=x.value[:0]), context)


def over(stream: Any, x: Entries, context: Context) -> Sums:
    """The sums over the keys of a chunk."""
    total, mixed = reassociate.sums(feature_map(stream.features, context)(x.key), x.value)
    return {"total": total, "mixed": mixed, "length": jnp.int32(len(x.key))}


def added(stream: Streamed, sums: Sums, x: Entries, context: Context) -> Sums:
    """The sums over the keys of a chunk as well."""
    return jax.tree.map(jnp.add, sums, over(stream, x, context))


def asked(stream: Any, run: Any, sums: Sums, x: Entries, context: Context) -> Array:
    """What the queries of a chunk get from the keys before it and from those in it."""
    query = feature_map(stream.features, context)(x.query)
    total, mixed = reassociate.ask(query, sums["total"], sums["mixed"])
    branch = BranchRun(stream, 0)
    if len(query) > SHORT:
        own = branch.tiled(run, x, context, planned(branch.steps, x, context, (SHORT, SHORT)))
    else:
        own = branch.whole(run, x, x.marks.query, context)
    found = merge(stream.how, own, Partial(jnp.zeros_like(total), total, mixed))
    return finished(stream, found, counts_as(x.value))


def continues(sums: Sums, positions: Array) -> Any:
    """Whether a chunk stands where the sums end: what was added cannot be taken away."""
    known = positions if isinstance(positions, Tracer) else np.asarray(positions)
    first, length = known[0], sums["length"]
    return all_hold([
        (
            (known == first + np.arange(len(known))).all(),
            lambda: "the positions of a step follow each other by one",
        ),
        (
            first == length,
            lambda: f"position {length} comes next, and not {first}: keys that are summed up "
            "cannot be taken back",
        ),
    ])  # fmt: skip
