"""What every term has in common: each entry of the catalogue passes every test of this file."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import CATALOGUE, DRAWING, MODELS, TOOLS, Entry
from examples import ENTRIES, cast, floats, inner, of_floats, shapes, spec, tables, walk

from combinax import combinators, models
from combinax.combinators import (
    Scores,
    Term,
    Weights,
    aggregate,
    axes,
    compose,
    each,
    mask,
    predicate,
    score,
    sink,
    stack,
    unstack,
)

# The catalogue is complete


def test_every_public_word_has_an_entry():
    covered = {name.split(":")[0] for name in CATALOGUE}
    assert set(combinators.__all__) - TOOLS == covered
    assert set(combinators.__all__) >= TOOLS
    assert set(models.__all__) - DRAWING == set(MODELS)
    assert set(models.__all__) >= DRAWING


def test_terms_and_what_makes_them_are_no_tools():
    made = [
        name
        for name, value in vars(combinators).items()
        if name in TOOLS - {"replace"}  # which makes a term of a term
        and (
            isinstance(value, Term)
            or getattr(value, "__annotations__", {}).get("return", "").startswith("Term")
        )
    ]
    assert made == []


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_holds_its_word(name):
    term, word = CATALOGUE[name].term, name.split(":")[0]
    value = getattr(combinators, word)
    parts = [*walk(term)]
    fields = [field for part in parts for field in part.fields]
    found = word in re.findall(r"\w+", repr(term)) or value in fields
    kinds = tuple(map(type, (*parts, *fields)))
    assert found or any(issubclass(kind, value) for kind in kinds)


# Declared is real


def test_init_on_shapes_is_init_on_arrays(this):
    abstract = this.term.init(jax.random.key(0), shapes(this.x), **shapes(this.facts))
    assert spec(abstract) == spec(this.params)
    chex.assert_trees_all_equal(abstract, this.params)


def test_declared_shape_is_real_shape(this):
    declared = jax.eval_shape(this.term, shapes(this.params), shapes(this.x), **this.context)
    assert spec(declared) == spec(this.value)
    assert all(np.isfinite(leaf).all() for leaf in floats(this.value))


def test_params_are_a_plain_nested_dict_with_a_name_for_every_axis(this):
    names = axes(this.term, this.x, **this.facts)

    def check(params: Any, names: Any) -> None:
        if isinstance(params, jax.Array):
            assert type(names) is tuple and len(names) == params.ndim
            assert all(isinstance(axis, str) and axis for axis in names)
            return
        assert type(params) is dict and type(names) is dict
        assert params.keys() == names.keys()
        for key, below in params.items():
            assert isinstance(key, str) and (isinstance(below, jax.Array) or below)
            check(below, names[key])

    check(this.params, names)


# One meaning: eager, compiled, mapped, differentiated


def test_jit_agrees_with_eager(this):
    # Fused sums round in another order.
    chex.assert_trees_all_close(
        this.compiled(this.params, this.x, **this.context), this.value, rtol=1e-5, atol=2e-6
    )


def test_two_calls_are_bit_identical(this):
    again = this.term(this.params, this.x, **this.context)
    chex.assert_trees_all_equal(again, this.value)


def test_vmap_is_each_is_a_loop(this):
    xs, contexts = this.batch()
    whole = {**contexts, **{k: v for k, v in this.context.items() if k == "rng"}}

    @jax.jit
    def both(params, xs, contexts, whole):
        def one(x, context):
            return this.term(params, x, **context)

        return jax.vmap(one)(xs, contexts), each(this.term)(params, xs, **whole)

    vmapped, mapped = both(this.params, xs, contexts, whole)
    rows = [
        this.compiled(this.params, x, **context)
        for x, context in (jax.tree.map(lambda a, i=i: a[i], (xs, contexts)) for i in range(2))
    ]
    loop = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    # Batched products sum in another order.
    chex.assert_trees_all_close(vmapped, loop, rtol=1e-5, atol=2e-6)
    chex.assert_trees_all_close(mapped, loop, rtol=1e-5, atol=2e-6)


def test_float64_and_derivatives(this):
    with jax.enable_x64(True):
        params, x, context = wide = cast((this.params, this.x, this.context), jnp.float64)
        facts = {name: context[name] for name in this.facts}
        fresh = jax.eval_shape(this.term.init, jax.random.key(0), x, **facts)
        assert spec(fresh) == spec(params)
        moving, value = of_floats(this.term, wide)
        assert all(leaf.dtype == jnp.float64 for leaf in jax.eval_shape(value, moving))
        generator = np.random.default_rng(1)
        tangent = [jnp.asarray(generator.standard_normal(leaf.shape)) for leaf in moving]
        cotangent = [
            jnp.asarray(generator.standard_normal(np.shape(leaf))) for leaf in floats(this.value)
        ]

        @jax.jit
        def derivatives(moving, tangent, cotangent):
            y, push = jax.linearize(value, moving)
            pushed = push(tangent)
            (pulled,) = jax.linear_transpose(push, moving)(cotangent)
            return y, pushed, pulled

        y, pushed, pulled = derivatives(moving, tangent, cotangent)
        chex.assert_trees_all_close(y, floats(this.value), rtol=1e-4, atol=1e-4)
        forward, backward = inner(pushed, cotangent), inner(pulled, tangent)
        np.testing.assert_allclose(backward, forward, 1e-10, 1e-10)
        step = 1e-6
        ahead, behind = (
            derivatives(
                [a + distance * t for a, t in zip(moving, tangent, strict=True)],
                tangent,
                cotangent,
            )[0]
            for distance in (step, -step)
        )
        finite = (inner(ahead, cotangent) - inner(behind, cotangent)) / (2 * step)
        # Central differences: rounding of 1e-16 / step, and step² of the third derivative.
        np.testing.assert_allclose(forward, finite, 1e-6, 1e-7)


def test_bfloat16(this):
    params, x, context = cast((this.params, this.x, this.context), jnp.bfloat16)
    # A table of scores or weights is at least float32, whatever the type of what it is made from.
    if isinstance(x, (Scores, Weights)):
        x = dataclasses.replace(x, **tables(this.x))
    y = jax.jit(this.term)(params, x, **context)
    assert all(np.isfinite(np.float32(leaf)).all() for leaf in floats(y))
    assert {leaf.dtype for leaf in tables(y).values()} <= {jnp.dtype(jnp.float32)}
    rest = dataclasses.replace(y, **dict.fromkeys(tables(y))) if tables(y) else y
    expected = jnp.float32 if this.name == "log_sum_exp" else jnp.bfloat16
    assert {leaf.dtype for leaf in floats(rest)} == {jnp.dtype(expected)}


# Masked rows


def all_but_row_one(query, key):
    return (query.index != 1) & (key.index >= 0)


def hidden(term: Any) -> Any:
    """The term with query 1 of every score seeing nothing."""
    if isinstance(term, score):
        return mask(predicate(all_but_row_one)) @ term
    if term.parts and type(term).__name__ == "Compose":
        return compose(*map(hidden, reversed(term.parts)))

    def one(value):
        if isinstance(value, Term):
            return hidden(value)
        return tuple(map(one, value)) if isinstance(value, tuple) else value

    if not term.parts:
        return term
    changes = {f.name: one(getattr(term, f.name)) for f in dataclasses.fields(term)}
    return dataclasses.replace(term, **changes)


def is_lookup(term: Term) -> bool:
    kinds = {type(part) for part in walk(term)}
    return score in kinds and aggregate in kinds


def is_plain_lookup(term: Term) -> bool:
    """A composition that ends with the weighted sum, so that an empty row gives 0."""
    return (
        type(term).__name__ == "Compose"
        and term.parts[-1] == aggregate()
        and not any(isinstance(part, sink) for part in walk(term))
    )


def sees(entry: Entry) -> bool:
    """Whether the entry has scores of which some can be hidden."""
    return isinstance(entry.x, Scores) or is_lookup(entry.term)


# Among the models one of each form of lookup is enough: the rest is made of these.
HIDING = [
    name
    for name, entry in ENTRIES.items()
    if sees(entry)
    and (name in CATALOGUE or name in ("models.gated_dictionary", "models.grouped_heads"))
]


@pytest.mark.parametrize("this", HIDING, indirect=True)
def test_a_row_that_sees_nothing(this):
    term, x = hidden(this.term), this.x
    if isinstance(x, Scores):
        active = jnp.arange(len(x.score)) != 1
        visible = jnp.broadcast_to(active[:, None], x.score.shape)
        x = x.replace(visible=visible, active_queries=active)
    assert term != this.term or x is not this.x
    moving, value = of_floats(term, (this.params, x, this.context))

    @jax.jit
    def run(moving, cotangent):
        y, pull = jax.vjp(value, moving)
        return y, pull(cotangent)[0]

    expected = floats(this.value)
    y, gradient = run(moving, [jnp.ones_like(leaf) for leaf in expected])
    assert all(np.isfinite(leaf).all() for leaf in gradient)
    if this.name == "log_sum_exp":
        assert y[0][1] == -np.inf
        y[0] = y[0].at[1].set(0)
    assert all(np.isfinite(leaf).all() for leaf in y)
    if isinstance(this.value, Weights) or is_plain_lookup(this.term):
        assert (y[0][1] == 0).all()
        row_one = [jnp.zeros_like(leaf) for leaf in expected]
        row_one[0] = row_one[0].at[1].set(1)
        assert all((leaf == 0).all() for leaf in run(moving, row_one)[1])
        # Others see what they saw; without row 1's queries fused products may round differently.
        others = np.arange(len(y[0])) != 1
        chex.assert_trees_all_close(y[0][others], expected[0][others], rtol=1e-5, atol=2e-6)


# Layers


REPEATS = [
    name for name, entry in ENTRIES.items() if any(part.repeats for part in walk(entry.term))
]


@pytest.mark.parametrize("this", REPEATS, indirect=True)
def test_stacked_and_separate_layers(this):
    separate = unstack(this.term, this.params)
    assert spec(separate) != spec(this.params)
    back = stack(this.term, separate)
    assert spec(back) == spec(this.params)
    chex.assert_trees_all_equal(back, this.params)
    assert spec(unstack(this.term, separate)) == spec(separate)
    assert spec(stack(this.term, back)) == spec(back)
    unrolled = jax.jit(this.term)(separate, this.x, **this.context)
    # A scan fuses less than an unrolled loop.
    chex.assert_trees_all_close(unrolled, this.value, rtol=1e-5, atol=2e-6)
