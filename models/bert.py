"""BERT: an encoder that reads both ways, post-norm, with learned positions (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from ..combinators import (
    Term,
    aggregate,
    compose,
    dropout,
    embed,
    fanout,
    identity,
    layer_norm,
    learned,
    lift,
    linear,
    mask,
    named,
    normalize,
    pick,
    pointwise,
    position_embed,
    project,
    read,
    scaled_dot,
    score,
    softmax,
    tied,
    valid,
)
from ..combinators.core.dtypes import widened
from ..combinators.core.source import documented
from .attention import multi_head
from .configuration import Config, activation, epsilon, positive, require, share
from .dictionary import biased_dictionary
from .layout import Layout, rules
from .transformer import post_norm, transformer

__all__ = ["bert", "first", "mean_pool", "sentence", "unit"]

biased = partial(linear, bias=True)


def bert(config: Config, affine: Callable[[int], Term] = biased) -> Term:
    """BERT by the fields of its config.json; it reads `lengths` and `token_types`.

    `BertModel` gives hidden states and what the pooler makes of the first: tokens (T,) ->
    ((T, d), (1, d)); `BertForMaskedLM` gives logits, (T, vocabulary). `affine` makes the maps of
    attention from their width.

    Raises CompositionError, by the field's name, for a variant that is not supported.

    >>> config = dict(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=2,
    ...     intermediate_size=8, max_position_embeddings=16, architectures=["BertForMaskedLM"])
    >>> sorted(bert(config).reads)
    ['lengths', 'token_types']
    """
    require(
        config,
        architectures=(["BertModel"], ["BertForMaskedLM"], None),
        position_embedding_type=("absolute",),
        is_decoder=(False,),
        add_cross_attention=(False,),
        tie_word_embeddings=(True,),
        pruned_heads=({}, None),
    )
    width, heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    kinds = positive(config, "vocab_size")
    norm = layer_norm(epsilon(config, "layer_norm_eps", 1e-12))
    drop = dropout(share(config, "hidden_dropout_prob", 0.1))
    act = activation(config, "hidden_act", "gelu")
    attention = multi_head(
        width, heads,
        entries=lambda size: project(affine(size)),
        scores=mask(valid("lengths")) @ score(scaled_dot),
        weights=dropout(share(config, "attention_probs_dropout_prob", 0.1)) @ normalize(softmax),
        output=affine,
    )  # fmt: skip
    mlp = biased_dictionary(positive(config, "intermediate_size"), width, normalize(act))
    types = positive({"type_vocab_size": 2, **config}, "type_vocab_size")
    types = embed(types, width) @ read("token_types")
    tokens = embed(kinds, width)
    encoder = compose(
        transformer(
            positive(config, "num_hidden_layers"), post_norm(norm), identity,
            attention=drop @ attention, dictionary=drop @ mlp,
        ),
        drop @ norm,
        position_embed(positive(config, "max_position_embeddings")),
        named("token_types", identity + types),
    )  # fmt: skip
    if config.get("architectures") == ["BertForMaskedLM"]:
        shift = identity + learned((kinds,), jax.nn.initializers.zeros)
        transform = named("transform", norm @ act @ biased(width))
        return named("bias", shift) @ tied(tokens, transform @ encoder)
    pooler = named("pooler", pointwise(jnp.tanh) @ biased(width) @ lift(first))
    return fanout(identity, pooler) @ encoder @ tokens


def first(rows: Array) -> Array:
    """The first row as a table of one, (T, d) -> (1, d): where BERT's [CLS] stands.

    >>> lift(first)({}, jnp.ones((3, 2))).shape
    (1, 2)
    """
    return rows[:1]


def of_length_one(x: Array) -> Array:
    wide = widened(x)
    size = jnp.linalg.norm(wide, axis=-1, keepdims=True)
    return (wide / jnp.maximum(size, 1e-12)).astype(x.dtype)


unit = documented("x / |x|, over the last axis; 0 where x is 0.", pointwise(of_length_one, "unit"))

mean_pool = documented(
    "The mean of the first `lengths` rows, (T, d) -> (1, d): a question all keys answer alike.",
    compose(
        aggregate(),
        normalize(softmax),
        mask(valid("lengths")),
        score(scaled_dot, scale=0.0),
        project(query=lift(first), key=identity, value=identity),
    ),
)


def sentence(encoder: Term) -> Term:
    """The mean of an encoder's hidden states, of length 1: tokens (T,) -> (1, d). The inner
    product of two is their cosine (Reimers and Gurevych 2019).

    Raises CompositionError for an encoder that gives no pair of hidden states and pooled state.

    >>> sentence(fanout(identity, identity))({}, jnp.array([[6.0, 0.0], [0.0, 8.0]]), lengths=2)
    Array([[0.6, 0.8]], dtype=float32)
    """
    return unit @ mean_pool @ pick(0) @ encoder


# Weights

EMBEDDINGS = """
    word_embeddings.weight              matrix      embed/table
    token_type_embeddings.weight        matrix      token_types/embed/table
    position_embeddings.weight          matrix      position_embed/table
    LayerNorm.weight                    vector      layer_norm/scale
    LayerNorm.bias                      vector      layer_norm/bias
"""
LAYER = """
    attention.self.query.weight         transposed  attention/add/heads/project/query/kernel
    attention.self.query.bias           vector      attention/add/heads/project/query/bias
    attention.self.key.weight           transposed  attention/add/heads/project/key/kernel
    attention.self.key.bias             vector      attention/add/heads/project/key/bias
    attention.self.value.weight         transposed  attention/add/heads/project/value/kernel
    attention.self.value.bias           vector      attention/add/heads/project/value/bias
    attention.output.dense.weight       transposed  attention/add/output/kernel
    attention.output.dense.bias         vector      attention/add/output/bias
    attention.output.LayerNorm.weight   vector      attention/layer_norm/scale
    attention.output.LayerNorm.bias     vector      attention/layer_norm/bias
    intermediate.dense.weight           matrix      dictionary/add/slots/key
    intermediate.dense.bias             vector      dictionary/add/bias/value
    output.dense.weight                 transposed  dictionary/add/slots/value
    output.dense.bias                   vector      dictionary/add/shift/learned/value
    output.LayerNorm.weight             vector      dictionary/layer_norm/scale
    output.LayerNorm.bias               vector      dictionary/layer_norm/bias
"""
POOLER = """
    dense.weight                        transposed  linear/kernel
    dense.bias                          vector      linear/bias
"""
PREDICTIONS = """
    bias                                vector      bias/learned/value
    transform.dense.weight              transposed  tied/transform/linear/kernel
    transform.dense.bias                vector      tied/transform/linear/bias
    transform.LayerNorm.weight          vector      tied/transform/layer_norm/scale
    transform.LayerNorm.bias            vector      tied/transform/layer_norm/bias
"""


def bert_layout(config: Config) -> Layout:
    """Where the weights of `bert(config)` lie in a file of transformers."""
    masked = config.get("architectures") == ["BertForMaskedLM"]
    top = "tied/" if masked else ""
    head = (
        rules("cls.predictions.", "", PREDICTIONS)
        if masked
        else rules("bert.pooler.", "fanout/pooler/", POOLER)
    )
    return Layout(
        rules("bert.embeddings.", top, EMBEDDINGS)
        | rules("bert.encoder.layer.{}.", f"{top}blocks/", LAYER)
        | head,
        prefix="bert.",
        bare=not masked,
        ignored=r"embeddings\.position_ids|cls\.seq_relationship\..*"
        + (r"|pooler\..*" if masked else r"|cls\..*"),
        tied={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }
        if masked
        else {},
    )
