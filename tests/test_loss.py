"""Losses against NumPy in float64 and optax, and the training cases about targets."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from combinax.train.loss import IGNORE, accuracy, check_targets, cross_entropy, mean, next_token

# Without jit every operation of every shape is compiled on its own, which is what takes time here.
compiled = jax.jit(cross_entropy, static_argnames="ignore")


def reference(logits, targets, ignore=IGNORE):
    """Sum and count in float64, one target at a time."""
    logits, targets = np.float64(logits).reshape(-1, np.shape(logits)[-1]), np.ravel(targets)
    total, count = 0.0, 0
    for row, target in zip(logits, targets, strict=True):
        if target != ignore:
            top = row.max()
            total += top + np.log(np.exp(row - top).sum()) - row[target]
            count += 1
    return total, count


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    targets = rng.integers(7, size=(3, 5))
    targets[rng.random(targets.shape) < 0.3] = IGNORE
    return 4 * rng.standard_normal((3, 5, 7)).astype(np.float32), targets.astype(np.int32)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_cross_entropy_is_float64_numpy(case, run):
    total, count = run(cross_entropy)(*case)
    expected, number = reference(*case)
    np.testing.assert_allclose(total, expected, rtol=1e-6)  # a few float32 roundings
    assert count == number and 0 < number < case[1].size
    assert total.dtype == jnp.float32 and jnp.issubdtype(count.dtype, jnp.integer)


def test_cross_entropy_is_optax_where_everything_counts(case):
    logits, targets = case[0], np.where(case[1] == IGNORE, 3, case[1])
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    total, count = compiled(logits, targets)
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-6)
    assert count == 15


def test_gradient_is_softmax_minus_one_hot(case):
    logits, targets = case
    gradient = jax.grad(lambda x: compiled(x, targets)[0])(logits)
    weights = np.exp(logits - logits.max(-1, keepdims=True)).astype(np.float64)
    expected = weights / weights.sum(-1, keepdims=True) - (targets[..., None] == np.arange(7))
    expected[targets == IGNORE] = 0
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_micro_batches_are_weighted_by_tokens():
    sums, counts = np.array([10.0, 30.0]), np.array([2, 8])
    assert mean(sums.sum(), counts.sum()) == 4.0


def test_accumulated_gradient_is_the_full_gradient(case):
    logits, targets = case
    weight = jnp.eye(7) * 0.5

    def total(w, rows):
        return cross_entropy(jnp.asarray(logits)[rows] @ w, jnp.asarray(targets)[rows])

    gradient = jax.jit(jax.grad(total, has_aux=True))
    whole, count = gradient(weight, np.arange(3))
    parts = [gradient(weight, np.arange(1)), gradient(weight, np.arange(1, 3))]
    assert sum(int(c) for _, c in parts) == count
    np.testing.assert_allclose(
        mean(sum(g for g, _ in parts), sum(c for _, c in parts)), mean(whole, count), atol=1e-6
    )


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_ignored_rows_reach_neither_loss_nor_gradient(case, poison):
    logits, targets = case
    poisoned = np.where((targets == IGNORE)[..., None], np.float32(poison), logits)
    value = jax.jit(jax.value_and_grad(lambda x: cross_entropy(x, targets)[0]))
    loss, gradient = value(logits)
    loss_poisoned, gradient_poisoned = value(poisoned)
    assert loss == loss_poisoned
    np.testing.assert_array_equal(gradient, gradient_poisoned)
    assert np.all(np.asarray(gradient)[targets == IGNORE] == 0)


def test_everything_ignored_is_zero():
    logits, targets = np.ones((2, 3, 4), np.float32), np.full((2, 3), IGNORE)
    value = jax.value_and_grad(lambda x: mean(*cross_entropy(x, targets)))
    loss, gradient = jax.jit(value)(logits)
    assert loss == 0 and not np.asarray(gradient).any()
    assert accuracy(logits, targets) == (0, 0)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_tokens_at_all_is_zero(shape):
    total, count = compiled(np.zeros((*shape, 3)), np.zeros(shape, np.int32))
    assert total == 0 and count == 0 and mean(total, count) == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint32, np.int64])
def test_every_integer_type_of_targets(dtype):
    logits = np.random.default_rng(1).standard_normal((4, 200)).astype(np.float32)
    targets = np.array([0, 5, 100, 127]).astype(dtype)
    total, count = compiled(logits, targets)
    # In eight unsigned bits -100 would be 156; no target here may be taken for it.
    np.testing.assert_allclose(total, reference(logits, targets)[0], rtol=1e-6)
    assert count == 4
    assert compiled(logits, np.array([156, 1, 2, 3], np.uint8))[1] == 4


def test_ignore_may_be_a_class():
    logits = np.zeros((3, 4), np.float32)
    assert compiled(logits, np.array([0, 1, 0]), ignore=0)[1] == 1


def test_extreme_logits():
    huge = np.array([[1e30, 0.0, -1e30]], np.float32)
    assert compiled(huge, np.array([0]))[0] == 0
    impossible = np.array([[0.0, 0.0, -np.inf]], np.float32)
    np.testing.assert_allclose(compiled(impossible, np.array([0]))[0], np.log(2), rtol=1e-6)
    half = np.array([[60000.0, 60000.0]], np.float16)
    total, _ = compiled(half, np.array([1]))
    np.testing.assert_allclose(total, np.log(2), rtol=1e-2)  # 60000 + log 2 in float32
    assert total.dtype == jnp.float32


def test_low_precision_logits_are_summed_in_float32():
    logits = jnp.zeros((4096, 3), jnp.bfloat16)
    total, _ = compiled(logits, np.zeros(4096, np.int32))
    np.testing.assert_allclose(total, 4096 * np.log(3), rtol=1e-5)


def test_float64_stays_float64(case):
    with jax.enable_x64(True):
        total, _ = compiled(np.float64(case[0]), case[1])
        assert total.dtype == jnp.float64
        np.testing.assert_allclose(total, reference(*case)[0], rtol=1e-14)


@pytest.mark.parametrize("target", [-1, 10, -101, 2**31, 2**32])
def test_a_target_outside_the_classes_is_an_error(target):
    logits, targets = np.zeros((2, 3, 10)), np.zeros((2, 3), np.int64)
    targets[1, 2] = target
    text = (
        rf"target {target} at \(1, 2\) is none of the 10 classes 0 to 9, "
        r"and not the ignored -100"
    )
    for ask in (cross_entropy, accuracy, lambda _, t: check_targets(t, 10)):
        with pytest.raises(ValueError, match=text):
            ask(logits, targets)
    # Gradients and closed-over targets are checked too: their values are known.
    with pytest.raises(ValueError, match=text):
        jax.jit(jax.grad(lambda x: cross_entropy(x, targets)[0]))(logits)


def test_a_single_target_outside_has_no_place():
    with pytest.raises(ValueError, match="target 3 is none of the 3 classes 0 to 2, and not"):
        check_targets(3, 3)


@pytest.mark.parametrize("target", [-1, 4, -101])
def test_inside_jit_a_target_outside_is_infinitely_unlikely(target):
    logits, targets = np.zeros((3, 4), np.float32), np.array([0, target, IGNORE])
    loss, gradient = jax.jit(jax.value_and_grad(lambda x, t: mean(*cross_entropy(x, t))))(
        logits, targets
    )
    assert loss == np.inf
    assert np.isfinite(gradient).all() and not np.asarray(gradient)[1:].any()
    assert [int(n) for n in jax.jit(accuracy)(logits, targets)] == [1, 2]


def test_wrong_kinds_and_shapes():
    logits, targets = np.zeros((2, 3, 4)), np.zeros((2, 3), np.int32)
    with pytest.raises(
        ValueError,
        match=r"logits need the shape of the targets and one last axis of classes; "
        r"got logits \(2, 3, 4\), targets \(3,\)",
    ):
        cross_entropy(logits, targets[0])
    for run in (lambda f: f, jax.jit):
        with pytest.raises(TypeError, match="targets are class numbers, so integers; got float32"):
            run(cross_entropy)(logits, targets.astype(np.float32))
    with pytest.raises(TypeError, match="logits are floating-point numbers; got int32"):
        cross_entropy(logits.astype(np.int32), targets)


def test_accuracy_is_numpy(case):
    logits, targets = case
    right = (logits.argmax(-1) == targets) & (targets != IGNORE)
    for run in (accuracy, jax.jit(accuracy)):
        assert [int(n) for n in run(logits, targets)] == [right.sum(), (targets != IGNORE).sum()]
    assert accuracy(np.full((1, 3), np.nan), np.array([0]))[0] == 0
    assert accuracy(np.zeros((2, 3)), np.array([0, 1]))[0] == 1


def test_exactly_one_shift():
    # A model that says "the next number" is right everywhere, and only, with one shift.
    counting = (np.arange(6) + np.arange(3)[:, None]).astype(np.int32)
    inputs, targets = next_token(counting)
    np.testing.assert_array_equal(inputs, counting[:, :-1])
    says = 100 * jax.nn.one_hot(inputs + 1, 9)
    assert mean(*cross_entropy(says, targets)) < 1e-6
    for wrong in (inputs, np.minimum(inputs + 2, 8)):
        assert mean(*cross_entropy(says, wrong)) > 80


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (3, 0)])
def test_one_token_has_no_next(shape):
    with pytest.raises(ValueError, match="next-token targets need at least two tokens"):
        next_token(np.zeros(shape, np.int32))
