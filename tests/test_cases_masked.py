"""Situations that people reported against attention libraries: rows and keys that are hidden."""

from functools import partial

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
    keys_seen,
    running,
    weights,
)
from plain import close

from combinax.combinators import (
    CompositionError,
    aggregate,
    bias,
    causal,
    compose,
    dropout,
    each,
    heads,
    linear,
    log_sum_exp,
    mask,
    materialized,
    named,
    normalize,
    pointwise,
    position_embed,
    predicate,
    prefix,
    project,
    read,
    rotary,
    row_sum,
    same,
    scaled_dot,
    score,
    softmax,
    streamed,
    temperature,
    union,
    valid,
)

ROW = np.eye(4)[:, :1].astype(np.float32) * np.ones((1, 3), np.float32)
"""The cotangent of a loss on row 0 of four."""

NOTHING_FOR_1 = np.arange(4)[:, None].repeat(4, 1) != 1
"""A mask by which row 1 of four sees nothing."""


# Rows that see nothing


@pytest.mark.parametrize(
    "name, context",
    [("softmax", {}), ("softmax", {"rng": 0}), ("entmax15", {"rng": 0}), ("gelu", {})],
)
def test_a_row_that_sees_nothing(name, context):
    """T = S = 4, row 1 sees nothing, the loss is on row 0; with dropout of weights, too."""
    context = {key: jax.random.key(seed) for key, seed in context.items()}
    weigh = compose(dropout(0.5), normalize(NORMALIZERS[name]), mask(read("seen")))
    answer = answering(compose(aggregate(), weigh, score(scaled_dot), GIVEN))
    q, k, v = given(4, 4)
    y, (dq, dk, dv) = answer(ROW, q, k, v, seen=NOTHING_FOR_1, **context)
    full, (fq, fk, fv) = answer(ROW, q, k, v, seen=np.ones((4, 4), bool), **context)
    others = [0, 2, 3]
    assert (y[1] == 0).all() and (dq[1:] == 0).all() and (dq[0] != 0).any()
    for ours, theirs in [(y[others], full[others]), (dq[0], fq[0]), (dk, fk), (dv, fv)]:
        np.testing.assert_array_equal(ours, theirs)
        assert np.isfinite(ours).all()
    # and a loss on the empty row alone has no gradient at all
    _, gradients = answer(np.roll(ROW, 1, 0), q, k, v, seen=NOTHING_FOR_1, **context)
    assert all((g == 0).all() for g in gradients)


def test_log_sum_exp_of_an_empty_row():
    term = compose(log_sum_exp, mask(read("seen")), score(scaled_dot), GIVEN)
    y, (dq, dk, _) = answering(term)(ROW[:, 0] * 0 + 1, *given(4, 4), seen=NOTHING_FOR_1)
    assert y[1] == -jnp.inf and np.isfinite(y[[0, 2, 3]]).all()
    assert (dq[1] == 0).all() and (dq[0] != 0).all()
    assert np.isfinite(dq).all() and np.isfinite(dk).all()


def test_every_row_of_one_head_masked():
    on = mask(predicate(lambda query, key: key["on"], ("on",)))
    attention = compose(aggregate(), normalize(softmax), on, score(scaled_dot), project(3))
    term, x = heads(2, attention, on=(True, False)), given(4, 4)[0]

    def loss(params):
        y = term(params, x)
        return jnp.square(y).sum(), y

    params = term.init(jax.random.key(0), x)
    gradient, y = fast(jax.grad(loss, has_aux=True))(params)
    assert (y[:, 3:] == 0).all() and (y[:, :3] != 0).all()
    for leaf in jax.tree.leaves(gradient):  # (4, heads, 3)
        assert (leaf[:, 1] == 0).all() and (leaf[:, 0] != 0).any()


def test_length_zero_in_a_batch():
    answer = answering(each(ask(mask(valid("lengths")))))
    q, k, v = (np.stack([x] * 3) for x in given(4, 4))
    lengths = np.array([4, 0, 2])
    y, (dq, dk, dv) = answer(np.ones_like(v), q, k, v, lengths=lengths)
    assert (y[1] == 0).all() and not any(g[1].any() for g in (dq, dk, dv))
    for row, n in enumerate(lengths):
        close(y[row], numpy64.attend(q[row], k[row, :n], v[row, :n]))
        assert (dk[row, n:] == 0).all() and (dv[row, n:] == 0).all()


def test_an_empty_part_leaves_the_other_unchanged():
    """Two partial results of which one saw nothing: as a union, and as the monoid below it."""
    q, k, v = given(4, 4)
    full, empty = score(scaled_dot), compose(mask(read("seen")), score(scaled_dot))
    for parts in [(full, empty), (empty, full)]:
        both = compose(aggregate(), normalize(softmax), union(*parts), GIVEN)
        close(running(both)(q, k, v, seen=np.zeros((4, 4), bool)), numpy64.attend(q, k, v))
    table = jnp.asarray(q @ k.T)
    nothing = jnp.zeros(table.shape, bool)
    for how in (softmax, row_sum):
        references = [how.reference(table, seen) for seen in (None, nothing)]
        parts = zip((None, nothing), references, strict=True)
        totals = [how.weigh(table, seen, at).sum(-1) for seen, at in parts]
        both = jnp.maximum(*references)
        factors = [how.rescale(at, both) for at in references]
        merged = totals[0] * factors[0] + totals[1] * factors[1]
        np.testing.assert_array_equal(merged, totals[0])
        assert (factors[0] == 1).all()


