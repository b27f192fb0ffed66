"""The laws of the soft dictionary: masks, normalizers, aggregation, several at once."""
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import Any

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from plain import drawn, single
from sampling import D, T, agree, examples, few, seeds

from combinax.combinators import *

sizes = st.sampled_from([(1, 1), (4, 4), (3, 5), (5, 3), (1, 4)])


def rows(count: int) -> Rows:
    return Rows(Range(0, count), Range(0, count))


def scores(seed: int, queries: int = T, keys: int = T, width: int = D) -> Scores:
    marks = Marks(rows(queries), rows(keys))
    return Scores(single(queries, keys, seed=seed), single(keys, width, seed=seed + 1), marks)


def entries(seed: int, queries: int = T, keys: int = T, width: int = D) -> Entries:
    marks = Marks(rows(queries), rows(keys))
    query, key, value = (
        single(n, width, seed=seed + i) for i, n in enumerate((queries, keys, keys))
    )
    return Entries(query, key, value, marks)


# Masks are an algebra of sets


def even(query, key):
    return (query.position + key.position) % 2 == 0


WORDS = {
    "causal": (causal, lambda i, j: j <= i),
    "window": (window(2), lambda i, j: abs(i - j) < 2),
    "prefix": (prefix(2), lambda i, j: j < 2 or j <= i),
    "dilated": (dilated(2), lambda i, j: (i - j) % 2 == 0),
    "block": (block_causal(2), lambda i, j: j // 2 <= i // 2),
    "even": (predicate(even), lambda i, j: (i + j) % 2 == 0),
}
SIGNS = {
    "&": (lambda p, q: p & q, lambda a, b: a and b),
    "|": (lambda p, q: p | q, lambda a, b: a or b),
}
# A predicate, and what it means for a single query and key in plain Python.
predicates = st.recursive(
    st.sampled_from(list(WORDS.values())),
    lambda inner: st.one_of(
        inner.map(lambda p: (~p[0], lambda i, j: not p[1](i, j))),
        st.tuples(st.sampled_from(list(SIGNS.values())), inner, inner).map(
            lambda t: (
                t[0][0](t[1][0], t[2][0]),
                lambda i, j: t[0][1](t[1][1](i, j), t[2][1](i, j)),
            )
        ),
    ),
    max_leaves=4,
)


def seen(term: Term, size: tuple[int, int]) -> np.ndarray:
    """Which keys each query sees after a term on scores."""
    visible = term({}, scores(0, *size)).visible
    return np.ones(size, bool) if visible is None else np.asarray(visible)


@examples
@hypothesis.given(predicates, sizes)
def test_predicates_mean_what_they_say(p, size):
    expected = [[bool(p[1](i, j)) for j in range(size[1])] for i in range(size[0])]
    chex.assert_trees_all_equal(seen(mask(p[0]), size), np.array(expected))


@examples
@hypothesis.given(predicates, predicates, sizes)
def test_masks_intersect(p, q, size):
    (p, _), (q, _) = p, q
    both = seen(mask(p & q), size)
    chex.assert_trees_all_equal(seen(mask(p) @ mask(q), size), both)
    chex.assert_trees_all_equal(seen(mask(q) @ mask(p), size), both)
    chex.assert_trees_all_equal(seen(mask(p) @ mask(p), size), seen(mask(p), size))


@examples
@hypothesis.given(predicates, predicates, sizes)
def test_de_morgan(p, q, size):
    (p, _), (q, _) = p, q
    chex.assert_trees_all_equal(seen(mask(~(p & q)), size), seen(mask(~p | ~q), size))
    chex.assert_trees_all_equal(seen(mask(~(p | q)), size), seen(mask(~p & ~q), size))
    chex.assert_trees_all_equal(seen(mask(~~p), size), seen(mask(p), size))
    assert not seen(mask(p & ~p), size).any() and seen(mask(p | ~p), size).all()


def distant(query, key):
    return -0.3 * abs(query.position - key.position)


STAGES = [bias(distant), softcap(1.5), temperature(0.7), pointwise(jnp.sin)]


@few
@hypothesis.given(predicates, st.sampled_from(STAGES), seeds)
def test_masks_commute_with_what_changes_scores(p, stage, seed):
    one, two = mask(p[0]) @ stage, stage @ mask(p[0])
    chex.assert_trees_all_equal(
        (normalize(softmax) @ one)({}, scores(seed)), (normalize(softmax) @ two)({}, scores(seed))
    )


# Normalizers


@few
@hypothesis.given(seeds, st.floats(-100, 100), predicates)
def test_softmax_ignores_a_shift_of_a_row(seed, shift, p):
    shifts = shift * single(T, 1, seed=seed)
    one, weigh = scores(seed), normalize(softmax) @ mask(p[0])
    two = one.replace(score=one.score + shifts)
    # A shifted score is rounded to 1e-7 of its size, at most a few hundred.
    np.testing.assert_allclose(weigh({}, two).weight, weigh({}, one).weight, atol=1e-4)


ROWWISE = [softmax, row_sum, sparsemax, entmax15, top_k(2), hardmax]
ELEMENTWISE = [sigmoid, relu, relu_squared, gelu, gelu_tanh, silu, identity]


@pytest.mark.parametrize("how", [softmax, sparsemax, entmax15, top_k(2), hardmax], ids=repr)
def test_weights_of_a_row_sum_to_one(how):
    weights = (normalize(how) @ mask(causal))({}, scores(1)).weight
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)  # T float32 roundings
    assert (weights >= 0).all()


