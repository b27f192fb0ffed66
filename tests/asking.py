"""Terms that the tests ask with: attention whose queries, keys and values are given."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from combinax.combinators import (
    aggregate,
    compose,
    entmax15,
    gelu,
    gelu_tanh,
    hardmax,
    identity,
    lift,
    mask,
    normalize,
    project,
    read,
    relu,
    relu_squared,
    row_sum,
    scaled_dot,
    score,
    sigmoid,
    silu,
    softmax,
    sparsemax,
    top_k,
)

GIVEN = project(query=identity, key=read("key"), value=read("value"))

NORMALIZERS = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "relu": relu,
    "relu_squared": relu_squared,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "identity": identity,
    "row_sum": row_sum,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "top_k": top_k(2),
    "hardmax": hardmax,
}


def ask(*stages, how: Any = softmax, function=scaled_dot, **options):
    """What the query x gets from the context's keys and values, through the given stages."""
    return compose(aggregate(), normalize(how), *stages, score(function, **options), GIVEN)


def weights(*stages, how: Any = softmax, function=scaled_dot, **options):
    """The table of weights, (T, S)."""
    return compose(lift(weight_table), normalize(how), *stages, score(function, **options), GIVEN)


def scores(*stages, function=scaled_dot, **options):
    """The table of scores, (T, S)."""
    return compose(lift(score_table), *stages, score(function, **options), GIVEN)


def weight_table(weights):
    return weights.weight


def score_table(scores):
    return scores.score


def zero(query, key):
    """A score function: 0 for every pair."""
    return jnp.zeros((len(query), len(key)))


def one(query, key):
    """A score function: 1 for every pair."""
    return jnp.ones((len(query), len(key)))


def fast(function):
    """A compiled function with results of NumPy: a test's own arithmetic is then not compiled."""
    compiled = jax.jit(function)

    def run(*arguments, **context) -> Any:
        return jax.tree.map(np.asarray, compiled(*arguments, **context))

    return run


@functools.cache
def running(term):
    """A term without parameters, compiled: `running(term)(q, k, v, **context)`."""

    def run(query, key, value, **context):
        return term({}, query, key=key, value=value, **context)

    return fast(run)


@functools.cache
def answering(term):
    """The output, and the gradients to q, k and v: `answering(term)(cotangent, q, k, v, …)`."""

    def run(cotangent, query, key, value, **context):
        def asked(query, key, value):
            return term({}, query, key=key, value=value, **context)

        y, back = jax.vjp(asked, query, key, value)
        return y, back(cotangent)

    return fast(run)


def given(T, S, d=4, e=3, seed=0, dtype: Any = np.float32):
    """Random queries (T, d), keys (S, d) and values (S, e)."""
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in [(T, d), (S, d), (S, e)])


def keys_seen(predicate, T, S, **context):
    """How many keys each of T rows sees."""
    term = ask(mask(predicate), how=identity, function=one)
    y = running(term)(jnp.zeros((T, 1)), jnp.zeros((S, 1)), jnp.ones((S, 1)), **context)
    return y[:, 0].astype(int).tolist()
