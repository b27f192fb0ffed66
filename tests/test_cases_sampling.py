"""Sampling: which tokens may be drawn and how likely, against NumPy in float64, at every end."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from combinax.combinators import compose, identity, pointwise, read, temperature
from combinax.models import generate, greedy, keep_top_k, keep_top_p, speculate, stream_tokens
from combinax.models.generate import chosen, looped

LOGITS = np.random.default_rng(0).standard_normal(12) * 3
LOGITS[[4, 9]] = LOGITS.max() + 0.5  # two are the largest
COMPILED: Any = looped
DTYPES = (jnp.float16, jnp.bfloat16, jnp.float32)
READ: Any = compose(
    keep_top_p(read("top_p")), keep_top_k(read("top_k")), temperature(read("temperature"))
)
TEMPERATURES = (1e-12, 1e-6, 0.7, 1.0, 1e6, 1e12)
SHARES = (1e-12, 0.1, 0.5, 0.9, 0.999, 1.0)


def distribution(
    logits: Any, top_p: float, top_k: int, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens stay, and how likely each is: divide, keep the k largest, those that reach p."""
    x = np.asarray(logits, np.float64) / temperature
    order = np.argsort(-x, kind="stable")[:top_k]
    weight = np.exp(x[order] - x[order[0]])
    likely = weight / weight.sum()
    before = np.concatenate([[0.0], np.cumsum(likely)[:-1]])
    kept = order if top_p == 1 else order[before < top_p]
    y = np.zeros(len(x))
    y[kept] = likely[: len(kept)]
    return np.isin(np.arange(len(x)), kept), y / y.sum()


@cache
def program() -> Any:
    """The logits that are kept and what is drawn from, for any numbers, compiled once a type."""
    return jax.jit(lambda logits, **n: (READ({}, logits, **n), chosen(READ, logits, n)))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_what_may_be_drawn_and_how_likely(dtype):
    """Compiled, with numbers that are read; an error of 1 in the last place of a float32 score."""
    logits = jnp.asarray(LOGITS, dtype)
    for t in TEMPERATURES:
        for p in SHARES:
            for k in (1, 5, 12):
                stay, wanted = distribution(logits, p, k, t)
                numbers = dict(top_p=p, top_k=k, temperature=t)
                kept, relative = (np.asarray(y, float) for y in program()(logits, **numbers))
                if (
                    dtype is not jnp.float16 or 0.5 < t < 2
                ):  # 1e-6 and 1e6 are 0 in float16, or infinite
                    np.testing.assert_array_equal(kept > -np.inf, stay, str(numbers))
                assert relative.max() == 0
                likely = np.exp(relative) / np.exp(relative).sum()
                np.testing.assert_allclose(likely, wanted, atol=1e-5, err_msg=str(numbers))


@pytest.mark.parametrize("top_p, t", [(0.9, 1e-12), (0.9, 1.0), (1.0, 1e12), (1e-12, 1.0)])
def test_written_numbers_are_numbers_that_are_read(top_p, t):
    logits = jnp.asarray(LOGITS, jnp.float32)
    choose: Any = compose(keep_top_p(top_p), keep_top_k(5), temperature(t))
    eager, compiled = choose({}, logits), jax.jit(choose)({}, logits)
    stay, _ = distribution(logits, top_p, 5, t)
    for made in (eager, compiled, READ({}, logits, top_p=top_p, top_k=5, temperature=t)):
        np.testing.assert_array_equal(np.isfinite(made), stay)


def test_a_temperature_of_nothing_keeps_one_token_compiled_too():
    choose: Any = keep_top_p(0.9) @ temperature(1e-12)
    logits = jnp.asarray(np.random.default_rng(1).standard_normal(7), jnp.float32)
    for run in (choose, jax.jit(choose), jax.jit(greedy @ temperature(1e-12))):
        assert np.flatnonzero(np.isfinite(run({}, logits))).tolist() == [int(logits.argmax())]
    flat = pointwise(lambda tokens: jnp.broadcast_to(logits, (len(tokens), 7)))
    for one in (choose, temperature(1e-12)):
        made = generate(flat, {}, np.zeros(1, int), 3, choose=one)
        assert made.tokens.tolist() == 3 * [int(logits.argmax())]


def test_all_is_kept_where_all_is_asked_for():
    """However unlikely, and however many: sums of floats end beside 1."""
    far = jnp.array([0.0, -200.0, -1e30])
    many = jnp.asarray(np.random.default_rng(0).standard_normal(50_000), jnp.float32)
    for logits in (far, many, many.astype(jnp.bfloat16)):
        assert np.isfinite(keep_top_p(1.0)({}, logits)).all()
        assert np.isfinite(keep_top_p(read("p"))({}, logits, p=1.0)).all()
    assert np.isfinite(keep_top_p(1 - 1e-9)({}, jnp.array([0.0, -10.0, -30.0]))).tolist() == [
        True, True, False,
    ]  # fmt: skip


def test_float64():
    with jax.enable_x64():
        logits = jnp.asarray(LOGITS)
        for t in (1e-12, 0.7):
            relative = chosen(READ, logits, dict(top_p=0.9, top_k=5, temperature=t))
            likely = np.exp(relative) / np.exp(relative).sum()
            np.testing.assert_allclose(likely, distribution(LOGITS, 0.9, 5, t)[1], rtol=1e-13)


