"""Norms, which keep a residual stream in scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from .core.arguments import boolean, floats, is_number
from .core.context import Context
from .core.errors import CompositionError
from .core.kinds import told
from .core.leaf import SameShape
from .core.parameter import Initializer, Parameter
from .core.term import form
from .wrappers import sums

__all__ = ["layer_norm", "rms_norm"]


def vector(init: Initializer, x: Array) -> Parameter:
    return Parameter(x.shape[-1:], init, ("out",))


class Norm(SameShape):
    """A leaf that keeps the shape of an array."""

    rowwise = True

    eps: float
    gain: bool

    def __post_init__(self):
        super().__post_init__()
        boolean(self, gain=self.gain)
        if not is_number(self.eps) or not 0 <= self.eps < 1:
            raise CompositionError(
                f"eps of {self.name} is a small number, 0 <= eps < 1, not {told(self.eps)}; the "
                "width is that of x"
            )


@form
class rms_norm(Norm):
    """x / sqrt(mean(x²) + eps) · scale, over the last axis (Zhang and Sennrich 2019).

    Computed in at least float32 and rounded once. With `gain=False` nothing is learned: the scale
    is 1.

    >>> params = rms_norm().init(jax.random.key(0), jnp.zeros((1, 2)))
    >>> rms_norm()(params, jnp.array([[3.0, -3.0]])).round(3)
    Array([[ 1., -1.]], dtype=float32)
    """

    eps: float = 1e-6
    gain: bool = dataclasses.field(default=True, kw_only=True)

    def parameters(self, x: Float[Array, "*T d"]) -> dict[str, Parameter]:
        floats(self, x)
        return {"scale": vector(jax.nn.initializers.ones, x)} if self.gain else {}

    def apply(
        self, params: Mapping[str, Array], x: Float[Array, "*T d"], context: Context
    ) -> Float[Array, "*T d"]:
        wide = x.astype(sums(x, context))
        size = jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + self.eps)
        scale = params["scale"].astype(wide.dtype) if self.gain else 1
        return (wide * size * scale).astype(x.dtype)


@form
class layer_norm(Norm):
    """(x - mean) / sqrt(variance + eps) · scale + bias, over the last axis (Ba et al. 2016).

    The variance is the mean square of x - mean, in two passes, in at least float32. With
    `gain=False` nothing is learned: the scale is 1 and the bias 0.

    >>> params = layer_norm().init(jax.random.key(0), jnp.zeros((1, 2)))
    >>> layer_norm()(params, jnp.array([[3.0, 5.0]])).round(3)
    Array([[-1.,  1.]], dtype=float32)
    """

    eps: float = 1e-5
    gain: bool = dataclasses.field(default=True, kw_only=True)

    def parameters(self, x: Float[Array, "*T d"]) -> dict[str, Parameter]:
        floats(self, x)
        ones, zeros = jax.nn.initializers.ones, jax.nn.initializers.zeros
        return {"scale": vector(ones, x), "bias": vector(zeros, x)} if self.gain else {}

    def apply(
        self, params: Mapping[str, Array], x: Float[Array, "*T d"], context: Context
    ) -> Float[Array, "*T d"]:
        wide = x.astype(sums(x, context))
        centred = wide - jnp.mean(wide, -1, keepdims=True)
        size = jax.lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + self.eps)
        if not self.gain:
            return (centred * size).astype(x.dtype)
        scale, bias = (params[name].astype(wide.dtype) for name in ("scale", "bias"))
        return (centred * size * scale + bias).astype(x.dtype)
