"""The loop: a step against gradient descent by hand, what it skips, and what decides a run."""

import io
import math
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
from combinax.train.loop import Record, bar, fit, start, step
from combinax.train.loss import cross_entropy

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


def test_the_bar_shows_loss_and_speed_and_every_skipped_step(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, width=100, force_terminal=True)
    progress = loop.Progress
    monkeypatch.setattr(loop, "Progress", lambda *columns: progress(*columns, console=console))
    with bar(4) as report:
        report(0, Record(np.array([2.0, 1.5]), np.array([False, False])))
        report(2, Record(np.array([np.nan, 1.25]), np.array([True, False])))
    shown = screen.getvalue()
    assert "step 2 skipped, its loss nan" in shown and "the parameters stay as they were" in shown
    assert "step 4 of 4" in shown and "loss 1.2500" in shown and "steps/s" in shown
