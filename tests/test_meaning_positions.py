"""The rules of meaning: the order of stages, where rows stand, and tables of any size."""

from typing import Any

import jax
import numpy as np
import numpy64
import pytest
from asking import answering, ask, fast, given, one, running, weight_table, weights
from plain import close

from combinax.combinators import (
    CompositionError,
    Predicate,
    Range,
    bias,
    block_causal,
    causal,
    compose,
    dilated,
    dot,
    each,
    embed,
    identity,
    lift,
    mask,
    normalize,
    position_embed,
    predicate,
    prefix,
    project,
    read,
    rotary,
    same,
    score,
    sinusoidal,
    softcap,
    valid,
    window,
)

# Scale, cap, bias, mask, normalize


def near(query, key):
    return -0.3 * abs(query.position - key.position)


SEEN = np.random.default_rng(0).random((4, 5)) < 0.6
NEAR = -0.3 * abs(np.arange(4)[:, None] - np.arange(5))
Q, K, V = given(4, 5)
DOT = np.float64(Q) @ K.T


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_order_is_scale_cap_bias_mask_normalize(place):
    """As written; a mask may stand anywhere after the score, and moves no bit by it."""
    stages = [bias(near), softcap(0.5)]
    stages.insert(place, mask(read("seen")))
    w = running(weights(*stages))(Q, K, V, seen=SEEN)
    close(w, numpy64.weights(0.5 * np.tanh(DOT / 2 / 0.5) + NEAR, SEEN))
    first = running(weights(mask(read("seen")), bias(near), softcap(0.5)))(Q, K, V, seen=SEEN)
    np.testing.assert_array_equal(w, first)


def test_a_cap_written_after_the_bias_caps_the_bias():
    w = running(weights(softcap(0.5), bias(near)))(Q, K, V)
    close(w, numpy64.weights(0.5 * np.tanh((DOT / 2 + NEAR) / 0.5)))


@pytest.mark.parametrize("options, factor", [({}, 0.5), ({"scale": 0.0}, 0), ({"scale": 2.0}, 2)])
def test_the_scale_is_one_over_the_root_of_the_width(options, factor):
    """And a scale of zero means zero."""
    close(running(weights(**options))(Q, K, V), numpy64.weights(DOT * factor))
    close(running(weights(function=dot))(Q, K, V), numpy64.weights(DOT))
    close(running(weights(**options))(Q[:, :0], K[:, :0], V), numpy64.weights(0 * DOT))


# Predicates see absolute positions


def every_third(query, key):
    return key.position % 3 == 0


