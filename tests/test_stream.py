"""Streamed lookups equal those on one table, whatever is asked."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import GIVEN, ask, fast, given
from hypothesis import strategies as st
from plain import single
from streams import (
    LENGTHS,
    MASKS,
    SCORES,
    STREAMING,
    D,
    agree,
    asked,
    both,
    lookup,
)

from combinax.combinators import (
    CompositionError,
    aggregate,
    alibi,
    bias,
    bilinear,
    causal,
    compose,
    cosine,
    dot,
    dropout,
    heads,
    identity,
    learned,
    linear,
    log_sum_exp,
    mask,
    materialized,
    named,
    normalize,
    prefix,
    project,
    read,
    scaled_dot,
    score,
    shared,
    sink,
    slots,
    softcap,
    softmax,
    streamed,
    temperature,
    union,
    valid,
    window,
)


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    st.sampled_from(sorted(MASKS)), st.sampled_from(sorted(SCORES)),
    st.sampled_from(sorted(STREAMING)), st.sampled_from([1, 2, 7, 8, 11]),
    st.sampled_from([1, 2, 7, 9]), st.sampled_from([2, 3, (4, 2), 8]), st.integers(0, 9),
)  # fmt: skip
def test_a_stream_equals_one_table(seen, scores, how, t, s, block, seed):
    hypothesis.assume(how != "row_sum" or scores == "a function")  # a sum of mixed signs may be 0
    both(lookup(STREAMING[how], MASKS[seen], SCORES[scores]), block, t, s, seed)


@pytest.mark.parametrize("seen", sorted(MASKS))
def test_every_mask_streams(seen):
    both(lookup(softmax, MASKS[seen], SCORES["scaled_dot"]), 3, 8, 7)


@pytest.mark.parametrize("scores", sorted(SCORES))
def test_every_score_streams(scores):
    both(lookup(softmax, causal, SCORES[scores]), (2, 3), 7, 7)


@pytest.mark.parametrize("how", sorted(STREAMING))
def test_every_streaming_normalizer_streams(how):
    both(lookup(STREAMING[how], causal, SCORES["a function"]), (3, 2), 7, 8)


@pytest.mark.parametrize(("t", "s"), LENGTHS)
def test_any_lengths(t, s):
    both(lookup(softmax, causal, SCORES["scaled_dot"]), (64, 32), t, s)


@pytest.mark.parametrize(("t", "s"), [(130, 130), (600, 600), (300, 1030)])
@pytest.mark.parametrize("seen", [window(40) & causal, window(200), ~window(9) & prefix(90), None])
def test_blocks_that_are_chosen(seen, t, s):
    """Wide where what a row of them sees lies close together."""
    both(lookup(softmax, seen, SCORES["scaled_dot"]), None, t, s)


def test_a_mask_that_varies_within_a_block():
    def within_50(query, key):
        return key.position <= query.position + 50

    both(lookup(softmax, within_50, SCORES["dot"]), 128, 256, 256)


# Forms around and inside a lookup


HEAD = compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot), project(2))
KEYS = shared(linear(2), across="heads")
GROUP = compose(
    aggregate(), normalize(softmax), mask(causal), score(scaled_dot),
    project(query=2, key=KEYS, value=KEYS),
)  # fmt: skip


@pytest.mark.parametrize(
    "term",
    [
        heads(3, HEAD),
        heads(2, heads(2, GROUP)),
        (identity + heads(2, HEAD)) ** 3,
        heads(4, compose(aggregate(), normalize(softmax), bias(alibi), score(dot), project(1))),
    ],
    ids=["heads", "groups", "layers", "alibi"],
)
def test_forms_around_a_lookup(term):
    both(term, 3, 7, 7, tolerance=1e-4)


SINKS = union(mask(causal) @ score(dot), sink())
PREFIXED = union(mask(causal) @ score(scaled_dot), bias(learned(())) @ score(scaled_dot) @ slots(5))


@pytest.mark.parametrize("first", [SINKS, PREFIXED, union(score(dot), score(cosine))])
@pytest.mark.parametrize("after", [(), (softcap(1.5),)], ids=["", "soft-cap"])
def test_several_dictionaries_stream_as_one(first, after):
    both(compose(aggregate(), normalize(softmax), *after, first, GIVEN), (2, 3), 7, 7)


@pytest.mark.parametrize("scores", [score(dot), SINKS], ids=["one", "union"])
def test_weight_dropout_does_not_depend_on_blocks(scores):
    term = compose(aggregate(), dropout(0.4), normalize(softmax), scores, GIVEN)
    both(term, (2, 3), 7, 7, rng=jax.random.key(3))


def test_parameters_that_stand_elsewhere():
    """Named, shared by name, and shared across heads: a tile finds its parameters."""
    scores = named("a", score(bilinear())) + shared(score(bilinear()), name="everywhere")
    head = compose(aggregate(), normalize(softmax), mask(causal), scores, project(2))
    both(heads(2, head), 3, 7, 7, tolerance=1e-4)


def test_log_sum_exp_streams():
    """Given [0, 0, 0, 0] it is log 4; where nothing is seen it is -inf, with derivative 0."""
    for seen in (causal, valid("lengths"), read("seen")):
        both(compose(log_sum_exp, mask(seen), score(dot), GIVEN), 3, 7, 7)
    term = streamed(compose(log_sum_exp, mask(valid("lengths")), score(dot), GIVEN), 3)
    x = np.zeros((4, D), np.float32)
    run = functools.partial(term, {}, x[:2], key=x)
    np.testing.assert_allclose(run(lengths=4, value=x), [1.386294] * 2, rtol=1e-6)
    assert (run(lengths=0, value=x) == -np.inf).all()


# Rules of meaning


def test_a_row_that_sees_nothing_and_padding_that_is_nan():
    """Key 3 is padding and row 1 sees nothing: NaN in them reaches no output and no gradient."""
    seen = np.ones((4, 4), bool)
    seen[1], seen[:, 3] = False, False
    term = lookup(softmax, read("seen"), SCORES["scaled_dot"])
    given = asked(4, 4)
    q, k, v = given["query"], given["key"], given["value"]

    def run(term, q, k, v):
        out, back = jax.vjp(lambda q, k, v: term({}, q, key=k, value=v, seen=seen), q, k, v)
        return out, *back(jnp.ones_like(out))

    wanted = run(materialized(term), q, k, v)
    q[1], k[3], v[3] = np.nan, np.nan, np.inf
    for block in (1, 2, 4):
        ours = run(streamed(term, block), q, k, v)
        for a, b in zip(ours, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert (ours[0][1] == 0).all() and (ours[1][1] == 0).all()


def test_huge_logits_of_any_type():
    """float16 logits of 230,400 before scaling: finite, and the largest wins."""
    q = np.full((3, 64), 60, np.float16)
    k = np.concatenate([q, q / 2])
    v = np.arange(6, dtype=np.float16)[:, None]
    y = streamed(ask(mask(causal)), 2)({}, q, key=k, value=v)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y[:, 0], [0, 0.5, 1], atol=1e-3)


def test_a_function_that_captures_a_traced_array_keeps_its_table():
    """It runs and is differentiated as before, however long the rows; a pin says why it cannot."""
    x = single(1100, D, seed=0)

    def run(weight, seen, how):
        scores = mask(lambda query, key: seen[key.position]) @ score(
            lambda q, k: weight * (q @ k.T)
        )
        term = how(compose(aggregate(), normalize(softmax), scores, GIVEN))
        return term({}, x, key=x, value=x)[:5].sum()

    seen = np.arange(1100) % 3 != 0
    ours, table = (
        fast(jax.grad(functools.partial(run, how=how)))(0.5, seen)
        for how in (lambda f: f, materialized)
    )
    np.testing.assert_array_equal(ours, table)
    with pytest.raises(CompositionError, match="captures a traced array"):
        jax.jit(functools.partial(run, how=streamed))(0.5, seen)


def test_an_equal_stream_is_compiled_once(caplog):
    """Called as it is, outside of jit, and differentiated."""
    term = ask(mask(causal & window(3)))
    given = asked(7, 7)
    x, context = given["query"], dict(key=given["key"], value=given["value"])

    def call():
        run = lambda x: streamed(term, 3)({}, x, **context).sum()  # noqa: E731
        return jax.value_and_grad(run)(x)

    call()
    with jax.log_compiles(True), caplog.at_level("WARNING"):
        call()
    assert not [record for record in caplog.messages if "Compiling" in record]


def test_float64():
    with jax.enable_x64(True):
        draw = np.random.default_rng(0)
        q, k, v = (draw.standard_normal((33, 8)) for _ in range(3))
        term = ask(mask(causal))
        ours, table = (
            t({}, q, key=k, value=v) for t in (streamed(term, (8, 5)), materialized(term))
        )
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, table, rtol=1e-12, atol=1e-12)


def test_bfloat16_errs_at_most_twice_as_much():
    draw = np.random.default_rng(0)
    exact = [draw.standard_normal((65, 16)) for _ in range(3)]
    term = ask(mask(causal))
    with jax.enable_x64(True):
        wanted = np.asarray(materialized(term)({}, exact[0], key=exact[1], value=exact[2]))
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in exact)
    ours, table = (
        np.abs(np.asarray(t({}, q, key=k, value=v), np.float64) - wanted).max()
        for t in (streamed(term, 16), materialized(term))
    )
    assert ours <= 2 * table


def test_quiet_under_debug_nans_and_infs():
    term = streamed(ask(mask(causal & window(2))), 2)
    given = asked(5, 5)
    run = lambda q: term({}, q, key=given["key"], value=given["value"]).sum()  # noqa: E731
    with jax.debug_nans(True), jax.debug_infs(True):
        jax.block_until_ready(jax.jit(jax.value_and_grad(run))(given["query"]))


def test_dictionaries_within_dictionaries_are_streamed_and_so_is_nothing():
    inner = union(mask(causal) @ score(scaled_dot), sink())
    term = compose(aggregate(), normalize(softmax), union(inner, sink(0.0)), GIVEN)
    q, k, v = given(6, 6, D, D)
    params = term.init(jax.random.key(0), q, key=k, value=v)
    agree(streamed(term, 4)(params, q, key=k, value=v), term(params, q, key=k, value=v), 1e-6)
    for rows in (q[:0], q):
        assert streamed(term)(params, rows, key=k[:0], value=v[:0]).shape == rows.shape


@pytest.mark.parametrize("shape", [(7, 1), (5,), (7, 5)])
def test_temperatures_of_rows_are_cut_as_tables_are(shape):
    term = ask(temperature(read("t")))
    q, k, v = given(7, 5, D, D)
    context = dict(key=k, value=v, t=np.random.default_rng(0).random(shape) + 0.5)
    agree(streamed(term, (3, 2))({}, q, **context), term({}, q, **context), 1e-6)
    one, table = (term({}, q, **{**context, "t": t}) for t in (2.0, np.full(shape, 2.0)))
    agree(one, table, 1e-6)
    with pytest.raises(CompositionError, match=r"needs a table of shape \(7, 5\)"):
        term({}, q, **{**context, "t": np.ones((3, 1))})
