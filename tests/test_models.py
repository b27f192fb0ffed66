"""Models: against flax, jax.nn and NumPy with the same weights, and what each can see."""
# ruff: noqa: F403, F405

import functools
import importlib
import json
from pathlib import Path
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import plain
import pytest
from numpy64 import gelu, sigmoid
from plain import drawn, normal, run

import combinax.combinators as c
from combinax import models
from combinax.models import *

GOLDEN = Path(__file__).parent / "golden"
FILES = (
    "attention", "dictionary", "transformer", "bert", "gpt2", "llama", "sampling", "generate",
    "speculate",
)  # fmt: skip
T, S, D = 5, 7, 12
X, MEMORY, TOKENS = normal(T, D), normal(S, D, seed=4), np.array([3, 1, 1, 0, 8])
CAUSAL = np.tri(T, dtype=bool)

post_encoder = transformer(
    2, post_norm(c.layer_norm()), c.identity,
    attention=multi_head(D, 3), dictionary=dictionary(16),
) @ c.rms_norm()  # fmt: skip

SIZES = {"vocab_size": 11, "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 6}
BERT = {**SIZES, "intermediate_size": 16, "max_position_embeddings": 8}
GPT2 = {"vocab_size": 11, "n_embd": D, "n_layer": 2, "n_head": 3, "n_positions": 8}
LLAMA = {**SIZES, "intermediate_size": 16, "num_key_value_heads": 2}
READ = {"lengths": np.int32(4), "token_types": np.array([0, 0, 1, 1, 0])}

MODELS = {
    "head": (head(8), X, {}),
    "multi_head": (multi_head(D, 3), X, {}),
    "grouped_heads": (grouped_heads(D, 6, 2), X, {}),
    "cross_attention": (cross_attention(D, 3), X, {"memory": MEMORY}),
    "dictionary": (dictionary(16), X, {}),
    "gated_dictionary": (gated_dictionary(16), X, {}),
    "block_pre_norm": (
        block(attention=multi_head(D, 3), dictionary=gated_dictionary(16)), X, {},
    ),
    "block_post_norm": (
        block(post_norm(c.layer_norm()), attention=multi_head(D, 3), dictionary=dictionary(16)),
        X, {},
    ),
    "encoder": (encoder(2, D, 3, 16), X, {}),
    "post_encoder": (post_encoder, X, {}),
    "decoder": (decoder(2, D, 3, 16), X, {}),
    "reading_decoder": (reading_decoder(2, D, 3, 16), X, {"memory": MEMORY}),
    "encoder_decoder": (
        encoder_decoder(encoder(2, D, 3, 16), reading_decoder(2, D, 3, 16)), (MEMORY, X), {},
    ),
    "gpt": (gpt(11, D, 8, decoder(2, D, 3, 16)), TOKENS, {}),
    "biased_dictionary": (biased_dictionary(16, D), X, {}),
    "bert": (bert(BERT), TOKENS, READ),
    "bert_masked": (bert({**BERT, "architectures": ["BertForMaskedLM"]}), TOKENS, READ),
    "gpt2": (gpt2(GPT2), TOKENS, {}),
    "llama": (llama(LLAMA), TOKENS, {}),
}  # fmt: skip

every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def float64():
    """Oracles are exact in float64: what agrees to 1e-11 is the same equation."""
    with jax.enable_x64(True):
        yield


same = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12)


# What every model keeps


