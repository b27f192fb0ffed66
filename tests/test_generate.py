"""Generation: against the whole forward run again for every token, and choosing against NumPy."""
# ruff: noqa: F403, F405

from __future__ import annotations

import functools
from functools import partial
from itertools import islice
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import drawn
from sampling import agree
from test_stepwise_cases import BODY, POSITIONED, TOKENS, WIDTH, model

from combinax import models
from combinax.combinators import *
from combinax.models import (
    generate,
    greedy,
    keep_top_k,
    keep_top_p,
    log_probability,
    speculate,
    stream_tokens,
)  # fmt: skip

PROMPT: Any = TOKENS[:4]


@functools.cache
def compiled(term):
    return jax.jit(term)


def rerun(term, params, prompt, count, choose: Term = identity, rng=None, **context):
    """What generation means: the whole forward for every token; what comes later is hidden."""
    rng = jax.random.key(0) if rng is None else rng
    tokens = np.append(prompt, np.zeros(count, np.int32))
    for number, at in enumerate(range(len(prompt), len(tokens))):
        logits = compiled(term)(params, tokens, **context)[at - 1]
        key = jax.random.fold_in(rng, number)
        tokens[at] = jax.random.categorical(key, choose({}, logits))
    return tokens[len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["rotary", "window"])
def test_generation_is_the_whole_forward_again_and_again(name):
    term = POSITIONED[name]
    params = drawn(term, TOKENS)
    for choose, seed in ((greedy, 0), (temperature(2.0), 1), (keep_top_k(3) @ temperature(2.0), 2)):
        rng = jax.random.key(seed)
        made = generate(term, params, PROMPT, 6, choose=choose, rng=rng)
        assert made.tokens.tolist() == rerun(term, params, PROMPT, 6, choose, rng)
        assert made.length == 6 and made.kept == ()


def test_generation_in_either_form_of_layers():
    term = POSITIONED["rotary"]
    params = drawn(term, TOKENS)
    made = [generate(term, p, PROMPT, 5).tokens for p in (params, unstack(term, params))]
    chex.assert_trees_all_equal(*made)


def test_tokens_as_they_come_are_those_of_the_loop():
    term = POSITIONED["window"]
    params = drawn(term, TOKENS)
    for seed in (0, 1):
        options: dict[str, Any] = dict(choose=temperature(3.0), rng=jax.random.key(seed))
        made = generate(term, params, PROMPT, 8, **options).tokens.tolist()
        assert list(stream_tokens(term, params, PROMPT, 8, **options)) == made
        stop = (made[3],)
        cut = generate(term, params, PROMPT, 8, stop=stop, **options)
        length = made.index(stop[0]) + 1
        assert cut.length == length
        assert cut.tokens.tolist() == made[:length] + [-1] * (8 - length)
        for ends in (stop, *stop):
            tokens = stream_tokens(term, params, PROMPT, 8, stop=ends, **options)
            assert list(tokens) == made[:length]


def test_seeds():
    term = POSITIONED["rotary"]
    params = jax.tree.map(lambda leaf: leaf / 10, drawn(term, TOKENS))
    make = partial(generate, term, params, PROMPT, 12)
    one, again, other = (make(rng=jax.random.key(seed)).tokens for seed in (1, 1, 2))
    chex.assert_trees_all_equal(one, again)
    assert (one != other).any()


@pytest.mark.parametrize("name", ["alibi"])
def test_ragged_prompts_in_one_batch_are_each_alone(name):
    term = POSITIONED[name]
    params = drawn(term, TOKENS)
    lengths = np.array([1, 4, 6], np.int32)
    prompts = np.stack([TOKENS[i : i + 6] for i in range(3)])
    keys = jax.random.split(jax.random.key(3), 3)

    def one(prompt, length, rng):
        return generate(term, params, prompt, 5, choose=temperature(2.0), stop=(0,), rng=rng,
                        length=length)  # fmt: skip

    made = jax.vmap(one)(prompts, lengths, keys)
    for row, length in enumerate(lengths):
        alone = generate(term, params, prompts[row, :length], 5, choose=temperature(2.0),
                         stop=(0,), rng=keys[row])  # fmt: skip
        chex.assert_trees_all_equal(jax.tree.map(lambda leaf, row=row: leaf[row], made), alone)
    none = jax.vmap(partial(one, prompts[0], rng=keys[0]))(np.array([0, 7, -1]))
    assert (none.tokens == -1).all()


