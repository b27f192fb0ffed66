"""The loop: a step against gradient descent by hand, what it skips, and what decides a run."""

import io
import math
import signal
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

from combinax.combinators import dropout, each, linear
from combinax.train import loop
from combinax.train.loop import Record, fit, start, step
from combinax.train.loss import cross_entropy
from combinax.train.progress import bar

RNG = jax.random.key(0)
TERM = linear(3) @ dropout(0.5)

ADAM = optax.adam(0.1)
SGD = optax.sgd(0.1)
ADAMW = optax.adamw(0.05)


def squares(params, batch, rng):
    """(w · x − y)², summed over the rows of a batch; the randomness is not used."""
    x, y = batch
    return jnp.sum((x @ params - y) ** 2), len(y)


def rows(s):
    rng = np.random.default_rng((7, s))
    x = rng.normal(size=(4, 2)).astype(np.float32)
    return x, (x @ np.array([1.0, -2.0], np.float32))


def noisy(params, batch, rng):
    """A loss with dropout, of a term."""
    x, y = batch
    return cross_entropy(each(TERM)(params, x, rng=rng), y)


def classes(s):
    rng = np.random.default_rng((8, s))
    return rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, 3, 6).astype(np.int32)


def noisy_params(seed=1):
    return TERM.init(jax.random.key(seed), jax.ShapeDtypeStruct((4,), jnp.float32))


