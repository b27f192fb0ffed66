"""The laws of the algebra: each holds on random terms, and each side condition is needed."""
# ruff: noqa: F403, F405

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import single

from combinax.combinators import *
from combinax.combinators.algebra.check import instances
from combinax.combinators.algebra.rewrite import (
    Direction,
    Program,
    Refused,
    Rewrite,
    applied,
    directions,
    rewrites,
)
from combinax.combinators.algebra.verdict import apart, drawn

README = Path(__file__).parent.parent / "README.md"
X = single(5, 4, seed=0)


def program(term: Term, x: Any = X, **context: Any) -> Program:
    return Program(term, drawn(term, x, context, np.random.default_rng(0)), x, context)


def steps(term: Term, name: str, backwards: bool = False, **context: Any) -> list[Rewrite]:
    """Every place at which a law rewrites a term."""
    one = program(term, **context)
    found = rewrites(term, one.declared, [Direction(law(name), backwards)])
    return [step for step in found if isinstance(step, Rewrite)]


def refusals(term: Term, name: str, backwards: bool = False, **context: Any) -> str:
    """What a law says where it does not apply."""
    found = rewrites(term, program(term, **context).declared, [Direction(law(name), backwards)])
    assert not (steps(term, name, backwards, **context))
    return "; ".join(str(step) for step in found if isinstance(step, Refused))


# Every law


@pytest.mark.parametrize("one", LAWS, ids=lambda one: one.name)
def test_a_law_holds_on_random_terms(one):
    verdict = check(one)
    assert verdict, str(verdict)


@pytest.mark.parametrize("one", [one for one in LAWS if one.back], ids=lambda one: one.name)
def test_parameters_come_back_bit_for_bit(one):
    """There and back again: no product is taken by a law that has a way back."""
    there = 0
    for seed in range(8):
        random = np.random.default_rng(seed)
        term, shape, names = one.sample(random)
        context = {name: single(*size, seed=1) for name, size in names.items()}
        before = Program(
            term,
            drawn(term, single(*shape, seed=0), context, random),
            single(*shape, seed=0),
            context,
        )
        for direction in directions([one]):
            back = Direction(one, not direction.backwards)
            for step in rewrites(term, before.declared, [direction]):
                if not isinstance(step, Rewrite):
                    continue
                after = applied(step, before)
                returns = rewrites(after.term, after.declared, [back])
                same = [r for r in returns if isinstance(r, Rewrite) and r.term == term]
                for again in same[:1]:
                    there += 1
                    params = applied(again, after).params
                    jax.tree.map(np.testing.assert_array_equal, params, before.params)
    assert there > 1


def test_a_wrong_law_is_caught_with_a_small_counterexample():
    product = law("product")

    def swapped(f, g):
        if isinstance(f.term, linear) and isinstance(g.term, linear):
            return lambda: [type(f)(g.term, {"kernel": f.params["kernel"][:, :1]})]
        return None

    wrong = dataclasses.replace(
        product, rule=windowed(swapped), back=None,
        sample=lambda random: Sample(linear(1) @ linear(2), (5, 2)),
    )  # fmt: skip
    verdict = check(wrong)
    text = str(verdict)
    assert not verdict and "✗ linear(1) ∘ linear(2) = linear(1)" in text
    assert re.search(r"on x = \[\[.*\]\] the left gives \[\[.*\]\] and the right", text)
    never = check(dataclasses.replace(product, sample=lambda random: Sample(silu)))
    assert not never and "fits none of its samples" in str(never)


def test_a_law_of_ones_own():
    def rule(f, g):
        return (lambda: [f]) if f.term == g.term == relu else None

    idempotent = Law(
        "relu twice", "relu ∘ relu = relu", lambda random: Sample(linear(3) @ relu @ relu),
        windowed(rule), cheaper="right",
    )  # fmt: skip
    assert check(idempotent)
    term = relu @ relu @ linear(3) @ relu
    params = term.init(jax.random.key(0), X)
    assert simplify(term, params, X, laws=(*LAWS, idempotent)).term == relu @ linear(3) @ relu


