"""Where keys and rows stand: the order of keys is that of positions, in every execution, and rows
made inside a term from rows of the sequence stand at their positions."""
# ruff: noqa: F403, F405

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import normal

from combinax.combinators import *

X = jnp.asarray(normal(11, 4), jnp.float32)
ROWS = project(query=identity, key=identity, value=identity)


def level(query, key):
    """Scores that are all equal."""
    return jnp.zeros((len(query), len(key)))


def head(*stages, entries=project(4), weights: Any = hardmax):
    return compose(aggregate(), normalize(weights), *stages, score(level), entries)


def stick_breaking(score, visible):
    """Each key takes half of what later keys leave (Tan et al. 2025): weights follow the order."""
    seen = jnp.ones(score.shape, bool) if visible is None else visible
    half = jnp.where(seen, 0.5, 0.0)
    left = jnp.cumprod(1 - half[:, ::-1], -1)[:, ::-1]
    return half * jnp.concatenate([left[:, 1:], jnp.ones((len(score), 1))], -1)


def first_seen(weights):
    """A fold that takes the value of the first key with a weight."""
    return weights.value[jnp.argmax(weights.weight != 0, -1)]


@dataclasses.dataclass(frozen=True)
class last_seen(RowNormalizer):
    def weights(self, score, visible):
        seen = jnp.ones(score.shape, bool) if visible is None else visible
        last = score.shape[1] - 1 - jnp.argmax(seen[:, ::-1], -1)
        return jax.nn.one_hot(last, score.shape[1])


def stepped(term, x, sizes, capacity=16, axis=0, **context):
    """What steps over chunks of these sizes give, side by side, and what the whole gives."""
    params = term.init(jax.random.key(0), x, **context)
    start, step = stepwise(term)
    step = jax.jit(step)
    chunks = jnp.split(x, np.cumsum(sizes)[:-1], axis)
    state, results = start(params, chunks[0], capacity, **context), []
    for chunk in chunks:
        state, y = step(params, state, chunk)
        results.append(y)
    return np.concatenate(results, axis), np.asarray(jax.jit(term)(params, x, **context))


# Case 4: rings


