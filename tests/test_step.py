"""One step of training: gradients of micro-batches, types of floats, and remat."""

import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_loop import ADAM, RNG, SGD, classes, differ, noisy, noisy_params

from combinax.combinators import each, linear, precision
from combinax.train import loop
from combinax.train.loop import start, step
from combinax.train.loss import cross_entropy


def whole_numbers(params, batch, rng):
    """Ten a target of the first kind, 3.75 of the second: sums 10 over 2 and 30 over 8 …"""
    values, counts = batch
    return params * jnp.sum(values), jnp.sum(counts)


def test_accumulation_is_weighted_by_targets():
    batch = (np.array([10.0, 30.0], np.float32), np.array([2, 8]))
    halves = loop.accumulated(whole_numbers, 2)
    total, count = halves(jnp.float32(1), batch, RNG)
    assert (total, count) == (40, 10)
    state, record = step(halves, SGD, start(SGD, jnp.float32(1), RNG), batch)
    assert record.loss == 4 and record.targets == 10
    np.testing.assert_allclose(state.params, 1 - 0.1 * 4.0)  # the gradient of the mean is the mean


def test_accumulation_changes_no_gradient():
    """Against the whole batch: sums in another order, a few ulp."""
    batch = (np.ones((6, 4), np.float32) * np.arange(24).reshape(6, 4) / 24, classes(0)[1])
    batch[1][:2] = -100  # the first part of three has nothing to count
    plain = lambda p, b, rng: cross_entropy(each(linear(3))(p, b[0]), b[1])  # noqa: E731
    params = linear(3).init(RNG, jnp.ones(4))
    of = lambda loss: jax.grad(lambda p: 2 * loss(p, batch, RNG)[0])(params)  # noqa: E731
    for parts in (1, 2, 3, 6):
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
            of(loop.accumulated(plain, parts)), of(plain),
        )  # fmt: skip


def test_every_part_has_randomness_of_its_own():
    drawn = lambda p, b, rng: (jax.random.uniform(rng) * jnp.sum(b), 1)  # noqa: E731
    for i in range(2):
        batch = np.arange(2) == i
        total, _ = loop.accumulated(drawn, 2)(0.0, batch, RNG)
        assert total == jax.random.uniform(jax.random.fold_in(RNG, i))


@pytest.mark.parametrize(
    "parts, batch, text",
    [
        (0, np.ones(4), "taken in 1 part or more; got 0"),
        (True, np.ones(4), "got True"),
        (3, np.ones(4), "a number of rows that 3 divides, and it holds float32[4]"),
        (2, (np.ones(4), np.ones(())), "and it holds float32[]"),
    ],
)
def test_batches_that_do_not_divide(parts, batch, text):
    loss = lambda p, b, rng: (jnp.sum(jnp.asarray(b[0])), 1)  # noqa: E731
    with pytest.raises(ValueError, match=re.escape(text)):
        loop.accumulated(loss, parts)(0.0, batch, RNG)


def test_bfloat16_computes_and_float32_remembers():
    """Products see bfloat16; parameters, gradients, sums and moments stay float32."""
    exact = each(linear(3))
    narrow = precision(exact, compute=jnp.bfloat16)
    seen = []

    def loss(params, batch, rng):
        logits = narrow(params, batch[0])
        seen.append(logits.dtype)
        return cross_entropy(logits, batch[1])

    params = linear(3).init(RNG, jnp.ones(4))
    state, record = step(loss, ADAM, start(ADAM, params, RNG), classes(0))
    assert seen == [jnp.bfloat16]
    floats = {leaf.dtype for leaf in jax.tree.leaves((state.params, state.optimizer))}
    assert floats == {jnp.dtype("float32"), jnp.dtype("int32")} and record.loss.dtype == jnp.float32
    small = jax.tree.map(lambda leaf: leaf + 1e-3, params)  # below what bfloat16 can tell from 1
    assert differ(step(loss, SGD, start(SGD, small, RNG), classes(0))[0].params, small)
    wide = lambda p, b, rng: cross_entropy(exact(p, b[0]), b[1])  # noqa: E731
    _, told = step(wide, ADAM, start(ADAM, params, RNG), classes(0))
    np.testing.assert_allclose(record.loss, told.loss, rtol=2**-6)  # 8 bits, and few terms
    assert record.loss != told.loss


def test_remat_is_a_transformation_of_the_loss():
    state = start(ADAM, noisy_params(), RNG)
    plain = partial(step, noisy, ADAM)
    again = partial(step, jax.checkpoint(noisy), ADAM)
    chex.assert_trees_all_equal(
        again(state, classes(0))[0].params, plain(state, classes(0))[0].params
    )
    assert "remat" in str(jax.make_jaxpr(again)(state, classes(0)))
