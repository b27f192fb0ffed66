"""Kernels: on a GPU, cuDNN's for lookups that are exactly scaled dot-product attention.

A kernel of another platform needs two things here. A condition selects its lookups, and a branch
of `jax.lax.platform_dependent` calls it in place of the general function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..aggregate import aggregate
from ..core.lookup import inner
from ..core.marks import Range
from ..core.records import Entries
from ..logic import Both
from ..mask import mask
from ..predicates import causal, window
from ..score import dot, scaled_dot, score
from ..softmax import softmax
from .recognize import Streamed

__all__ = ["by_kernel"]

Attend = Callable[[Array, Array, Array], Array]
"""Attention of queries (T, d) to keys (S, d) and values (S, e): (T, e)."""


def by_kernel(stream: Streamed | None, x: Entries, otherwise: Attend) -> Array:
    """The answer to entries, from a kernel if one computes this lookup, else from `otherwise`."""
    options = kernel_options(stream, x) if stream and jax.default_backend() == "gpu" else None
    rows = x.query, x.key, x.value
    if options is None:
        return otherwise(*rows)
    return jax.lax.platform_dependent(*rows, cuda=partial(cudnn, **options), default=otherwise)


def cudnn(query: Array, key: Array, value: Array, **options: Any) -> Array:
    """cuDNN's attention on one head of one sequence; vmap batches the kernel itself."""
    one = (rows[:, None] for rows in (query, key, value))
    return jax.nn.dot_product_attention(*one, implementation="cudnn", **options)[:, 0]


def kernel_options(stream: Streamed, x: Entries) -> dict[str, Any] | None:
    """The options of `jax.nn.dot_product_attention` that compute this lookup; None if none do."""
    rows = Range(0, x.query.shape[0])
    in_order = (x.marks.query.position, x.marks.key.position) == (rows, rows)
    kinds = {(part.dtype, part.shape) for part in (x.query, x.key, x.value)}
    ((kind, (_, width)), *others) = kinds
    plain = len(stream.branches) == 1 and not stream.after and isinstance(stream.end, aggregate)
    supported = kind in (jnp.bfloat16, jnp.float16) and width <= 128 and width % 8 == 0
    if others or not (plain and in_order and supported and stream.how == softmax):
        return None
    stages = [inner(step.stage) for step in stream.branches[0].tiled]
    seen = [stage.predicate for stage in stages if isinstance(stage, mask)]
    match [stage for stage in stages if not isinstance(stage, mask)]:
        case [score(function=function, options=options)] if function in (dot, scaled_dot):
            scale = dict(options).get("scale", 1.0 if function is dot else None)
        case _:
            return None
    match seen:
        case []:
            return {"scale": scale}
        case [one] if one == causal:
            return {"scale": scale, "is_causal": True}
        case [Both(first, window(width)) | Both(window(width), first)] if first == causal:
            return {"scale": scale, "is_causal": True, "local_window_size": (width - 1, 0)}
    return None
