"""The rules for dtypes, and the only place that says "at least float32".

| slot | takes | gives |
|---|---|---|
| tokens of `embed` | integers | rows of the table |
| positions, lengths, segments | integers that fit int32 | int32 |
| row metadata of your predicates and biases | anything | integers as int32, others as they are |
| x of `linear`, norms, waves, softmax on arrays … | floats | the type of x |
| queries and keys | real numbers | at least float32 |
| biases and temperatures | real numbers | the type of the scores |
| scores, weights, sums | real numbers | at least float32; float64 stays |
| values | real numbers | floats stay; integers and booleans count as float32 |
| masks | booleans | |
| parameters | floats | the type that was declared, or that the caller gives |
| other context | anything | the `compute` type of `precision` |

Integers may be signed or unsigned, of 8 to 64 bits. Positions, lengths and segments become int32
where they enter a term, because differences of unsigned integers wrap around. Floats are refused in
their place, because bfloat16 rounds 257 to 256. A known number outside int32 is refused; a traced
one wraps around, as `astype` does.

Integers and booleans as queries, keys or values count as float32, those of 64 bits as float64, as
in `jnp.mean`. Complex numbers are refused. Where x, parameters and context have one float type, no
result depends on `jax_numpy_dtype_promotion`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import DTypeLike

from .errors import CompositionError, ContextError
from .types import Value

__all__ = ["counts_as", "floating", "numbered", "row_numbers", "uncounted", "wide", "widened"]


def counts_as(value: Array | DTypeLike) -> np.dtype:
    """The float type that real numbers count as: their own, or for integers that of `jnp.mean`.

    Raises CompositionError for complex numbers.

    >>> counts_as(jnp.zeros(1, jnp.bfloat16)), counts_as(jnp.zeros(1, bool))
    (dtype(bfloat16), dtype('float32'))
    """
    kind = jnp.dtype(getattr(value, "dtype", value))
    if jnp.issubdtype(kind, jnp.floating):
        return kind
    if jnp.issubdtype(kind, jnp.complexfloating):
        raise CompositionError(
            f"{kind} numbers have no order and are not mixed: pass their real and imaginary parts, "
            "jnp.concatenate([x.real, x.imag], -1)"
        )
    return jnp.dtype(jnp.float64 if kind.itemsize == 8 else jnp.float32)


def floating(x: Array) -> Array:
    """x in the float type that it counts as.

    >>> floating(jnp.array([True, False]))
    Array([1., 0.], dtype=float32)
    """
    return x.astype(counts_as(x))


def wide(*values: Array | DTypeLike) -> np.dtype:
    """The dtype of sums over these values: their common dtype, and at least float32.

    >>> wide(jnp.zeros(1, jnp.bfloat16), jnp.zeros(1, jnp.int8))
    dtype('float32')
    """
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, map(counts_as, values), jnp.dtype(jnp.float32))


def widened(x: Array) -> Array:
    """x in at least float32."""
    return x.astype(wide(x))


def uncounted(name: str, kind: DTypeLike) -> str:
    """The error text for positions or row metadata of a dtype that is no integer."""
    return f"{name} holds integers, not {kind}: give it in jnp.int32, as it was counted"


def row_numbers(name: str, value: Value) -> Value:
    """Row metadata from the context: integers as int32, anything else unchanged.

    Raises ContextError for a known number outside int32, and for a list.

    >>> row_numbers("positions", np.array([0, 255], np.uint8))
    Array([  0, 255], dtype=int32)
    """
    if isinstance(value, (list, tuple)):
        raise ContextError(f"{name} is an array, not a {type(value).__name__}: jnp.array({name})")
    plain = isinstance(value, int) and not isinstance(value, bool)
    kind = np.dtype(int) if plain else getattr(value, "dtype", None)
    if kind is None or kind == jnp.int32 or not jnp.issubdtype(kind, jnp.integer):
        return value
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, jnp.int32)
    if isinstance(value, Tracer):
        return value.astype(jnp.int32)
    known, limits = np.asarray(value), np.iinfo(np.int32)
    for end in (known.min(), known.max()) if known.size else ():
        if not limits.min <= end <= limits.max:
            raise ContextError(
                f"{name} holds {end}, and numbers of rows are int32, {limits.min} to {limits.max}"
            )
    return jnp.asarray(known, jnp.int32)


def numbered(context: Mapping[str, Value], names: Collection[str]) -> dict[str, Value]:
    """The context, with integers under `names` as int32."""
    return {
        name: row_numbers(name, value) if name in names else value
        for name, value in context.items()
    }