@pytest.mark.parametrize("how", [*ROWWISE, *ELEMENTWISE], ids=repr)
def test_a_hidden_key_is_as_good_as_none(how):
    """Masking the last two keys is the problem without them."""
    table = scores(3)
    fewer = Scores(jnp.abs(table.score[:, :3]), table.value[:3], Marks(rows(T), rows(3)))
    table = table.replace(score=jnp.abs(table.score))
    term = aggregate() @ normalize(how)
    agree((term @ mask(first_three))({}, table), term({}, fewer))


def first_three(query, key):
    return (key.position < 3) & (query.position >= 0)


@pytest.mark.parametrize("how", [*ROWWISE, *ELEMENTWISE], ids=repr)
def test_the_order_of_keys_does_not_matter(how):
    table, order = scores(3), np.array([3, 0, 4, 1, 2])
    moved = table.replace(score=table.score[:, order], value=table.value[order])
    agree((aggregate() @ normalize(how))({}, moved), (aggregate() @ normalize(how))({}, table))


# Permutation equivariance


@few
@hypothesis.given(st.permutations(range(T)), seeds)
def test_attention_is_permutation_equivariant(order, seed):
    head = aggregate() @ normalize(softmax) @ score(scaled_dot) @ project(3)
    term = identity + linear(D) @ heads(2, head) @ rms_norm()
    x, order = single(T, D, seed=seed), np.array(order)
    params = drawn(term, x)
    agree(term(params, x[order]), term(params, x)[order])


@pytest.mark.parametrize("stage", [mask(causal), bias(distant)], ids=repr)
def test_masks_and_positions_break_the_symmetry(stage):
    term = aggregate() @ normalize(softmax) @ stage @ score(dot) @ project(3)
    x = single(T, D, seed=1)
    params = drawn(term, x)
    order = np.roll(np.arange(T), 2)
    assert np.abs(term(params, x[order]) - term(params, x)[order]).max() > 1e-2


# Linear maps


