"""Activations: pointwise terms. On an array they are the activation; as a normalizer, each score
weighs by itself.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from .core.source import documented
from .primitives import pointwise

__all__ = ["gelu", "gelu_tanh", "relu", "relu_squared", "sigmoid", "silu"]

# Functions of this module, so that terms made of them can be pickled.


def rectified(x: Array) -> Array:
    return jax.nn.relu(x)


def logistic(x: Array) -> Array:
    return jax.nn.sigmoid(x)


def swish(x: Array) -> Array:
    return jax.nn.silu(x)


def tanh_gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


def squared_relu(x: Array) -> Array:
    return jnp.square(jax.nn.relu(x))


def exact_gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


relu = documented("max(x, 0).", pointwise(rectified, "relu"))
relu_squared = documented("max(x, 0)² (So et al. 2021).", pointwise(squared_relu, "relu_squared"))
gelu = documented("x Φ(x), exact (Hendrycks and Gimpel 2016).", pointwise(exact_gelu, "gelu"))
gelu_tanh = documented(
    "The tanh form of gelu (Hendrycks and Gimpel 2016).", pointwise(tanh_gelu, "gelu_tanh")
)
silu = documented("x sigmoid(x) (Elfwing et al. 2017).", pointwise(swish, "silu"))
sigmoid = documented("1 / (1 + exp(-x)).", pointwise(logistic, "sigmoid"))
