"""The cache of linear attention: a running state of constant size in place of keys and values.

    denominator = Σ φ(k),    numerator = Σ φ(k) vᵀ        over all keys k and values v so far

A query q gathers φ(q) numerator, which `normalize(row_sum)` divides by φ(q) denominator
(Katharopoulos et al. 2020).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Bool, Float, Int

from ..core.apply import Apply
from ..core.context import Context
from ..core.dtypes import counts_as
from ..core.lookup import Lookup
from ..core.records import Entries
from ..predicates import causal
from ..streaming import linear_attention
from ..streaming.linear_attention import feature_map
from ..streaming.partial import Partial, merge
from ..streaming.recognize import Streamed, streamed_form
from ..streaming.tiled import BranchRun, finished, masks, planned
from .cache import all_hold

__all__ = ["LinearCache", "answer", "continues", "empty_state", "linear_stream", "updated"]

BLOCK = 128
"""A longer chunk runs in tiles of BLOCK queries and BLOCK keys, a shorter one as one table."""

LinearCache = dict[str, Array]
"""`denominator` (d,), `numerator` (d, e), and `length`, the next position."""


def linear_stream(form: Any, lookup: Lookup) -> Streamed | None:
    """The lookup as a stream, if later queries need no more of its keys than the running state."""
    stream = streamed_form(form, lookup)
    if isinstance(stream, str) or stream.features is None:
        return None
    predicates = [stage.predicate for stage in masks(stream.branches[0].tiled)]
    return stream if predicates == [causal] else None


def empty_state(stream: Streamed, x: Entries, context: Context) -> LinearCache:
    """The running state of no keys, for entries shaped like x."""
    return state_of(stream, x.replace(key=x.key[:0], value=x.value[:0]), context)


def state_of(stream: Any, x: Entries, context: Context) -> LinearCache:
    """The running state of a chunk's own keys and values."""
    features = feature_map(stream.features, context)(x.key)
    denominator, numerator = linear_attention.sums(features, x.value)
    return {
        "denominator": denominator, "numerator": numerator, "length": jnp.int32(len(x.key)),
    }  # fmt: skip


def updated(stream: Streamed, cache: LinearCache, x: Entries, context: Context) -> LinearCache:
    """The running state with the keys and values of a chunk."""
    return jax.tree.map(jnp.add, cache, state_of(stream, x, context))


def answer(
    stream: Any, run: Apply, cache: LinearCache, x: Entries, context: Context
) -> Float[Array, "T e"]:
    """What the queries of a chunk gather, (T, e), from the keys before the chunk and its own."""
    query = feature_map(stream.features, context)(x.query)
    denominator, numerator = linear_attention.ask(query, cache["denominator"], cache["numerator"])
    branch = BranchRun(stream, 0)
    if len(query) > BLOCK:
        own = branch.tiled(run, x, context, planned(branch.steps, x, context, (BLOCK, BLOCK)))
    else:
        own = branch.whole(run, x, x.marks.query, context)
    # Weights are the scores themselves here, so both parts are relative to a row maximum of 0.
    earlier = Partial(jnp.zeros_like(denominator), denominator, numerator)
    return finished(stream, merge(stream.how, own, earlier), counts_as(x.value))


def continues(cache: LinearCache, positions: Int[Array, "T"]) -> Bool[Array, ""]:
    """Whether a chunk begins at the next position: a running state cannot rewind."""
    known = positions if isinstance(positions, Tracer) else np.asarray(positions)
    first, length = known[0], cache["length"]
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