# Heads, layers, sharing, names


def test_parameters_move_inside_heads_and_layers_stacked_or_not():
    inner = linear(2) @ linear(3)
    block = identity + linear(4) @ heads(2, heads(2, inner)) @ rms_norm()
    term = repeat(3, block)
    one = program(term)
    (step, *_) = steps(term, "product")
    after = applied(step, one)
    assert step.path == ("add", "heads", "heads", "linear")
    kernel = after.params["add"]["heads"]["heads"]["linear"]["kernel"]
    assert kernel.shape == (3, 4, 2, 2, 2)
    y = term(one.params, X)
    assert apart(after.term(after.params, X), y) < 1e-5
    separate = one._replace(params=unstack(term, one.params))
    after = applied(step, separate)
    assert sorted(after.params) == ["0", "1", "2"]
    assert apart(after.term(after.params, X), y) < 1e-5


def test_parameters_move_under_jit_and_in_bfloat16():
    term = named("out", linear(3)) @ named("in", linear(2, bias=True))
    one = program(term)
    move = lambda params: simplify(term, params, X).params  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, jax.jit(move)(one.params), move(one.params))
    assert set(move(one.params)) == {"out"}
    small = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), one.params)
    moved = move(small)
    assert {leaf.dtype for leaf in jax.tree.leaves(moved)} == {jnp.dtype(jnp.bfloat16)}
    exact = np.asarray(small["in"]["kernel"], float) @ np.asarray(small["out"]["kernel"], float)
    # One rounding: half a unit of the last of 8 digits.
    np.testing.assert_allclose(np.asarray(moved["out"]["kernel"], float), exact, rtol=2**-8)


def test_abstract_input_is_enough_to_simplify():
    term = linear(2) @ linear(50)
    x = jax.ShapeDtypeStruct((5, 4), jnp.float32)
    assert simplify(term, program(term).params, x).term == linear(2)


def test_what_is_shared_stays_shared_or_is_refused():
    assert "shares its parameters" in refusals(
        heads(2, linear(3) @ shared(linear(2), "heads")), "product"
    )
    both = repeat(2, shared(linear(4), "layers") + linear(4))
    assert "shares its parameters" in refusals(both, "sum")
    table = shared(linear(4) @ linear(4), name="w")
    assert not steps(table @ silu @ table, "product")
    assert not steps(shared(linear(4), name="w") @ linear(4), "product")
    kept = simplify(
        linear(3) @ linear(50) @ table, program(linear(3) @ linear(50) @ table).params, X
    )
    assert "w" in kept.params and kept.term == linear(3) @ table
    assert "layers share parameters" in refusals(both, "layers")
    grouped = project(query=3, key=shared(linear(3), "heads"), value=shared(linear(3), "heads"))
    assert "share some of the maps" in refusals(heads(2, head_of(grouped)), "side by side")


def head_of(entries: Term, how: Any = softmax) -> Term:
    return aggregate() @ normalize(how) @ score(scaled_dot) @ entries


def test_dropout_keeps_its_numbers_or_the_law_is_refused():
    """Numbers come from places: written out, layers would draw others."""
    term = repeat(2, dropout(0.5) @ linear(4))
    assert "would draw other numbers" in refusals(term, "layers")
    kept = dropout(0.5) @ linear(3) @ linear(50)
    params = program(kept).params
    after, moved = simplify(kept, params, X)
    assert after == dropout(0.5) @ linear(3)
    key = jax.random.key(1)
    assert apart(after(moved, X, rng=key), kept(params, X, rng=key)) < 1e-5


# What breaks without the side condition: the law's right side, and another value


def unequal(one: Term, other: Term, params: Any, moved: Any, x: Any = X) -> bool:
    return apart(one(params, x), other(moved, x)) > 1e-3


