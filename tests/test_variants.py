"""The vocabulary suffices: published variants in one to six lines each.

Every variant agrees with its paper's equations, written down here in NumPy float64, and its
gradient with differences.
"""
# ruff: noqa: F403, F405

import jax
import jax.numpy as jnp
import numpy as np
import numpy64
import plain
import pytest

from combinax.combinators import *
from combinax.models import *

T, D = 6, 16
X = plain.normal(T, D)
CAUSAL = np.tri(T, dtype=bool)
APART = np.arange(T)[:, None] - np.arange(T)


@pytest.fixture(autouse=True)
def float64():
    """What agrees to 1e-11 in float64 is the same equation."""
    with jax.enable_x64(True):
        yield


def agrees(term, equation, x=X, **context):
    """The term is the equation, `equation(params)`, and has its derivative."""
    params = plain.drawn(term, x, **context)
    y = plain.run(term, params, x, **context)
    np.testing.assert_allclose(y, equation(params), rtol=1e-11, atol=1e-12)
    plain.check_derivative(term, params, x, **context)


def each_head(params, attend):
    """attend(q, k, v, h) for every head h, side by side; kernels are (in, heads, out)."""
    kernels = [params["project"][slot]["kernel"] for slot in ("query", "key", "value")]
    count = kernels[0].shape[1]
    return np.concatenate([attend(*(X @ k[:, h] for k in kernels), h) for h in range(count)], -1)


# Differential attention (Ye et al. 2024): a difference of two softmax maps over the same values,
# λ = exp(a · b) - exp(c · d) + 0.8, a norm for each head, and a factor 1 - 0.8.


def first_half(query, key):
    return scaled_dot(query[:, :4], key[:, :4])


def second_half(query, key):
    return scaled_dot(query[:, 4:], key[:, 4:])


def difference(v):
    return jnp.exp(v[0] @ v[1]) - jnp.exp(v[2] @ v[3])


def test_differential_attention():
    soft = lambda half: normalize(softmax) @ mask(causal) @ score(half)  # noqa: E731
    factor = constant(0.8) + lift(difference) @ shared(learned((4, 4)), "heads")
    weights = soft(first_half) - multiply(factor, soft(second_half))
    term = linear(D) @ heads(2, 0.2 * rms_norm() @ aggregate() @ weights @ project(8))

    def equation(params):
        (vectors,) = (leaf for leaf in jax.tree.leaves(params) if leaf.shape == (4, 4))
        factor = np.exp(vectors[0] @ vectors[1]) - np.exp(vectors[2] @ vectors[3]) + 0.8
        scale = params["heads"]["multiply"]["rms_norm"]["scale"]

        def attend(q, k, v, h):
            one, two = (
                numpy64.weights(q[:, half] @ k[:, half].T / 2, CAUSAL)
                for half in (slice(0, 4), slice(4, 8))
            )
            return 0.2 * plain.rms_norm((one - factor * two) @ v, scale[h])

        return each_head(params["heads"], attend) @ params["linear"]["kernel"]

    agrees(term, equation)


# ALiBi (Press et al. 2022): a slope for each head, and no positions anywhere else.


def test_alibi():
    scores = mask(causal) @ bias(alibi) @ score(scaled_dot)
    term = heads(4, head(4, scores=scores))

    def equation(params):
        def attend(q, k, v, h):
            slope = 2.0 ** (-8 / 4 * (h + 1))
            return numpy64.weights(q @ k.T / 2 - slope * APART, CAUSAL) @ v

        return each_head(params, attend)

    agrees(term, equation)


# T5 (Raffel et al. 2020): scores are not scaled, one table of relative positions serves every
# layer, each head with its own column; an encoder here, so buckets look both ways.


