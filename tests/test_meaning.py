"""The rules of meaning, forward and gradient: what is hidden, and what is huge."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy64
import pytest
from asking import (
    GIVEN,
    NORMALIZERS,
    answering,
    ask,
    fast,
    given,
    running,
    weights,
    zero,
)
from plain import close

from combinax.combinators import (
    additive,
    aggregate,
    bias,
    bilinear,
    causal,
    compose,
    cosine,
    distance,
    dot,
    dropout,
    features,
    largest,
    learned,
    log_sum_exp,
    mask,
    multiply,
    normalize,
    pointwise,
    read,
    same,
    scaled_dot,
    score,
    sink,
    slots,
    softcap,
    softmax,
    subtract,
    union,
    valid,
)

# Every normalizer, with padding hidden in each of three ways

HIDING = mask(valid("lengths") & same("segments", "key_segments") & read("seen"))
OPEN = {
    "lengths": np.int32(5),
    "segments": np.zeros(4, np.int32),
    "key_segments": np.zeros(5, np.int32),
    "seen": np.random.default_rng(3).random((4, 5)) < 0.8,
}
"""Queries see most of five keys; key 4 is the one to be hidden."""
HIDDEN = {
    "lengths": np.int32(4),
    "key_segments": np.array([0, 0, 0, 0, 1], np.int32),
    "seen": OPEN["seen"] & (np.arange(5) < 4),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_what_no_query_sees_reaches_nothing(name):
    """NaN and infinities in a hidden key and value leave every bit as it is, backward, too."""
    answer = answering(ask(HIDING, how=NORMALIZERS[name]))
    q, k, v = given(4, 5)
    g = np.random.default_rng(4).standard_normal((4, 3)).astype(np.float32)
    for way, hides in HIDDEN.items():
        context = OPEN | {way: hides}
        k[4], v[4] = 1, 1
        y, (dq, dk, dv) = answer(g, q, k, v, **context)
        expected = numpy64.attend(q, k, v, HIDDEN["seen"], numpy64.WEIGHTS[name])
        close(y, expected, rtol=2e-6, atol=2e-6)  # row_sum divides by sums near 0
        assert (dk[4] == 0).all() and (dv[4] == 0).all()
        for k[4], v[4] in [(np.nan, 1), (1, np.nan), (np.inf, -np.inf), (-np.inf, np.inf)]:
            z, gradients = answer(g, q, k, v, **context)
            for ours, clean in zip((z, *gradients), (y, dq, dk, dv), strict=True):
                np.testing.assert_array_equal(ours, clean)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_query_that_sees_nothing_takes_no_part(name):
    """Output 0 and gradients exactly 0, even if the query is NaN; with no key at all, too."""
    answer = answering(ask(HIDING, how=NORMALIZERS[name]))
    q, k, v = given(4, 5)
    g = np.ones((4, 3), np.float32)
    seen = OPEN["seen"] & (np.arange(4) != 2)[:, None]
    y, (dq, dk, dv) = answer(g, q, k, v, **OPEN | {"seen": seen})
    assert (y[2] == 0).all() and (dq[2] == 0).all() and (np.delete(y, 2, 0) != 0).any()
    for q[2] in (np.nan, np.inf):
        z, gradients = answer(g, q, k, v, **OPEN | {"seen": seen})
        for ours, clean in zip((z, *gradients), (y, dq, dk, dv), strict=True):
            np.testing.assert_array_equal(ours, clean)
    y, gradients = answer(g, q, k, v, **OPEN | {"lengths": np.int32(0)})
    assert all((x == 0).all() for x in (y, *gradients))


@pytest.mark.parametrize("name", NORMALIZERS)
def test_huge_logits_are_legitimate(name):
    """Scores of ±1e6, where a mask made of a number such as −1e4 or −1e6 would leak."""
    answer = answering(ask(HIDING, how=NORMALIZERS[name]))
    q, k, v = given(4, 5)
    q, k = np.sign(q).astype(np.float32) * 1e3, k * 1e3
    y, gradients = answer(np.ones_like(v[:4]), q, k, v, **OPEN)
    expected = numpy64.attend(q, k, v, OPEN["seen"], numpy64.WEIGHTS[name])
    # scores of 1e6 are rounded to 1/16, and the two best of a row lie thousands apart
    close(y, expected, atol=1e-5 * max(1, abs(expected).max()))
    assert all(np.isfinite(gradient).all() for gradient in gradients)


COMPETING = ["softmax", "sparsemax", "entmax15", "top_k", "hardmax"]
ENDS = {
    "1e25": np.array([0, 1e25, -1e25, 5e24, 1e25], np.float32),
    "1e38": np.array([0, 1e38, -1e38, 5e37, 1e38], np.float32),
    "highest": np.full(5, np.finfo(np.float32).max),
    "lowest": np.full(5, np.finfo(np.float32).min),
}
"""Logits at the ends of float32. Key 4 is hidden."""


@pytest.mark.parametrize("name", COMPETING)
def test_logits_of_any_finite_size(name):
    """The largest wins, equals share, and what is hidden has weight 0: no number means "masked"."""
    answer = answering(weights(HIDING, bias(read("logits")), how=NORMALIZERS[name], function=zero))
    seen, qkv = HIDDEN["seen"], given(4, 5)
    for logits in ENDS.values():
        context = OPEN | HIDDEN | {"logits": logits}
        w, gradients = answer(np.ones((4, 5), np.float32), *qkv, **context)
        close(w, numpy64.weights(np.tile(logits, (4, 1)), seen, numpy64.WEIGHTS[name]))
        assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("name", COMPETING)
@pytest.mark.parametrize("size", [1e30, 1e35])
def test_huge_logits_are_quiet(name, size):
    """Nor is an intermediate infinite, with a hidden key and a query that sees nothing: its scores
    are taken relative to the least number there is, so beyond 1e31 every query has to see a key."""
    term = weights(mask(read("seen")), bias(read("logits")), how=NORMALIZERS[name], function=zero)
    x, seen = jnp.zeros((4, 1)), np.tril(np.ones((4, 4), bool))
    seen[2] = False if size < 1e31 else (True, False, False, False)

    def run(logits):
        return term({}, x, key=x, value=x, seen=seen, logits=logits)

    with jax.debug_nans(True), jax.debug_infs(True):
        w, back = jax.vjp(run, jnp.array([-size, size, 0, size]))
        (gradient,) = back(w)
    equals = [0, 1, 0, 0] if name == "hardmax" else [0, 0.5, 0, 0.5]
    close(w, [[1, 0, 0, 0], [0, 1, 0, 0], seen[2], equals])
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", NORMALIZERS)
def test_nothing_is_nan_or_infinite_on_the_way(name):
    """Operation by operation under jax_debug_nans and jax_debug_infs, forward and backward."""
    term = ask(mask(read("seen")), how=NORMALIZERS[name])
    q, k, v = (jnp.asarray(x) for x in given(4, 4))
    seen = np.tril(np.ones((4, 4), bool)) & (np.arange(4) != 2)[:, None] & (np.arange(4) != 1)

    def run(query, key, value):
        return term({}, query, key=key, value=value, seen=seen)

    with jax.debug_nans(True), jax.debug_infs(True):
        y, back = jax.vjp(run, q, k, v)
        gradients = back(y)
    assert (y[2] == 0).all() and all(np.isfinite(g).all() for g in gradients)


# Every way of scoring and of combining, with NaN in padding


def elu(x):
    return jax.nn.elu(x) + 1


def angle(query, key):
    """A user's score function."""
    return jnp.arctan2(query[:, :1], key[:, 0])