# Keys that nobody sees


@pytest.mark.parametrize("name", ["softmax", "entmax15", "top_k", "silu"])
def test_nan_in_padding_equals_the_shorter_problem(name):
    """Key 3 is masked for every query; v[3] = NaN, then k[3] = NaN, then infinities."""
    hidden = mask(valid("lengths"))
    stage = named("hidden", hidden) if name == "softmax" else hidden  # which changes nothing
    padded = answering(ask(stage, how=NORMALIZERS[name]))
    shorter = answering(ask(how=NORMALIZERS[name]))
    (q, k, v), g = given(5, 4), given(5, 5, seed=1)[2]
    y, (dq, dk, dv) = shorter(g, q, k[:3], v[:3])
    for k[3], v[3] in [(0, np.nan), (np.nan, 0), (np.inf, -np.inf)]:
        z, (eq, ek, ev) = padded(g, q, k, v, lengths=3)
        for ours, theirs in [(z, y), (eq, dq), (ek[:3], dk), (ev[:3], dv)]:
            close(ours, theirs, atol=2e-6)  # sums in another order, of numbers up to 4
        assert (ek[3] == 0).all() and (ev[3] == 0).all()


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "sigmoid", "relu_squared"])
def test_scores_of_hidden_pairs_may_be_anything(name):
    """Each pair by itself: keys that other queries see keep their gradients."""
    ahead = np.arange(4)[None] > np.arange(4)[:, None]
    hidden = answering(ask(mask(causal), bias(read("table")), how=NORMALIZERS[name]))
    plain = answering(ask(mask(causal), how=NORMALIZERS[name]))
    (q, k, v), g = given(4, 4), given(4, 4, seed=1)[2]
    for bad in (1e20, np.inf, np.nan):
        ours = hidden(g, q, k, v, table=np.where(ahead, bad, 0).astype(np.float32))
        jax.tree.map(partial(close, atol=2e-6), ours, plain(g, q, k, v))


def test_a_row_whose_scores_are_all_minus_infinity_sees_nothing():
    """As it does where a mask hides them, or the row is streamed."""
    q, k, v = given(4, 4)
    table = np.where(np.arange(4)[:, None] == 1, -np.inf, 0).astype(np.float32)
    for how in (materialized, streamed):
        y = running(how(ask(bias(read("table")))))(q, k, v, table=table)
        close(y, running(ask(mask(read("seen"))))(q, k, v, seen=table == 0))
        total = compose(log_sum_exp, bias(read("table")), score(scaled_dot), GIVEN)
        assert running(how(total))(q, k, v, table=table)[1] == -np.inf


def test_packed_segments():
    """a a b b b: b gives what it gives alone, and positions restart when asked."""
    turned = rotary() @ linear(4)
    entries = project(query=turned, key=turned, value=linear(4))
    apart = mask(causal & same("segments"))
    attention = compose(aggregate(), normalize(softmax), apart, score(scaled_dot), entries)
    term = heads(2, attention) @ position_embed(8)
    x, segments = given(5, 5)[0], np.array([1, 1, 2, 2, 2])
    params, run = term.init(jax.random.key(0), x, segments=segments), fast(term)
    packed = run(params, x, segments=segments, positions=np.array([0, 1, 0, 1, 2]))
    alone = run(params, x[2:], segments=segments[2:], positions=np.arange(3))
    close(packed[2:], alone, atol=2e-6)
    # without restarting, b stands at positions 2, 3, 4, and the position table says so
    onward = run(params, x, segments=segments, positions=np.arange(5))
    close(onward[:2], packed[:2])
    assert abs(onward[2:] - packed[2:]).max() > 1e-3
    # and what b says does not reach a
    x[2:] = 7
    close(run(params, x, segments=segments, positions=np.arange(5))[:2], packed[:2])


def test_padding_is_never_a_key():
    """a a b b b and three rows of padding, whose segment may even be that of b."""
    both = mask(same("segments") & valid("lengths"))
    q, k, v = given(8, 8)
    for filler in (0, 2):
        segments = np.array([1, 1, 2, 2, 2, filler, filler, filler])
        w = running(weights(both))(q, k, v, segments=segments, lengths=5)
        assert (w[:, 5:] == 0).all()
        close(w[:5].sum(1), np.ones(5))
        np.testing.assert_array_equal(w[:5, :5] != 0, segments[:5, None] == segments[:5])


# Masks and what they are made of


