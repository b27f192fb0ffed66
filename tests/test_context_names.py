"""A user's names are his own: any name of context works in every execution, or is refused."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from combinax.combinators import (
    ContextError,
    aggregate,
    axes,
    bias,
    causal,
    copies,
    describe,
    dot,
    each,
    given,
    heads,
    identity,
    linear,
    mask,
    named,
    normalize,
    observe,
    precision,
    project,
    read,
    repeat,
    score,
    softmax,
    stepwise,
    streamed,
)

close = partial(np.testing.assert_allclose, atol=2e-6)  # sums of four float32 numbers

NAMES = [
    "precision", "execution", "head", "heads", "inside", "scope", "made_inside", "names", "state",
    "params", "x", "self", "term", "context", "run", "memory", "read", "facts", "rows", "rng_",
    "dtype", "rewind", "given", "count", "size", "axis",
]  # fmt: skip

X = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
TABLE = np.arange(16, dtype=np.float32).reshape(4, 4) / 4


def lookup(*stages):
    return compose_all(aggregate(), normalize(softmax), *stages, score(dot), project(identity))


def compose_all(first, *rest):
    for term in rest:
        first = first @ term
    return first


def expected(table):
    """Attention of X to itself, with a bias and a causal mask."""
    logits = np.where(np.tri(4, dtype=bool), X @ X.T + table, -np.inf).astype(np.float64)
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True) @ X


@pytest.mark.parametrize("name", NAMES)
def test_any_name_works_in_every_execution(name):
    term = lookup(bias(read(name)), mask(causal))
    context = {name: TABLE}
    wanted = expected(TABLE)
    assert term.init(jax.random.key(0), X, **context) == {} == axes(term, X, **context)
    close(term({}, X, **context), wanted)
    close(streamed(term, 3)({}, X, **context), wanted)
    close(precision(term, sums="float32")({}, X, **context), wanted)
    close(heads(2, term)({}, X, **context)[:, 2:], wanted)
    close(each(term, fixed=name)({}, X[None], **context)[0], wanted)
    close(observe(term)({}, X, **context)[0], wanted)
    close(copies(2, term, **{name: TABLE[None].repeat(2, 0)})({}, X)[1], wanted)
    close(given(term, **{name: read("table")})({}, X, table=TABLE), wanted)
    assert describe(term, X, **context).rows


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_read_step_by_step(name):
    memory = np.array([[1.0, 0.0], [0.0, 3.0], [-2.0, 1.0]], np.float32)
    keys = linear(2) @ read(name)
    cross = lookup_of(project(query=identity, key=named("facts", keys), value=keys))
    term = repeat(2, identity + cross)
    params = term.init(jax.random.key(0), X, **{name: memory})
    start, step = stepwise(term)
    state = start(params, X, 4, **{name: memory})
    parts = []
    for row in X:
        state, y = step(params, state, row[None])
        parts.append(y)
    close(jnp.concatenate(parts), term(params, X, **{name: memory}))


def lookup_of(entries):
    return compose_all(aggregate(), normalize(softmax), score(dot), entries)


def test_names_that_functions_take_for_themselves_are_refused():
    term = lookup(bias(read("capacity")), mask(causal))
    with pytest.raises(ContextError, match=r"stepwise takes capacity for itself, and bias\(read"):
        stepwise(term)