def test_an_activation_between_two_maps():
    term = linear(3) @ silu @ linear(4)
    assert "silu stands between" in refusals(term, "product")
    params = program(term).params
    kernel = params["linear"]["kernel"] @ params["linear_2"]["kernel"]
    assert unequal(term, linear(3), params, {"kernel": kernel})


def test_a_norm_with_several_readers():
    norm = rms_norm()
    term = (linear(3) + silu @ linear(3)) @ norm
    assert "2 parts of add read it" in refusals(term, "gain")
    params = program(term).params
    scale = params["rms_norm"]["scale"]
    folded = {**params, "rms_norm": {}}
    folded["add"] = {
        **params["add"],
        "linear": {"kernel": scale[:, None] * params["add"]["linear"]["kernel"]},
    }
    without = (linear(3) + silu @ linear(3)) @ rms_norm(gain=False)
    assert unequal(term, without, params, {"add": folded["add"]})
    assert "2 parts of add" in refusals((linear(4) + silu) @ (2.0 * silu), "factor before")
    assert "3 parts of project" in refusals(head_of(project(3)) @ norm, "gain")


def test_a_bias_after_weights_that_do_not_sum_to_one():
    term = linear(3, bias=True) @ head_of(project(2), gelu)
    assert "need not sum to 1" in refusals(term, "values")
    params = program(term).params
    inside = project(query=2, key=2, value=linear(3, bias=True) @ linear(2))
    entries = params["project"]
    value = {"linear": entries["value"], "linear_2": params["linear"]}
    assert unequal(term, head_of(inside, gelu), params, {"project": {**entries, "value": value}})


def test_the_values_of_slots_have_the_width_of_their_input():
    assert "width of its input" in refusals(linear(3) @ head_of(slots(2)), "values")


def test_a_bias_of_keys_without_softmax():
    asked = project(query=2, key=linear(2, bias=True), value=3)
    for how, where in ((relu, "tells a row"), (softmax, "")):
        term = head_of(asked, how)
        params = program(term).params
        slots_ = params["project"]
        kernel = {"kernel": slots_["key"]["kernel"]}
        plain = head_of(project(query=2, key=2, value=3), how)
        breaks = unequal(term, plain, params, {"project": {**slots_, "key": kernel}})
        assert breaks == bool(where)
        assert not where or where in refusals(term, "shift")
    capped = aggregate() @ normalize(softmax) @ softcap(1.0) @ score(dot) @ asked
    assert "softcap(1.0) does not turn a shift" in refusals(capped, "shift")
    assert "the key has a bias" in refusals(head_of(asked, relu), "keys")


def test_a_product_of_weights_is_no_sum():
    gate = multiply(normalize(silu) @ score(dot), normalize(identity) @ score(dot))
    term = aggregate() @ gate @ project(3)
    assert "linear in neither" in refusals(term, "weights")
    apart_ = multiply(*(aggregate() @ part for part in gate.parts)) @ project(3)
    params = program(term).params
    assert unequal(term, apart_, params, params)


def test_a_constant_is_no_answer():
    """A learned shift of answers is none of weights."""
    term = (aggregate() @ normalize(relu) @ score(dot) + learned((3,))) @ project(3)
    assert not steps(term, "weights", backwards=True)


def test_names_that_would_stand_twice():
    blocks = repeat(2, named("one", linear(4)) @ silu)
    assert "two parts called 'one'" in refusals(blocks, "layers")


