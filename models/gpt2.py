"""GPT-2: a decoder, pre-norm, with learned positions (Radford et al. 2019)."""

from __future__ import annotations

from functools import partial

from ..combinators import (
    Term,
    compose,
    dropout,
    layer_norm,
    linear,
    normalize,
    position_embed,
    project,
    softmax,
)
from .attention import causal_scores, multi_head
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
from .dictionary import biased_dictionary
from .layout import Layout, rules
from .transformer import pre_norm, transformer

__all__ = ["gpt2"]

biased = partial(linear, bias=True)


def gpt2(config: Config) -> Term:
    """GPT-2 by the fields of its config.json: tokens (T,) -> logits (T, vocabulary).

    Raises CompositionError, by the field's name, for a variant that is not supported.

    >>> config = dict(vocab_size=9, n_embd=4, n_layer=1, n_head=2, n_positions=16)
    >>> term, tokens = gpt2(config), jnp.arange(3)
    >>> term(term.init(jax.random.key(0), tokens), tokens).shape
    (3, 9)
    """
    require(
        config,
        architectures=(["GPT2LMHeadModel"], None),
        add_cross_attention=(False,),
        scale_attn_weights=(True,),
        scale_attn_by_inverse_layer_idx=(False,),
    )
    for ours, theirs in ALIASES.items():
        require(config, **{theirs: (config.get(ours, config.get(theirs)),)})
    width = positive(config, "n_embd")
    norm = layer_norm(epsilon(config, "layer_norm_epsilon", 1e-5))
    drop = dropout(share(config, "resid_pdrop", 0.1))
    attention = multi_head(
        width, positive(config, "n_head"),
        entries=lambda size: project(biased(size)),
        scores=causal_scores,
        weights=dropout(share(config, "attn_pdrop", 0.1)) @ normalize(softmax),
        output=biased,
    )  # fmt: skip
    mlp = biased_dictionary(
        4 * width if config.get("n_inner") is None else positive(config, "n_inner"),
        width,
        normalize(activation(config, "activation_function", "gelu_new")),
    )
    body = compose(
        transformer(
            positive(config, "n_layer"), pre_norm(norm), norm,
            attention=drop @ attention, dictionary=drop @ mlp,
        ),
        dropout(share(config, "embd_pdrop", 0.1)),
        position_embed(positive({"n_positions": 1024, **config}, "n_positions")),
    )  # fmt: skip
    return language_model(config, width, body, tie=True)


ALIASES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}
"""The names that transformers also takes; one of two values would be without effect."""

TABLES = """
    wte.weight            matrix      embed/table
    wpe.weight            matrix      position_embed/table
    ln_f.weight           vector      layer_norm/scale
    ln_f.bias             vector      layer_norm/bias
"""
SLOTS = "attention/heads/project"
LAYER = f"""
    ln_1.weight           vector      attention/layer_norm/scale
    ln_1.bias             vector      attention/layer_norm/bias
    attn.c_attn.weight    matrix      {SLOTS}/query/kernel {SLOTS}/key/kernel {SLOTS}/value/kernel
    attn.c_attn.bias      vector      {SLOTS}/query/bias {SLOTS}/key/bias {SLOTS}/value/bias
    attn.c_proj.weight    matrix      attention/output/kernel
    attn.c_proj.bias      vector      attention/output/bias
    ln_2.weight           vector      dictionary/layer_norm/scale
    ln_2.bias             vector      dictionary/layer_norm/bias
    mlp.c_fc.weight       transposed  dictionary/slots/key
    mlp.c_fc.bias         vector      dictionary/bias/value
    mlp.c_proj.weight     matrix      dictionary/slots/value
    mlp.c_proj.bias       vector      dictionary/shift/learned/value
"""
HEAD = """
    lm_head.weight        transposed  head/kernel
"""


def gpt2_layout(config: Config) -> Layout:
    """Where the weights of `gpt2(config)` lie in a file of transformers."""
    tie = flag(config, "tie_word_embeddings", True)
    return Layout(
        rules("transformer.", "", TABLES)
        | rules("transformer.h.{}.", "blocks/", LAYER)
        | ({} if tie else rules("", "", HEAD)),
        prefix="transformer.",
        ignored=r"h\.\d+\.attn\.(masked_)?bias",
        tied={"lm_head.weight": "transformer.wte.weight"} if tie else {},
    )
