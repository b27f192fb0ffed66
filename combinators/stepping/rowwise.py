"""Which primitives run step by step, and the trial of those of a user that say so.

`rowwise = True`, and `pointwise(fn)`, promise that a row of the result depends on that row of x
alone. A step computes what it is promised, so a false promise would give other numbers than the
whole, and no error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..core.context import Context
from ..core.errors import CompositionError, TermError
from ..core.leaf import Leaf, blaming, parameters_of
from ..core.parameter import map_declared
from ..core.records import Weights
from ..core.source import PACKAGE
from ..core.types import Value
from ..dropout import dropout
from ..primitives import pointwise

__all__ = ["check_leaf", "check_promise"]

ROWS = 3
"""Rows of the chunk that is tried: the middle one has a neighbour on either side."""

LARGEST = 2**24
"""A primitive with more numbers to learn is believed: drawing them would take longer than that."""


def check_leaf(term: Leaf, x: Value, context: Context) -> None:
    """Refuse a primitive that may look at other rows, or numbers them from 0."""
    if not term.rowwise:
        raise CompositionError(
            f"{term!r} may look at all rows at once, so it cannot run step by step; write "
            "pointwise(…) for a function of each row by itself, or rowwise = True in a primitive "
            "of yours"
        )
    if isinstance(term, dropout) and "rng" in context and not numbered(x):
        raise CompositionError(
            f"{term!r} numbers rows and columns from 0 here, so it drops others step by step than "
            "at once; leave rng out, or put it where rows have marks"
        )


def check_promise(term: Leaf, x: Value, context: Context) -> None:
    """Refuse a primitive that looks at other rows though it says that it does not."""
    if tried(term, x, context) and mixes_rows(term, x.shape[1:], x.dtype, jnp.result_type(float)):
        raise CompositionError(
            f"{term!r} is not a function of each row by itself, so it cannot run step by step: "
            "reduce over the last axis, not over rows (axis 0); a function of all rows at once is "
            "lift(…), or a primitive without rowwise = True"
        )


def numbered(x: Value) -> bool:
    """Whether dropout knows the place of each number in the whole."""
    return x.marks is not None if isinstance(x, Weights) else x.ndim == 2


def tried(term: Leaf, x: Value, context: Context) -> bool:
    """Whether a primitive is a user's, and takes an array of numbers, a row for each position.

    One that reads context or draws is believed: neither context nor keys are made up for it.
    """
    if term.constant or term.reads or term.random:
        return False
    made_by = [type(term).__module__]
    if isinstance(term, pointwise):
        made_by.append(str(getattr(term.function, "__module__", "")))
    if all(module.startswith(PACKAGE) for module in made_by):
        return False
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    numeric = hasattr(x, "dtype") and any(jnp.issubdtype(x.dtype, kind) for kind in kinds)
    return numeric and x.ndim > 0 and x.shape[:1] == jnp.shape(context["positions"])


@lru_cache(maxsize=512)
def mixes_rows(term: Leaf, shape: tuple[int, ...], dtype: DTypeLike, float_type: DTypeLike) -> bool:
    """Whether a chunk of rows, each of this shape, gives other numbers than its rows one by one,
    or only runs on some other number of rows.

    Rows are drawn from a normal distribution, parameters between 0.5 and 1.5 (so that roots and
    logarithms are numbers), integers as 0 or 1. An output that the chunk and each row have in
    common, such as a constant, mixes nothing.
    """
    example = jax.ShapeDtypeStruct((ROWS, *shape), dtype)
    declared = map_declared(
        parameters_of(term, example),
        lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype or float_type),
    )
    specs, tree = jax.tree.flatten(declared)
    if sum(math.prod(spec.shape) for spec in specs) > LARGEST:
        return False

    @jax.jit
    def outputs(key: Array) -> tuple[list[Array], list[list[Array]]]:
        """Those of the chunk, and those of each of its rows."""
        first, *others = jax.random.split(key, 1 + len(specs))
        x = drawn(first, example, jax.random.normal)
        made = [drawn(k, spec, near_one) for k, spec in zip(others, specs, strict=True)]
        params = jax.tree.unflatten(tree, made)

        def run(start: int, stop: int) -> list[Array]:
            positions = jnp.arange(start, stop, dtype=jnp.int32)
            with blaming(term):
                y = term.apply(params, x[start:stop], Context({"positions": positions}))
            return jax.tree.leaves(y)

        return run(0, ROWS), [run(row, row + 1) for row in range(ROWS)]

    try:
        with jax.ensure_compile_time_eval(), jax.default_matmul_precision("highest"):
            chunk, rows = jax.tree.map(np.asarray, outputs(jax.random.key(0)))
    except TermError:  # it did run on as many rows as x has
        return True
    return not all(map(same, chunk, zip(*rows, strict=True)))


def near_one(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    return jax.random.uniform(key, shape, dtype, 0.5, 1.5)


def drawn(key: Array, like: jax.ShapeDtypeStruct, draw: Callable[..., Array]) -> Array:
    """Numbers of a shape and type: floats as `draw` gives them, integers and booleans 0 or 1."""
    if jnp.issubdtype(like.dtype, jnp.floating):
        return draw(key, like.shape, jnp.float32).astype(like.dtype)
    return jax.random.bernoulli(key, shape=like.shape).astype(like.dtype)


def same(chunk: np.ndarray, rows: tuple[np.ndarray, ...]) -> bool:
    """Whether an output of the chunk is its rows' outputs one after the other, or each of them."""
    if all(row.shape == chunk.shape and close(row, chunk) for row in rows):
        return True
    if not chunk.ndim or any(row.shape != (1, *chunk.shape[1:]) for row in rows):
        return False
    return len(chunk) == len(rows) and close(np.concatenate(rows), chunk)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal but for the order of sums: half the digits of the type agree."""
    if not jnp.issubdtype(b.dtype, jnp.inexact):
        return bool((a == b).all())
    half = float(jnp.finfo(b.dtype).eps) ** 0.5
    wide = np.complex128 if jnp.iscomplexobj(b) else np.float64
    a, b = a.astype(wide), b.astype(wide)
    largest = np.abs(b).max(initial=0, where=np.isfinite(b))
    return np.allclose(a, b, rtol=half, atol=half * largest, equal_nan=True)
