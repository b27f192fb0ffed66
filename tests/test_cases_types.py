"""Situations that people reported against attention libraries: types, gradients, randomness."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy64
import pytest
from asking import GIVEN, NORMALIZERS, answering, ask, fast, given, running
from plain import close

from combinax.combinators import (
    CompositionError,
    Leaf,
    Parameter,
    additive,
    aggregate,
    bias,
    bilinear,
    causal,
    compose,
    dot,
    dropout,
    each,
    embed,
    heads,
    identity,
    learned,
    lift,
    mask,
    normalize,
    relative,
    repeat,
    rms_norm,
    scaled_dot,
    score,
    softcap,
    softmax,
    t5_buckets,
    temperature,
    tied,
)

# Types


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "top_k", "hardmax"])
@pytest.mark.parametrize("function", [dot, scaled_dot])
def test_float16_with_logits_past_its_range(name, function):
    """Logits of 230,400 before scaling, in a type that ends at 65,504: the largest wins."""
    q = jnp.full((2, 4), 240, jnp.float16)
    k = jnp.stack([q[0], q[0] - 1, -q[0]]).astype(jnp.float16)
    v = jnp.array([[1], [2], [3]], jnp.float16)
    answer = answering(ask(mask(causal), how=NORMALIZERS[name], function=function))
    y, gradients = answer(jnp.ones((2, 1), jnp.float16), q, k, v)
    assert y.dtype == jnp.float16 and y.tolist() == [[1], [1]]
    assert all(g.dtype == jnp.float16 and np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_float64_is_exact_to_twelve_digits(name):
    """Outputs against NumPy's float64, gradients against its differences."""
    weigh, seen = numpy64.WEIGHTS[name], np.tri(4, 5, 1, dtype=bool)
    q, k, v = given(4, 5, dtype=np.float64)
    g = np.random.default_rng(1).standard_normal((4, 3))
    ahead = mask(lambda query, key: key.position <= query.position + 1)
    with jax.enable_x64(True):
        y, gradients = answering(ask(ahead, how=NORMALIZERS[name]))(g, q, k, v)
    assert y.dtype == np.float64
    close(y, numpy64.attend(q, k, v, seen, weigh), atol=1e-12)

    def loss(*qkv):
        return (g * numpy64.attend(*qkv, visible=seen, weigh=weigh)).sum()

    qkv = [q, k, v]
    for i, gradient in enumerate(gradients):
        expected = numpy64.slopes(lambda x, i=i: loss(*qkv[:i], x, *qkv[i + 1 :]), qkv[i])
        # differences over 2e-5 lose half of float64's sixteen digits; row sums near 0 amplify
        close(gradient, expected, atol=1e-7, rtol=1e-6)


# What a score learns


@dataclasses.dataclass(frozen=True)
class sharpened(Leaf):
    """sharpness · query · key: a score function of one's own with a 0-d parameter."""

    def parameters(self, x):
        return {"sharpness": Parameter((), jax.nn.initializers.constant(0.7), ())}

    def apply(self, params, x, context):
        return params["sharpness"] * dot(*x)


def compared(p, q, k):
    hidden = np.tanh((q @ p["query"])[:, None] + (k @ p["key"])[None])
    return hidden @ p["out"]


DISTANCE = np.arange(5) - np.arange(4)[:, None]
LEARNED = {
    "0-d score": (score(sharpened()), lambda p, q, k: p["score"]["sharpness"] * (q @ k.T)),
    "bilinear": (score(bilinear()), lambda p, q, k: q @ p["score"]["kernel"] @ k.T),
    "additive": (score(additive(3)), lambda p, q, k: compared(p["score"], q, k)),
    "temperature": (
        temperature(learned(())) @ score(dot),
        lambda p, q, k: q @ k.T / p["temperature"]["value"],
    ),
    "slopes": (
        bias(learned((5,))) @ score(dot),
        lambda p, q, k: q @ k.T + p["bias"]["value"],
    ),
    "table": (
        softcap(2.0) @ bias(learned((4, 5))) @ score(dot),
        lambda p, q, k: 2 * np.tanh((q @ k.T + p["bias"]["value"]) / 2),
    ),
    "relative": (
        bias(relative(2)) @ score(dot),
        lambda p, q, k: q @ k.T + p["bias"]["table"][np.clip(DISTANCE, -2, 2) + 2],
    ),
    "buckets": (
        bias(t5_buckets(count=4, reach=8)) @ score(dot),
        lambda p, q, k: q @ k.T + p["bias"]["table"][np.where(DISTANCE > 0, 3, DISTANCE < 0)],
    ),
}


