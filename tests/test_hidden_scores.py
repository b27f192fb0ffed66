"""Hidden scores: a bias of -inf hides in every normalizer; nothing hidden has a gradient."""
# ruff: noqa: F403, F405

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import GIVEN, NORMALIZERS, ask, fast, running
from asking import given as random
from plain import close

from combinax.combinators import *

T = 6
EMPTY, HOLE = 2, 1
"""A query that sees nothing, and a key that only the query at its own place sees."""


def hides(query, key):
    return (query.position == EMPTY) | ((key.position == HOLE) & (query.position > HOLE))


def infinitely(query, key):
    return jnp.where(hides(query, key), -jnp.inf, 0.1 * query.position)


def finitely(query, key):
    return 0.1 * query.position


def later(query, key):
    """A number for what `causal` hides, which is context, and nothing for what it leaves."""
    return jnp.where(key.position > query.position, query["size"], 0.0)


LATER, SIZES = bias(later, ("size",)), (100.0, np.inf, np.nan)


def own(score, visible):
    """A function of a table that takes no care of what is hidden."""
    weight = jnp.square(score) if visible is None else jnp.where(visible, jnp.square(score), 0)
    return weight / (1 + weight.sum(-1, keepdims=True))


@dataclasses.dataclass(frozen=True)
class exponentials(Streaming):
    """exp(score) over the sum and one, without a maximum taken off."""

    def reference(self, score, visible):
        return jnp.zeros_like(score[:, 0])

    def weigh(self, score, visible, reference):
        return jnp.exp(score) if visible is None else jnp.where(visible, jnp.exp(score), 0)

    def rescale(self, old, new):
        return jnp.ones_like(old)

    def divisor(self, total):
        return 1 + total


HOW = {
    **NORMALIZERS,
    "own": own,
    "own pointwise": pointwise(lambda score: jnp.sqrt(4 + score)),
    "own streaming": exponentials(),
}
"""Of an own function, at 0 and -inf nothing is known: here -inf would give NaN."""

STREAMED = ["softmax", "gelu", "row_sum", "own pointwise", "own streaming"]


def loss(term, q, k, v, **context):
    y = term({}, q, key=k, value=v, **context)
    return (jnp.cos(jnp.arange(y.size).reshape(y.shape)) * y).sum(), y


def answering(term):
    """The answer, and its gradients to queries, keys and values."""
    return fast(jax.value_and_grad(functools.partial(loss, term), (0, 1, 2), has_aux=True))


