"""Training: what people hand to `fit` by mistake, and runs that end before their last step."""

from __future__ import annotations

import itertools
import re
import tracemalloc
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from combinax.combinators import ContextError
from combinax.train.loop import Record, fit, start, step

KEY = jax.random.key(0)
SGD: Any = optax.sgd(0.25)
BATCH = np.ones((2, 3), np.float32)


def square(params, batch, rng):
    return jnp.sum((params - batch) ** 2), batch.size


def trained(**changes: Any) -> Any:
    """Six steps of a toy, two to a dispatch, but for the changes."""
    run: dict[str, Any] = dict(
        loss=square, optimizer=SGD, params=jnp.zeros(()), batches=lambda step: BATCH, steps=6,
        rng=KEY, steps_per_dispatch=2,
    )  # fmt: skip
    return fit(**(run | changes))


# Slips


LOSSES = {
    "a scalar": (lambda p, b, r: jnp.sum(p), "float32[]"),
    "an array of two": (lambda p, b, r: p * jnp.ones(2), "float32[2]"),
    "losses of rows": (lambda p, b, r: (p * jnp.ones(2), 2), "('float32[2]', 'int32[]')"),
    "a loss and more": (lambda p, b, r: (p, 1, {}), "('float32[]', 'int32[]', {})"),
    "a complex number": (lambda p, b, r: (p * 1j, 1), "('complex64[]', 'int32[]')"),
    "a text": (lambda p, b, r: (p, "1"), "('float32[]', \"'1'\")"),
    "a key": (lambda p, b, r: (p, r), "('float32[]', 'key<fry>[]')"),
    "nothing": (lambda p, b, r: None, "None"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_gives_no_sum_and_count(loss):
    function, shown = LOSSES[loss]
    text = (
        f"(total, count), two real numbers, and this one gives {shown}; of a mean write (mean, 1)"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        trained(loss=function)
    with pytest.raises(ValueError, match="a loss gives a sum"):
        step(cast(Any, function), SGD, start(SGD, jnp.zeros(()), KEY), BATCH)


def test_a_sum_and_a_count_of_any_numbers():
    for pair in ((1.0, 2), (np.float32(1), np.int64(2)), [jnp.ones(()), jnp.ones((), bool)]):
        _, history = trained(loss=lambda p, b, r, pair=pair: [pair[0] + 0 * p, pair[1]], steps=1)
        assert history.loss.tolist() == [float(pair[0]) / max(int(pair[1]), 1)]


BATCHES = {
    "a list": ([BATCH], "gets a list: write lambda step: batches[step % len(batches)]"),
    "an array": (BATCH, "gets a ndarray: write lambda step: batches[step % len(batches)]"),
    "an iterator": (iter([BATCH]), "gets a list_iterator: write lambda step: next(batches)"),
    "a generator": ((b for b in [BATCH]), "gets a generator: write lambda step: next(batches)"),
    "a generator a step": (
        lambda s: (b for b in [BATCH]), "and batches(0) is a generator of several: write lambda st"
    ),
    "texts": (lambda s: ["a"], "or of random keys, and batch 0[0] is 'a'"),
    "an array of texts": (
        lambda s: {"x": BATCH, "y": np.array(["a"]) if s else BATCH},
        "and batch 1['y'] is array(['a'], dtype='<U1')",
    ),
    "an array of objects": (lambda s: np.array([None]), "and batch 0 is array([None]"),
    "dates": (lambda s: (BATCH, np.array(["2020"], "M8[D]")), "and batch 0[1] is array(['2020"),
    "an abstract key": (
        lambda s: jax.eval_shape(lambda: KEY), "and batch 0 is ShapeDtypeStruct(shape=()"
    ),
    "a key, then numbers": (
        lambda s: BATCH if s else KEY, "batch 1 is float32[2, 3], and the first was key<fry>[]"
    ),
    "another shape": (
        lambda s: BATCH[: 2 - s // 5],
        "batch 5 is float32[1, 3], and the first was float32[2, 3]: every batch has the tree, the "
        "shapes and the types of the first; leave a shorter one out, or fill it up",
    ),
    "another shape in a dispatch of its own": (
        lambda s: BATCH[: 2 - s // 4], "batch 4 is float32[1, 3], and the first was float32[2, 3]"
    ),
    "another type": (
        lambda s: BATCH.astype(int) if s else BATCH, "batch 1 is int32[2, 3], and the first was f"
    ),
    "another tree": (
        lambda s: (BATCH,) if s else BATCH, "batch 1 is ('float32[2, 3]',), and the first was f"
    ),
}  # fmt: skip


@pytest.mark.parametrize("batches", BATCHES)
def test_batches_of_another_kind(batches):
    given, text = BATCHES[batches]
    with pytest.raises(ValueError, match=re.escape(text)):
        trained(batches=given)


OTHERS = {
    "a number for a key": (dict(rng=0), "rng takes a key, jax.random.key(0), and gets int"),
    "no key": (dict(rng=None), "rng takes a key, jax.random.key(0), and gets None"),
    "an optimizer not called": (
        dict(optimizer=optax.adam),
        "an optimizer is a transformation of optax such as optax.adam(1e-3), not optax.adam",
    ),
    "a rate": (dict(optimizer=0.1), "such as optax.adam(1e-3), not 0.1"),
    "optimizer and params swapped": (
        dict(optimizer=jnp.zeros(()), params=SGD),
        "optimizer and params are swapped: write fit(loss, optimizer, params, batches, steps)",
    ),
    "parameters for an optimizer": (
        dict(optimizer={"w": np.ones(999)}),
        "such as optax.adam(1e-3), not {'w': array([1., 1.,",
    ),
    "a number to keep": (dict(keep=1), "keep is a function, not 1"),
    "a number to stop": (dict(stop=1), "stop is a function, not 1"),
    "a score": (dict(evaluate=0.5), "evaluate is a function, not 0.5"),
    "never evaluated": (dict(every=0), "every=0, skips=20"),
    "no skips": (dict(skips=None), "every=100, skips=None"),
    "no loss": (dict(loss=0.5), "loss is a function, not 0.5"),
    "a report": (dict(report="yes"), "report is a function, not 'yes'"),
    "integers": (
        dict(params={"a": {"b": jnp.zeros(2, int)}}),
        "parameters are arrays of floats, and params['a']['b'] is int32[2]",
    ),
    "an array of texts": (
        dict(params={"a": np.array(["b"])}),
        "parameters are arrays of floats, and params['a'] is array(['b']",
    ),
    "a text": (dict(params={"a": "b"}), "parameters are arrays of floats, and params['a'] is 'b'"),
    "steps of floats": (dict(steps=6.0), "got 6.0 steps, 2 to a dispatch"),
    "steps in words": (dict(steps="6"), "got '6' steps, 2 to a dispatch"),
    "a truth": (dict(steps_per_dispatch=True), "got 6 steps, True to a dispatch"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_arguments_of_another_kind(other):
    changes, text = OTHERS[other]
    with pytest.raises(ContextError if "rng" in changes else ValueError, match=re.escape(text)):
        trained(**changes)


def test_batches_of_random_keys():
    """Five steps, three to a dispatch, against one after the other."""

    def noisy(params, batch, rng):
        noise = jax.vmap(lambda key: jax.random.normal(key, (3,)))(batch["key"])
        return jnp.sum((params - batch["x"] - noise) ** 2), 6

    def batches(step):
        return {"x": BATCH, "key": jax.random.split(jax.random.key(step))}

    got, history = trained(loss=noisy, batches=batches, steps=5, steps_per_dispatch=3)
    params, losses = 0.0, []
    for i in range(5):
        noise = [np.asarray(jax.random.normal(key, (3,))) for key in batches(i)["key"]]
        target = BATCH + np.stack(noise)
        losses.append(np.mean((params - target) ** 2))
        params -= 0.25 * 2 * np.mean(params - target)
    np.testing.assert_allclose(history.loss, losses, rtol=1e-5)
    np.testing.assert_allclose(got, params, rtol=1e-5)


@pytest.mark.parametrize("params", [0.0, np.zeros(()), np.float64(0), jnp.zeros((), jnp.bfloat16)])
def test_parameters_of_any_floats_keep_their_type(params):
    got, history = trained(params=params, steps=np.int64(6), rng=jax.random.PRNGKey(0))
    assert got.dtype == jnp.result_type(params) and history.loss[0] == 1
    assert abs(float(got) - (1 - 0.5**6)) < 0.01


# Ends


@pytest.mark.parametrize("there", [0, 1, 4, 5])
@pytest.mark.parametrize("steps_per_dispatch", [2, 100])
def test_batches_that_run_out_end_the_run_and_keep_what_was_trained(there, steps_per_dispatch):
    data = iter([BATCH] * there)
    params, history = trained(
        batches=lambda step: next(data), steps=9, steps_per_dispatch=steps_per_dispatch
    )
    wanted, whole = trained(steps=there)
    assert params == wanted == 1 - 0.5**there
    np.testing.assert_array_equal(history.loss, whole.loss)
    assert history.stopped is True and whole.stopped is False


def test_batches_that_last_just_long_enough():
    data = iter([BATCH] * 6)
    _, history = trained(batches=lambda step: next(data))
    assert history.stopped is False and len(history.loss) == 6


def test_a_run_without_end_builds_nothing_up_front():
    def interrupted(s):
        if s == 5:
            raise KeyboardInterrupt
        return BATCH

    trained()  # compiles
    tracemalloc.start()
    params, history = trained(batches=interrupted, steps=10**9)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10**6
    assert params == 1 - 0.5**4 and len(history.loss) == 4 and history.stopped


def test_an_interrupt_of_a_report_keeps_the_steps_it_reports():
    seen: list[int] = []

    def report(first: int, record: Record) -> None:
        seen.append(first)
        if first == 2:
            raise KeyboardInterrupt

    params, history = trained(report=report)
    assert seen == [0, 2] and params == 1 - 0.5**4 and history.stopped
    params, history = trained(report=report, steps=4)  # after the last step nothing is left to stop
    assert params == 1 - 0.5**4 and not history.stopped


def test_the_batches_of_a_step_are_drawn_once_and_in_order():
    drawn: list[int] = []

    def batches(s):
        drawn.append(s)
        return BATCH

    for size in (1, 4, 6):
        drawn.clear()
        trained(batches=batches, steps_per_dispatch=size)
        assert drawn == list(range(6))


def test_what_is_skipped_among_what_runs_out():
    rows = itertools.chain([BATCH, BATCH * np.nan, BATCH])
    params, history = trained(batches=lambda step: next(rows))
    assert params == 1 - 0.5**2 and history.skipped == (1,) and history.stopped
