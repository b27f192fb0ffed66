"""The laws of composition, as properties."""
# ruff: noqa: F403, F405

from __future__ import annotations

import functools
import operator
from typing import Any

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from plain import drawn, single
from sampling import D, T, agree, examples, few, paths, seeds

from combinax.combinators import *


def of(params: dict[str, Any], *names: str) -> dict[str, Any]:
    """The parameters that stand under these names."""
    return {name: params[name] for name in names if name in params}


def under(name: str, params: dict[str, Any]) -> dict[str, Any]:
    return {name: params} if params else {}


def half(x):
    return x / 2


def turned(x):
    return jnp.flip(x, 0)


# Terms that keep the shape (T, 4), so that they compose in any order and number.
KEY = jax.random.key(0)
leaves = st.sampled_from([
    identity, silu, gelu, relu_squared, pointwise(half), lift(turned), softcap(2.0), rms_norm(),
    layer_norm(), linear(D), linear(D, bias=True), dropout(0.5), rotary(), sinusoidal(),
    identity + linear(D) @ rms_norm(), heads(2, linear(2)), multiply(silu, linear(D)),
])  # fmt: skip
# The same, few enough to be worth compiling.
maps = st.sampled_from([silu, rms_norm(), linear(D), identity + linear(D, bias=True)])


@st.composite
def bracketings(draw: Any, terms: list[Term]) -> Term:
    """The terms composed in order, under brackets drawn at random."""
    if len(terms) < 2:
        return terms[0] if terms else identity
    cut = draw(st.integers(1, len(terms) - 1))
    return draw(bracketings(terms[:cut])) @ draw(bracketings(terms[cut:]))


# Composition


@examples
@hypothesis.given(st.data(), st.lists(leaves, max_size=6))
def test_composition_is_associative(data, terms):
    one, two = data.draw(bracketings(terms)), data.draw(bracketings(terms))
    assert one == two == compose(*terms) == functools.reduce(operator.matmul, terms, identity)
    assert hash(one) == hash(two) and repr(one) == repr(two) and str(one) == str(two)
    assert paths(one) == paths(two)


@few
@hypothesis.given(st.data(), st.lists(maps, min_size=3, max_size=4), seeds)
def test_composition_applies_one_term_after_the_other(data, terms, seed):
    one, two = data.draw(bracketings(terms)), data.draw(bracketings(terms))
    x = single(T, D, seed=seed)
    params = drawn(one, x)
    chex.assert_trees_all_equal(one(params, x), two(params, x))
    value, numbers = x, dict.fromkeys((term.name for term in terms), 0)
    for term in reversed(terms):
        numbers[term.name] += 1
        number = numbers[term.name]
        place = term.name if number == 1 else f"{term.name}_{number}"
        value = term(params.get(place, {}), value)
    chex.assert_trees_all_equal(one(params, x), value)


def test_bracketing_changes_no_first_value():
    x, f, g, h = single(T, D, seed=0), linear(3), rms_norm(), linear(2)
    chex.assert_trees_all_equal(((h @ g) @ f).init(KEY, x), (h @ (g @ f)).init(KEY, x))


@examples
@hypothesis.given(leaves)
def test_identity_is_the_unit(term):
    assert term @ identity == term == identity @ term
    assert compose(term) is term


def test_the_empty_composition_is_identity():
    x = jnp.asarray(single(T, D, seed=0))
    assert compose() is identity and compose(identity, identity) is identity
    assert identity({}, x) is x


@examples
@hypothesis.given(st.lists(leaves, min_size=2, max_size=4), st.lists(leaves, max_size=3))
def test_compositions_flatten(first, second):
    whole = compose(*first, *second)
    assert compose(*first, compose(*second)) == whole == compose(compose(*first), *second)
    assert not any(isinstance(part, type(silu @ gelu)) for part in whole.parts)


# Powers


