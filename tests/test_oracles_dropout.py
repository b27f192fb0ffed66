"""Dropout as chance would have it: rates, independence, and numbers that keep their addresses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import fast, given, weight_table, zero
from plain import close

from combinax.combinators import (
    aggregate,
    compose,
    dropout,
    each,
    heads,
    identity,
    lift,
    normalize,
    project,
    repeat,
    score,
    softmax,
)
from combinax.combinators.dropout import mixed_bits

KEY = jax.random.key(0)
SIGMAS = 5
"""Seeded, so that nothing fails by chance; a bias of one part in a hundred would show."""


def weights(rate, function=zero):
    """Which of the weights (T, S) of uniform attention are kept, times T."""
    kept = compose(dropout(rate), normalize(softmax), score(function), project(1))
    return compose(lift(weight_table), kept)


def masks_of(term, T, keys, width=1, **context):
    """What a term drops from ones, (keys, T, …), boolean: True where kept."""
    x = jnp.ones((T, width))
    params = term.init(KEY, x, **context)
    run = fast(jax.vmap(lambda key: term(params, x, rng=key, **context)))
    return np.asarray(run(keys)) != 0


def assert_fair(kept, rate):
    """As many drop as should, over all and in every row and column."""
    deviation = np.sqrt(rate * (1 - rate))
    dropped = 1 - kept.mean()
    assert abs(dropped - rate) < SIGMAS * deviation / np.sqrt(kept.size)
    for axis in (-1, -2):
        by_line = 1 - kept.mean(axis)
        assert abs(by_line - rate).max() < SIGMAS * deviation / np.sqrt(kept.shape[axis])
        # … and lines differ from each other as chance has it, neither more nor less
        spread = by_line.std() / (deviation / np.sqrt(kept.shape[axis]))
        assert abs(spread - 1) < SIGMAS / np.sqrt(2 * by_line.size)


def assert_independent(masks, rate):
    """Any two masks agree as often as two coins would."""
    flat = masks.reshape(len(masks), -1)
    agree = (flat[:, None] == flat[None]).mean(-1)[np.triu_indices(len(flat), 1)]
    expected = rate**2 + (1 - rate) ** 2
    deviation = np.sqrt(expected * (1 - expected) / flat.shape[1])
    assert abs(agree - expected).max() < SIGMAS * deviation


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rates_of_numbers_and_of_weights(rate):
    keys = jax.random.split(KEY, 2)
    for term in (dropout(rate), weights(rate)):
        kept = masks_of(term, 256, keys, width=256)
        assert kept.shape == (2, 256, 256)
        for mask in kept:
            assert_fair(mask, rate)
        assert_independent(kept, rate)
        # neighbours: each row against the next, each column against the next
        assert_independent(np.stack([kept[0, 1:], kept[0, :-1]]), rate)
        assert_independent(np.stack([kept[0, :, 1:], kept[0, :, :-1]]), rate)
        assert_independent(np.stack([kept[0], kept[0].T]), rate)


def test_what_is_kept_is_divided_by_the_rate_of_keeping():
    x = jnp.full((64, 64), 3.0)
    many = fast(jax.vmap(lambda key: dropout(0.2)({}, x, rng=key)))(jax.random.split(KEY, 16))
    close(np.unique(many), [0, 3 / 0.8])
    assert abs(many.mean() - 3) < SIGMAS * 3 * np.sqrt(
        0.25 / 64**2 / 16
    )  # variance rate / (1 - rate)


def test_heads_layers_stages_rows_and_keys_are_independent():
    """Every address that differs in one thing draws anew."""
    x, rate = jnp.ones((16, 16)), 0.5
    params = heads(4, weights(rate)).init(KEY, x)
    by_head = np.asarray(fast(heads(4, weights(rate)))(params, x, rng=KEY)).reshape(16, 4, 16)
    row = fast(each(dropout(rate)))({}, jnp.ones((4, 16, 16)), rng=KEY)
    key = fast(jax.vmap(lambda key: dropout(rate)({}, x, rng=key)))(
        jax.random.split(jax.random.key(1), 4)
    )
    # stages and layers write digits: 0 where they drop, 1 where they keep
    digit = 10.0 * identity + 0.5 * (dropout(rate) @ lift(jnp.ones_like))
    stages = np.asarray(fast(digit @ digit)({}, 0 * x, rng=KEY))
    layers = np.asarray(fast(repeat(3, digit))({}, 0 * x, rng=KEY))
    digits = [stages // 10**n % 10 for n in range(2)] + [layers // 10**n % 10 for n in range(3)]
    assert all(set(np.unique(digit)) == {0, 1} for digit in digits)
    drawn = [*by_head.transpose(1, 0, 2), *np.asarray(row), *np.asarray(key), *digits]
    assert_independent(np.stack([np.asarray(mask) != 0 for mask in drawn]), rate)


def test_a_number_keeps_its_address():
    """The same numbers drop in a shorter sequence, and wherever a row of that position stands."""
    rate = 0.25
    for term in (dropout(rate), weights(rate)):
        long, short = (masks_of(term, T, KEY[None], width=T)[0] for T in (24, 9))
        np.testing.assert_array_equal(short, long[:9, :9])
    at = jnp.array([7, 0, 23])
    whole = masks_of(dropout(rate), 24, KEY[None], width=24)[0]
    rows = masks_of(dropout(rate), 3, KEY[None], width=24, positions=at)[0]
    np.testing.assert_array_equal(rows, whole[at])


def test_attention_with_dropout_is_right_on_average():
    """Over many keys, the mean output is the output without; sums of weights vary around 1."""
    attention = compose(aggregate(), dropout(0.3), normalize(softmax), score(zero), project(3))
    x = given(8, 8)[0]
    params = attention.init(KEY, x)
    run = fast(jax.vmap(lambda key: attention(params, x, rng=key)))
    many = np.asarray(run(jax.random.split(KEY, 2000)))
    plain = np.asarray(attention(params, x))
    error = (many.mean(0) - plain) / (many.std(0) / np.sqrt(2000))
    assert abs(error).max() < SIGMAS and many.std(0).min() > 0.01


def test_the_mixer_is_the_documented_one():
    """Whole numbers modulo 2³², one address at a time."""

    def mix(x):
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    a, b = 0xDEADBEEF, 0xFFFFFFFF
    rows, columns = np.array([0, 1, 77, 2**31 - 1]), np.array([0, 1, 1000])
    expected = [
        [mix(mix((int(r) + a) % 2**32) ^ (int(c) * 0x9E3779B9 + b) % 2**32) for c in columns]
        for r in rows
    ]
    bits = mixed_bits(
        jnp.array([a, b], jnp.uint32), jnp.asarray(rows)[:, None], jnp.asarray(columns)
    )
    np.testing.assert_array_equal(bits, np.array(expected, np.uint32))


def test_what_is_dropped_gets_no_gradient():
    """And what is kept gets 1 / (1 - rate)."""
    x = jnp.ones((8, 8))
    y, back = jax.vjp(lambda x: dropout(0.2)({}, x, rng=KEY), x)
    close(back(3 * x)[0], 3 * y)
    assert set(np.unique(y)) == {0, 1.25}
