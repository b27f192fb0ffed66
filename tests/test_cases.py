"""Situations that people reported against attention libraries, with the right answer in numbers.

Each number was worked out by hand or in float64; around it stands its whole kind.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import (
    GIVEN,
    answering,
    ask,
    fast,
    given,
    keys_seen,
    running,
    scores,
    weights,
    zero,
)
from plain import close

from combinax.combinators import (
    Range,
    aggregate,
    alibi,
    alibi_slopes,
    bias,
    causal,
    compose,
    cosine,
    dot,
    entmax15,
    gelu,
    gelu_tanh,
    half_split,
    heads,
    interleaved,
    layer_norm,
    linear,
    log_sum_exp,
    mask,
    normalize,
    prefix,
    project,
    read,
    rotary,
    scaled_dot,
    score,
    shared,
    softcap,
    softmax,
    sparsemax,
    window,
)


def mean(scores, visible):
    """A user's normalizer: every visible key counts alike."""
    seen = visible.astype(scores.dtype)
    return seen / jnp.maximum(seen.sum(-1, keepdims=True), 1)


@pytest.mark.parametrize(
    "how, function, dtype",
    [
        (softmax, scaled_dot, "float32"),
        (softmax, dot, "float16"),
        (softmax, cosine, "bfloat16"),
        (sparsemax, dot, "bfloat16"),
        (entmax15, cosine, "float16"),
        (mean, scaled_dot, "float32"),
    ],
)
def test_a_zero_query_averages_what_it_sees(how, function, dtype):
    key, value = jnp.asarray(given(6, 6)[1], dtype), jnp.arange(1, 7, dtype=dtype)[:, None]
    for allowed, expected in [
        (causal, [1, 1.5, 2, 2.5, 3, 3.5]),
        (causal & window(3), [1, 1.5, 2, 3, 4, 5]),
    ]:
        term = ask(mask(allowed), how=how, function=function)
        y = running(term)(jnp.zeros_like(key), key, value)
        assert y.dtype == dtype
        # weights such as 1/3 are rounded to the type of the values, by half of its eps
        close(y[:, 0], expected, rtol=float(jnp.finfo(dtype).eps))