def test_t5():
    x = plain.normal(24, D)  # longer than the farthest bucket
    scores = shared(bias(t5_buckets(count=8, reach=16)), "layers") @ score(dot)
    attention, mlp = multi_head(D, 2, scores=scores), dictionary(32, weights=normalize(relu))
    term = transformer(2, attention=attention, dictionary=mlp)

    def bucket(apart):
        count = 4 * (apart > 0)
        apart = abs(apart)
        if apart < 2:
            return count + apart
        return count + min(3, 2 + int(np.log(apart / 2) / np.log(16 / 2) * 2))

    buckets = np.array([[bucket(s - t) for s in range(24)] for t in range(24)])

    def equation(params):
        y, blocks = x, params["blocks"]
        attention, mlp = blocks["attention"], blocks["dictionary"]
        table = attention["heads"]["bias"]["table"]  # (heads, buckets), the same in both layers
        slots = attention["heads"]["project"]
        for i in range(2):
            z = plain.rms_norm(y, attention["rms_norm"]["scale"][i])
            mixed = []
            for h in range(2):
                q, k, v = (z @ slots[s]["kernel"][i, :, h] for s in ("query", "key", "value"))
                mixed.append(numpy64.weights(q @ k.T + table[h][buckets]) @ v)
            y = y + np.concatenate(mixed, -1) @ attention["output"]["kernel"][i]
            z = plain.rms_norm(y, mlp["rms_norm"]["scale"][i])
            y = y + np.maximum(z @ mlp["slots"]["key"][i].T, 0) @ mlp["slots"]["value"][i]
        return plain.rms_norm(y, params["rms_norm"]["scale"])

    agrees(term, equation, x)


# Gemma 2 (2024): layers with a window alternate with layers that see everything before, scores and
# logits are capped, keys are shared by pairs of heads, every branch is normed before and after.


def rotated(width):
    turned = rotary() @ linear(width)
    return project(query=turned, key=turned, value=width)


def sandwich(branch):
    return identity + rms_norm() @ branch @ rms_norm()