@pytest.mark.parametrize("name", LEARNED)
def test_what_a_score_learns_gets_its_gradient(name):
    stage, formula = LEARNED[name]
    term = compose(aggregate(), normalize(softmax), stage, GIVEN)
    q, k, v = given(4, 5, dtype=np.float64)
    context = {"key": k, "value": v}
    with jax.enable_x64(True):
        params = term.init(jax.random.key(0), q, **context)
        params = jax.tree.map(lambda leaf: leaf + 0.3, params)
        run = fast(jax.value_and_grad(lambda p: jnp.square(term(p, q, **context)).sum()))
        value, gradient = run(params)
    leaves, tree = jax.tree.flatten(jax.tree.map(np.asarray, params))

    def loss(*leaves):
        table = formula(jax.tree.unflatten(tree, leaves), q, k)
        return np.square(numpy64.weights(table) @ v).sum()

    close(value, loss(*leaves), rtol=1e-12)
    for i, slope in enumerate(jax.tree.leaves(gradient)):
        expected = numpy64.slopes(lambda x, i=i: loss(*leaves[:i], x, *leaves[i + 1 :]), leaves[i])
        assert (expected != 0).any()
        close(slope, expected, atol=1e-8)  # differences over 2e-5 lose half of sixteen digits


def test_a_bias_of_every_head_gets_its_gradient():
    """(H, T, S), as a table that each of the heads learns for itself."""
    stages = compose(normalize(softmax), bias(learned((4, 5))), score(dot))
    term = heads(2, compose(aggregate(), stages, GIVEN))
    q, k, v = given(4, 5, dtype=np.float64)
    table = np.random.default_rng(1).standard_normal((4, 2, 5))
    with jax.enable_x64(True):
        params = term.init(jax.random.key(0), q, key=k, value=v)
        assert [leaf.shape for leaf in jax.tree.leaves(params)] == [table.shape]
        place = lambda table: jax.tree.map(lambda _: table, params)  # noqa: E731
        run = lambda table: jnp.square(term(place(table), q, key=k, value=v)).sum()  # noqa: E731
        gradient = fast(jax.grad(run))(table)

    def loss(table):
        return sum(np.square(numpy64.weights(q @ k.T + table[:, h]) @ v).sum() for h in range(2))

    close(gradient, numpy64.slopes(loss, table), atol=1e-8)


# Randomness and sharing


def ones_like(x):
    return jnp.ones_like(x)


def test_layers_under_scan_and_rows_under_vmap_drop_differently():
    """Each layer writes a digit: 0 where it drops, 2 where it keeps."""
    layer = 3.0 * identity + dropout(0.5) @ lift(ones_like)
    term, x = each(repeat(4, layer)), jnp.zeros((3, 8, 16))
    written = np.asarray(running_alone(term)(x, jax.random.key(0))).astype(int)
    masks = np.stack([written // 3**n % 3 for n in range(4)], 1).reshape(12, -1) // 2
    assert set(np.unique(written // 27)) == {0, 2} and set(np.unique(masks)) == {0, 1}
    agreement = (masks[:, None] == masks[None]).mean(-1)[np.triu_indices(12, 1)]
    # half of 128 agree by chance, with a deviation of 0.044: five of them
    assert abs(agreement - 0.5).max() < 0.22
    alone = jax.vmap(lambda x, key: repeat(4, layer)({}, x, rng=key))
    rows = alone(x, jax.random.split(jax.random.key(0), 3))
    assert len(np.unique(np.asarray(rows).reshape(3, -1), axis=0)) == 3


def running_alone(term):
    return fast(lambda x, key: term({}, x, rng=key))


@pytest.mark.parametrize("rate", [-0.1, 1, 1.0, 1.5, float("nan"), float("inf")])
def test_a_rate_outside_is_refused(rate):
    with pytest.raises(CompositionError, match="probability of dropping, 0 <= rate < 1, not"):
        dropout(rate)


def test_rate_zero_equals_none_bit_for_bit():
    q, k, v = given(4, 4)
    without = running(ask(mask(causal)))(q, k, v)
    for term in (
        dropout(0.0) @ ask(mask(causal)) @ dropout(0),
        compose(
            aggregate(), dropout(0.0), normalize(softmax), mask(causal), score(scaled_dot), GIVEN
        ),
    ):
        y = running(term)(q, k, v, rng=jax.random.key(0))
        np.testing.assert_array_equal(y, without)


def test_a_tied_embedding_is_one_leaf_with_the_gradient_of_both_uses():
    tokens = jnp.array([1, 4, 1, 2])
    term = tied(embed(6, 4), rms_norm())
    params = term.init(jax.random.key(0), tokens)
    shapes = {"embed": {"table": (6, 4)}, "rms_norm": {"scale": (4,)}}
    assert jax.tree.map(jnp.shape, params) == shapes
    target = given(4, 4, e=6)[2]

    def tied_loss(params):
        return jnp.square(term(params, tokens) - target).sum()

    def untied_loss(looked_up, scored):
        x = looked_up[tokens]
        x = x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        return jnp.square(x @ scored.T - target).sum()

    table = params["embed"]["table"]
    value, gradient = fast(jax.value_and_grad(tied_loss))(params)
    expected, (first, second) = fast(jax.value_and_grad(untied_loss, (0, 1)))(table, table)
    assert (first != 0).any() and (second != 0).any()
    close(value, expected, rtol=1e-6)
    # the norm of a small vector has large slopes: up to 100, in float32
    close(gradient["embed"]["table"], first + second, rtol=1e-5, atol=1e-4)