DIFFERENCE = subtract(normalize(softmax) @ mask(valid("lengths")) @ score(dot),
                      normalize(softmax) @ mask(read("seen")) @ score(scaled_dot))  # fmt: skip
SUM = HIDING @ score(dot) + mask(causal) @ score(cosine)
BESIDE = union(HIDING @ score(scaled_dot), score(scaled_dot) @ slots(3), sink())
TWICE = union(HIDING @ score(scaled_dot), mask(~causal) @ HIDING @ score(dot))
WAYS = {
    **{f.__name__: HIDING @ score(f) for f in (dot, cosine, distance, angle)},
    "bilinear": HIDING @ score(bilinear()),
    "additive": HIDING @ score(additive(3)),
    "features": HIDING @ score(features(pointwise(elu))),
    "stages": HIDING @ softcap(5.0) @ bias(learned((4, 5))) @ score(dot),
    "sum of scores": SUM,
    "union with slots and a sink": BESIDE,
    "union with itself": TWICE,
}
FOLDS = {
    **{name: aggregate() @ normalize(softmax) @ way for name, way in WAYS.items()},
    "difference of weights": aggregate() @ DIFFERENCE,
    "largest": aggregate(largest) @ normalize(softmax) @ HIDING @ score(dot),
    "dropout": aggregate() @ dropout(0.5) @ normalize(softmax) @ HIDING @ score(dot),
}