@every_model
def test_parameter_tree_is_golden(name):
    term, x, context = MODELS[name]
    declared = jax.eval_shape(term.init, jax.random.key(0), x, **context)
    shapes = {
        "/".join(key.key for key in path): list(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(declared)
    }
    # A name that changes here breaks saved parameters: edit the file by hand, and say so.
    assert shapes == json.loads((GOLDEN / f"{name}.json").read_text())


# Of encoder_decoder and gpt; and bert differs from bert_masked by what it gives, a pair.
PARTS = {"encoder", "decoder", "reading_decoder", "bert"}


@pytest.mark.parametrize("name", sorted(MODELS.keys() - PARTS))
def test_derivative(name):
    term, x, context = MODELS[name]
    plain.check_derivative(term, drawn(term, x, **context), x, **context)


@pytest.mark.parametrize("name", ["gpt", "block_post_norm"])
def test_first_values_keep_the_scale(name):
    term, x, _ = MODELS[name]
    y = jax.jit(lambda rng: term(term.init(rng, x), x))(jax.random.key(0))
    assert 1e-2 < np.std(y) < 10


@every_model
def test_prints_and_reads_back(name):
    term, _, _ = MODELS[name]
    assert eval(repr(term), {"jax": jax, **vars(c), **vars(models)}) == term


def test_vocabulary_is_exported():
    files = [importlib.import_module(f"combinax.models.{name}") for name in FILES]
    assert sorted(models.__all__) == sorted(word for file in files for word in file.__all__)


# Oracles with copied weights


def of_flax(module: Any, params, *inputs, **options):
    return np.asarray(jax.jit(module.apply)({"params": params}, *inputs, **options))


def flax_attention(params, x, memory, visible=None):
    """flax's multi-head attention; its kernels are ours, with the heads of the output apart."""
    slots, output = params["heads"]["project"], params["output"]["kernel"]
    count = slots["query"]["kernel"].shape[1]
    module = flax.linen.MultiHeadDotProductAttention(
        num_heads=count, qkv_features=D, out_features=D, use_bias=False, param_dtype=jnp.float64
    )
    copied = {name: slot.get("linear", slot) for name, slot in slots.items()}
    copied["out"] = {"kernel": output.reshape(count, -1, D)}
    mask = None if visible is None else visible[None, None]
    return of_flax(module, copied, x[None], memory[None], mask=mask)[0]


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize("visible", [None, CAUSAL], ids=["full", "causal"])
def test_multi_head_is_that_of_flax(count, visible):
    scores = c.score(c.scaled_dot) if visible is None else causal_scores
    term = multi_head(D, count, scores=scores)
    params = drawn(term, X)
    same(run(term, params, X), flax_attention(params, X, X, visible))


def test_cross_attention_is_that_of_flax():
    term = cross_attention(D, 3)
    params = drawn(term, X, memory=MEMORY)
    same(run(term, params, X, memory=MEMORY), flax_attention(params, X, MEMORY))


@pytest.mark.parametrize("count, groups", [(6, 1), (6, 2), (6, 3), (6, 6)])
def test_grouped_heads_are_those_of_jax(count, groups):
    term = grouped_heads(24, count, groups, scores=causal_scores)
    params = drawn(term, X)
    slots = params["heads"]["heads"]["project"]
    query = np.einsum("td,dgio->tgio", X, slots["query"]["kernel"]).reshape(T, count, -1)
    key, value = (np.einsum("td,dgo->tgo", X, slots[name]["kernel"]) for name in ("key", "value"))
    attention = jax.jit(functools.partial(jax.nn.dot_product_attention, is_causal=True))
    expected = attention(query, key, value).reshape(T, -1) @ params["output"]["kernel"]
    # jax.nn takes its scores in float32, whatever goes in.
    np.testing.assert_allclose(run(term, params, X), expected, rtol=1e-5, atol=1e-5)


def test_head_takes_any_entries_scores_and_weights():
    def turned(width):
        return c.project(
            query=c.rotary() @ c.linear(width), key=c.rotary() @ c.linear(width), value=3
        )

    term = head(8, turned, c.softcap(2.0) @ c.score(c.dot), c.normalize(c.sigmoid))
    params = drawn(term, X)["project"]
    q, k = (X @ params[slot]["linear"]["kernel"] for slot in ("query", "key"))
    angle = np.arange(T)[:, None] * 10000.0 ** (-np.arange(0, 8, 2) / 8)

    def turn(x):
        whole = (x[:, :4] + 1j * x[:, 4:]) * np.exp(1j * angle)
        return np.concatenate([whole.real, whole.imag], -1)

    expected = sigmoid(2 * np.tanh(turn(q) @ turn(k).T / 2)) @ (X @ params["value"]["kernel"])
    same(run(term, {"project": params}, X), expected)


def plain_dictionary(params, x):
    return gelu(x @ params["slots"]["key"].T) @ params["slots"]["value"]


def test_dictionary_is_an_mlp():
    term = dictionary(16)
    params = drawn(term, X)
    same(run(term, params, X), plain_dictionary(params, X))


def test_dictionary_with_biases_is_that_of_flax():
    term = (c.identity + c.learned((D,))) @ dictionary(
        16, scores=c.bias(c.learned((16,))) @ c.score(c.dot)
    )
    params = drawn(term, X)
    copied = {"kernel": params["slots"]["key"].T, "bias": params["bias"]["value"]}
    hidden = gelu(of_flax(flax.linen.Dense(16, param_dtype=jnp.float64), copied, X))
    copied = {"kernel": params["slots"]["value"], "bias": params["add"]["learned"]["value"]}
    same(
        run(term, params, X),
        of_flax(flax.linen.Dense(D, param_dtype=jnp.float64), copied, hidden),
    )


def test_gated_dictionary_is_swiglu():
    term = gated_dictionary(16)
    params = drawn(term, X)
    hidden = X @ params["slots"]["key"].T
    gate = X @ params["gate"]["keys"]["key"].T
    same(run(term, params, X), (hidden * sigmoid(hidden) * gate) @ params["slots"]["value"])


def plain_attention(params, x, memory=None, visible=None):
    mixed = plain.multi_head(params["heads"]["project"], x, memory, visible)
    return mixed @ params["output"]["kernel"]


def plain_transformer(params, x, visible=None, memory=None, layers=2):
    """Pre-norm, block after block."""
    for index in range(layers):
        one = plain.layer(params["blocks"], index)
        attention, cross, mlp = one["attention"], one.get("cross"), one["dictionary"]
        z = plain.rms_norm(x, attention["rms_norm"]["scale"])
        x = x + plain_attention(attention, z, visible=visible)
        if cross is not None:
            z = plain.rms_norm(x, cross["rms_norm"]["scale"])
            x = x + plain_attention(cross, z, memory)
        x = x + plain_dictionary(mlp, plain.rms_norm(x, mlp["rms_norm"]["scale"]))
    return plain.rms_norm(x, params["rms_norm"]["scale"])


def test_encoder():
    term = encoder(2, D, 3, 16)
    params = drawn(term, X)
    same(run(term, params, X), plain_transformer(params, X))


def test_post_norm_encoder():
    params = drawn(post_encoder, X)
    x = plain.rms_norm(X, params["rms_norm"]["scale"])
    for index in range(2):
        one = plain.layer(params["blocks"], index)
        branch = one["attention"]
        x = plain.layer_norm(x + plain_attention(branch["add"], x), **branch["layer_norm"])
        branch = one["dictionary"]
        x = plain.layer_norm(x + plain_dictionary(branch["add"], x), **branch["layer_norm"])
    same(run(post_encoder, params, X), x)


def test_decoder():
    term = decoder(2, D, 3, 16)
    params = drawn(term, X)
    same(run(term, params, X), plain_transformer(params, X, CAUSAL))


def test_encoder_decoder():
    term, x, _ = MODELS["encoder_decoder"]
    params = drawn(term, x)
    memory = plain_transformer(params["memory"], MEMORY)
    same(run(term, params, x), plain_transformer(params["decoder"], X, CAUSAL, memory))


def test_gpt():
    term, _, _ = MODELS["gpt"]
    params = drawn(term, TOKENS)
    table = params["embed"]["table"]
    x = table[TOKENS] + params["position_embed"]["table"][:T]
    same(run(term, params, TOKENS), plain_transformer(params, x, CAUSAL) @ table.T)


def test_encoder_decoder_of_tokens_with_one_table():
    table = c.shared(c.embed(11, D), name="table")
    term = encoder_decoder(encoder(1, D, 3, 16), reading_decoder(1, D, 3, 16))
    term = term @ c.parallel(table, table)
    x = (np.array([1, 2]), TOKENS)
    everything = drawn(term, x)
    memory, own = (everything["table"]["table"][tokens] for tokens in x)
    params = everything["given"]
    memory = plain_transformer(params["memory"], memory, layers=1)
    expected = plain_transformer(params["decoder"], own, CAUSAL, memory, layers=1)
    same(run(term, everything, x), expected)


# What each can see


def influence(term, params, x, **context):
    """How much output row t depends on input row s: (T, S)."""
    jacobian = jax.jit(jax.jacrev(lambda x: term(params, x, **context)))(x)
    return np.abs(jacobian).sum((1, 3))


@pytest.mark.parametrize("name", ["decoder", "reading_decoder"])
def test_decoder_does_not_look_ahead(name):
    term, x, context = MODELS[name]
    seen = influence(term, drawn(term, x, **context), x, **context)
    np.testing.assert_array_equal(seen > 0, CAUSAL)


@pytest.mark.parametrize("name", ["encoder", "block_post_norm"])
def test_encoder_sees_everything(name):
    term, x, _ = MODELS[name]
    assert (influence(term, drawn(term, x), x) > 0).all()


def test_every_row_reads_all_of_the_memory():
    term, x, context = MODELS["reading_decoder"]
    params = drawn(term, x, **context)
    jacobian = jax.jit(jax.jacrev(lambda memory: term(params, x, memory=memory)))(MEMORY)
    assert (np.abs(jacobian).sum((1, 3)) > 0).all()


@pytest.mark.parametrize("name", ["encoder", "post_encoder"])
def test_encoder_without_positions_is_permutation_equivariant(name):
    term, x, _ = MODELS[name]
    params, order = drawn(term, x), [3, 0, 4, 2, 1]
    same(run(term, params, x[order]), run(term, params, x)[np.array(order)])
    positioned = term @ c.sinusoidal()
    moved, y = run(positioned, params, x[order]), run(positioned, params, x)[np.array(order)]
    assert np.abs(moved - y).max() > 1e-3


def test_a_batch_is_its_rows():
    term, tokens, _ = MODELS["gpt"]
    params, batch = drawn(term, tokens), np.stack([tokens, tokens[::-1]])
    rows = np.stack([run(term, params, row) for row in batch])
    same(run(c.each(term), params, batch), rows)


# Errors


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: multi_head(64, 7), "a width of 64 does not divide into 7 heads"),
        (lambda: multi_head(64, 0), "a width of 64 does not divide into 0 heads"),
        (lambda: cross_attention(10, 4), "a width of 10 does not divide into 4 heads"),
        (lambda: grouped_heads(64, 7, 7), "a width of 64 does not divide into 7 heads"),
        (lambda: grouped_heads(64, 8, 3), "a number of heads of 8 does not divide into 3 groups"),
        (lambda: encoder(2, 64, 3, 8), "a width of 64 does not divide into 3 heads"),
        (lambda: decoder(2, 64, 3, 8), "a width of 64 does not divide into 3 heads"),
        (lambda: reading_decoder(2, 64, 3, 8), "a width of 64 does not divide into 3 heads"),
        (lambda: dictionary(0), "count of slots is an integer of at least 1, not 0"),
        (lambda: encoder(0, 64, 4, 8), "count of repeat is an integer of at least 1, not 0"),
        (lambda: encoder_decoder(encoder(1, 4, 1, 4), decoder(1, 4, 1, 4)), "passes 'memory'"),
        (lambda: gpt(11, 8, 4, c.linear(6)), "it ends with 6"),
        (lambda: keys() @ c.linear(4), "keys takes entries"),
        (lambda: keys().init(jax.random.key(0), X), "keys takes entries"),
        (lambda: block(mlp=c.linear(D + 1)).init(jax.random.key(0), X), "combines values of one"),
    ],
)
def test_errors(make, message):
    with pytest.raises(c.CompositionError, match=message):
        make()