ORDERED = {
    "hardmax": (head(mask(causal & window(3)), entries=ROWS), lambda t: [max(0, t - 2)]),
    "the last": (
        head(mask(causal & window(3)), entries=ROWS, weights=last_seen()), lambda t: [t]
    ),
    "top_k": (
        head(mask(causal & window(3)), entries=ROWS, weights=top_k(2)),
        lambda t: [max(0, t - 2), max(0, t - 2) + (t > 0)],
    ),
    "a fold": (
        compose(
            aggregate(first_seen), normalize(softmax), mask(causal & window(3)), score(level), ROWS
        ),
        lambda t: [max(0, t - 2)],
    ),
    "a union of two windows": (
        compose(
            aggregate(), normalize(hardmax),
            union(mask(causal & window(2)) @ score(level), mask(causal & window(4)) @ score(level)),
            ROWS,
        ),
        lambda t: [max(0, t - 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("sizes", [[1] * 11, [3, 3, 5]], ids=["one by one", "3 + 3 + 5"])
@pytest.mark.parametrize("name", ORDERED)
def test_a_ring_asks_its_keys_in_the_order_of_positions(name, sizes):
    term, taken = ORDERED[name]
    steps, whole = stepped(term, X, sizes)
    expected = np.stack([np.asarray(X)[taken(t)].mean(0) for t in range(11)])
    np.testing.assert_allclose(whole, expected, atol=1e-6)
    np.testing.assert_allclose(steps, expected, atol=1e-6)


@pytest.mark.parametrize("sizes", [[1] * 11, [2, 9]])
def test_heads_and_batches_that_see_order(sizes):
    """Stick-breaking beside a sink, in heads, for a batch of two: steps are the whole."""
    near = mask(causal & window(3)) @ score(level)
    one = compose(aggregate(), normalize(stick_breaking), union(near, sink()), project(3))
    batch = jnp.stack([X, -X[::-1]])
    steps, whole = stepped(each(heads(2, one)), batch, sizes, axis=1)
    np.testing.assert_allclose(steps, whole, atol=1e-6)


def test_order_is_that_of_positions_where_they_are_given():
    """Rows and positions permuted together give the results permuted."""
    at = np.array([7, 2, 9, 0, 4])
    order = np.argsort(at)
    for weights in (hardmax, stick_breaking, last_seen(), top_k(2)):
        term = head(mask(causal), entries=ROWS, weights=weights)
        whole = term({}, X[:5], positions=np.sort(at))
        np.testing.assert_allclose(
            term({}, X[:5][np.argsort(order)], positions=at), whole[np.argsort(order)], atol=1e-6
        )


def test_what_does_not_see_order_sorts_nothing():
    term = head(mask(causal & window(3)), entries=ROWS, weights=softmax)
    start, step = stepwise(term)
    lowered = jax.jit(step).lower({}, start({}, X[:1], 8), X[:1]).compile().as_text()
    assert " sort(" not in str(lowered)


# Case 5: rows made inside


OWN = project(query=4, key=read("k"), value=read("k"))
READ = project(query=4, key=linear(4) @ read("memory"), value=linear(4) @ read("memory"))
CAUSAL = compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot))
ASKED = compose(aggregate(), normalize(softmax), score(scaled_dot), READ)
TURNED = project(query=rotary() @ linear(4), key=rotary() @ read("k"), value=read("k"))
INSIDE = {
    "read": given(CAUSAL @ OWN, k=linear(4)),
    "read and turned": given(CAUSAL @ TURNED, k=linear(4)),
    "read by heads": given(heads(2, CAUSAL @ OWN), k=linear(4)),
    "made of what is made": given(given(CAUSAL @ OWN, k=linear(4) @ read("j")), j=linear(3)),
    "streamed": streamed(given(CAUSAL @ OWN, k=linear(4)), 2),
}


@pytest.mark.parametrize("name", INSIDE)
def test_rows_made_inside_stand_where_theirs_stand(name):
    """Shifted, all rows see what they saw; one after another, steps are the whole."""
    term, x = INSIDE[name], X[:6]
    params = term.init(jax.random.key(0), x)
    whole = term(params, x)
    np.testing.assert_allclose(term(params, x, positions=jnp.arange(6) + 3), whole, atol=1e-6)
    steps, _ = stepped(term, x, [1, 3, 2])
    np.testing.assert_allclose(steps, whole, atol=1e-6)


def test_the_first_row_sees_itself_alone():
    """The case by number: at position 3 a query saw keys 0 to 3 of those made inside."""
    term = given(head(mask(causal), entries=OWN, weights=softmax), k=identity)
    params = term.init(jax.random.key(0), X[:6])
    y = term(params, X[:6], positions=jnp.arange(6) + 3)
    means = np.cumsum(np.asarray(X[:6]), 0) / np.arange(1, 7)[:, None]
    np.testing.assert_allclose(y, means, atol=1e-6)


def test_rows_made_of_the_context_count_from_zero():
    """A memory that is made inside, of the context alone, has no positions of the sequence."""
    term = given(
        head(mask(causal), entries=READ, weights=softmax), memory=linear(4) @ read("audio")
    )
    audio = X[:5, :3]
    params = term.init(jax.random.key(0), X[:6], audio=audio)
    y = term(params, X[:6], audio=audio, positions=jnp.arange(6) + 3)
    plain = term(params, X[:6], audio=audio)
    np.testing.assert_allclose(y[:2], plain[3:5], atol=1e-6)


# Case 16: a memory made inside of the context, in steps


@pytest.mark.parametrize(
    "term",
    [
        given(ASKED, memory=linear(4) @ read("audio")),
        given(given(ASKED, memory=linear(4) @ read("sound")), sound=linear(5) @ read("audio")),
        (identity + given(ASKED, memory=read("audio") @ identity)) ** 2,
    ],
    ids=["given", "given twice", "in a repeat"],
)
def test_a_memory_made_inside_is_made_once(term):
    """It goes to start alone, and steps are the whole."""
    audio = X[:5, :3]
    steps, whole = stepped(term, X[:6], [1, 2, 3], audio=audio)
    np.testing.assert_allclose(steps, whole, atol=1e-6)


def test_a_name_that_something_else_reads_goes_to_every_step():
    """The memory is made of the tone, and the rows are moved by it."""
    moved = identity + linear(4) @ read("tone")
    term = given(ASKED @ moved, memory=linear(4) @ read("tone"))
    x, tone = X[:2], X[:1, :3]
    params = term.init(jax.random.key(0), x, tone=tone)
    start, step = stepwise(term)
    _, y = step(params, start(params, x, 8, tone=tone), x, tone=tone)
    np.testing.assert_allclose(y, term(params, x, tone=tone), atol=1e-6)


# Case 16: maps inside over the rows of a sequence


def test_what_is_in_a_row_counts_from_zero():
    """x is 6 rows of 5 vectors: inside a row nothing stands at the row's position."""
    x = jnp.asarray(normal(6, 5, 4), jnp.float32)
    inside = CAUSAL @ project(query=rotary() @ linear(4), key=rotary() @ linear(4), value=4)
    term = compose(CAUSAL @ project(4), pointwise(lambda y: y.sum(1)), each(inside))
    params = term.init(jax.random.key(0), x)
    whole = term(params, x)
    np.testing.assert_allclose(term(params, x, positions=jnp.arange(6) + 2), whole, atol=1e-6)
    steps, _ = stepped(term, x, [2, 4])
    np.testing.assert_allclose(steps, whole, atol=1e-6)


def test_what_lies_across_the_rows_stands_where_they_stand():
    """Mapped over another axis, each part has all rows, at their positions."""
    x, at = jnp.asarray(normal(6, 2, 4), jnp.float32), jnp.array([4, 5, 6, 9, 10, 11])
    one = CAUSAL @ project(query=rotary() @ linear(4), key=4, value=4)
    term = pointwise(jnp.sin) @ each(one, axis=1)
    params = term.init(jax.random.key(0), x)
    expected = jnp.sin(one(params, x[:, 1], positions=at))
    np.testing.assert_allclose(term(params, x, positions=at)[:, 1], expected, atol=1e-6)
