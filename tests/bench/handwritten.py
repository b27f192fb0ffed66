"""The GPT of the README as an expert writes it by hand in JAX, and its parameters from a term's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def rms(x: Array, scale: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def block(p: dict[str, Array], x: Array, heads: int) -> Array:
    batch, length, width = x.shape
    split = (batch, length, heads, width // heads)
    h = rms(x, p["norm_1"])
    q, k, v = ((h @ p[name]).reshape(split) for name in ("query", "key", "value"))
    score = jnp.einsum("bthd,bshd->bhts", q, k) * (width // heads) ** -0.5
    score = jnp.where(jnp.tril(jnp.ones((length, length), bool)), score, -jnp.inf)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(score, -1), v)
    x = x + mixed.reshape(x.shape) @ p["output"]
    h = rms(x, p["norm_2"])
    return x + jax.nn.gelu(h @ p["up"], approximate=False) @ p["down"]


def gpt(params: dict[str, Any], tokens: Array, heads: int) -> Array:
    """(B, T) -> (B, T, vocabulary); blocks stacked in one dict are scanned, in a list unrolled."""
    x = params["embed"][tokens] + params["position"][: tokens.shape[1]]
    if isinstance(params["blocks"], dict):
        x, _ = jax.lax.scan(lambda x, p: (block(p, x, heads), None), x, params["blocks"])
    else:
        for p in params["blocks"]:
            x = block(p, x, heads)
    return rms(x, params["norm"]) @ params["embed"].T


def parameters(params: dict[str, Any]) -> dict[str, Any]:
    """The same numbers, laid out as the functions above want them."""
    blocks = params["repeat"]
    numbered = "0" in blocks
    return {
        "embed": params["embed"]["table"],
        "position": params["position_embed"]["table"],
        "norm": params["rms_norm"]["scale"],
        "blocks": [one(blocks[str(i)]) for i in range(len(blocks))] if numbered else one(blocks),
    }


def one(p: dict[str, Any]) -> dict[str, Array]:
    attention, mlp = p["add"], p["add_2"]
    project = attention["heads"]["project"]
    joined = {
        name: project[name]["kernel"].reshape(*project[name]["kernel"].shape[:-2], -1)
        for name in ("query", "key", "value")
    }
    return {
        **joined,
        "norm_1": attention["rms_norm"]["scale"],
        "output": attention["linear"]["kernel"],
        "norm_2": mlp["rms_norm"]["scale"],
        "up": jnp.swapaxes(mlp["slots"]["key"], -1, -2),
        "down": mlp["slots"]["value"],
    }
