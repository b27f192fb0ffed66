"""What answers for pairs, what is refused though right, and what was right and is no longer."""
# ruff: noqa: F403, F405

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpy64
import pytest
from plain import check_derivative, drawn, normal

from combinax.combinators import *
from combinax.models import keys

X = jnp.asarray(normal(6, 4), jnp.float32)
MEMORY = jnp.asarray(normal(5, 4, seed=2), jnp.float32)
ROWS = project(query=identity, key=identity, value=identity)
READ = project(query=identity, key=read("memory"), value=read("memory"))
PAIRS = "answers for each pair of a query and a key"


def head(*stages, entries=ROWS):
    return compose(aggregate(), normalize(softmax), *stages, score(scaled_dot), entries)


# Case 7: functions of marks that fold a side


FOLDED = {
    "a row": lambda query, key: query.position[:, 0] < 3,
    "a row of keys": lambda query, key: key.position[0] < 3,
    "any": lambda query, key: (key.position <= query.position).any(),
    "all": lambda query, key: (key.position >= 0).all(),
    "all, kept": lambda query, key: (key.position >= 0).all(keepdims=True),
    "any key": lambda query, key: (key.position < query.position).any(1, keepdims=True),
    "the last query": lambda query, key: key.position <= query.position[-1:],
}


@pytest.mark.parametrize("name", FOLDED)
def test_a_function_of_marks_answers_for_pairs(name):
    """As a predicate, in one put together, and as a bias; on a table, as a stream, of a batch."""
    folded = FOLDED[name]
    wrong = [
        head(mask(folded)), head(mask(~(causal & folded))), streamed(head(mask(folded)), 2),
        head(bias(lambda query, key: 1.0 * folded(query, key))),
    ]  # fmt: skip
    for term in wrong:
        with pytest.raises(CompositionError, match=PAIRS):
            term.init(jax.random.key(0), X)
    with pytest.raises(CompositionError, match=PAIRS):
        each(wrong[0])({}, X[None])