def test_causal_is_quiet_under_debug_nans_and_debug_infs():
    """Step by step, so that every intermediate is looked at, and compiled."""
    q, k, v = (jnp.asarray(x) for x in given(4, 4))
    term = ask(mask(causal))
    run = lambda *qkv: term({}, qkv[0], key=qkv[1], value=qkv[2])  # noqa: E731
    with jax.debug_nans(True), jax.debug_infs(True):
        y, back = jax.vjp(run, q, k, v)
        back(y)
        z, _ = answering(term)(y, q, k, v)
    close(y, z)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "bfloat16"])
def test_a_mask_of_numbers_is_refused(dtype):
    """By name and by function, called and compiled; the message says what a mask is."""
    q, k, v = given(4, 4)
    table = jnp.ones((4, 4), dtype)
    convention = "a mask is boolean, True = may attend"
    for run in (running(ask(mask(read("seen")))), running(ask(mask(causal & read("seen"))))):
        with pytest.raises(CompositionError, match=convention):
            run(q, k, v, seen=table)
    with pytest.raises(CompositionError, match=convention):
        ask(mask(read("seen")))({}, q, key=k, value=v, seen=table)
    with pytest.raises(CompositionError, match=convention):
        ask(mask(lambda query, key: table))({}, q, key=k, value=v)


def test_causal_together_with_padding_is_the_intersection():
    """As one mask and as two in either order, whatever the padding holds; weights, too."""
    (q, k, v), g = given(4, 4), given(4, 4, seed=1)[2]
    seen = np.tril(np.ones((4, 4), bool)) & (np.arange(4) < 3)
    expected = numpy64.attend(q, k, v, seen)
    slopes = numpy64.attend_slopes(g, q, k[:3], v[:3], seen[:, :3])
    k[3], v[3] = np.nan, np.inf
    one, other = mask(causal), mask(valid("lengths"))
    for stages in ([mask(causal & valid("lengths"))], [one, other], [other, one]):
        y, (dq, dk, dv) = answering(ask(*stages))(g, q, k, v, lengths=3)
        for ours, theirs in zip((y, dq, dk[:3], dv[:3]), (expected, *slopes), strict=True):
            close(ours, theirs, atol=2e-6)
        assert (dk[3] == 0).all() and (dv[3] == 0).all()
        w = running(weights(*stages))(q, k, v, lengths=3)
        close(w, numpy64.weights(q @ np.nan_to_num(k).T / 2, seen))
        np.testing.assert_array_equal(w != 0, seen)


@pytest.mark.parametrize("shape", [(4, 1), (1, 5), (1, 1)])
def test_axes_of_size_one_count_for_all(shape):
    q, k, v = given(4, 5)
    seen = np.random.default_rng(0).random(shape) < 0.6
    y = running(ask(mask(read("seen"))))(q, k, v, seen=seen)
    close(y, numpy64.attend(q, k, v, np.broadcast_to(seen, (4, 5))))


def test_a_mask_of_a_batch_never_means_one_of_heads():
    """B = H = 2: (B, T, S) goes with the rows of the batch, and every head has all of it."""
    q, k, v = (np.stack([x, x]) for x in given(3, 3))
    seen = np.random.default_rng(0).random((2, 3, 3)) < 0.5
    asked = ask(mask(read("seen")))
    y = running(each(heads(2, asked)))(q, k, v, seen=seen)
    for row in range(2):
        close(y[row], np.tile(numpy64.attend(q[row], k[row], v[row], seen[row]), 2))
    by_head = heads(2, asked, seen=tuple(map(tuple_of, seen)))
    y = running(by_head)(q[0], k[0], v[0])
    close(y, np.hstack([numpy64.attend(q[0], k[0], v[0], head) for head in seen]))
    with pytest.raises(CompositionError, match=r"has shape \(T, S\); seen has \(2, 3, 3\)"):
        heads(2, asked)({}, q[0], key=k[0], value=v[0], seen=seen)


def tuple_of(table):
    return tuple(tuple(bool(x) for x in row) for row in table)


def test_prefix_sees_its_keys_and_is_causal_beyond():
    assert keys_seen(prefix(2), 4, 4) == [2, 2, 3, 4]
    assert keys_seen(prefix(0), 4, 4) == keys_seen(prefix(1), 4, 4) == keys_seen(causal, 4, 4)
    assert keys_seen(prefix(9), 4, 4) == [4] * 4
    assert keys_seen(prefix(2), 2, 5) == [2, 2]


def test_other_values_of_the_context_compile_nothing_anew():
    traces = []

    def counted(x):
        traces.append(x.shape)
        return x

    allowed = mask(causal & same("segments") & valid("lengths") & read("seen"))
    stages = [allowed, bias(read("table")), temperature(read("heat")), pointwise(counted)]
    asked, counts = running(ask(*stages)), []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        captured = {
            "segments": rng.integers(2, size=4),
            "lengths": rng.integers(1, 5),
            "seen": rng.random((4, 4)) < 0.5,
            "table": rng.random((4, 4)),
            "heat": rng.random(()),
            "positions": rng.integers(9, size=4),
        }
        asked(*given(4, 4, seed=seed), **captured)
        counts.append(len(traces))
    assert counts[0] == counts[2] > 0