@pytest.mark.parametrize("name", FOLDS)
def test_padding_reaches_nothing_however_it_is_scored(name):
    term = FOLDS[name] @ GIVEN
    q, k, v = given(4, 5)
    context = {n: x for n, x in (OPEN | HIDDEN).items() if n in term.reads}
    params = term.init(jax.random.key(0), q, key=k, value=v, **context)

    def loss(params, query, key, value):
        y = term(params, query, key=key, value=value, rng=jax.random.key(1), **context)
        return jnp.square(y).sum(), y

    run = fast(jax.grad(loss, (0, 1, 2, 3), has_aux=True))
    k[4], v[4] = 1, 1
    clean = run(params, q, k, v)
    (_, dq, dk, dv), y = clean
    assert (dk[4] == 0).all() and (dv[4] == 0).all()
    assert (y != 0).any() and (dv != 0).any()
    assert (dq != 0).any() or name == "largest"  # which weights are 0 is no slope of the query's
    for k[4], v[4] in [(np.nan, np.nan), (np.inf, -np.inf)]:
        chex.assert_trees_all_equal(run(params, q, k, v), clean)


FIRST, SECOND = mask(read("first")) @ score(dot), mask(read("second")) @ score(scaled_dot)
WEIGHED = [normalize(softmax) @ FIRST, normalize(softmax) @ SECOND]
COMBINED = {
    "sum": WEIGHED[0] + WEIGHED[1],
    "difference": WEIGHED[0] - WEIGHED[1],
    "product": multiply(*WEIGHED),
    "a number": 2.0 * WEIGHED[0] - multiply(0.5, WEIGHED[1]),
    "sum of scores": normalize(softmax) @ (FIRST + SECOND),
    "union": normalize(softmax) @ union(FIRST, SECOND),
}


@pytest.mark.parametrize("name", COMBINED)
def test_two_masks_that_hide_different_keys(name):
    """A value counts where a part reaches it, and key 4, which nobody sees, is NaN."""
    q, k, v = given(4, 5)
    k[4], v[4] = np.nan, np.nan
    first, second = (np.random.default_rng(seed).random((4, 5)) < 0.7 for seed in (5, 6))
    first[:, 3:], second[:, 0], second[:, 4] = False, False, False
    if name in ("product", "sum of scores"):  # which reach only what both parts reach
        v[0], v[3] = np.nan, np.inf
    y = running(aggregate() @ COMBINED[name] @ GIVEN)(q, k, v, first=first, second=second)
    clean = np.float64(q) @ np.nan_to_num(k).T
    values = np.where(np.isfinite(v), v, 0).astype(np.float64)
    a, b = numpy64.weights(clean, first), numpy64.weights(clean / 2, second)
    beside = numpy64.weights(np.hstack([clean, clean / 2]), np.hstack([first, second]))
    expected = {
        "sum": a + b,
        "difference": a - b,
        "product": a * b,
        "a number": 2 * a - b / 2,
        "sum of scores": numpy64.weights(1.5 * clean, first & second),
        "union": beside[:, :5] + beside[:, 5:],
    }
    close(y, expected[name] @ values, atol=2e-6)


def test_log_sum_exp_ignores_padding():
    term = compose(log_sum_exp, HIDING, score(scaled_dot), GIVEN)
    q, k, v = given(4, 5)
    k[4] = np.nan
    y, (dq, dk, _) = answering(term)(np.ones(4, np.float32), q, k, v, **OPEN | HIDDEN)
    table = np.where(HIDDEN["seen"][:, :4], np.exp(np.float64(q) @ k[:4].T / 2), 0)
    close(y, np.log(table.sum(1)))
    close(dq, table / table.sum(1, keepdims=True) @ k[:4] / 2)
    assert (dk[4] == 0).all()
