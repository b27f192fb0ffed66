"""Row normalizers with parameters of their own, inside normalize and on arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy64
import pytest
from plain import close

from combinax.combinators import (
    CompositionError,
    Parameter,
    RowNormalizer,
    Streaming,
    aggregate,
    causal,
    compose,
    describe,
    features,
    heads,
    linear,
    mask,
    normalize,
    pointwise,
    precision,
    project,
    scaled_dot,
    score,
    softmax,
    stepwise,
    streamed,
)

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class sharpened(RowNormalizer):
    """softmax(sharpness · score), with a sharpness that is learned."""

    def parameters(self, x):
        return {"sharpness": Parameter((), jax.nn.initializers.constant(2.0), ())}

    def weights(self, score, visible, sharpness):
        return softmax.weights(sharpness * score, visible)


@dataclasses.dataclass(frozen=True)
class off_by_one(Streaming):
    """exp(score) / (slack + sum of exp(score)), with a slack that is learned."""

    def parameters(self, x):
        return {"slack": Parameter((), jax.nn.initializers.ones, ())}

    def reference(self, score, visible, slack):
        return jnp.zeros_like(score[:, 0])

    def weigh(self, score, visible, reference, slack):
        weight = jnp.exp(score) / slack
        return weight if visible is None else jnp.where(visible, weight, 0)

    def divisor(self, total):
        return 1 + total


def head(how):
    return compose(aggregate(), normalize(how), mask(causal), score(scaled_dot), project(4))


def test_parameters_of_a_normalizer_are_declared_and_used():
    term = head(sharpened())
    params = term.init(jax.random.key(0), X)
    assert params["normalize"] == {"sharpness": 2.0}
    kernels = (params["project"][slot]["kernel"] for slot in ("query", "key", "value"))
    query, key, value = (X @ np.asarray(kernel) for kernel in kernels)

    def attended(sharpness):
        return numpy64.attend(sharpness * query, key, value, np.tri(6) > 0)

    close(term(params, X), attended(2.0), atol=1e-6)
    slope = jax.grad(lambda p: term(p, X).sum())(params)["normalize"]["sharpness"]
    close(slope, (attended(2.001) - attended(1.999)).sum() / 0.002, rtol=1e-4)
    start, step = stepwise(term)
    _, y = step(params, start(params, X, 6), X)
    close(y, term(params, X), atol=1e-6)
    assert "sharpened" in str(describe(term, X))


def test_parameters_of_a_normalizer_in_heads_and_short_types():
    term = precision(heads(2, head(sharpened())), compute="bfloat16")
    params = term.init(jax.random.key(0), X)
    assert params["normalize"]["sharpness"].shape == (2,)
    assert term(params, X).dtype == jnp.bfloat16


def test_a_normalizer_that_learns_is_not_streamed_and_says_why():
    term = head(off_by_one())
    params = term.init(jax.random.key(0), X)
    assert params["normalize"] == {"slack": 1.0}
    assert term(params, X).shape == (6, 4)
    with pytest.raises(CompositionError, match="learns, and only normalizers that do not are"):
        streamed(term)(params, X)


def test_on_arrays_it_takes_the_same_parameters():
    term = sharpened()
    params = term.init(jax.random.key(0), X)
    close(term(params, X), softmax({}, 2 * X), atol=1e-6)


def test_features_take_no_map_that_learns():
    with pytest.raises(CompositionError, match="features takes a map that learns nothing"):
        features(linear(4))
    assert features(pointwise(jnp.exp)) == features(jnp.exp)