@few
@hypothesis.given(st.integers(1, 3), maps, seeds)
def test_a_power_is_repeated_composition(count, term, seed):
    x = single(T, D, seed=seed)
    params = drawn(term**count, x)
    stacked = zip(jax.tree.leaves(params), jax.tree.leaves(drawn(term, x)), strict=True)
    assert all(leaf.shape == (count, *alone.shape) for leaf, alone in stacked)
    written = compose(*(named(f"block{i}", term) for i in reversed(range(count))))
    blocks = {
        f"block{name}": block for name, block in unstack(term**count, params).items() if block
    }
    agree((term**count)(params, x), written(blocks, x))


@few
@hypothesis.given(st.integers(1, 2), st.lists(maps, min_size=2, max_size=3), seeds)
def test_a_pattern_alternates(periods, terms, seed):
    x = single(T, D, seed=seed)
    term = repeat(periods * len(terms), *terms)
    params = drawn(term, x)
    value, blocks = x, unstack(term, params)
    for layer in range(term.repeats):
        value = terms[layer % len(terms)](blocks.get(str(layer), {}), value)
    agree(term(params, x), value)


# Maps over an axis


@few
@hypothesis.given(maps, maps, seeds)
def test_each_of_a_composition(f, g, seed):
    batch = single(3, T, D, seed=seed)
    whole, parts = each(f @ g), each(f) @ each(g)
    assert paths(whole, 3, T, D) == paths(parts, 3, T, D) == paths(f @ g)
    params = drawn(whole, batch)
    agree(whole(params, batch), parts(params, batch))
    agree(whole(params, batch), jnp.stack([(f @ g)(params, row) for row in batch]))


def test_each_along_another_axis():
    x, term = single(T, 3, D, seed=1), lift(turned)
    first = each(term)({}, jnp.moveaxis(x, 1, 0))
    chex.assert_trees_all_equal(each(term, axis=1)({}, x), jnp.moveaxis(first, 0, 1))
    chex.assert_trees_all_equal(each(term, axis=-2)({}, x), jnp.moveaxis(first, 0, -2))


@few
@hypothesis.given(st.sampled_from([0, 1, 2, -2]), maps, maps, seeds)
def test_each_of_a_composition_along_any_axis(axis, f, g, seed):
    batch = single(2, T, 3, D, seed=seed)
    chex.assert_trees_all_equal(each(identity, axis)({}, batch), batch)
    whole, parts = each(f @ g, axis), each(f, axis) @ each(g, axis)
    params = drawn(whole, batch)
    agree(whole(params, batch), parts(params, batch))


def test_one_fixed_name_is_a_name():
    term = linear(D) @ (identity + read("lengths"))
    assert each(term, fixed="lengths") == each(term, fixed=("lengths",))
    assert each(term, fixed="positions").init(
        KEY, single(2, T, D, seed=1), lengths=single(2, T, D, seed=2)
    )


# Products


@few
@hypothesis.given(maps, maps, seeds)
def test_picking_from_a_fanout(f, g, seed):
    x, f, g = single(T, D, seed=seed), named("f", f), named("g", g)
    params = drawn(fanout(f, g), x)
    inside = under("fanout", params)
    chex.assert_trees_all_equal((pick(0) @ fanout(f, g))(inside, x), f(of(params, "f"), x))
    chex.assert_trees_all_equal((pick(-1) @ fanout(f, g))(inside, x), g(of(params, "g"), x))


@few
@hypothesis.given(maps, maps, seeds)
def test_parallel_after_fanout(f, g, seed):
    x, f, g = single(T, D, seed=seed), named("f", f), named("g", g)
    h, k = named("h", linear(D)), named("k", rms_norm())
    after, together = parallel(f, g) @ fanout(h, k), fanout(f @ h, g @ k)
    params = drawn(together, x)
    split = under("parallel", of(params, "f", "g")) | under("fanout", of(params, "h", "k"))
    agree(after(split, x), together(params, x))