@few
@hypothesis.given(st.integers(1, 4), st.integers(1, 4), seeds)
def test_linear_maps_form_a_category(m, n, seed):
    x, a, b = single(T, D, seed=seed), single(D, m, seed=seed + 1), single(m, n, seed=seed + 2)
    two = {"linear": {"kernel": a}, "linear_2": {"kernel": b}}
    agree((linear(n) @ linear(m))(two, x), linear(n)({"kernel": a @ b}, x))
    sums = {"linear": {"kernel": a}, "linear_2": {"kernel": 2 * a}}
    agree((linear(m) + linear(m))(sums, x), linear(m)({"kernel": 3 * a}, x))
    # So an adapter of low rank merges into the kernel it adapts.
    base = single(D, n, seed=seed + 3)
    adapted = linear(n) + linear(n) @ linear(m)
    kernels = {"linear": base, "linear_2": a, "linear_3": b}
    params = {name: {"kernel": kernel} for name, kernel in kernels.items()}
    agree(adapted(params, x), linear(n)({"kernel": base + a @ b}, x))


@few
@hypothesis.given(st.integers(1, 4), st.sampled_from([softmax, gelu, sparsemax]), seeds)
def test_linear_maps_slide_into_the_values(m, how, seed):
    lookup = aggregate() @ normalize(how) @ mask(causal) @ score(scaled_dot)
    after = linear(m) @ lookup @ project(3)
    before = lookup @ project(query=3, key=3, value=linear(m) @ linear(3))
    x = single(T, D, seed=seed)
    params = drawn(after, x)
    value = {"linear": params["project"]["value"], "linear_2": params["linear"]}
    inside = {"project": {**params["project"], "value": value}}
    agree(after(params, x), before(inside, x))


# Keys and values


def test_the_identity_as_keys_returns_the_values():
    one = jnp.eye(D)
    asked = Entries(one, one, single(D, 3, seed=1), Marks(rows(D), rows(D)))
    for how in (identity, hardmax, relu, relu_squared, row_sum, sparsemax):
        # sparsemax is hard from a lead of 1 on.
        chex.assert_trees_all_equal(
            (aggregate() @ normalize(how) @ score(dot))({}, asked), asked.value
        )
    # A question that is no key mixes the values as it mixes the keys.
    mixed = asked.replace(query=single(D, D, seed=2))
    agree((aggregate() @ normalize(identity) @ score(dot))({}, mixed), mixed.query @ mixed.value)


def test_without_activation_two_matrices_collapse_into_one():
    term, x = aggregate() @ normalize(identity) @ score(dot) @ slots(7), single(T, D, seed=1)
    params = drawn(term, x)
    table = params["slots"]
    agree(term(params, x), linear(D)({"kernel": table["key"].T @ table["value"]}, x))


def test_a_dictionary_is_an_mlp():
    term, x = aggregate() @ normalize(gelu) @ score(dot) @ slots(7), single(T, D, seed=1)
    params = drawn(term, x)
    table = params["slots"]
    mlp = linear(D) @ gelu @ linear(7)
    matrices = {"linear": {"kernel": table["key"].T}, "linear_2": {"kernel": table["value"]}}
    agree(term(params, x), mlp(matrices, x))


# Several dictionaries at once


def part(start, stop):
    def cut(asked):
        marks = Marks(asked.marks.query, rows(stop - start))
        return asked.replace(key=asked.key[start:stop], value=asked.value[start:stop], marks=marks)

    return lift(cut)


@pytest.mark.parametrize("how", [*ROWWISE, *ELEMENTWISE], ids=repr)
@pytest.mark.parametrize("cut", [1, 3])
def test_a_union_is_one_normalizer_over_all_keys(how, cut):
    match = pointwise(jnp.abs) @ score(scaled_dot)  # row_sum is for positive scores
    halves = union(match @ part(0, cut), match @ part(cut, T))
    whole = aggregate() @ normalize(how) @ match
    agree((aggregate() @ normalize(how) @ halves)({}, entries(5)), whole({}, entries(5)))


def test_unions_nest():
    thirds = [score(dot) @ part(*pair) for pair in ((0, 1), (1, 3), (3, 5))]
    term = normalize(softmax) @ union(*thirds)
    for nested in (union(union(*thirds[:2]), thirds[2]), union(thirds[0], union(*thirds[1:]))):
        agree((normalize(softmax) @ nested)({}, entries(5)).weight, term({}, entries(5)).weight)