def test_log_probabilities():
    term = POSITIONED["learned"]
    params = drawn(term, TOKENS)
    made = generate(term, params, PROMPT, 6, choose=temperature(3.0), keep=log_probability)
    whole = jax.jit(term)(params, np.concatenate([PROMPT, made.tokens]))
    logs = jax.nn.log_softmax(whole[len(PROMPT) - 1 : -1])
    agree(made.kept, jnp.take_along_axis(logs, made.tokens[:, None], -1)[:, 0])


def test_a_memory_is_read():
    body = rms_norm() @ models.reading_decoder(1, WIDTH, 2, 3)
    term = tied(embed(10, WIDTH), body)
    memory = np.ones((3, WIDTH), np.float32)
    params = drawn(term, TOKENS, memory=memory)
    made = generate(term, params, PROMPT, 4, memory=memory)
    assert made.tokens.tolist() == rerun(term, params, PROMPT, 4, memory=memory)
    assert list(stream_tokens(term, params, PROMPT, 4, memory=memory)) == made.tokens.tolist()


def test_state_of_another_type():
    term = model(layers=1)
    params = drawn(term, TOKENS)
    made = generate(term, params, PROMPT, 5, dtype=jnp.bfloat16, keep=log_probability)
    assert made.length == 5 and np.isfinite(made.kept).all()
    streamed = stream_tokens(term, params, PROMPT, 5, dtype=jnp.bfloat16)
    assert list(streamed) == made.tokens.tolist()


def test_logits_that_are_no_numbers_draw_no_token():
    def unsound(tokens):
        return jnp.where(tokens[:, None] == 3, jnp.nan, jax.nn.one_hot((tokens + 1) % 5, 5))

    term = pointwise(unsound)
    made = generate(term, {}, np.array([1]), 5, choose=greedy)
    assert made.tokens.tolist() == [2, 3, -1, -1, -1] and made.length == 3
    assert list(stream_tokens(term, {}, np.array([1]), 5, choose=greedy)) == [2, 3, -1]


# Choosing

LOGITS = np.random.default_rng(0).standard_normal((6, 7)).astype(np.float32)


def kept(choose):
    """Which logits are left, after checking that those are as they were."""
    y = np.asarray(choose({}, LOGITS))
    left = np.isfinite(y)
    np.testing.assert_array_equal(y[left], LOGITS[left])
    return left


def test_greedy_keeps_the_largest():
    np.testing.assert_array_equal(kept(greedy), LOGITS.max(-1, keepdims=True) == LOGITS)
    assert np.isfinite(greedy({}, jnp.zeros(3))).tolist() == [True, False, False]


@pytest.mark.parametrize("count", [1, 3, 7, 9])
def test_top_k(count):
    rank = np.argsort(np.argsort(-LOGITS, -1), -1)
    np.testing.assert_array_equal(kept(keep_top_k(count)), rank < count)
    assert np.isfinite(keep_top_k(2)({}, jnp.zeros(3))).tolist() == [True, True, False]


@pytest.mark.parametrize("share", [1e-6, 0.3, 0.9, 1.0])
def test_top_p(share):
    likely = np.exp(LOGITS.astype(float))
    likely /= likely.sum(-1, keepdims=True)
    expected = np.zeros(LOGITS.shape, bool)
    for row, one in enumerate(likely):
        total = 0.0
        for token in np.argsort(-one):
            if total >= share:
                break
            expected[row, token], total = True, total + one[token]
    np.testing.assert_array_equal(kept(keep_top_p(share)), expected)


def test_shares_add_up_in_any_type():
    """50,000 probabilities summed in bfloat16 end far from 1."""
    logits = jnp.asarray(np.random.default_rng(0).standard_normal(50_000) * 2, jnp.bfloat16)
    for share in (0.99, 1.0):
        ours, exact = (keep_top_p(share)({}, x) for x in (logits, logits.astype(jnp.float32)))
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(exact))


def test_choices_compose():
    logits = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
    # Squared and normalised: .685, .246, .062, .007; the first two reach .9.
    choose: Any = keep_top_p(0.9) @ temperature(0.5)
    agree(softmax({}, choose({}, logits)), jnp.array([0.25, 0.09, 0, 0]) / 0.34)
    assert repr(keep_top_p(0.9) @ keep_top_k(4)) == "compose(keep_top_p(0.9), keep_top_k(4))"
    assert np.isfinite((keep_top_k(1) @ keep_top_p(0.9))({}, logits)).sum() == 1


def test_tokens_are_drawn_in_proportion():
    def fixed(tokens):
        return jnp.broadcast_to(jnp.log(jnp.array([0.2, 0.5, 0.3])), (len(tokens), 3))

    tokens = generate(pointwise(fixed), {}, np.zeros(1, int), 3000, choose=keep_top_k(2)).tokens
    # 3,000 draws: a standard deviation of 0.009.
    np.testing.assert_allclose(np.bincount(tokens) / 3000, [0, 0.625, 0.375], atol=0.03)