@few
@hypothesis.given(maps, maps, seeds)
def test_parallels_compose(f, g, seed):
    pair = single(T, D, seed=seed), single(T, D, seed=seed + 1)
    f, g = named("f", f), named("g", g)
    after, together = (
        parallel(f, g) @ parallel(silu, lift(turned)),
        parallel(f @ silu, g @ lift(turned)),
    )
    params = drawn(together, pair)
    agree(after(under("parallel_2", params), pair), together(params, pair))


@pytest.mark.parametrize("axis", [0, -1])
def test_join_is_a_joined_fanout(axis):
    x, f, g = single(T, D, seed=3), named("f", linear(3)), named("g", linear(3))
    params = drawn(join(f, g), x)
    chex.assert_trees_all_equal(
        join(f, g, axis=axis)(params, x), jnp.concatenate(fanout(f, g)(params, x), axis)
    )


# Sums


@few
@hypothesis.given(maps, maps, seeds)
def test_sums_commute_and_distribute_over_what_comes_before(f, g, seed):
    x, f, g = single(T, D, seed=seed), named("f", f), named("g", g)
    params = drawn(f + g, x)
    y, z = f(of(params, "f"), x), g(of(params, "g"), x)
    chex.assert_trees_all_equal((f + g)(params, x), y + z)
    chex.assert_trees_all_equal((f + g)(params, x), (g + f)(params, x))
    chex.assert_trees_all_equal((f - g)(params, x), y - z)
    chex.assert_trees_all_equal(multiply(f, g)(params, x), multiply(g, f)(params, x))
    chex.assert_trees_all_equal((2.0 * f)(of(params, "f"), x), (f * 2)(of(params, "f"), x))
    chex.assert_trees_all_equal((2.0 * f)(of(params, "f"), x), 2 * y)
    agree(((f + g) @ silu)(under("add", params), x), (f @ silu + g @ silu)(params, x))


def test_numbers_stand_on_either_side():
    x = single(T, D, seed=0)
    agree((1.0 + silu)({}, x), 1 + jax.nn.silu(x))
    agree((1.0 - silu)({}, x), 1 - jax.nn.silu(x))
    agree((np.float32(1) - silu - 1)({}, x), -jax.nn.silu(x))
    assert repr(1.0 - silu) == "subtract(constant(1.0), silu)"


# Copies


@few
@hypothesis.given(st.integers(1, 3), st.integers(1, 3), seeds)
def test_heads_are_joined_copies(count, width, seed):
    x = single(T, D, seed=seed)
    joined, apart = heads(count, linear(width)), copies(count, linear(width))
    params = drawn(joined, x)
    assert paths(joined) == paths(apart)
    side_by_side = apart(params, x)
    assert side_by_side.shape == (count, T, width)
    chex.assert_trees_all_equal(joined(params, x), jnp.concatenate(list(side_by_side), -1))
    # Heads of a linear are the split of one linear.
    one = {"kernel": params["linear"]["kernel"].reshape(D, count * width)}
    agree(joined(params, x), linear(count * width)(one, x))


@few
@hypothesis.given(st.integers(1, 3), st.integers(1, 3), seeds)
def test_copies_nest(outer, inner, seed):
    x = single(T, D, seed=seed)
    nested, flat = copies(outer, copies(inner, linear(2))), copies(outer * inner, linear(2))
    kernel = drawn(nested, x)["copies"]["linear"]["kernel"]
    params = {"linear": {"kernel": kernel.reshape(D, outer * inner, 2)}}
    y = nested({"copies": {"linear": {"kernel": kernel}}}, x)
    agree(y.reshape(outer * inner, T, 2), flat(params, x))


def test_values_are_given_out_as_plain_numbers():
    term = copies(2, identity + read("slope"), slope=(0.5, 0.25))
    for array in (np.array, jnp.array):
        again = copies(2, identity + read("slope"), slope=array([0.5, 0.25]))
        assert again == term and repr(again) == repr(term)
    rows = copies(2, identity + read("row"), row=jnp.arange(2 * D).reshape(2, D))
    x = single(T, D, seed=0)
    agree(rows({}, x), x + jnp.arange(2.0 * D).reshape(2, 1, D))


# Context