def agree(found, expected):
    (_, y), slopes = found
    (_, right), gradient = expected
    close(y, right, atol=2e-6)
    for mine, theirs in zip(slopes, gradient, strict=True):
        close(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("name", HOW)
def test_a_score_of_minus_infinity_is_hidden(name):
    """A bias of -inf is a mask: the same answers and gradients, and a row of nothing else is 0.

    What is added to scores that a mask hides changes nothing, either.
    """
    how, (q, k, v) = HOW[name], random(T, T, e=2)
    seen = ask(bias(finitely), mask(causal & ~predicate(hides)), how=how)
    expected = answering(materialized(seen))(q, k, v)
    assert not expected[0][1][EMPTY].any() and expected[0][1].any()
    term = ask(LATER, bias(infinitely), mask(causal), how=how)
    for pinned in (materialized(term), streamed(term, 2))[: 1 + (name in STREAMED)]:
        run = answering(pinned)
        for size in SIZES:
            agree(run(q, k, v, size=np.float32(size)), expected)


ROWWISE = [softmax, sparsemax, entmax15, top_k(2), hardmax, row_sum]


@pytest.mark.parametrize("how", ROWWISE, ids=repr)
def test_rows_of_minus_infinity_on_arrays(how):
    low = jnp.array([[-jnp.inf, -jnp.inf], [1.0, -jnp.inf]])
    assert how({}, low).tolist() == [[0, 0], [1, 0]]
    assert jnp.isfinite(jax.grad(lambda x: how({}, x)[1, 0])(low.at[0].set(0.0))).all()


@pytest.mark.parametrize("how", [sparsemax, gelu], ids=repr)
def test_rows_of_minus_infinity_in_unions_and_steps(how):
    q, k, v = random(T, T, e=2)
    hidden = mask(~predicate(hides)) @ bias(finitely) @ score(scaled_dot)
    first, second = (
        running(compose(aggregate(), normalize(how), union(one, score(dot)), GIVEN))(q, k, v)
        for one in (bias(infinitely) @ score(scaled_dot), hidden)
    )
    close(first, second, atol=2e-6)
    own = compose(aggregate(), normalize(how), bias(infinitely), mask(causal), score(scaled_dot))
    start, step = stepwise(own @ project(identity))
    whole = running(own @ GIVEN)(q, q, q)
    state, y = step({}, start({}, q, T), q[:3])
    _, z = step({}, state, q[3:])
    close(jnp.concatenate([y, z]), whole, atol=2e-6)
    assert not whole[EMPTY].any()


@pytest.mark.parametrize("name", NORMALIZERS)
def test_any_finite_score_is_a_score(name):
    """The least float32 is far from -inf: alone in its row it is seen."""
    how, least = normalize(NORMALIZERS[name]), float(np.finfo(np.float32).min)
    table = how({}, Scores(jnp.array([[least], [-jnp.inf]]), jnp.ones((1, 1)), None)).weight
    assert table[1] == 0
    if NORMALIZERS[name] in ROWWISE:
        assert table[0] == 1


def test_log_sum_exp_of_minus_infinity():
    q, k, v = random(T, T)
    for pin in (materialized, lambda term: streamed(term, 2)):
        logs = running(pin(compose(log_sum_exp, bias(infinitely), score(dot), GIVEN)))(q, k, v)
        assert logs[EMPTY] == -np.inf and np.isfinite(np.delete(logs, EMPTY)).all()


# Functions of scores, some of which a mask hides


@dataclasses.dataclass(frozen=True)
class logarithm(Stage):
    """log(score)."""

    def tile(self, operands, score, marks):
        return jnp.log(score)


POSITIVE = pointwise(lambda score: jnp.log1p(jnp.exp(score)))
STAGES = {
    "pointwise": [pointwise(jnp.exp)],
    "pointwise that 0 breaks": [pointwise(jnp.log), POSITIVE],
    "own stage": [logarithm(), POSITIVE],
    "softcap": [softcap(2.0)],
    "temperature": [temperature(read("t"))],
    "product": [multiply(read("t"), pointwise(jnp.square))],
    "sum of tables": [pointwise(jnp.sin) + multiply(pointwise(jnp.square), pointwise(jnp.exp))],
}


@pytest.mark.parametrize("name", STAGES)
def test_what_is_hidden_has_no_gradient(name):
    """Whatever is added to hidden scores, answers and gradients are those without it."""
    (q, k, v), stages = random(4, 4, e=2), STAGES[name]
    context = {"t": np.float32(0.7)} if name in ("temperature", "product") else {}
    term = ask(*stages, LATER, mask(causal))
    for pinned in (materialized(term), streamed(term, 2))[: 1 + (name != "softcap")]:
        run = fast(jax.value_and_grad(whole(pinned), (0, 1, 2, 3), has_aux=True))
        expected = run(q, k, v, context, size=np.float32(0))
        for slopes in expected[1][:3]:
            assert np.isfinite(slopes).all() and slopes.any()
        for size in SIZES:
            found = run(q, k, v, context, size=np.float32(size))
            agree(jax.tree.map(np.asarray, (found[0], jax.tree.leaves(found[1]))),
                  (expected[0], jax.tree.leaves(expected[1])))  # fmt: skip


def whole(term):
    return lambda q, k, v, context, size: loss(term, q, k, v, size=size, **context)


@pytest.mark.parametrize("block", [None, 1, 2, 3])
def test_a_hidden_score_that_overflows(block):
    x = jnp.array([[0.1], [0.2], [0.3]])
    scored = compose(pointwise(jnp.exp), bias(ahead), mask(causal), score(dot), project(identity))
    term = compose(aggregate(), normalize(identity), scored)
    pinned = materialized(term) if block is None else streamed(term, block)
    slope = fast(jax.grad(lambda x: pinned({}, x).sum()))(x)
    q = np.array([0.1, 0.2, 0.3])
    e = np.exp(np.outer(q, q)) * np.tri(3)  # the sum of e[t, s] q[s], differentiated by hand
    expected = (e * q * q).sum(1) + (e * np.outer(q, q)).sum(0) + e.sum(0)
    close(slope[:, 0], expected, rtol=1e-6)


def ahead(query, key):
    return 100.0 * (key.position > query.position)
