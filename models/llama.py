"""Llama: a decoder with rotary positions, grouped heads and gates (Touvron et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from numbers import Real
from typing import Any

from ..combinators import (
    CompositionError,
    Term,
    by_wavelength,
    dropout,
    interpolated,
    linear,
    normalize,
    project,
    rms_norm,
    rotary,
    softmax,
)
from ..combinators.core.errors import brief
from .attention import causal_scores, grouped_heads
from .configuration import (
    Config,
    activation,
    epsilon,
    flag,
    language_model,
    positive,
    require,
    share,
)
from .dictionary import gated_dictionary
from .layout import Layout, rules
from .transformer import pre_norm, transformer

__all__ = ["llama"]


def llama(config: Config) -> Term:
    """Llama by the fields of its config.json: tokens (T,) -> logits (T, vocabulary).

    Raises CompositionError, by the field's name, for a variant that is not supported.

    >>> config = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=4,
    ...     num_key_value_heads=2, intermediate_size=16)
    >>> term, tokens = llama(config), jnp.arange(3)
    >>> term(term.init(jax.random.key(0), tokens), tokens).shape
    (3, 9)
    """
    width, heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    require(
        config,
        architectures=(["LlamaForCausalLM"], None),
        head_dim=(width // heads, None),
        mlp_bias=(False,),
        partial_rotary_factor=(1.0, None),
    )
    norm = rms_norm(epsilon(config, "rms_norm_eps", 1e-6))
    affine = partial(linear, bias=flag(config, "attention_bias", False))
    turn = turned(config)
    groups = config.get("num_key_value_heads")
    groups = heads if groups is None else positive(config, "num_key_value_heads")
    rate = share(
        {"attention_dropout": config.get("attention_dropout") or 0.0}, "attention_dropout", 0.0
    )
    attention = grouped_heads(
        width, heads, groups,
        entries=lambda size: project(
            query=turn @ affine(size), key=turn @ affine(size), value=affine(size)
        ),
        scores=causal_scores,
        weights=dropout(rate) @ normalize(softmax) if rate else normalize(softmax),
        output=affine,
    )  # fmt: skip
    mlp = gated_dictionary(
        positive(config, "intermediate_size"),
        weights=normalize(activation(config, "hidden_act", "silu")),
    )
    body = transformer(
        positive(config, "num_hidden_layers"), pre_norm(norm), norm,
        attention=attention, dictionary=mlp,
    )  # fmt: skip
    return language_model(config, width, body, tie=False)


# Rotary positions


def turned(config: Config) -> Term:
    """The rotation that a configuration asks for, as transformers reads it: `rope_scaling`, where
    it says something, hides `rope_parameters`; either has a base before the `rope_theta` beside
    it."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    asked = config.get(name) or {}
    if not isinstance(asked, Mapping):
        raise CompositionError(f"rope_parameters, or rope_scaling, are fields, not {asked!r}")
    kind = asked.get("rope_type", asked.get("type", "default"))
    require({"rope_type": kind}, rope_type=("default", *SCALINGS))
    for field, value in asked.items():
        if value is not None and field not in (*FIELDS, *SCALED.get(kind, ())):
            raise CompositionError(
                f"{name} has a {field} of {brief(repr(value))}, and rope_type {kind!r} has no such "
                "field"
            )
    require(asked, partial_rotary_factor=(1.0, None))
    base = positive({"rope_theta": 10000.0, **config, **asked}, "rope_theta", Real)
    if kind in SCALINGS:
        return rotary(float(base), scaling=SCALINGS[kind](config, asked))
    return rotary(float(base))


def linear_scaling(config: Config, asked: Config) -> Any:
    return interpolated(positive(asked, "factor", Real))


def llama3(config: Config, asked: Config) -> Any:
    """The length that was trained on may also stand beside the fields, and counts before theirs."""
    field = "original_max_position_embeddings"
    factor, low, high = (positive(asked, name, Real) for name in SCALED["llama3"])
    if not low < high:
        raise CompositionError(
            f"high_freq_factor has to be above low_freq_factor, {low}, and it is {high}"
        )
    return by_wavelength(factor, low, high, positive(config if field in config else asked, field))


FIELDS = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings",
)  # fmt: skip
SCALED = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
"""The fields of every rotation, and those of each scaling."""
SCALINGS = {"linear": linear_scaling, "llama3": llama3}


# Weights

LAYER = """
    input_layernorm.weight           vector      attention/rms_norm/scale
    self_attn.q_proj.weight          transposed  attention/heads/heads/project/query/linear/kernel
    self_attn.k_proj.weight          transposed  attention/heads/heads/project/key/linear/kernel
    self_attn.v_proj.weight          transposed  attention/heads/heads/project/value/kernel
    self_attn.o_proj.weight          transposed  attention/output/kernel
    post_attention_layernorm.weight  vector      dictionary/rms_norm/scale
    mlp.gate_proj.weight             matrix      dictionary/slots/key
    mlp.up_proj.weight               matrix      dictionary/gate/keys/key
    mlp.down_proj.weight             transposed  dictionary/slots/value
"""
BIASES = """
    self_attn.q_proj.bias            vector      attention/heads/heads/project/query/linear/bias
    self_attn.k_proj.bias            vector      attention/heads/heads/project/key/linear/bias
    self_attn.v_proj.bias            vector      attention/heads/heads/project/value/bias
    self_attn.o_proj.bias            vector      attention/output/bias
"""
TABLES = """
    embed_tokens.weight              matrix      embed/table
    norm.weight                      vector      rms_norm/scale
"""
HEAD = """
    lm_head.weight                   transposed  head/kernel
"""


def llama_layout(config: Config) -> Layout:
    """Where the weights of `llama(config)` lie in a file of transformers."""
    tie = flag(config, "tie_word_embeddings", False)
    biased = flag(config, "attention_bias", False)
    return Layout(
        rules("model.", "", TABLES)
        | rules("model.layers.{}.", "blocks/", LAYER)
        | (rules("model.layers.{}.", "blocks/", BIASES) if biased else {})
        | ({} if tie else rules("", "", HEAD)),
        prefix="model.",
        ignored=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        tied={"lm_head.weight": "model.embed_tokens.weight"} if tie else {},
    )