@few
@hypothesis.given(maps, maps, seeds)
def test_given_is_substitution(f, g, seed):
    x, f, g = single(T, D, seed=seed), named("f", f), named("m", g)
    bound, substituted = given(f @ read("m"), m=g), f @ g
    params = drawn(substituted, x)
    assert paths(bound) == paths(substituted)
    agree(bound(params, x), substituted(params, x))
    assert bound.reads == frozenset()


def test_given_what_is_there_already_changes_nothing():
    x, m, f = single(T, D, seed=1), single(T, D, seed=2), linear(3) @ read("m")
    params = drawn(f, x, m=m)
    chex.assert_trees_all_equal(given(f, m=read("m"))(params, x, m=m), f(params, x, m=m))


def test_the_innermost_given_counts():
    x = single(T, D, seed=1)
    inner = given(read("m"), m=pointwise(half))
    agree(given(inner + read("m"), m=silu)({}, x), x / 2 + jax.nn.silu(x))


# Sharing


def count(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def gradient(term: Term, params: Any, x: Any) -> Any:
    weights = jnp.cos(jnp.arange(jax.eval_shape(term, params, x).size, dtype=jnp.float32))
    return jax.grad(lambda p: jnp.vdot(weights, term(p, x).ravel()))(params)


def test_sharing_across_layers_counts_once_and_adds_gradients():
    x = single(T, D, seed=1)
    block = identity + shared(linear(D), across="layers")
    term, apart = repeat(3, silu @ block), repeat(3, silu @ (identity + linear(D)))
    params = drawn(term, x)
    assert count(params) == D * D
    each_own = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), params)
    chex.assert_trees_all_equal(term(params, x), apart(each_own, x))
    total = jax.tree.map(lambda leaf: leaf.sum(0), gradient(apart, each_own, x))
    agree(gradient(term, params, x), total)


def test_sharing_across_heads_counts_once_and_adds_gradients():
    x = single(T, D, seed=1)
    term = heads(3, linear(2) @ shared(linear(5), across="heads"))
    apart = heads(3, linear(2) @ linear(5))
    params = drawn(term, x)
    assert count(params) == D * 5 + 3 * 5 * 2
    kernel = params["linear"]["kernel"]
    each_own = {**params, "linear": {"kernel": jnp.stack([kernel] * 3, 1)}}
    agree(term(params, x), apart(each_own, x))
    total = gradient(apart, each_own, x)
    total = {**total, "linear": {"kernel": total["linear"]["kernel"].sum(1)}}
    agree(gradient(term, params, x), total)


def test_sharing_by_name_counts_once_and_adds_gradients():
    x, w = single(T, D, seed=1), shared(linear(D), name="w")
    term = w @ silu @ (identity + w)
    apart = named("a", linear(D)) @ silu @ (identity + named("b", linear(D)))
    params = drawn(term, x)
    assert count(params) == D * D
    each_own = {"a": params["w"], "add": {"b": params["w"]}}
    agree(term(params, x), apart(each_own, x))
    both = gradient(apart, each_own, x)
    agree(gradient(term, params, x)["w"], jax.tree.map(jnp.add, both["a"], both["add"]["b"]))


def test_a_tied_table_counts_once_and_adds_gradients():
    tokens = jnp.array([1, 3, 3, 0])
    term = tied(embed(5, D), rms_norm())
    params = drawn(term, tokens)
    assert count(params) == 5 * D + D

    def value(looked_up, scored):
        body = {"scale": params["rms_norm"]["scale"]}
        vectors = rms_norm()(body, embed(5, D)({"table": looked_up}, tokens))
        return vectors @ scored.T

    table = params["embed"]["table"]
    agree(term(params, tokens), value(table, table))
    weights = jnp.cos(jnp.arange(20.0)).reshape(4, 5)
    one, two = jax.grad(lambda *tables: jnp.vdot(weights, value(*tables)), (0, 1))(table, table)
    grads = jax.grad(lambda p: jnp.vdot(weights, term(p, tokens)))(params)
    agree(grads["embed"]["table"], one + two)