def test_an_activation_in_a_dictionary():
    term = aggregate() @ normalize(gelu) @ score(dot) @ slots(3)
    assert "normalize(gelu) stands between" in refusals(term, "matrix")
    params = program(term).params["slots"]
    kernel = params["key"].T @ params["value"]
    assert unequal(term, linear(4), {"slots": params}, {"kernel": kernel})
    capped = aggregate() @ normalize(identity) @ softcap(1.0) @ score(dot) @ slots(3)
    assert "softcap(1.0) stands between" in refusals(capped, "matrix")
    rows = aggregate() @ normalize(softmax) @ score(dot) @ slots(3)
    assert "needs whole rows" in refusals(rows, "network")
    for mlp, why in (
        (linear(4, bias=True) @ gelu @ linear(3), "has no biases"),
        (linear(3) @ gelu @ linear(5), "width of its input, 4"),
    ):
        assert why in refusals(mlp, "network", backwards=True)


def test_a_normalizer_between_the_products():
    heads_ = aggregate() @ normalize(softmax) @ score(dot) @ project(3)
    assert "softmax stands between the products" in refusals(heads_, "brackets")
    capped = aggregate() @ normalize(identity) @ softcap(1.0) @ score(dot) @ project(3)
    assert "softcap(1.0) stands between" in refusals(capped, "brackets")
    assert "needs whole rows" in refusals(head_of(project(3), sparsemax), "blocks")


def test_biases_side_by_side():
    mixed = fanout(linear(3, bias=True), linear(2))
    assert "some of the maps have a bias" in refusals(mixed, "side by side")
    some = fanout(columns(0, 2), columns(1, 3)) @ linear(3)
    assert "not read all columns" in refusals(some, "side by side", backwards=True)
    memory = linear(2, bias=True) @ read("memory")
    asked = project(query=2, key=memory, value=linear(3) @ read("memory"))
    found = refusals(head_of(asked), "keys and values", memory=single(3, 6, seed=1))
    assert "one of the maps has a bias" in found
    assert "added once for each head" in refusals(
        linear(4, bias=True) @ heads(2, linear(3)), "heads"
    )


def test_maps_over_other_axes_or_other_context():
    turned = each(linear(4)) @ each(linear(4), axis=1)
    one = program(turned, single(3, 5, 4, seed=0))
    found = [*rewrites(turned, one.declared, [Direction(law("map"), True)])]
    assert "one maps axis 1, the other axis 0" in str(found[0])
    shifted = each(identity + read("by"), fixed="by")
    for f, why in ((each(identity + read("by")), "fixed for one and mapped for the other"),):
        x, by = single(5, 5, 4, seed=0), single(5, 5, 4, seed=1)
        context = {"by": by}
        both = f @ shifted
        found = [*rewrites(both, {}, [Direction(law("map"), True)])]
        assert why in str(found[0]) and context and x.shape
    several = each((identity + read("by")) @ silu, fixed="by")
    found = [*rewrites(several, {}, [Direction(law("map"))])]
    assert "not every stage may know it" in str(found[0])


def test_masks_and_positions_break_the_symmetry():
    for stage in (mask(causal), bias(alibi)):
        term = heads(1, aggregate() @ normalize(softmax) @ stage @ score(dot) @ project(3))
        ((_, sides),) = instances(law("symmetry"), program(term))
        assert apart(*sides(X)) > 1e-3


def test_what_looks_ahead_has_no_steps():
    term = head_of(project(3))
    ((_, sides),) = instances(law("steps"), program(term))
    with pytest.raises(CompositionError, match="later"):
        sides(X)


def test_equal_layers_only_where_the_shape_stays():
    assert not steps(linear(3) @ linear(3), "layers", backwards=True)
    assert steps(linear(4) @ linear(4), "layers", backwards=True)
    assert not steps(silu @ silu, "layers", backwards=True)


def test_the_table_of_laws_is_that_of_the_readme():
    """Every law stands on the page, word for word."""
    rows = re.findall(r"^\| (\w[\w ]*) \| `(.+?)` \| (.*?) \| (.*?) \|$", README.read_text(), re.M)
    table = {name: (statement, condition, moves) for name, statement, condition, moves in rows}
    written = {one.name: (one.statement, one.condition, one.moves) for one in LAWS}
    assert table == written
