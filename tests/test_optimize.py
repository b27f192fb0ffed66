"""Schedules at their corners, and which parameters an optimizer treats as matrices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from combinax.combinators import heads, layer_norm, linear, position_embed, repeat
from combinax.models import decoder, dictionary, gpt
from combinax.train.loop import fit
from combinax.train.optimize import adamw, by_axes, hold, line, matrix, muon, warmup

GPT = gpt(11, 8, 6, decoder(2, 8, 2, 12))
TOKENS = jax.ShapeDtypeStruct((6,), jnp.int32)

MIXED = linear(2) @ dictionary(4) @ layer_norm() @ position_embed(3)
ROWS = jnp.ones((3, 5))
RATE = optax.constant_schedule(0.1)


def first_update(optimizer: optax.GradientTransformation, params: Any, gradient: Any) -> Any:
    return jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p)[0])(gradient, params)


# the schedule


@pytest.mark.parametrize(
    "peak, rising, steps, end, first, last",
    [
        (0.5, 10, 100, 0.05, 0.05, 0.05),
        (0.5, 1, 100, 0.0, 0.5, 0.0),
        (0.5, 0, 100, 0.0, 0.5, 0.0),
        (0.5, 100, 100, 0.05, 0.005, 0.5),
        (0.5, 1, 1, 0.05, 0.5, 0.5),
        (0.5, 99, 100, 0.05, 0.5 / 99, 0.05),
    ],
)
def test_schedule_at_its_corners(peak, rising, steps, end, first, last):
    rate = warmup(peak, rising, steps, end)
    for s, wanted in [(0, first), (max(rising, 1) - 1, peak), (steps - 1, last)]:
        np.testing.assert_allclose(rate(s), wanted, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(rate(steps + 50), end, rtol=1e-6, atol=1e-9)


def test_schedule_falls_as_the_cosine_of_optax():
    rate = warmup(0.5, 10, 101, 0.05)
    wanted = optax.cosine_decay_schedule(0.5, 91, alpha=0.1)
    for s in range(9, 101):
        np.testing.assert_allclose(rate(s), wanted(s - 9), rtol=1e-5)  # float32 cosines


@pytest.mark.parametrize(
    "fall, values",
    [
        (line, [0.25, 0.5, 0.75, 1.0, 0.9, 0.1, 0.0]),
        (hold, [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.0]),
        (lambda t: (1 - t) ** 2, [0.25, 0.5, 0.75, 1.0, 0.81, 0.01, 0.0]),
    ],
)
def test_schedules_fall_as_they_are_told(fall, values):
    """By hand: four steps up, ten down."""
    rate = warmup(1.0, 4, 14, fall=fall)
    for s, wanted in zip((0, 1, 2, 3, 4, 12, 13), values, strict=True):
        np.testing.assert_allclose(rate(s), wanted, atol=1e-6)
    assert rate(14) == 0


@pytest.mark.parametrize("rising, steps", [(11, 10), (-1, 10), (0, 0)])
def test_schedule_errors(rising, steps):
    with pytest.raises(ValueError, match=f"got {rising} of {steps} steps"):
        warmup(1.0, rising, steps)


def test_schedule_drives_the_optimizer():
    slope = lambda params, batch, rng: (params, 1)  # noqa: E731
    optimizer = optax.sgd(warmup(0.1, 4, 4))
    params, _ = fit(slope, optimizer, jnp.zeros(()), lambda s: (), 4, rng=jax.random.key(0))
    np.testing.assert_allclose(params, -(0.025 + 0.05 + 0.075 + 0.1), rtol=1e-6)


# matrices


def test_what_is_a_matrix():
    sums_and_yields = by_axes(matrix, GPT, TOKENS)
    blocks = sums_and_yields["blocks"]
    project = blocks["attention"]["heads"]["project"]
    assert all(tuple(project[slot]["kernel"]) == (1, 3) for slot in ("query", "key", "value"))
    assert tuple(blocks["attention"]["output"]["kernel"]) == (1, 2)
    assert tuple(blocks["dictionary"]["slots"]["key"]) == (2, 1)
    assert tuple(blocks["dictionary"]["slots"]["value"]) == (1, 2)
    tables = ("embed", "position_embed", "rms_norm")
    assert [jax.tree.leaves(sums_and_yields[name]) for name in tables] == [[], [], []]


def test_adamw_decays_matrices_alone():
    params = MIXED.init(jax.random.key(0), ROWS)
    still = jax.tree.map(jnp.zeros_like, params)
    updates = first_update(adamw(MIXED, ROWS, RATE, decay=0.5), params, still)
    shrunk = dict(linear=-0.05, slots=-0.05, layer_norm=0.0, position_embed=0.0)
    assert set(params) == set(shrunk)
    for name, factor in shrunk.items():
        for leaf, update in zip(*map(jax.tree.leaves, (params[name], updates[name])), strict=True):
            np.testing.assert_allclose(update, factor * leaf, rtol=1e-6)


def test_decay_goes_by_path_and_axes():
    params = MIXED.init(jax.random.key(0), ROWS)
    still = jax.tree.map(jnp.zeros_like, params)
    by_path = lambda path, names: path == ("slots", "key") or "vocabulary" in names  # noqa: E731
    updates = first_update(adamw(MIXED, ROWS, RATE, 0.5, by_path), params, still)
    np.testing.assert_allclose(updates["slots"]["key"], -0.05 * params["slots"]["key"], rtol=1e-6)
    del updates["slots"]["key"]
    assert all(not leaf.any() for leaf in jax.tree.leaves(updates))


def test_gradients_are_clipped_to_a_norm():
    """A clipped gradient and the same one scaled by hand: one update."""
    params = MIXED.init(jax.random.key(0), ROWS)
    gradient = jax.tree.map(lambda leaf: 100 * jnp.ones_like(leaf), params)
    norm = 100 * np.sqrt(sum(leaf.size for leaf in jax.tree.leaves(params)))
    scaled = jax.tree.map(lambda leaf: leaf * 0.01 / norm, gradient)
    sgd = optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(1.0))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(-a, b, rtol=1e-5),
        first_update(sgd, params, gradient), scaled,
    )  # fmt: skip
    clipped, free = (
        first_update(adamw(MIXED, ROWS, RATE, 0.0, clip=clip), params, gradient)["linear"]["kernel"]
        for clip in (1e-9, 1e9)
    )
    # Below Adam's epsilon of 1e-8 its step shrinks with the gradient; above it has full size.
    assert np.abs(clipped).max() < 0.01 < 0.09 < np.abs(free).min()


def test_muon_turns_each_head_and_layer_by_itself():
    term = repeat(2, heads(2, linear(4)))
    x = jnp.ones((3, 8))
    params = term.init(jax.random.key(0), x)
    gradient = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape), params)
    updates = first_update(muon(term, x, RATE, decay=0.0), params, gradient)
    step = np.asarray(updates["heads"]["linear"]["kernel"], np.float64)
    assert step.shape == (2, 8, 2, 4)
    given = np.asarray(gradient["heads"]["linear"]["kernel"], np.float64)
    for layer in range(2):
        for head in range(2):
            one, slope = step[layer, :, head], given[layer, :, head]
            size = np.linalg.svd(one, compute_uv=False)
            # Five rounds of Newton-Schulz bring every singular value near 1 and no nearer
            # (0.68 to 1.13, Jordan et al. 2024); the step is that times rate · 0.2 · √8.
            near_one = size / (0.1 * 0.2 * np.sqrt(8))
            assert near_one.min() > 0.6 and near_one.max() < 1.3
            u, _, v = np.linalg.svd(slope, full_matrices=False)
            cosine = -np.sum(one * (u @ v)) / np.linalg.norm(one) / np.linalg.norm(u @ v)
            assert cosine > 0.97


def test_muon_leaves_scales_and_tables_to_adam():
    params = MIXED.init(jax.random.key(0), ROWS)
    gradient = jax.tree.map(lambda leaf: leaf + 0.01, params)
    assert optax.tree.norm(gradient) > 1  # so that it is clipped
    updates = first_update(muon(MIXED, ROWS, RATE, decay=0.5), params, gradient)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.nadam(RATE, b2=0.95))
    wanted = first_update(clipped, params, gradient)
    for name in ("layer_norm", "position_embed"):
        for a, b in zip(*map(jax.tree.leaves, (updates[name], wanted[name])), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