def turn(x):
    """Rotary in complex numbers: number i is paired with number i + d/2."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
    whole = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
    return np.concatenate([whole.real, whole.imag], -1)


def grouped(params, x, seen, cap=np.inf):
    """Rotated heads in groups of one key and value, kernels (in, groups, heads of a group, out)."""
    slots = params["heads"]["heads"]["project"]
    query, key = (slots[name]["linear"]["kernel"] for name in ("query", "key"))
    value = slots["value"]["kernel"]
    mixed = []
    for group in range(query.shape[1]):
        k, v = turn(x @ key[:, group]), x @ value[:, group]
        for h in range(query.shape[2]):
            scores = turn(x @ query[:, group, h]) @ k.T / np.sqrt(k.shape[-1])
            scores = scores if cap == np.inf else cap * np.tanh(scores / cap)
            mixed.append(numpy64.weights(scores, seen) @ v)
    return np.concatenate(mixed, -1) @ params["output"]["kernel"]


def gated(params, x, activation):
    hidden = activation(x @ params["slots"]["key"].T) * (x @ params["gate"]["keys"]["key"].T)
    return hidden @ params["slots"]["value"]


def test_gemma_2():
    def layer(seen):
        scores = mask(seen) @ softcap(2.0) @ score(scaled_dot)
        attention = grouped_heads(D, 4, 2, rotated, scores)
        return block(
            sandwich,
            attention=attention,
            dictionary=gated_dictionary(32, weights=normalize(gelu_tanh)),
        )

    local, wide = named("local", layer(causal & window(3))), named("wide", layer(causal))
    body = rms_norm() @ repeat(4, local, wide) @ (4.0 * identity)
    term = softcap(3.0) @ tied(embed(11, D), body)
    tokens = np.array([3, 1, 1, 0, 8, 10])

    def equation(params):
        params = params["tied"]
        y = 4 * params["embed"]["table"][tokens]
        for index in range(4):
            name, seen = [("local", CAUSAL & (APART < 3)), ("wide", CAUSAL)][index % 2]
            one = plain.layer(params["repeat"][name], index // 2)
            for branch, f in (
                (one["attention"], lambda p, z, seen=seen: grouped(p, z, seen, 2)),
                (one["dictionary"], lambda p, z: gated(p, z, numpy64.gelu_tanh)),
            ):
                z = f(branch, plain.rms_norm(y, branch["rms_norm"]["scale"]))
                y = y + plain.rms_norm(z, branch["rms_norm_2"]["scale"])
        y = plain.rms_norm(y, params["rms_norm"]["scale"])
        return 3 * np.tanh(y @ params["embed"]["table"].T / 3)

    agrees(term, equation, tokens)


# PaLM (Chowdhery et al. 2022): attention and dictionary side by side after one norm; one key and
# value for all heads; rotary positions; SwiGLU.


def test_palm():
    attention = grouped_heads(D, 4, 1, rotated, causal_scores)
    term = identity + (attention + gated_dictionary(32)) @ layer_norm()

    def equation(params):
        z = plain.layer_norm(X, **params["layer_norm"])
        silu = lambda x: x * numpy64.sigmoid(x)  # noqa: E731
        return X + grouped(params["add"], z, CAUSAL) + gated(params["add"], z, silu)

    agrees(term, equation)


# Longformer (Beltagy et al. 2020): a window, and global tokens that ask and answer everywhere; they
# ask with projections of their own.


def test_longformer():
    answers = predicate(lambda query, key: key["chosen"], ("chosen",))
    asks = predicate(lambda query, key: query["chosen"], ("chosen",))
    near = head(4, scores=mask(~asks & (window(2) | answers)) @ score(scaled_dot))
    far = head(4, scores=mask(asks) @ score(scaled_dot))
    term = heads(2, named("near", near) + named("far", far))
    chosen = np.array([False, True, False, False, False, False])

    def equation(params):
        near, far = params["add"]["near"], params["add"]["far"]
        sliding = plain.multi_head(near["project"], X, X, (abs(APART) < 2) | chosen)
        return np.where(chosen[:, None], plain.multi_head(far["project"], X), sliding)

    agrees(term, equation, chosen=chosen)


# Linear attention (Katharopoulos et al. 2020): scores φ(q) · φ(k) with φ = elu + 1, divided by
# their sum. The equation is the recurrence that the paper derives from it.


def raised(x):
    return jax.nn.elu(x) + 1


def test_linear_attention():
    scores = mask(causal) @ score(features(pointwise(raised)))
    term = heads(2, head(8, scores=scores, weights=normalize(row_sum)))

    def equation(params):
        def attend(q, k, v, h):
            q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
            memory, total, rows = np.zeros((8, 8)), np.zeros(8), []
            for query, key, value in zip(q, k, v, strict=True):
                memory, total = memory + np.outer(key, value), total + key
                rows.append(query @ memory / (query @ total))
            return np.array(rows)

        return each_head(params, attend)

    agrees(term, equation)


# Pooling by attention (Set Transformer, Lee et al. 2019; the latents of Perceiver, Jaegle et al.
# 2021): k learned queries ask a set, MAB(S, rFF(X)) with MAB(x, y) = norm(h + rFF(h)),
# h = norm(x + attention(x, y)).


def pooling():
    mlp = dictionary(32, weights=normalize(relu))
    asked = block(post_norm(layer_norm()), attention=cross_attention(D, 4), dictionary=mlp)
    return given(asked @ learned((3, D), jax.nn.initializers.normal(1.0)), memory=mlp)


def test_set_attention():
    def mlp(params, x):
        return np.maximum(x @ params["slots"]["key"].T, 0) @ params["slots"]["value"]

    def equation(params):
        memory, seeds = mlp(params["memory"], X), params["learned"]["value"]
        branch = params["attention"]
        mixed = plain.multi_head(branch["add"]["heads"]["project"], seeds, memory)
        h = seeds + mixed @ branch["add"]["output"]["kernel"]
        h = plain.layer_norm(h, **branch["layer_norm"])
        branch = params["dictionary"]
        return plain.layer_norm(h + mlp(branch["add"], h), **branch["layer_norm"])

    agrees(pooling(), equation)


def test_set_attention_does_not_see_the_order():
    term = pooling()
    params = plain.drawn(term, X)
    y, again = (plain.run(term, params, x) for x in (X, X[[2, 5, 0, 1, 4, 3]]))
    np.testing.assert_allclose(y, again, rtol=1e-12)


# Vision transformer (Dosovitskiy et al. 2021) with layer scale (Touvron et al. 2021): patches and a
# class token, positions learned, branches scaled number by number; the class token is classified.


def patches(image):
    """(8, 8) -> (4, 16): four patches of 4 × 4."""
    return image.reshape(2, 4, 2, 4).swapaxes(1, 2).reshape(4, 16)


def first_row(x):
    return x[0]


def layer_scale(branch):
    return identity + learned((D,), jax.nn.initializers.constant(1e-4)) * (branch @ layer_norm())


def test_vision_transformer():
    tokens = join(learned((1, D)), identity, axis=0) @ linear(D, bias=True) @ lift(patches)
    layers = block(layer_scale, attention=multi_head(D, 4), dictionary=dictionary(32)) ** 2
    term = (
        linear(10, bias=True) @ lift(first_row) @ layer_norm() @ layers @ position_embed(5) @ tokens
    )
    image = plain.normal(8, 8)

    def equation(params):
        cut = [image[i : i + 4, j : j + 4].ravel() for i in (0, 4) for j in (0, 4)]
        y = np.array(cut) @ params["linear"]["kernel"] + params["linear"]["bias"]
        y = np.concatenate([params["join"]["learned"]["value"], y])
        y = y + params["position_embed"]["table"]
        for index in range(2):
            one = plain.layer(params["repeat"], index)
            branch = one["attention"]["multiply"]
            z = plain.layer_norm(y, **branch["layer_norm"])
            z = plain.multi_head(branch["heads"]["project"], z) @ branch["output"]["kernel"]
            y = y + branch["learned"]["value"] * z
            branch = one["dictionary"]["multiply"]
            z = plain.layer_norm(y, **branch["layer_norm"])
            z = numpy64.gelu(z @ branch["slots"]["key"].T) @ branch["slots"]["value"]
            y = y + branch["learned"]["value"] * z
        y = plain.layer_norm(y[0], **params["layer_norm"])
        return y @ params["linear_2"]["kernel"] + params["linear_2"]["bias"]

    agrees(term, equation, image)


# Graph attention (Veličković et al. 2018): every node asks its neighbours, with scores
# leaky_relu(a · [W h_i, W h_j]) and values W h_j; the graph is context.


def leaky_sum(query, key):
    return jax.nn.leaky_relu(query + key.T, 0.2)


def test_graph_attention():
    scores = mask(read("adjacency")) @ score(leaky_sum)
    asked = compose(
        aggregate(), normalize(softmax), scores, project(query=1, key=1, value=identity)
    )
    term = pointwise(jax.nn.elu) @ heads(2, asked @ linear(8))
    adjacency = np.random.default_rng(5).random((T, T)) < 0.4
    adjacency[2] = False  # a node without neighbours takes nothing

    def equation(params):
        params = params["heads"]
        rows = []
        for i in range(T):
            row = []
            for h in range(2):
                moved = X @ params["linear"]["kernel"][:, h]
                a = [params["project"][slot]["kernel"][:, h, 0] for slot in ("query", "key")]
                near = np.flatnonzero(adjacency[i])
                e = np.array(
                    [np.concatenate([moved[i], moved[j]]) @ np.concatenate(a) for j in near]
                )
                e = np.exp(np.where(e > 0, e, 0.2 * e))
                row.append((e / e.sum()) @ moved[near])
            rows.append(np.concatenate(row))
        rows = np.array(rows)
        return np.where(rows > 0, rows, np.exp(rows) - 1)

    agrees(term, equation, adjacency=adjacency)