def test_a_window_of_three_sees_three_keys():
    assert keys_seen(causal & window(3), 6, 6) == [1, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("positions", [Range, lambda start, T: start + jnp.arange(T)])
@pytest.mark.parametrize(
    "T, S, offset, expected",
    [(2, 5, 0, [1, 2]), (2, 5, 3, [4, 5]), (5, 2, -3, [0, 0, 0, 1, 2]), (5, 2, 0, [1, 2, 2, 2, 2])],
)
def test_causal_counts_from_zero_and_an_offset_is_explicit(positions, T, S, offset, expected):
    context = {"positions": positions(offset, T)} if offset else {}
    assert keys_seen(causal, T, S, **context) == expected


def test_a_mask_that_varies_by_query_keeps_every_row():
    seen = keys_seen(lambda query, key: key.position <= query.position + 50, 256, 256)
    assert seen == [min(t + 51, 256) for t in range(256)]


@pytest.mark.parametrize("level", [0.0, -1e5, 1e5, 1e30])
@pytest.mark.parametrize("hidden", [0, 1])
def test_softmax_is_exact_at_any_level(level, hidden):
    """Logits of −1e5 are logits and not a mask."""
    stages = [mask(prefix(2))] * hidden + [bias(read("level")), bias(read("logits"))]
    logits, key = jnp.array([0.0, -1.0, 5.0][: 2 + hidden]), np.ones((2 + hidden, 1))
    asked = running(weights(*stages, function=zero))
    w = asked(np.zeros((1, 1)), key, key, level=level, logits=logits)
    # at 1e5 float32 counts in steps of 1/128: a difference of 1 is exact; at 1e30 it is lost
    expected = [0.5, 0.5] if level == 1e30 else [0.731059, 0.268941]
    close(w[0], expected + [0] * hidden)


def test_alibi_slopes():
    close(alibi_slopes(8), 0.5 ** np.arange(1, 9), rtol=1e-15)
    six = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    close(alibi_slopes(6), six, rtol=1e-15)
    more = [0.707107, 0.353553, 0.176777, 0.088388]
    close(alibi_slopes(12), [*alibi_slopes(8), *more], atol=5e-7)


@pytest.mark.parametrize("outer, inner", [(1, 8), (2, 3), (4, 3), (6, 1)])
def test_every_head_gets_its_alibi_slope(outer, inner):
    """Nested heads are counted through; the distance is absolute."""
    term = heads(outer, heads(inner, scores(bias(alibi), function=zero)))
    x = jnp.zeros((3, 1))
    table = running(term)(x, x, x).reshape(3, outer * inner, 3).swapaxes(0, 1)
    distance = np.abs(np.arange(3)[:, None] - np.arange(3))
    expected = -alibi_slopes(outer * inner)[:, None, None] * distance
    close(table, expected, rtol=1e-7)  # a slope rounded to float32
    with jax.enable_x64(True):
        x = np.zeros((3, 1))
        table = running(term)(x, x, x).reshape(3, outer * inner, 3).swapaxes(0, 1)
    close(table, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    "row, expected",
    [
        ([0.5, 0.4, -1], [0.55, 0.45, 0]),
        ([1, 2, 3], [0, 0, 1]),
        ([1e6, 1e6 - 0.5, 0], [0.75, 0.25, 0]),
    ],
)
def test_sparsemax(row, expected):
    row = jnp.array([row], jnp.float32)
    close(sparsemax({}, row)[0], expected)
    key = np.ones((4, 1))
    asked = running(weights(mask(read("seen")), bias(read("row")), how=sparsemax, function=zero))
    with_hidden = jnp.pad(row, ((0, 1), (1, 0)), constant_values=7)  # a hidden key, an empty row
    seen = jnp.array([[False, True, True, True], [False] * 4])
    w = asked(np.ones((2, 1)), key, key, row=with_hidden, seen=seen)
    close(w, [[0, *expected], [0] * 4])


@pytest.mark.parametrize(
    "pairs, expected",
    [
        (half_split, [-1.984111, 1.959901, 2.462378, 4.0198]),
        (interleaved, [-1.14264, 1.922076, 2.959851, 4.0298]),
    ],
)
@pytest.mark.parametrize("positions", [Range(1, 1), jnp.array([1])], ids=["static", "array"])
def test_rotary_at_position_one(pairs, expected, positions):
    y = rotary(pairs=pairs)({}, jnp.array([[1.0, 2, 3, 4]]), positions=positions)
    close(y[0], expected)


@pytest.mark.parametrize("pairs", [half_split, interleaved])
def test_rotary_scores_depend_on_the_distance_alone(pairs):
    turn = fast(rotary(pairs=pairs))

    def asked(x, at_query, at_key):
        a, b = (turn({}, x, positions=np.array([p])) for p in (at_query, at_key))
        return float((a * b).sum())

    x = np.array([[1.0, 2, 3, 4]], np.float32)
    close(asked(x, 3, 0), asked(x, 100_003, 100_000), rtol=2e-5)
    assert abs(asked(x, 3, 0) - asked(x, 4, 0)) > 0.1
    # With more pairs an angle such as 75,000 is rounded to 1/128: so much of |x|² is lost at most.
    wide = given(1, 1, d=64)[0]
    lost = float((wide**2).sum()) / 128
    close(asked(wide, 3, 0), asked(wide, 100_003, 100_000), atol=lost)
    close(asked(wide, 3, 0), asked(wide, 1003, 1000), atol=lost / 64)


def test_grouped_heads_share_the_values_of_their_group():
    """Four query heads over two key/value heads: query heads 0, 1 ask the first."""
    entries = project(
        query=linear(3), key=shared(linear(3), "heads"), value=shared(linear(1), "heads")
    )
    attention = compose(aggregate(), normalize(softmax), score(scaled_dot), entries)
    term = heads(2, heads(2, attention))
    x = jnp.ones((5, 1))
    params = term.init(jax.random.key(0), x)
    shape = {name: leaf["kernel"].shape for name, leaf in params["heads"]["project"].items()}
    assert shape == {"query": (1, 2, 2, 3), "key": (1, 2, 3), "value": (1, 2, 1)}
    params["heads"]["project"]["value"]["kernel"] = jnp.array([[[10.0], [20.0]]])
    close(fast(term)(params, x), np.tile([10.0, 10, 20, 20], (5, 1)), rtol=1e-6)


@pytest.mark.parametrize("swapped", [False, True])
def test_softcap_leaves_a_masked_key_masked(swapped):
    stages = [mask(prefix(2)), softcap(5.0)]
    x, key = np.ones((1, 1)), np.ones((3, 1))
    w = running(weights(*(stages[::-1] if swapped else stages), function=zero))(x, key, key)
    assert w.tolist() == [[0.5, 0.5, 0.0]]


def test_log_sum_exp_is_natural_and_differentiable():
    term = compose(log_sum_exp, score(dot), GIVEN)
    q, k = jnp.zeros((1, 2)), given(1, 4, d=2)[1]
    y, (slope, _, _) = answering(term)(np.ones(1, np.float32), q, k, k)
    close(y[0], 1.386294)
    close(slope, k.mean(0, keepdims=True), rtol=1e-5)  # softmax(0) @ keys


@pytest.mark.parametrize("eps, unit", [(1e-12, 0.632443), (1e-5, 0.031583)])
def test_layer_norm_shows_its_eps(eps, unit):
    term, x = layer_norm(eps=eps), jnp.array([[1.0, -1, 2, -2]]) * 1e-4
    y = term(term.init(jax.random.key(0), x), x)[0]
    close(y, unit * np.array([1, -1, 2, -2]), atol=1.5e-6)  # twice what six digits leave open


def test_layer_norm_of_large_numbers_is_two_pass():
    term, x = layer_norm(), jnp.array([[10000, 10000.1, 9999.9, 10000.05]], jnp.float32)
    y = term(term.init(jax.random.key(0), x), x)[0]
    # the numbers stand 1/1024 apart in float32, which is 0.013 of their deviation
    close(y, [-0.172, 1.18, -1.524, 0.504], atol=0.002)


def test_gelu_exact_and_tanh_are_two():
    close(gelu({}, jnp.ones(())), 0.8413447, atol=1e-7)
    close(gelu_tanh({}, jnp.ones(())), 0.841192)