def test_rows_are_chosen_from_one_by_one():
    rows = jnp.asarray(np.random.default_rng(2).standard_normal((3, 2, 5)), jnp.float32)
    for choose in (greedy, keep_top_k(2), keep_top_k(read("n")), keep_top_p(0.7)):
        context = dict(n=2) if choose.reads else {}
        whole = choose({}, rows, **context)
        for i, j in np.ndindex(3, 2):
            np.testing.assert_array_equal(whole[i, j], choose({}, rows[i, j], **context))


# Drawing


def fixed(row: Any) -> Any:
    return pointwise(
        lambda tokens: jnp.broadcast_to(jnp.asarray(row, jnp.float32), (len(tokens), len(row)))
    )


START = np.zeros(1, int)


def test_another_request_compiles_nothing_anew():
    model: Any = fixed(LOGITS)
    run = lambda **numbers: generate(model, {}, START, 200, choose=READ, **numbers)  # noqa: E731
    first = run(top_p=0.9, top_k=12, temperature=1.0).tokens
    before = COMPILED._cache_size()
    for p, k, t in ((0.5, 12, 1.0), (1.0, 2, 1.0), (1.0, 12, 1e-12), (1.0, 12, 1e12)):
        tokens = run(top_p=p, top_k=k, temperature=t).tokens
        assert set(tokens.tolist()) <= set(np.flatnonzero(distribution(LOGITS, p, k, t)[0]))
        assert (tokens != first).any()
    assert COMPILED._cache_size() == before
    numbers: dict[str, Any] = dict(top_p=0.9, top_k=12, temperature=1.0)
    assert list(stream_tokens(model, {}, START, 20, choose=READ, **numbers)) == first[:20].tolist()


def test_a_batch_has_numbers_of_its_own():
    one = lambda t: generate(fixed(LOGITS), {}, START, 40, choose=temperature(read("t")), t=t)  # noqa: E731
    cold, hot = jax.vmap(one)(jnp.array([1e-12, 1e12])).tokens
    assert set(cold.tolist()) <= {4, 9} and len(set(hot.tolist())) > 6


def test_large_logits_are_drawn_in_proportion():
    """At 2²⁰ float32 knows sixteenths: noise added to such a logit would be rounded to them."""
    row = np.array([0.0, 1.0, 2.0]) + 2.0**20
    tokens = generate(fixed(row), {}, START, 4000).tokens
    likely = np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    # 4,000 draws: a standard deviation of 0.008.
    np.testing.assert_allclose(np.bincount(tokens, minlength=3) / 4000, likely, atol=0.03)


@pytest.mark.parametrize(
    "row, choose",
    [
        ([1.0, 2.0], pointwise(lambda x: x - jnp.inf)),
        ([1.0, 2.0], pointwise(lambda x: x * jnp.nan)),
        ([-np.inf, -np.inf], identity),
        ([np.nan, 2.0], keep_top_p(0.5)),
        ([np.nan, 2.0], keep_top_k(1)),
        ([np.nan, 2.0], greedy),
    ],
)
def test_where_nothing_can_be_drawn_nothing_is(row, choose):
    made = generate(fixed(row), {}, START, 3, choose=choose)
    assert made.tokens.tolist() == [-1, -1, -1] and made.length == 1
    made = speculate(fixed(row), {}, fixed([1.0, 2.0]), {}, START, 3, choose=choose)
    assert made.tokens.tolist() == [-1, -1, -1]


def test_a_logit_of_infinity_is_drawn():
    row = [1.0, np.inf, 2.0]
    assert generate(fixed(row), {}, START, 3).tokens.tolist() == [1, 1, 1]
    assert speculate(fixed(row), {}, fixed(row), {}, START, 3).tokens.tolist() == [1, 1, 1]


# Speculation


@pytest.mark.parametrize("t", [1e-12, 1e-3])
def test_speculation_at_tiny_temperatures(t):
    model, draft = fixed(LOGITS[:4] + np.arange(4)), fixed(LOGITS[3::-1])
    best = int((LOGITS[:4] + np.arange(4)).argmax())
    for choose in (temperature(t), keep_top_p(0.9) @ temperature(t)):
        made = speculate(model, {}, draft, {}, START, 7, ahead=3, choose=choose)
        assert made.tokens.tolist() == 7 * [best] and made.length == 7


def test_speculation_reads_the_numbers_of_a_request():
    model, draft = fixed(LOGITS), fixed(np.zeros(12))
    numbers: dict[str, Any] = dict(top_p=0.9, top_k=5, temperature=2.0)
    made = speculate(model, {}, draft, {}, START, 4000, choose=READ, **numbers)
    _, likely = distribution(LOGITS, 0.9, 5, 2.0)
    np.testing.assert_allclose(np.bincount(made.tokens, minlength=12) / 4000, likely, atol=0.03)


def test_a_draft_that_is_the_term_is_always_right():
    """What rounding alone tells apart is not drawn from."""
    model = fixed(LOGITS)
    made = speculate(model, {}, model, {}, START, 400, ahead=4, choose=temperature(0.7))
    assert made.tokens.min() >= 0 and made.kept == 1 + np.ceil(399 / 5)
