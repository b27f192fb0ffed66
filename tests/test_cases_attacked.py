"""Extreme temperatures under a compiler, marks that mix rows, and numbers that are none."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy64
import pytest
from plain import drawn, normal

from combinax.combinators import (
    Bias,
    CompositionError,
    Parameter,
    aggregate,
    bias,
    by_wavelength,
    causal,
    compose,
    cosine,
    distance,
    dot,
    entmax15,
    features,
    gelu,
    identity,
    interpolated,
    layer_norm,
    log_sum_exp,
    mask,
    materialized,
    normalize,
    predicate,
    project,
    repeat,
    rms_norm,
    rotary,
    row_sum,
    scaled_dot,
    score,
    sinusoidal,
    softcap,
    softmax,
    sparsemax,
    streamed,
    temperature,
)

X = jnp.asarray(normal(24, 4), jnp.float32)
ROWS = project(query=identity, key=identity, value=identity)


def head(*stages):
    return compose(aggregate(), normalize(softmax), *stages, score(scaled_dot), ROWS)


def optimized(function):
    """Compiled as users compile, not as conftest.py does."""
    options: dict = {
        "xla_backend_optimization_level": 3,
        "xla_llvm_disable_expensive_passes": False,
    }
    if jax.__version__.startswith("0.10."):
        options["xla_cpu_use_fusion_emitters"] = True
    return jax.jit(function, compiler_options=options)


def test_a_row_of_huge_scores_takes_its_largest():
    """Compiled, logits / t less their maximum is rounded once, the maximum twice: 22 of 48 rows
    were 0 or NaN at 1e-12."""
    t, x = 1e-12, np.asarray(X, np.float64)
    scores = np.where(np.tri(24, dtype=bool), x @ x.T, -np.inf)
    term = head(temperature(t), mask(causal))
    for way in (materialized(term), streamed(term, block=8)):
        y, gradient = optimized(lambda x, way=way: jax.vjp(lambda x: way({}, x), x))(X)
        np.testing.assert_allclose(y, x[scores.argmax(1)], rtol=1e-6)
        assert np.isfinite(optimized(gradient)(y)[0]).all()
    total = compose(log_sum_exp, temperature(t), mask(causal), score(scaled_dot), ROWS)
    largest = scores.max(1) / 2 / t
    np.testing.assert_allclose(optimized(total)({}, X), largest, rtol=1e-6)


SCANNED = {
    "softmax": (softmax, scaled_dot), "distance": (softmax, distance), "gelu": (gelu, cosine),
    "sparsemax": (sparsemax, dot), "entmax15": (entmax15, dot),
    "row_sum": (row_sum, features(jnp.exp)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCANNED)
def test_second_derivatives_in_a_scan_of_layers(name):
    """Reverse over reverse is forward over forward; a `custom_jvp` was lost in the scan."""
    how, function = SCANNED[name]
    layer = compose(aggregate(), normalize(how), mask(causal), score(function), project(4))
    term = repeat(2, layer)
    with jax.enable_x64(True):
        x, way = normal(6, 4, seed=1), normal(6, 4, seed=2)
        params = drawn(term, x)
        along = lambda t: jnp.vdot(way, term(params, x + t * way))  # noqa: E731
        slope = lambda t: jax.jvp(along, (t,), (1.0,))[1]  # noqa: E731
        forward = jax.jit(lambda t: jax.jvp(slope, (t,), (1.0,))[1])(0.0)
        np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(along)))(0.0), forward, rtol=1e-9)


def test_the_largest_weight_has_the_slope_of_its_score():
    """The derivative of softmax at the maximum of a row is w (δ - w), to second order, too."""
    scores = jnp.array([[1.0, 3.0, 2.5]])
    of = lambda z: softmax({}, z)[0]  # noqa: E731
    w = np.asarray(jax.nn.softmax(scores[0]))
    slope = jax.jit(jax.jacobian(of))(scores)[:, 0]
    np.testing.assert_allclose(slope, np.diag(w) - np.outer(w, w), atol=1e-6)
    curve = jax.jit(jax.hessian(lambda z: of(z)[0]))(scores)[0, :, 0]
    d = np.eye(3)[0] - w
    right = w[0] * (np.outer(d, d) - np.diag(w) + np.outer(w, w))
    np.testing.assert_allclose(curve, right, atol=1e-6)


MIXING = {
    "transposed": lambda query, key: (key.position <= query.position).T,
    "a running count of keys": lambda query, key: jnp.cumsum(key.position <= query.position, 1) < 3,
    "a running count of queries": lambda query, key: (
        jnp.cumsum(key.position <= query.position, 0) < 3
    ),
    "the last key's": lambda query, key: key.position < key.position.max(),
    "from the first query": lambda query, key: key.position <= query.position - query.position[:1],
    "from the first key": lambda query, key: key.position - key.position[0, 0] <= query.position,
    "reversed": lambda query, key: key.position[:, ::-1] <= query.position,
    "rolled": lambda query, key: jnp.roll(key.position <= query.position, 1, 1),
    "sorted": lambda query, key: jnp.sort(key.position, 1) <= query.position,
    "as many as half": lambda query, key: key.position < jnp.mean(key.position),
}


@pytest.mark.parametrize("name", MIXING)
def test_marks_that_mix_rows_are_refused(name):
    """Their results have the shape of a table and are others on a tile of it."""
    mixing = MIXING[name]
    for stage in (mask(mixing), mask(~predicate(mixing)), bias(lambda q, k: 1.0 * mixing(q, k))):
        for term in (head(stage), streamed(head(stage), block=8)):
            with pytest.raises(CompositionError, match="answers for each pair of a query and a"):
                term({}, X)
    with pytest.raises(CompositionError, match="an entry of this one mixes or swaps rows"):
        head(mask(mixing))({}, X)


@dataclasses.dataclass(frozen=True)
class from_the_middle(Bias):
    """A learned number times the distance of a key from the middle one."""

    def parameters(self, x: Any) -> dict[str, Parameter]:
        return {"rate": Parameter((), jax.nn.initializers.ones, ())}

    def tile(self, operands: Any, marks: Any) -> Any:
        return operands["rate"] * (marks.key.position - jnp.mean(marks.key.position))


def test_a_bias_with_parameters_that_mixes_rows_is_refused():
    term = head(bias(from_the_middle()))
    with pytest.raises(CompositionError, match="an entry of this one mixes or swaps rows"):
        term({"bias": {"rate": jnp.ones(())}}, X)


NEAR = np.tri(24, dtype=bool)
PAIRED = {
    "raveled": lambda q, k: k.position.ravel()[None] <= q.position.ravel()[:, None],
    "indexed": lambda q, k: k.position[0][None] <= q.position[:, 0][:, None],
    "mapped": lambda q, k: jax.vmap(lambda at: k.position[0] <= at)(q.position[:, 0]),
    "one by one": lambda q, k: jax.lax.map(lambda at: k.position[0] <= at, q.position[:, 0]),
    "a product": lambda q, k: k.position <= q.position @ jnp.ones_like(k.position),
    "selected": lambda q, k: jnp.select(
        [k.position <= q.position, q.position > 99], [True, True], False
    ),
    "looked up": lambda q, k: jnp.asarray(NEAR)[q.position, k.position],
    "folded over what is stacked": lambda q, k: jnp.stack(
        jnp.broadcast_arrays(k.position <= q.position, k.position >= 0), -1
    ).all(-1),
    "a product of codes": lambda q, k: (
        jnp.asarray(NEAR, jnp.float32)[q.position[:, 0]] @ jax.nn.one_hot(k.position[0], 24).T > 0
    ),
}


@pytest.mark.parametrize("name", PAIRED)
def test_marks_that_answer_for_pairs_in_a_way_of_their_own(name):
    x = np.asarray(X, np.float64)
    right = numpy64.attend(x, x, x, NEAR)
    term = streamed(head(mask(PAIRED[name])), block=8)
    np.testing.assert_allclose(jax.jit(term)({}, X), right, atol=1e-5)


MEANT: dict[str, Any] = {"eps": "1e-5", "cap": "5", "nothing": None, "fast": "4"}
"""Values whose types a type checker would refuse."""


@pytest.mark.parametrize(
    "write, text",
    [
        (
            lambda: rms_norm(64),
            "eps of rms_norm is a small number, 0 <= eps < 1, not 64; the width",
        ),
        (lambda: layer_norm(float("nan")), "eps of layer_norm is a small number"),
        (lambda: rms_norm(-1e-6), "eps of rms_norm is a small number"),
        (lambda: layer_norm(MEANT["eps"]), "eps of layer_norm is a small number"),
        (lambda: softcap(float("inf")), "cap is a positive number, not inf"),
        (lambda: softcap(True), "cap is a positive number, not True"),
        (lambda: softcap(MEANT["cap"]), "cap is a positive number, not '5'"),
        (lambda: temperature(MEANT["nothing"]), "temperature is a positive number, not None"),
        (lambda: temperature(float("nan")), "temperature is a positive number, not nan"),
        (lambda: rotary(-1.0), "base of rotary is a positive number, not -1.0"),
        (lambda: sinusoidal(0), "base of sinusoidal is a positive number, not 0"),
        (lambda: interpolated(0), "factor of interpolated is a positive number, not 0"),
        (
            lambda: by_wavelength(8.0, 1.0, MEANT["fast"], 100),
            "fast of by_wavelength is a positive number, not '4'",
        ),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused_where_it_is_written(write, text):
    with pytest.raises(CompositionError, match=text):
        write()