PREDICATES = {
    "causal": (causal, lambda q, k: k <= q),
    "window": (window(3), lambda q, k: abs(q - k) < 3),
    "causal window": (causal & window(3), lambda q, k: q - 3 < k <= q),
    "prefix": (prefix(2), lambda q, k: k < 2 or k <= q),
    "dilated": (causal & dilated(2), lambda q, k: k <= q and (q - k) % 2 == 0),
    "block_causal": (block_causal(3), lambda q, k: k // 3 <= q // 3),
    "not": (~causal, lambda q, k: k > q),
    "or": (~causal | prefix(0) & window(1), lambda q, k: k >= q),
    "of one's own": (predicate(every_third), lambda q, k: k % 3 == 0),
    "a plain function": (every_third, lambda q, k: k % 3 == 0),
}


def table(allowed: Predicate, T: int, S: int, **context) -> np.ndarray:
    """Which keys a query sees, (T, S)."""
    term = weights(mask(allowed), how=identity, function=one)
    w = running(term)(np.zeros((T, 1)), np.zeros((S, 1)), np.zeros((S, 1)), **context)
    return np.asarray(w) == 1


@pytest.mark.parametrize("name", PREDICATES)
def test_predicates_compare_absolute_positions(name):
    allowed, rule = PREDICATES[name]
    at = np.array([2, 3, 7, 0])
    for where, context in [
        (np.arange(4), {}),
        (np.arange(3, 7), {"positions": Range(3, 4)}),
        (at, {"positions": at}),
    ]:
        expected = [[rule(query, key) for key in range(7)] for query in where]
        np.testing.assert_array_equal(table(allowed, 4, 7, **context), expected)


@pytest.mark.parametrize("width", [1, 2, 4, 9])
def test_a_causal_window_sees_exactly_its_width(width):
    seen = table(causal & window(width), 8, 8)
    np.testing.assert_array_equal(seen.sum(1), np.minimum(np.arange(1, 9), width))
    assert seen.diagonal().all()


@pytest.mark.parametrize("length", [0, 1, 3, 8])
def test_a_prefix_has_exactly_its_keys(length):
    seen = table(prefix(length), 8, 8)
    np.testing.assert_array_equal(seen.sum(1), np.maximum(np.arange(1, 9), length))
    assert seen[:, :length].all()


def own(allowed: Any, at: np.ndarray, **context) -> np.ndarray:
    """Which rows of a sequence see which, all of them at positions of their own."""
    score_all = compose(lift(weight_table), normalize(identity), mask(allowed), score(one))
    term = score_all @ project(identity)
    x = np.zeros((len(at), 1))
    return np.asarray(fast(term)({}, x, positions=at, **context)) == 1


def test_rows_of_one_sequence_ask_and_answer_at_their_positions():
    at = np.array([5, 0, 2, 9])
    np.testing.assert_array_equal(own(causal, at), at <= at[:, None])
    near = abs(at - at[:, None]) < 4
    np.testing.assert_array_equal(own(window(4), at), near)
    # lengths count rows, wherever the rows stand
    seen = own(valid("lengths"), at, lengths=3)
    np.testing.assert_array_equal(seen, np.tile(np.arange(4) < 3, (4, 1)))
    np.testing.assert_array_equal(own(window(4) & valid("lengths"), at, lengths=2)[:, 2:], False)


def test_keys_from_the_context_count_from_zero():
    """Whatever the positions of the queries; segments are compared number by number."""
    seen = table(valid("lengths"), 4, 4, lengths=3, positions=np.array([5, 6, 7, 8]))
    np.testing.assert_array_equal(seen, np.tile(np.arange(4) < 3, (4, 1)))
    query, key = np.array([1, 1, 2, 0]), np.array([1, 2, 2, 0, 3])
    seen = table(same("ours", "theirs"), 4, 5, ours=query, theirs=key)
    np.testing.assert_array_equal(seen, query[:, None] == key)


@pytest.mark.parametrize("term", [rotary(), sinusoidal()], ids=repr)
@pytest.mark.parametrize("mapped", [False, True])
def test_vectors_stand_where_positions_say(term, mapped):
    """Rows of a longer sequence, taken out with their positions, are what they were in it."""
    x, at = given(9, 9)[0], np.array([7, 2, 2, 0])
    whole = np.asarray(fast(term)({}, x))
    if mapped:  # every sequence of a batch at positions of its own
        batch, places = np.stack([x[at], x[at[::-1]]]), np.stack([at, at[::-1]])
        rows = fast(each(term))({}, batch, positions=places)
        close(rows, np.stack([whole[at], whole[at[::-1]]]))
    else:
        close(fast(term)({}, x[at], positions=at), whole[at])
        close(fast(term)({}, x[3:6], positions=Range(3, 3)), whole[3:6])


PAST = {8: "past", -1: "before the start of"}


def test_a_position_past_a_table_is_an_error():
    """Where the number is known; where it is traced it gives NaN, and never another row."""
    term, x, at = position_embed(8), np.zeros((4, 2), np.float32), np.array([7, 0, 3, 3])
    params = jax.tree.map(np.asarray, term.init(jax.random.key(0), x))
    close(term(params, x, positions=at), params["table"][at])
    said = {w: f"position {w} is {p} a table of 8" for w, p in PAST.items()}
    for wrong in PAST:
        with pytest.raises(CompositionError, match=said[wrong]):
            term(params, x, positions=np.array([0, wrong, 2, 3]))
    for wrong, positions in ((8, Range(5, 4)), (-1, Range(-1, 4))):
        with pytest.raises(CompositionError, match=said[wrong]):
            term(params, x, positions=positions)
    with pytest.raises(CompositionError, match="position 8 is past a table of 8"):
        term.init(jax.random.key(0), np.zeros((9, 2), np.float32))
    y = fast(term)(params, x, positions=np.array([0, 7, 8, -1]))
    close(y[:2], params["table"][[0, 7]])
    assert np.isnan(y[2:]).all()


def test_a_token_past_a_table_is_an_error():
    term = embed(8, 2)
    params = term.init(jax.random.key(0), np.array([0]))
    for token, where in PAST.items():
        with pytest.raises(CompositionError, match=f"token {token} is {where} a table of 8"):
            term(params, np.array([0, token]))
        y = fast(term)(params, np.array([0, token]))
        assert np.isnan(y).tolist() == [[False, False], [True, True]]


# Any lengths and widths

NARROW = [(0, 0), (0, 2), (1, 0), (1, 1), (7, 1), (2, 7), (33, 8), (129, 137), (1000, 65)]
WIDE = [(2, 0), (1, 7), (7, 2), (8, 31), (65, 127), (7, 1025)]


@pytest.mark.parametrize("T, S, width", [(*n, 1) for n in NARROW] + [(*n, 5) for n in WIDE])
def test_any_lengths_and_widths_are_exact(T, S, width):
    """Output and gradients of causal attention over a window, from 0 rows up."""
    q, k, v = given(T, S, d=width, e=width)
    g = np.random.default_rng(1).standard_normal((T, width)).astype(np.float32)
    seen = (np.arange(S) <= np.arange(T)[:, None]) & (np.arange(S) > np.arange(T)[:, None] - 50)
    y, gradients = answering(ask(mask(causal & window(50))))(g, q, k, v)
    # float32 sums of up to 50 terms of size 1
    close(y, numpy64.attend(q, k, v, seen), atol=5e-6)
    for ours, theirs in zip(gradients, numpy64.attend_slopes(g, q, k, v, seen), strict=True):
        close(ours, theirs, atol=2e-5, rtol=1e-5)