@few
@hypothesis.given(seeds)
def test_a_sink_is_softmax_plus_one(seed):
    asked = entries(seed)
    term = aggregate() @ normalize(softmax) @ union(score(dot), sink(0.0))
    query, key, value = (np.asarray(a, np.float64) for a in (asked.query, asked.key, asked.value))
    raised = np.exp(query @ key.T)
    expected = raised / (1 + raised.sum(-1, keepdims=True)) @ value
    agree(term({}, asked), expected)
    learns = aggregate() @ normalize(softmax) @ union(score(dot), sink())
    agree(learns({"union": {"sink": {"score": jnp.zeros(())}}}, asked), expected)


# Grouped heads


@pytest.mark.parametrize(("groups", "size"), [(1, 3), (2, 2), (3, 1)])
def test_grouped_heads_are_heads_with_repeated_keys(groups, size):
    lookup = aggregate() @ normalize(softmax) @ mask(causal) @ score(scaled_dot)
    apart = lookup @ project(2)
    one = lookup @ project(
        query=2, key=shared(linear(2), across="heads"), value=shared(linear(2), across="heads")
    )
    grouped, flat = heads(groups, heads(size, one)), heads(groups * size, apart)
    x = single(T, D, seed=1)
    params = drawn(grouped, x)
    kernels = params["heads"]["project"]
    assert kernels["query"]["kernel"].shape == (D, groups, size, 2)
    assert kernels["key"]["kernel"].shape == kernels["value"]["kernel"].shape == (D, groups, 2)
    repeated = {
        "query": kernels["query"]["kernel"].reshape(D, groups * size, 2),
        "key": jnp.repeat(kernels["key"]["kernel"], size, 1),
        "value": jnp.repeat(kernels["value"]["kernel"], size, 1),
    }
    params_flat = {"project": {name: {"kernel": kernel} for name, kernel in repeated.items()}}
    agree(grouped(params, x), flat(params_flat, x))


# Dropout


def test_dropout_is_the_same_however_it_runs():
    term = repeat(2, identity + linear(D) @ dropout(0.5)) @ dropout(0.5)
    x, rng = jnp.ones((T, D)), jax.random.key(3)
    params = drawn(term, x)
    whole = term(params, x, rng=rng)
    assert (whole == term(params, x, rng=rng)).all()
    assert (whole != term(params, x)).any()
    agree(jax.jit(term)(params, x, rng=rng), whole)
    agree(term(unstack(term, params), x, rng=rng), whole)


def dropped(term: Term, x: Any, rng: Any) -> np.ndarray:
    """Where a term that only drops has dropped."""
    return np.asarray(term({}, x, rng=rng)) == 0


def test_every_place_drops_numbers_of_its_own():
    x, rng = jnp.ones((40, 25)), jax.random.key(3)
    once = dropped(dropout(0.5), x, rng)
    assert abs(once.mean() - 0.5) < 0.1  # 1,000 draws: six deviations
    chex.assert_trees_all_equal(dropped(dropout(0.5), x, rng), once)
    assert (dropped(dropout(0.5), x, jax.random.key(4)) != once).mean() > 0.4
    # Two stages, the layers of a repeat, the rows of a batch: each its own numbers.
    chances = {
        "stages": dropout(0.5) @ dropout(0.5),
        "layers": dropout(0.5) ** 2,
        "copies": copies(2, dropout(0.5)),
    }
    for name, term in chances.items():
        gone = dropped(term, x, rng)
        if name == "copies":
            assert (gone[0] != gone[1]).mean() > 0.4
        else:
            assert abs(gone.mean() - 0.75) < 0.1
    batch = dropped(each(dropout(0.5)), jnp.ones((2, 40, 25)), rng)
    assert (batch[0] != batch[1]).mean() > 0.4


def test_dropping_nothing_is_the_identity():
    x = single(T, D, seed=1)
    chex.assert_trees_all_equal(dropout(0.0)({}, x, rng=jax.random.key(3)), x)
    chex.assert_trees_all_equal(dropout(0.5)({}, x), x)
