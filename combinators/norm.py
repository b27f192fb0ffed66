"""Norms, which keep a residual stream in scale, and dropout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .errors import CompositionError
from .parameter import Parameter
from .project import floats, rows_at
from .records import Weights, numbers
from .run import Context
from .term import Leaf, form
from .wrap import sums

__all__ = ["dropout", "layer_norm", "rms_norm"]


def vector(init: Any, x: Any) -> Parameter:
    return Parameter(x.shape[-1:], init, ("out",))


class Norm(Leaf):
    """A leaf that keeps the shape of an array."""

    rowwise = True

    def flow(self, kind: Any) -> Any:
        super().flow(kind)
        return kind


@form
class rms_norm(Norm):
    """x / sqrt(mean(x²) + eps) · scale, over the last axis (Zhang and Sennrich 2019).

    Computed in at least float32 and rounded once.

    >>> params = rms_norm().init(jax.random.key(0), jnp.zeros((1, 2)))
    >>> rms_norm()(params, jnp.array([[3.0, -3.0]])).round(3)
    Array([[ 1., -1.]], dtype=float32)
    """

    eps: float = 1e-6

    def parameters(self, x: Any) -> dict[str, Parameter]:
        floats(self, x)
        return {"scale": vector(jax.nn.initializers.ones, x)}

    def apply(self, params: Mapping[str, Array], x: Array, context: Context) -> Array:
        wide = x.astype(sums(x, context))
        size = jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + self.eps)
        return (wide * size * params["scale"].astype(wide.dtype)).astype(x.dtype)


@form
class layer_norm(Norm):
    """(x - mean) / sqrt(variance + eps) · scale + bias, over the last axis (Ba et al. 2016).

    The variance is the mean square of x - mean, in two passes, in at least float32.

    >>> params = layer_norm().init(jax.random.key(0), jnp.zeros((1, 2)))
    >>> layer_norm()(params, jnp.array([[3.0, 5.0]])).round(3)
    Array([[-1.,  1.]], dtype=float32)
    """

    eps: float = 1e-5

    def parameters(self, x: Any) -> dict[str, Parameter]:
        floats(self, x)
        ones, zeros = jax.nn.initializers.ones, jax.nn.initializers.zeros
        return {"scale": vector(ones, x), "bias": vector(zeros, x)}

    def apply(self, params: Mapping[str, Array], x: Array, context: Context) -> Array:
        wide = x.astype(sums(x, context))
        centred = wide - jnp.mean(wide, -1, keepdims=True)
        size = jax.lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + self.eps)
        scale, bias = (params[name].astype(wide.dtype) for name in ("scale", "bias"))
        return (centred * size * scale + bias).astype(x.dtype)


@form
class dropout(Leaf):
    """Drops each number with probability `rate` and divides the rest by 1 - rate (Srivastava et
    al. 2014); without `rng` in the context it does nothing.

    On arrays a number is addressed by its row's position and its column, on Weights by the query's
    and the key's row, and by the stage's path. The address goes through a 32-bit mixer
    (`mixed_bits`), so the same rng drops the same numbers in every execution, whatever its blocks.

    Raises CompositionError unless 0 <= rate < 1.

    >>> dropout(0.5)({}, jnp.ones((1, 4)), rng=jax.random.key(0))
    Array([[2., 2., 0., 0.]], dtype=float32)
    """

    rowwise = True

    rate: float
    random = True

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.rate, (int, float)) or not 0 <= self.rate < 1:
            raise CompositionError(
                f"rate is the probability of dropping, 0 <= rate < 1, not {self.rate!r}"
            )

    def flow(self, kind: Any) -> Any:
        return kind

    def operands(self, params: Any, context: Context) -> Array | None:
        if "rng" not in context or not self.rate:
            return None
        return jax.random.bits(context["rng"], (2,), jnp.uint32)

    def tile(self, operands: Array | None, weight: Array, rows: Array, columns: Array) -> Array:
        """One tile: rows and columns broadcast to the address of each number."""
        if operands is None:
            return weight
        bits = mixed_bits(operands, rows, columns)
        kept = bits >= jnp.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        return jnp.where(kept, weight / (1 - self.rate), 0)

    def apply(self, params: Any, x: Any, context: Context) -> Any:
        seed = self.operands(params, context)
        if seed is None:
            return x
        if isinstance(x, Weights):
            if x.marks is None:
                rows, columns = (jnp.arange(size) for size in x.weight.shape)
            else:
                rows, columns = (numbers(rows.index) for rows in (x.marks.query, x.marks.key))
            return x.replace(weight=self.tile(seed, x.weight, rows[:, None], columns))
        floats(self, x)
        flat = x.reshape(-1, x.shape[-1])
        rows = numbers(rows_at(context if x.ndim == 2 else Context(), flat.shape[0]).position)
        return self.tile(seed, flat, rows[:, None], jnp.arange(x.shape[-1])).reshape(x.shape)


def mixed_bits(seed: Array, rows: Array, columns: Array) -> Array:
    """32 random bits for each address (row, column) under two words of seed.

    The finalizer with the multipliers 0x7feb352d and 0x846ca68b, the lowest bias found by search
    among those of two rounds (Wellons 2018), applied to the row and then to the column.
    """

    def mix(x):
        x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
        x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
        return x ^ (x >> 16)

    rows, columns = rows.astype(jnp.uint32), columns.astype(jnp.uint32)
    return mix(mix(rows + seed[0]) ^ (columns * jnp.uint32(0x9E3779B9) + seed[1]))