def differ(a, b):
    return any(not np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


# one step


def test_a_step_is_gradient_descent():
    x, y = rows(0)
    params = np.array([0.5, 0.25])
    residual = x.astype(np.float64) @ params - y
    state = start(SGD, jnp.asarray(params, jnp.float32), RNG)
    state, record = step(squares, SGD, state, (x, y))
    # Sums of four float32 products: a few ulp.
    np.testing.assert_allclose(record.loss, np.mean(residual**2), rtol=1e-5)
    np.testing.assert_allclose(
        state.params, params - 0.1 * 2 * x.T @ residual / 4, rtol=1e-5, atol=1e-6
    )
    assert int(state.step) == 1 and not record.skipped


def test_a_fit_is_its_steps():
    optimizer: Any = ADAM
    params: Any = jnp.zeros(2)
    fitted, history = fit(squares, optimizer, params, rows, 5, rng=RNG)
    by_hand = jax.value_and_grad(lambda p, x, y: jnp.mean((x @ p - y) ** 2))
    moments = optimizer.init(params)
    losses = []
    for s in range(5):
        value, gradient = by_hand(params, *rows(s))
        updates, moments = optimizer.update(gradient, moments, params)
        params = optax.apply_updates(params, updates)
        losses.append(value)
    # The same sums in another order: a few ulp a step, and adam divides by their size.
    np.testing.assert_allclose(fitted, params, rtol=1e-4)
    np.testing.assert_allclose(history.loss, losses, rtol=1e-4)
    assert history.skipped == () and not history.stopped


def test_the_loss_falls():
    _, history = fit(squares, ADAM, jnp.zeros(2), rows, 60, rng=RNG)
    assert history.loss.shape == (60,)
    assert history.loss[-10:].mean() < 0.1 * history.loss[:10].mean()


# what decides a run


def noisy_run(seed=0, steps_per_dispatch=1):
    return fit(
        noisy, ADAMW, noisy_params(), classes, 7, rng=jax.random.key(seed),
        steps_per_dispatch=steps_per_dispatch,
    )  # fmt: skip


@pytest.mark.parametrize("steps_per_dispatch", [2, 7, 100])
def test_steps_per_dispatch_change_no_bit(steps_per_dispatch):
    chex.assert_trees_all_equal(noisy_run(0, steps_per_dispatch), noisy_run(0, 1))


def test_a_seed_decides_the_run():
    chex.assert_trees_all_equal(noisy_run(0), noisy_run(0))
    assert differ(noisy_run(0)[0], noisy_run(1)[0])


def test_every_step_has_randomness_of_its_own():
    def drawn(params, batch, rng):
        return jax.random.uniform(rng) + 0 * params, 1

    _, history = fit(drawn, SGD, jnp.zeros(()), lambda s: (), 6, rng=RNG)
    assert len(set(history.loss.tolist())) == 6


def test_no_steps_change_nothing():
    params, history = fit(squares, SGD, jnp.ones(2), rows, 0, rng=RNG)
    chex.assert_trees_all_equal(params, jnp.ones(2))
    assert history.loss.shape == (0,) and history.skipped == ()


@pytest.mark.parametrize("steps, each_time", [(-1, 1), (1, 0)])
def test_fit_errors(steps, each_time):
    message = f"got {steps} steps, {each_time} to a dispatch"
    with pytest.raises(ValueError, match=message):
        fit(squares, SGD, jnp.ones(2), rows, steps, rng=RNG, steps_per_dispatch=each_time)


# what is skipped


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_planted_batch_is_skipped_and_reported(poison):
    def planted(s):
        x, y = rows(s)
        return (x, y) if s != 3 else (x, np.full_like(y, poison))

    without = lambda s: rows(s if s < 3 else s + 1)  # noqa: E731
    told = []
    got, history = fit(
        squares,
        ADAM,
        jnp.zeros(2),
        planted,
        8,
        rng=RNG,
        steps_per_dispatch=3,
        report=lambda first, record: told.append((first, record.skipped.tolist())),
    )
    wanted, clean = fit(squares, ADAM, jnp.zeros(2), without, 7, rng=RNG)
    chex.assert_trees_all_equal(got, wanted)
    assert history.skipped == (3,) and not np.isfinite(history.loss[3])
    chex.assert_trees_all_equal(np.delete(history.loss, 3), clean.loss)
    assert told == [(0, [False] * 3), (3, [True, False, False]), (6, [False] * 2)]


def test_a_finite_loss_with_a_gradient_that_is_not():
    def root(params, batch, rng):
        return jnp.sqrt(jnp.abs(params * batch)), 1

    params, history = fit(root, ADAM, jnp.ones(()), lambda s: np.float32(s != 1), 3, rng=RNG)
    assert history.skipped == (1,) and history.loss[1] == 0
    assert jnp.isfinite(params)


def test_a_finite_gradient_that_overflows_the_moments():
    def steep(params, batch, rng):
        return params * batch, 1

    sizes = np.array([1.0, 1e30, 1.0, 1.0], np.float32)
    params, history = fit(steep, ADAM, jnp.ones(()), lambda s: sizes[s], 4, rng=RNG)
    assert history.skipped == (1,)
    # Adam's first steps against a constant gradient are steps of the learning rate.
    np.testing.assert_allclose(params, 1 - 3 * 0.1, rtol=1e-5)


def test_typed_keys_and_integers_in_the_optimizer_survive():
    noise = optax.add_noise(0.1, 0.5, key=jax.random.key(3))
    optimizer = optax.chain(noise, SGD)
    _, history = fit(squares, optimizer, jnp.zeros(2), rows, 3, rng=RNG)
    assert np.isfinite(history.loss).all()


def test_so_many_skipped_steps_in_a_row_end_the_run():
    """However many steps stand in a dispatch; a sound step in between counts from 0 again."""

    def planted(s):
        x, y = rows(s)
        return (x, y) if s not in (2, 4, 5, 6, 7) else (x, np.full_like(y, s * np.nan))

    run = partial(fit, squares, ADAM, jnp.zeros(2), planted, 20, rng=RNG, skips=3)
    for size in (1, 2, 5, 20):
        params, history = run(steps_per_dispatch=size)
        chex.assert_trees_all_equal(
            params, fit(squares, ADAM, jnp.zeros(2), planted, 7, rng=RNG)[0]
        )
        assert history.reason == "since 3 steps in a row were skipped, the last of them step 6"
        assert history.skipped == (2, 4, 5, 6) and history.loss.shape == (7,)
        chex.assert_trees_all_equal(history.offending, planted(6))


# held-out data


def test_evaluations_and_early_stop():
    """At exact steps, whatever a dispatch holds: Σ w falls past −0.8, which is the best score."""
    seen = []

    def evaluate(params):
        seen.append(params.shape)
        return jnp.abs(jnp.sum(params) + 0.8)

    runs = [
        fit(
            squares, SGD, jnp.zeros(2), rows, 50, rng=RNG, steps_per_dispatch=size,
            evaluate=evaluate, every=3, stop=loop.patience(2),
        )
        for size in (1, 2, 20)
    ]  # fmt: skip
    chex.assert_trees_all_equal(runs[0][0], runs[1][0])
    assert runs[0][1].held_out == runs[1][1].held_out == runs[2][1].held_out
    steps, scores = zip(*runs[0][1].held_out, strict=True)
    assert steps == tuple(range(3, steps[-1] + 1, 3)) and steps[-1] < 50
    assert runs[0][1].reason == loop.SETTLED and len(runs[0][1].loss) == steps[-1]
    assert min(scores) == scores[-3] and len(seen) == 3 * len(steps)
    _, whole = fit(squares, SGD, jnp.zeros(2), rows, 7, rng=RNG, evaluate=evaluate, every=3)
    assert [step for step, _ in whole.held_out] == [3, 6, 7] and not whole.stopped


@pytest.mark.parametrize(
    "scores, best, ends",
    [
        ([], min, False), ([1.0], min, False), ([1.0, 1.0], min, True), ([1.0, 0.9], min, False),
        ([1.0, 0.9], max, True), ([math.nan], min, True), ([math.nan, 1.0], min, False),
        ([1.0, math.nan], min, True),
    ],
)  # fmt: skip
def test_patience(scores, best, ends):
    assert loop.patience(1, best)(scores) is ends


def test_patience_errors():
    with pytest.raises(ValueError, match="patience is 1 evaluation or more; got 0"):
        loop.patience(0)


# what is donated


def test_the_state_is_donated_and_what_was_handed_in_is_not():
    params = {"w": jnp.ones(2), "same": jnp.ones(2)}
    twice = optax.contrib.schedule_free_sgd(0.1)  # holds the parameters a second time
    loss = lambda p, b, rng: squares(p["w"] + 0 * p["same"], b, rng)  # noqa: E731
    kept = []
    state = start(twice, params, RNG)
    held = jax.tree.leaves(state.params)
    state, _ = loop.proceed(
        loss, twice, state, rows, 4, steps_per_dispatch=2, every=2,
        keep=lambda state, scores: kept.append(jax.device_get(state.params)),
    )  # fmt: skip
    assert all(leaf.is_deleted() for leaf in held)
    assert not any(leaf.is_deleted() for leaf in [*jax.tree.leaves((params, state)), RNG])
    assert differ(kept[0], kept[1]) and len(kept) == 2
    chex.assert_trees_all_equal(kept[1], state.params)


def test_an_interrupt_during_a_dispatch_loses_nothing(monkeypatch):
    """The state before is gone by then; the one after is kept."""
    real = loop.dispatch

    def pressed(*arguments):
        result = real(*arguments)
        if arguments[4].sum() == 1:  # the last group
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(loop, "dispatch", pressed)
    params, history = fit(squares, ADAM, jnp.zeros(2), rows, 5, rng=RNG, steps_per_dispatch=2)
    chex.assert_trees_all_equal(params, fit(squares, ADAM, jnp.zeros(2), rows, 5, rng=RNG)[0])
    assert len(history.loss) == 5 and not history.stopped
    monkeypatch.setattr(
        loop, "dispatch", lambda *a: (signal.raise_signal(signal.SIGINT), real(*a))[1]
    )
    params, history = fit(squares, ADAM, jnp.zeros(2), rows, 5, rng=RNG, steps_per_dispatch=2)
    assert len(history.loss) == 2 and history.reason == loop.BY_HAND
    assert np.isfinite(params).all()


# stopping by hand


def test_an_interrupt_keeps_what_was_trained():
    def interrupted(s):
        if s == 5:
            raise KeyboardInterrupt
        return rows(s)

    run = partial(fit, squares, ADAM, jnp.zeros(2), rng=RNG, steps_per_dispatch=2)
    got, history = run(interrupted, 9)
    wanted, whole = run(rows, 4)
    chex.assert_trees_all_equal(got, wanted)
    chex.assert_trees_all_equal(history.loss, whole.loss)
    assert history.stopped and not whole.stopped


def test_an_interrupt_before_the_first_dispatch():
    def never(s):
        raise KeyboardInterrupt

    params, history = fit(squares, SGD, jnp.ones(2), never, 9, rng=RNG)
    chex.assert_trees_all_equal(params, jnp.ones(2))
    assert history.stopped and history.loss.shape == (0,)


# the bar


def test_the_bar_shows_loss_speed_time_left_and_every_skipped_step():
    screen = io.StringIO()
    console = Console(file=screen, width=120, force_terminal=True)
    count = np.full(2, 8.0)
    with bar(4, console) as report:
        report(0, Record(np.array([2.0, 1.5]), count, np.array([False, False])))
        report(2, Record(np.array([np.nan, 1.25]), count, np.array([True, False])))
    shown = screen.getvalue()
    assert "step 2 skipped, its loss nan" in shown and "the parameters stay as they were" in shown
    last = shown.splitlines()[-2]
    assert "step 4 of 4" in last and "loss 1.2500" in last and "tokens/s" in last
    assert "compiling" not in last and "0:00:00" in last