def test_half_the_tokens_lie_in_each_half_of_a_large_vocabulary():
    """Noise in bfloat16 has less than 4096 values: some tokens would never be drawn."""
    flat = pointwise(lambda tokens: jnp.zeros((len(tokens), 8192), jnp.bfloat16))
    tokens = generate(flat, {}, np.zeros(1, int), 3000).tokens
    assert abs((tokens < 4096).mean() - 0.5) < 0.03
    tokens = speculate(flat, {}, flat, {}, np.zeros(1, int), 300).tokens
    assert abs((tokens < 4096).mean() - 0.5) < 0.1


def test_generation_counts_in_32_bits():
    with jax.enable_x64():
        term, params = POSITIONED["rotary"], drawn(POSITIONED["rotary"], TOKENS)
        ours = speculate(term, params, term, params, PROMPT, 4, choose=greedy)
        chex.assert_trees_all_equal(
            ours.tokens, generate(term, params, PROMPT, 4, choose=greedy).tokens
        )


def test_a_term_that_rematerializes_generates():
    blocks, norm = BODY.parts
    again = repeat(2, *blocks.parts, remat=jax.checkpoint)
    term, plain = (tied(embed(10, WIDTH), norm @ b) for b in (again, blocks))
    params = drawn(plain, TOKENS)
    ours, theirs = (generate(t, params, PROMPT, 4, choose=greedy).tokens for t in (term, plain))
    np.testing.assert_array_equal(ours, theirs)


def test_a_stream_may_be_left():
    assert list(
        islice(stream_tokens(pointwise(lambda t: jax.nn.one_hot(t, 3)), {}, np.ones(1, int), 9), 2)
    )


# Speculation


@pytest.mark.parametrize("name", ["learned", "window"])
def test_speculation_is_identical_when_greedy(name):
    term, draft = POSITIONED[name], model(seen=causal & window(2), layers=1)
    params, other = drawn(term, TOKENS), drawn(draft, TOKENS, 1)
    alone = generate(term, params, PROMPT, 6, choose=greedy).tokens
    made = speculate(term, params, draft, other, PROMPT, 6, ahead=2, choose=greedy)
    chex.assert_trees_all_equal(made.tokens, alone)
    assert made.length == 6 and 2 <= made.kept <= 6


def test_a_draft_that_is_right_saves_steps():
    term = POSITIONED["rotary"]
    params = drawn(term, TOKENS)
    made = speculate(term, params, term, params, PROMPT, 9, ahead=3, choose=greedy)
    chex.assert_trees_all_equal(
        made.tokens, generate(term, params, PROMPT, 9, choose=greedy).tokens
    )
    assert made.kept == 3  # the prompt, and twice three drafts and one more


def counting(wrong):
    """A model that counts up to 5, and knows nothing after one token."""

    def logits(tokens):
        return jnp.where(tokens[:, None] == wrong, jnp.nan, jax.nn.one_hot((tokens + 1) % 5, 5))

    return pointwise(logits)


@pytest.mark.parametrize(
    "wrong, draft, choose",
    [(0, 2, greedy), (0, 3, temperature(0.01)), (1, -1, greedy), (3, 3, greedy)],
)
def test_speculation_ends_where_generation_does(wrong, draft, choose):
    """Logits that are NaN draw no token, those of a draft change nothing."""
    alone = generate(counting(wrong), {}, np.array([1]), 7, choose=choose)
    made = speculate(
        counting(wrong), {}, counting(draft), {}, np.array([1]), 7, ahead=3, choose=choose
    )
    chex.assert_trees_all_equal(made.tokens, alone.tokens)
    assert made.length == alone.length == [5, 1, 3][[0, 1, 3].index(wrong)]


def chain(rows):
    """A model in which the next token depends on the last by a table of probabilities."""
    return pointwise(lambda tokens: jnp.log(jnp.asarray(rows))[tokens])


def test_speculation_is_exact_in_distribution():
    large = np.array([[0.1, 0.6, 0.3], [0.5, 0.5, 0.0], [0.2, 0.2, 0.6]])
    small = np.array([[0.4, 0.3, 0.3], [0.1, 0.8, 0.1], [0.9, 0.0, 0.1]])
    made = speculate(chain(large), {}, chain(small), {}, np.zeros(1, int), 6000, ahead=3)
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (made.tokens[:-1], made.tokens[1:]), 1)
    # About 1,500 draws from each row: a standard deviation of 0.013.
    np.testing.assert_allclose(pairs / pairs.sum(1, keepdims=True), large, atol=0.05)
    assert made.kept < 5000
