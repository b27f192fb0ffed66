"""The promise behind `rowwise`: a primitive that breaks it is refused where stepping starts."""
# ruff: noqa: F403, F405

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import normal

from combinax.combinators import *
from combinax.combinators.stepping.rowwise import mixes_rows

X, TOKENS = normal(4, 3).astype(np.float32), np.array([1, 0, 1, 1], np.int32)
REFUSED = "is not a function of each row by itself"


@dataclasses.dataclass(frozen=True)
class Own(Leaf):
    """A primitive that says it is row-wise, with parameters that begin as zeros."""

    rowwise = True

    def parameters(self, x: Any) -> dict[str, Parameter]:
        return {"gate": Parameter(x.shape[-1:], jax.nn.initializers.zeros, ("out",))}


@dataclasses.dataclass(frozen=True)
class gated_mean(Own):
    """At first it is the identity; what it learns mixes rows."""

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return x + params["gate"] * x.mean(0)


@dataclasses.dataclass(frozen=True)
class counted(Own):
    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return x + params["gate"] * jnp.arange(len(x))[:, None]


@dataclasses.dataclass(frozen=True)
class placed(Own):
    """Positions come with the rows, also one by one."""

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        positions = context.get("positions", jnp.arange(len(x)))
        return x + (1 + params["gate"]) * positions[:, None]


@dataclasses.dataclass(frozen=True)
class number(Own):
    """One number for all rows, which none of them makes."""

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return params["gate"].sum()


@dataclasses.dataclass(frozen=True)
class large(gated_mean):
    """More numbers than are drawn: it is believed."""

    def parameters(self, x: Any) -> dict[str, Parameter]:
        return {**super().parameters(x), "table": Parameter((2**13, 2**12), zeros, ("in", "out"))}


def zeros(key: Any, shape: Any, dtype: Any) -> Any:
    return jnp.zeros(shape, dtype)


def centred(x):
    return x - x.mean(0)


def pair(x: Any) -> Any:
    return x, -x


WRONG: dict[str, tuple[Term, Any]] = {
    "the mean of rows": (pointwise(centred), X),
    "inside a model": (identity + linear(3) @ pointwise(centred) @ rms_norm(), X),
    "inside heads": (heads(2, pointwise(centred)), X),
    "inside each": (each(pointwise(centred)), X[None]),
    "as queries": (project(query=pointwise(centred), key=2, value=2), X),
    "in bfloat16": (precision(pointwise(centred) @ linear(3), compute="bfloat16"), X),
    "the row before": (pointwise(lambda x: jnp.roll(x, 1, 0)), X),
    "all rows before": (pointwise(lambda x: jnp.cumsum(x, 0)), X),
    "the number of rows": (pointwise(lambda x: x / len(x)), X),
    "one answer for all rows": (pointwise(lambda x: x.sum(0)), X),
    "pairs of rows": (pointwise(lambda x: x.reshape(-1, 2, 3).mean(1).repeat(2, 0)), X),
    "tokens": (pointwise(lambda tokens: tokens ^ tokens.max()), TOKENS),
    "numbers that roots hide": (pointwise(lambda x: jnp.sqrt(x - x.mean(0))), X),
    "what begins as zero": (gated_mean(), X),
    "rows numbered from 0": (counted(), X),
}  # fmt: skip

RIGHT: dict[str, tuple[Term, Any]] = {
    "a function of JAX": (pointwise(jnp.tanh), X),
    "the last axis": (pointwise(lambda x: jax.nn.softmax(x, -1)), X),
    "several axes": (pointwise(lambda x: x.sum((1, 2))), np.stack([X, X], 1)),
    "NaN": (pointwise(jnp.log), X),
    "infinity": (pointwise(lambda x: x / jnp.zeros_like(x)), X),
    "tokens": (pointwise(lambda tokens: tokens % 2 == 0), TOKENS),
    "complex numbers": (pointwise(lambda x: jnp.fft.fft(x)), X),
    "a tuple": (pick(1) @ pointwise(pair), X),
    "positions": (placed(), X),
    "one number": (pick(0) @ fanout(identity, number()), X),
    "learned rows as many as those of x": (
        multiply(linear(3), lift(lambda w: w.sum(0)) @ learned((4, 3))), X
    ),
    "learned rows, and pointwise": (multiply(linear(3), pointwise(jnp.sum) @ learned((4, 3))), X),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_broken_promise_is_refused(case: str) -> None:
    term, x = WRONG[case]
    params = term.init(jax.random.key(0), x)
    with pytest.raises(CompositionError, match=REFUSED) as caught:
        stepwise(term).start(params, x, 8)
    assert re.search(r"> .*(pointwise|gated_mean|counted)\(", str(caught.value))


@pytest.mark.parametrize("case", RIGHT)
def test_a_promise_that_is_kept_is_believed(case: str) -> None:
    """Steps of one row and of three are the whole."""
    term, x = RIGHT[case]
    params, (start, step) = term.init(jax.random.key(0), x), stepwise(term)
    state, early = step(params, start(params, x, 8), x[:1])
    _, late = step(params, state, x[1:])
    steps = jnp.concatenate([early, late])
    np.testing.assert_allclose(steps, term(params, x), atol=1e-5, equal_nan=True)


def test_what_is_read_once_may_look_at_all_of_it() -> None:
    """Keys made of a memory are computed at the start, from all of its rows."""
    for centre in (pointwise(centred), lift(centred)):
        entries = project(query=3, key=linear(3) @ centre @ read("m"), value=read("m"))
        term = aggregate() @ normalize(softmax) @ score(dot) @ entries
        params, (start, step) = term.init(jax.random.key(0), X, m=X), stepwise(term)
        _, y = step(params, start(params, X, 8, m=X), X)
        np.testing.assert_allclose(y, term(params, X, m=X), atol=1e-6)


def test_the_trial_leaves_a_large_primitive_alone() -> None:
    shape = jax.ShapeDtypeStruct((4, 3), jnp.float32)
    params = jax.eval_shape(large().init, jax.random.key(0), shape)
    jax.eval_shape(lambda params: stepwise(large()).start(params, X, 8), params)


def test_a_primitive_is_tried_once() -> None:
    """Equal terms, chunks of another length, and every later start share one trial."""
    runs = []

    def counting(x):
        runs.append(x.shape[0])
        return 2 * x

    for rows in (2, 4, 2):
        for term in (pointwise(counting) @ linear(3), heads(2, pointwise(counting) @ linear(3))):
            params, (start, step) = term.init(jax.random.key(0), X), stepwise(term)
            state = start(params, X[:rows], 8)
            step(params, state, X[:rows])
    trials = [rows for rows in runs if rows in (1, 3)]  # no chunk has so many rows
    assert trials == [3, 1, 1, 1]


def test_words_of_the_package_are_not_tried() -> None:
    before = mixes_rows.cache_info().misses
    term = linear(3) @ gelu @ layer_norm() @ embed(5, 3)
    stepwise(term).start(term.init(jax.random.key(0), TOKENS), TOKENS, 8)
    assert mixes_rows.cache_info().misses == before