ODD = np.arange(6) % 2 == 1
ANSWERS = {
    "queries alone": (lambda query, key: query.position > -1, np.ones((6, 6), bool)),
    "keys alone": (lambda query, key: key.position % 2 == 1, np.tile(ODD, (6, 1))),
    "neither": (lambda query, key: True, np.ones((6, 6), bool)),
    "a flag": (predicate(lambda query, key: key["on"], "on"), np.ones((6, 6), bool)),
    "a table": (lambda query, key: jnp.asarray(ODD)[key.position], np.tile(ODD, (6, 1))),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_side_that_is_not_looked_at_may_be_left_out(name):
    seen, table = ANSWERS[name]
    term = head(mask(seen))
    context = {"on": True} if name == "a flag" else {}
    expected = numpy64.attend(X, X, X, table)
    np.testing.assert_allclose(term({}, X, **context), expected, atol=1e-5)
    np.testing.assert_allclose(streamed(term, 2)({}, X, **context), expected, atol=1e-5)


# Case 8: an attention mask in place of a number of keys


@pytest.mark.parametrize("way", [lambda term: term, jax.jit, lambda term: jax.jit(each(term))])
def test_an_attention_mask_is_no_number_of_keys(way):
    """Known by number, traced, and of a batch; its sum is."""
    term, at = head(mask(valid("m"))), np.array([1, 1, 1, 1, 0, 0])
    run = way(term)
    batch = run is not term and isinstance(getattr(run, "__wrapped__", None), type(each(term)))
    x, m = (X[None], at[None]) if batch else (X, at)
    with pytest.raises(CompositionError, match=r"pass one number, m\.sum\(-1\) for an attention"):
        run({}, x, m=m)
    expected = numpy64.attend(X, X[:4], X[:4])
    y = run({}, x, m=m.sum(-1))
    np.testing.assert_allclose(y[0] if batch else y, expected, atol=1e-5)
    kept = head(mask(same("m")))({}, X, m=at)
    np.testing.assert_allclose(kept[:4], expected[:4], atol=1e-5)


# Case 16: facts of keys alone


ON = np.array([True, False, True, True, False])


@pytest.mark.parametrize("block", [None, (2, 2), (4, 1)])
def test_facts_of_keys_alone(block):
    """Of 6 queries and 5 keys, for a predicate and for a bias."""
    hidden = mask(predicate(lambda query, key: key["on"], ("on",)))
    lowered = bias(lambda query, key: -2.0 * key["on"], ("on",))
    for stage, level, seen in ((hidden, 0.0, ON), (lowered, -2.0 * ON, None)):
        term = head(stage, entries=READ)
        y = (streamed(term, block) if block else term)({}, X, memory=MEMORY, on=ON)
        scores = np.asarray(X) @ np.asarray(MEMORY).T / 2 + level
        table = None if seen is None else np.tile(seen, (6, 1))
        np.testing.assert_allclose(y, numpy64.weights(scores, table) @ MEMORY, atol=1e-5)


def test_facts_of_keys_alone_in_steps():
    term = head(mask(predicate(lambda query, key: key["on"], "on")), entries=READ)
    start, step = stepwise(term)
    state, whole = start({}, X[:2], 8, memory=MEMORY, on=ON), []
    for chunk in (X[:2], X[2:6]):
        state, y = step({}, state, chunk, on=ON)
        whole.append(y)
    np.testing.assert_allclose(jnp.concatenate(whole), term({}, X, memory=MEMORY, on=ON), atol=1e-6)


# Case 16: a term in two places under one name


SHARED = {
    "slots": compose(aggregate(), normalize(gelu), score(dot), slots(3)),
    "relative": head(bias(relative(2))),
    "t5_buckets": head(bias(t5_buckets(8, 16))),
    "keys": compose(aggregate(), normalize(gelu), score(dot), keys(), slots(3)),
    "additive": compose(aggregate(), normalize(softmax), score(additive(3)), ROWS),
}


@pytest.mark.parametrize("name", SHARED)
def test_equal_terms_share_under_a_name(name):
    term = SHARED[name]
    twice = shared(term, name="both") @ shared(term, name="both")
    params = twice.init(jax.random.key(0), X)
    assert params.keys() == {"both"}
    once = term(params["both"], X)
    np.testing.assert_allclose(twice(params, X), term(params["both"], once), atol=1e-6)


def test_other_terms_under_one_name_are_told_apart():
    zeros, ones = (
        identity + learned((4,), start)
        for start in (jax.nn.initializers.zeros, jax.nn.initializers.ones)
    )
    with pytest.raises(CompositionError, match="their initializers differ"):
        (shared(zeros, name="a") @ shared(ones, name="a")).init(jax.random.key(0), X)


# Case 16: kinds that are known too well


def test_a_function_of_a_tuple_may_stand_in_a_slot():
    summed = pointwise(lambda pair: pair[0] + pair[1]) @ fanout(linear(4), identity)
    term = head(entries=project(query=summed, key=identity, value=identity))
    params = term.init(jax.random.key(0), X)
    query = np.asarray(X) + np.asarray(X) @ params["project"]["query"]["fanout"]["linear"]["kernel"]
    np.testing.assert_allclose(term(params, X), numpy64.attend(query, X, X), atol=1e-5)


def test_a_fold_may_give_another_width():
    doubled = aggregate(lambda weights: jnp.tile(weights(weights.value), 2))
    term = linear(8) + compose(doubled, normalize(softmax), score(scaled_dot), project(4))
    params = term.init(jax.random.key(0), X)
    assert term(params, X).shape == (6, 8)


def test_a_fold_of_the_package_keeps_the_width():
    with pytest.raises(CompositionError, match="add combines values of one shape"):
        add(linear(8), compose(aggregate(largest), normalize(softmax), score(dot), project(4)))


# Case 16: unions of dictionaries with entries of their own


OWN = mask(causal) @ score(scaled_dot) @ project(4)
OTHER = score(scaled_dot) @ project(
    query=4, key=linear(4) @ read("memory"), value=linear(4) @ read("memory")
)
UNIONS = {
    "causal and read": compose(aggregate(), normalize(softmax), union(OWN, OTHER)),
    "read and causal": compose(aggregate(), normalize(softmax), union(OTHER, OWN)),
    "with slots": compose(
        aggregate(), normalize(softmax), temperature(2.0),
        union(OWN, OTHER, score(scaled_dot) @ slots(3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNIONS)
def test_a_union_of_own_entries_streams(name):
    with jax.enable_x64():
        term, memory = UNIONS[name], normal(5, 4, seed=3)
        x = normal(7, 4)
        params = drawn(term, x, memory=memory)
        whole = jax.jit(term)(params, x, memory=memory)
        for block in ((2, 2), (3, 5)):
            y = jax.jit(streamed(term, block))(params, x, memory=memory)
            np.testing.assert_allclose(y, whole, rtol=1e-12)
    assert "streamed in 2 × 2" in str(describe(streamed(term, 2), X, memory=MEMORY))


def test_the_derivative_of_such_a_stream():
    with jax.enable_x64():
        term, memory = streamed(UNIONS["causal and read"], 2), normal(5, 4, seed=3)
        x = normal(7, 4)
        check_derivative(term, drawn(term, x, memory=memory), x, memory=memory)


def test_a_large_union_of_own_entries_is_streamed_unasked():
    table = str(describe(UNIONS["causal and read"], jax.ShapeDtypeStruct((2000, 4), "float32"),
                         memory=MEMORY))  # fmt: skip
    assert "streamed in" in table and "its scores or weights" not in table


def test_a_union_that_cannot_stream_says_why():
    hard = streamed(compose(aggregate(), normalize(hardmax), union(OWN, OTHER)))
    params = materialized(hard.parts[0]).init(jax.random.key(0), X, memory=MEMORY)
    with pytest.raises(CompositionError, match=r"normalize\(hardmax\) needs whole rows of scores"):
        hard(params, X, memory=MEMORY)
