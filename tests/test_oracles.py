"""Agreement with other people's implementations, with copied weights: jax.nn and flax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import fast
from flax import linen
from plain import close, filled

from combinax.combinators import (
    aggregate,
    alibi,
    alibi_slopes,
    bias,
    causal,
    compose,
    each,
    embed,
    gelu,
    gelu_tanh,
    heads,
    layer_norm,
    linear,
    log_sum_exp,
    mask,
    normalize,
    pointwise,
    project,
    read,
    relu,
    relu_squared,
    rms_norm,
    scaled_dot,
    score,
    shared,
    sigmoid,
    silu,
    softmax,
    tied,
    valid,
    window,
)

B, T, D, HEADS, WIDTH = 2, 6, 8, 4, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((B, T, D)).astype(np.float32)
MEMORY = RNG.standard_normal((B, T + 1, D)).astype(np.float32)
G = RNG.standard_normal((B, T, HEADS * WIDTH)).astype(np.float32)
TABLE = RNG.standard_normal((B, T, T)).astype(np.float32)
LENGTHS = np.array([4, 6])
SEEN = (RNG.random((B, T, T)) < 0.5) | np.eye(T, dtype=bool)
"""Every query sees itself: where a query sees nothing the others give the mean of all values."""
KEY = jax.random.key(0)
ROUNDED, SLOPES = 3e-6, 3e-5
"""Sums of ten products of size 1 in float32, in another order; gradients sum over 12 rows."""


def attention(*stages, entries=project(WIDTH), **options):
    """Heads on a batch, joined: (B, T, D) -> (B, T, HEADS · WIDTH)."""
    weights = compose(normalize(softmax), *stages, score(scaled_dot, **options))
    return each(heads(HEADS, compose(aggregate(), weights, entries)))


def projected(params, x, memory):
    """Queries, keys and values as jax.nn takes them, (B, T, heads, width)."""
    of = {"query": x, "key": memory, "value": memory}
    maps = {n: params["project"][n] for n in of}  # linear(3), or linear(3) @ read("memory")
    kernels = {n: tree.get("linear", tree)["kernel"] for n, tree in maps.items()}
    return [jnp.einsum("btd,dhe->bthe", of[n], kernels[n]) for n in of]


def agree(ours, theirs, params, g: Any = G):
    """Two functions of one tree of parameters have one value and one gradient."""

    def both(params):
        y, back = jax.vjp(ours, params)
        z, their_back = jax.vjp(theirs, params)
        return (y, *back(g)), (z, *their_back(g))

    (y, slope), (z, their_slope) = fast(both)(params)
    close(y, z, atol=ROUNDED)
    jax.tree.map(lambda a, b: close(a, b, atol=SLOPES), slope, their_slope)


# jax.nn

ALIBI = -alibi_slopes(HEADS)[:, None, None] * abs(np.arange(T)[:, None] - np.arange(T))
PEERS = {
    "plain": ([], {}, {}),
    "scale": ([], {}, {"scale": 0.3}),
    "causal": ([mask(causal)], {}, {"is_causal": True}),
    "a mask of each sequence": ([mask(read("seen"))], {"seen": SEEN}, {"mask": SEEN[:, None]}),
    "lengths of keys": (
        [mask(valid("lengths"))],
        {"lengths": LENGTHS},
        {"key_value_seq_lengths": LENGTHS},
    ),
    "causal and lengths": (
        [mask(causal), mask(valid("lengths"))],
        {"lengths": LENGTHS},
        {"key_value_seq_lengths": LENGTHS, "is_causal": True},
    ),
    "causal window": ([mask(causal & window(3))], {}, {"local_window_size": (2, 0)}),
    "window both ways": ([mask(window(3))], {}, {"local_window_size": 2}),
    "a bias of each sequence": ([bias(read("table"))], {"table": TABLE}, {"bias": TABLE[:, None]}),
    "a bias and two masks": (
        [mask(causal & read("seen")), bias(read("table"))],
        {"table": TABLE, "seen": SEEN},
        {"bias": TABLE[:, None], "mask": SEEN[:, None], "is_causal": True},
    ),
    "alibi": (
        [mask(causal), bias(alibi)],
        {},
        {"bias": jnp.asarray(ALIBI[None], jnp.float32), "is_causal": True},
    ),
}


WITH_GRADIENTS = {"plain", "causal and lengths", "a bias and two masks"}


@pytest.mark.parametrize("name", PEERS)
def test_jax_dot_product_attention(name):
    stages, context, options = PEERS[name]
    term = attention(*stages, **{k: v for k, v in options.items() if k == "scale"})

    def theirs(params):
        y = jax.nn.dot_product_attention(*projected(params, X, X), **options)
        return y.reshape(B, T, -1)

    def ours(params):
        return term(params, X, **context)

    params = term.init(KEY, X, **context)
    if name in WITH_GRADIENTS:
        agree(ours, theirs, params)
    else:
        y, z = fast(lambda params: (ours(params), theirs(params)))(params)
        close(y, z, atol=ROUNDED)


def test_jax_grouped_query_attention():
    """Query heads 0 and 1 ask the first key and value head, 2 and 3 the second."""
    key, value = shared(linear(WIDTH), "heads"), shared(linear(WIDTH), "heads")
    entries = project(query=linear(WIDTH), key=key, value=value)
    one = compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot), entries)
    term = each(heads(2, heads(2, one)))

    def theirs(params):
        kernels = {n: p["kernel"] for n, p in params["heads"]["project"].items()}
        q = jnp.einsum("btd,dghe->btghe", X, kernels["query"]).reshape(B, T, HEADS, WIDTH)
        k, v = (jnp.einsum("btd,dge->btge", X, kernels[n]) for n in ("key", "value"))
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(B, T, -1)

    agree(lambda params: term(params, X), theirs, term.init(KEY, X))


CROSS = project(
    query=WIDTH, key=linear(WIDTH) @ read("memory"), value=linear(WIDTH) @ read("memory")
)


def test_jax_cross_attention():
    term = attention(entries=CROSS)

    def theirs(params):
        y = jax.nn.dot_product_attention(*projected(params, X, MEMORY))
        return y.reshape(B, T, -1)

    params = term.init(KEY, X, memory=MEMORY)
    agree(lambda params: term(params, X, memory=MEMORY), theirs, params)


def test_jax_log_sum_exp():
    logs = compose(pointwise(column), log_sum_exp, mask(causal), score(scaled_dot), project(WIDTH))
    term = each(heads(HEADS, logs))

    def theirs(params):
        q, k, _ = projected(params, X, X)
        table = jnp.einsum("bthe,bshe->bths", q, k) / WIDTH**0.5
        return jax.nn.logsumexp(table, -1, where=np.tri(T, dtype=bool)[:, None])

    agree(lambda params: term(params, X), theirs, term.init(KEY, X), G[..., :HEADS])


def column(x):
    return x[:, None]


ACTIVATIONS = {
    "relu": (relu, jax.nn.relu),
    "relu_squared": (relu_squared, lambda x: jax.nn.relu(x) ** 2),
    "gelu": (gelu, lambda x: jax.nn.gelu(x, approximate=False)),
    "gelu_tanh": (gelu_tanh, lambda x: jax.nn.gelu(x, approximate=True)),
    "silu": (silu, jax.nn.silu),
    "sigmoid": (sigmoid, jax.nn.sigmoid),
    "softmax": (softmax, jax.nn.softmax),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_jax_activations(name):
    """On arrays of any rank; the two forms of gelu are told apart."""
    ours, theirs = ACTIVATIONS[name]
    agree(lambda x: ours({}, x), theirs, 3 * X, jnp.ones_like(X))


# flax


def ours_from_flax(params):
    """The tree of linen's and nnx's attention as that of `linear(d, bias) @ heads(n, …)`."""
    out = {"bias": params["out"]["bias"], "kernel": params["out"]["kernel"].reshape(-1, D)}
    return {"heads": {"project": {n: params[n] for n in ("query", "key", "value")}}, "linear": out}


def flax_attention(*stages, key: Any = linear(WIDTH, bias=True)):
    entries = project(query=linear(WIDTH, bias=True), key=key, value=key)
    one = compose(aggregate(), normalize(softmax), *stages, score(scaled_dot), entries)
    return each(linear(D, bias=True) @ heads(HEADS, one))


FLAX_MASKS = {
    "plain": ([], {}, None),
    "causal": ([mask(causal)], {}, linen.make_causal_mask(X[..., 0], dtype=bool)),
    "a mask of each sequence": ([mask(read("seen"))], {"seen": SEEN}, SEEN[:, None]),
}


@pytest.mark.parametrize("name", FLAX_MASKS)
def test_flax_linen_attention(name):
    stages, context, seen = FLAX_MASKS[name]
    term = flax_attention(*stages)
    peer = linen.MultiHeadDotProductAttention(HEADS, qkv_features=HEADS * WIDTH, out_features=D)
    params = filled(jax.eval_shape(peer.init, KEY, X)["params"])
    agree(
        lambda params: term(ours_from_flax(params), X, **context),
        lambda params: peer.apply({"params": params}, X, mask=seen),
        params,
        G[..., :D],
    )


def test_flax_linen_cross_attention():
    term = flax_attention(key=linear(WIDTH, bias=True) @ read("memory"))
    peer = linen.MultiHeadDotProductAttention(HEADS, qkv_features=HEADS * WIDTH, out_features=D)
    params = filled(jax.eval_shape(peer.init, KEY, X, MEMORY)["params"])

    def ours(params):
        tree = ours_from_flax(params)
        maps = tree["heads"]["project"]
        nested = {"query": maps["query"]} | {n: {"linear": maps[n]} for n in ("key", "value")}
        return term(tree | {"heads": {"project": nested}}, X, memory=MEMORY)

    agree(
        ours,
        lambda params: peer.apply({"params": params}, X, MEMORY),
        params,
        G[..., :D],
    )


@pytest.mark.parametrize("name", FLAX_MASKS)
def test_flax_nnx_attention(name):
    from flax import nnx

    stages, context, seen = FLAX_MASKS[name]
    term = flax_attention(*stages)
    peer = nnx.MultiHeadAttention(
        HEADS, D, qkv_features=HEADS * WIDTH, decode=False, rngs=nnx.Rngs(0)
    )
    graph, state = nnx.split(peer)
    params = filled(nnx.to_pure_dict(state))

    def theirs(params):
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(jnp.asarray(X), mask=seen)

    agree(lambda params: term(ours_from_flax(params), X, **context), theirs, params, G[..., :D])


NORMS = {
    "LayerNorm": (layer_norm(), linen.LayerNorm(epsilon=1e-5, use_fast_variance=False)),
    "LayerNorm, eps": (layer_norm(0.1), linen.LayerNorm(epsilon=0.1, use_fast_variance=False)),
    "RMSNorm": (rms_norm(), linen.RMSNorm()),
    "RMSNorm, eps": (rms_norm(0.1), linen.RMSNorm(epsilon=0.1)),
}


@pytest.mark.parametrize("name", NORMS)
def test_flax_norms(name):
    ours, peer = NORMS[name]
    params = filled(jax.eval_shape(peer.init, KEY, X)["params"])
    agree(
        lambda tree: ours(tree["norm"], tree["x"]),
        lambda tree: peer.apply({"params": tree["norm"]}, tree["x"]),
        {"norm": params, "x": X},
        G[..., :D],
    )


def test_flax_embed_and_attend():
    peer, term = linen.Embed(11, D), each(tied(embed(11, D), pointwise(jnp.sin)))
    tokens = RNG.integers(11, size=(B, T))

    def theirs(params):
        rows: Any = peer.apply({"params": params}, tokens)
        return peer.apply({"params": params}, jnp.sin(rows), method="attend")

    params = filled({"embedding": np.zeros((11, D))})
    agree(
        lambda params: term({"embed": {"table": params["embedding"]}}, tokens),
        theirs,
        params,
        G[..., :11],
    )
