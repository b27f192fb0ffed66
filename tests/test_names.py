"""Names of parameters are a contract: golden trees, and what may not change them."""
# ruff: noqa: F403, F405

from __future__ import annotations

import re
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from combinax import combinators
from combinax.combinators import *

# The lines of the first page, exactly as they stand there.
LINES = """
attention  = compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot), project(16))
dictionary = compose(aggregate(), normalize(gelu),                  score(dot),        slots(256))
block      = (identity + dictionary @ rms_norm()) @ (identity + linear(64) @ heads(4, attention) @ rms_norm())
gpt        = tied(embed(256, 64), rms_norm() @ block**4 @ position_embed(128))

params = gpt.init(jax.random.key(0), tokens)          # tokens: (T,) int32, or a ShapeDtypeStruct
logits = jax.jit(gpt)(params, tokens)                 # (T, 256)
batch  = jax.jit(each(gpt))(params, many)             # (B, T, 256); jax.vmap(gpt, (None, 0)) works too
"""  # noqa: E501
TERMS, RUNS = LINES.split("\n\n")
WORDS: dict[str, Any] = {name: getattr(combinators, name) for name in combinators.__all__}


@pytest.fixture(scope="module")
def first() -> dict[str, Any]:
    """What the first four lines define."""
    namespace = {"jax": jax, **WORDS}
    exec(TERMS, namespace)
    return namespace


def flat(tree: Any) -> dict[str, Any]:
    return dict(flatten_dict(tree, sep="/"))


def sizes(params: Any) -> dict[str, tuple[int, ...]]:
    """Every parameter's path and shape."""
    return {path: leaf.shape for path, leaf in flat(params).items()}


def shapes(term: Term, x: Any) -> dict[str, tuple[int, ...]]:
    return sizes(jax.eval_shape(term.init, jax.random.key(0), x))


def of(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


# The lines of the first page


def test_the_lines_run_exactly_as_they_stand(first):
    tokens = jnp.arange(6, dtype=jnp.int32)
    many = jnp.stack([tokens, tokens[::-1]])
    namespace = {**first, "tokens": tokens, "many": many}
    exec(RUNS, namespace)
    gpt, params = namespace["gpt"], namespace["params"]
    assert namespace["logits"].shape == (6, 256) and namespace["batch"].shape == (2, 6, 256)
    also = jax.vmap(gpt, (None, 0))(params, many)
    # Batched products sum in another order.
    np.testing.assert_allclose(namespace["batch"], also, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(namespace["batch"][0], namespace["logits"], rtol=1e-5, atol=1e-6)
    abstract = gpt.init(jax.random.key(0), of(6, dtype=jnp.int32))
    chex.assert_trees_all_equal(abstract, params)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


HEAD = {f"project/{part}/kernel": (64, 16) for part in ("query", "key", "value")}
DICTIONARY = {"slots/key": (256, 64), "slots/value": (256, 64)}
BLOCK = {
    "add/rms_norm/scale": (64,),
    "add/heads/project/query/kernel": (64, 4, 16),
    "add/heads/project/key/kernel": (64, 4, 16),
    "add/heads/project/value/kernel": (64, 4, 16),
    "add/linear/kernel": (64, 64),
    "add_2/rms_norm/scale": (64,),
    "add_2/slots/key": (256, 64),
    "add_2/slots/value": (256, 64),
}
AROUND = {"embed/table": (256, 64), "position_embed/table": (128, 64), "rms_norm/scale": (64,)}


def test_trees_of_the_first_page(first):
    x, tokens = of(7, 64), of(7, dtype=jnp.int32)
    assert shapes(first["attention"], x) == HEAD
    assert shapes(first["dictionary"], x) == DICTIONARY
    assert shapes(first["block"], x) == BLOCK
    stacked = {f"repeat/{path}": (4, *shape) for path, shape in BLOCK.items()}
    assert shapes(first["gpt"], tokens) == {**AROUND, **stacked}


def test_axes_of_the_first_page(first):
    gpt = first["gpt"]
    assert flat(axes(gpt, of(7, dtype=jnp.int32))) == {
        "embed/table": ("vocabulary", "out"),
        "position_embed/table": ("positions", "out"),
        "rms_norm/scale": ("out",),
        "repeat/add/rms_norm/scale": ("layers", "out"),
        "repeat/add/heads/project/query/kernel": ("layers", "in", "heads", "out"),
        "repeat/add/heads/project/key/kernel": ("layers", "in", "heads", "out"),
        "repeat/add/heads/project/value/kernel": ("layers", "in", "heads", "out"),
        "repeat/add/linear/kernel": ("layers", "in", "out"),
        "repeat/add_2/rms_norm/scale": ("layers", "out"),
        "repeat/add_2/slots/key": ("layers", "slots", "in"),
        "repeat/add_2/slots/value": ("layers", "slots", "out"),
    }


def test_separate_blocks_of_the_first_page(first):
    gpt, tokens = first["gpt"], of(7, dtype=jnp.int32)
    separate = jax.eval_shape(lambda rng: unstack(gpt, gpt.init(rng, tokens)), jax.random.key(0))
    blocks = {f"repeat/{i}/{path}": shape for i in range(4) for path, shape in BLOCK.items()}
    assert sizes(separate) == {**AROUND, **blocks}


def test_the_first_page_prints_as_python(first):
    assert eval(repr(first["gpt"]), WORDS) == first["gpt"]


# Every form


x = of(5, 4)
W = shared(linear(4), name="w")
TREES: dict[str, tuple[Term, dict[str, tuple[int, ...]]]] = {
    "a root gives its own": (linear(3, bias=True), {"kernel": (4, 3), "bias": (3,)}),
    "in order of application": (
        linear(2) @ linear(3) @ linear(5),
        {"linear/kernel": (4, 5), "linear_2/kernel": (5, 3), "linear_3/kernel": (3, 2)},
    ),
    "empty ones are dropped": (silu @ linear(3) @ lift(jnp.tanh), {"linear/kernel": (4, 3)}),
    "named": (
        named("second", linear(2)) @ named("first", linear(3)),
        {"first/kernel": (4, 3), "second/kernel": (3, 2)},
    ),
    "a named root": (named("map", linear(2)), {"map/kernel": (4, 2)}),
    "a named composition": (
        linear(4) @ named("both", linear(2) @ linear(3)),
        {"both/linear/kernel": (4, 3), "both/linear_2/kernel": (3, 2), "linear/kernel": (2, 4)},
    ),
    "a name counts for itself": (
        linear(2) @ named("other", linear(3)) @ linear(5),
        {"linear/kernel": (4, 5), "other/kernel": (5, 3), "linear_2/kernel": (3, 2)},
    ),
    "branches": (
        identity + linear(4) @ layer_norm() + linear(4),
        {
            "layer_norm/scale": (4,),
            "layer_norm/bias": (4,),
            "linear/kernel": (4, 4),
            "linear_2/kernel": (4, 4),
        },
    ),
    "branches within branches": (
        identity + linear(4) @ (identity + linear(4)),
        {"add/linear/kernel": (4, 4), "linear/kernel": (4, 4)},
    ),
    "fanout": (
        fanout(linear(2) @ rms_norm(), linear(3) @ rms_norm()),
        {
            "rms_norm/scale": (4,),
            "linear/kernel": (4, 2),
            "rms_norm_2/scale": (4,),
            "linear_2/kernel": (4, 3),
        },
    ),
    "a gate": (
        multiply(silu @ linear(6), linear(6)),
        {"linear/kernel": (4, 6), "linear_2/kernel": (4, 6)},
    ),
    "a learned factor": (
        learned((4,)) * linear(4),
        {"learned/value": (4,), "linear/kernel": (4, 4)},
    ),
    "project": (
        project(query=2, key=linear(2) @ rms_norm(), value=3),
        {
            "query/kernel": (4, 2),
            "key/rms_norm/scale": (4,),
            "key/linear/kernel": (4, 2),
            "value/kernel": (4, 3),
        },
    ),
    "a score that learns": (
        score(additive(3)) @ project(query=2, key=5, value=1),
        {
            "project/query/kernel": (4, 2),
            "project/key/kernel": (4, 5),
            "project/value/kernel": (4, 1),
            "score/query": (2, 3),
            "score/key": (5, 3),
            "score/out": (3,),
        },
    ),
    "stages that learn": (
        temperature(learned(())) @ bias(relative(2)) @ score(dot) @ slots(3),
        {
            "slots/key": (3, 4),
            "slots/value": (3, 4),
            "bias/table": (5,),
            "temperature/value": (),
        },
    ),
    "union": (
        union(score(dot), score(dot) @ slots(2), sink()) @ slots(3),
        {
            "slots/key": (3, 4),
            "slots/value": (3, 4),
            "union/slots/key": (2, 4),
            "union/slots/value": (2, 4),
            "union/sink/score": (),
        },
    ),
    "repeat": (
        linear(2) @ repeat(3, identity + linear(4)),
        {"repeat/add/linear/kernel": (3, 4, 4), "linear/kernel": (4, 2)},
    ),
    "repeat of a pattern": (
        repeat(6, linear(4), linear(4, bias=True)),
        {"linear/kernel": (3, 4, 4), "linear_2/kernel": (3, 4, 4), "linear_2/bias": (3, 4)},
    ),
    "repeat within repeat": (
        repeat(2, linear(4) @ repeat(3, linear(4))),
        {"repeat/linear/kernel": (2, 3, 4, 4), "linear/kernel": (2, 4, 4)},
    ),
    "heads": (heads(2, linear(3, bias=True)), {"linear/kernel": (4, 2, 3), "linear/bias": (2, 3)}),
    "a scale per head": (
        copies(2, temperature(learned(())) @ score(dot) @ slots(3)),
        {"slots/key": (3, 2, 4), "slots/value": (3, 2, 4), "temperature/value": (2,)},
    ),
    "heads in heads": (heads(3, heads(2, linear(5))), {"heads/linear/kernel": (4, 3, 2, 5)}),
    "grouped heads": (
        heads(3, heads(2, shared(linear(5), across="heads"))),
        {"heads/linear/kernel": (4, 3, 5)},
    ),
    "heads in layers": (
        repeat(2, linear(4) @ heads(3, linear(2))),
        {"heads/linear/kernel": (2, 4, 3, 2), "linear/kernel": (2, 6, 4)},
    ),
    "shared by all heads": (heads(3, shared(linear(5), across="heads")), {"linear/kernel": (4, 5)}),
    "shared by all layers": (
        repeat(3, shared(linear(4), across="layers") @ rms_norm()),
        {"rms_norm/scale": (3, 4), "linear/kernel": (4, 4)},
    ),
    "shared by name": (
        W @ (identity + W @ rms_norm()),
        {"w/kernel": (4, 4), "add/rms_norm/scale": (4,)},
    ),
    "given": (
        given(linear(2) @ read("m"), m=linear(3) @ linear(5)),
        {"m/linear/kernel": (4, 5), "m/linear_2/kernel": (5, 3), "linear/kernel": (3, 2)},
    ),
    "each is not seen": (
        each(linear(3) @ rms_norm()),
        {"rms_norm/scale": (4,), "linear/kernel": (4, 3)},
    ),
    "precision is not seen": (linear(2) @ precision(linear(3)), {
        "linear/kernel": (4, 3), "linear_2/kernel": (3, 2),
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_trees(name):
    term, tree = TREES[name]
    assert shapes(term, of(2, 5, 4) if isinstance(term, type(each(identity))) else x) == tree


def test_tied_has_one_table():
    term = tied(embed(7, 4), linear(4))
    expected = {"embed/table": (7, 4), "linear/kernel": (4, 4)}
    assert shapes(term, of(5, dtype=jnp.int32)) == expected


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(CompositionError, match="two parts called 'a': give one another name"):
        named("a", linear(3)) @ named("a", linear(3))
    with pytest.raises(CompositionError, match="two parts called 'linear'"):
        named("linear", linear(3)) @ linear(3)
    # A number steps aside for a name that came first.
    expected = {"linear/kernel": (4, 2), "linear_2/kernel": (2, 3)}
    assert shapes(linear(3) @ named("linear", linear(2)), x) == expected


# Joined heads


def test_heads_join_into_a_plain_reshape():
    """The kernels of nested heads, reshaped, are the kernel of one wide linear."""
    term, values = heads(3, heads(2, linear(5))), jax.random.normal(jax.random.key(1), (7, 4))
    params = term.init(jax.random.key(0), values)
    kernel = params["heads"]["linear"]["kernel"]
    assert kernel.shape == (4, 3, 2, 5)
    joined = {"kernel": kernel.reshape(4, 30)}
    # One product of 30 columns and six of 5 sum the same four numbers, fused differently.
    np.testing.assert_allclose(
        term(params, values), linear(30)(joined, values), rtol=1e-5, atol=1e-6
    )
    assert axes(term, values)["heads"]["linear"]["kernel"] == ("in", "heads", "heads", "out")


def test_biases_of_heads_join_into_a_plain_reshape():
    term, values = heads(3, linear(5, bias=True)), jax.random.normal(jax.random.key(1), (7, 4))
    params = term.init(jax.random.key(0), values)["linear"]
    params = {"kernel": params["kernel"], "bias": jnp.arange(15.0).reshape(3, 5)}
    joined = {"kernel": params["kernel"].reshape(4, 15), "bias": params["bias"].reshape(15)}
    expected = linear(15, bias=True)(joined, values)
    np.testing.assert_allclose(term({"linear": params}, values), expected, rtol=1e-5, atol=1e-6)


# Randomness is addressed by path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (linear(3) @ linear(4), linear(3) @ silu @ linear(4)),
        (linear(3) @ linear(4), linear(2) @ linear(3) @ linear(4)),
        (linear(4) @ rms_norm(), linear(4) @ (identity + linear(4)) @ rms_norm()),
        (heads(2, linear(3)) @ rms_norm(), heads(2, linear(3)) @ linear(4) @ rms_norm()),
        (rms_norm() @ repeat(2, linear(4)), rms_norm() @ layer_norm() @ repeat(2, linear(4))),
        (score(dot) @ project(3), temperature(learned(())) @ score(dot) @ project(3)),
    ],
)
def test_adding_a_stage_leaves_the_parameters_of_others(before, after):
    old, new = (flat(term.init(jax.random.key(3), x)) for term in (before, after))
    assert old.keys() <= new.keys()
    for path in old:
        np.testing.assert_array_equal(old[path], new[path])


def test_every_parameter_is_drawn_from_a_key_of_its_own():
    term = repeat(2, linear(4) @ heads(2, linear(2)) @ linear(4))
    params = term.init(jax.random.key(0), x)
    draws = [*params["linear"]["kernel"], *params["linear_2"]["kernel"]]
    for layer in params["heads"]["linear"]["kernel"]:
        draws += [*jnp.moveaxis(layer, 1, 0)]
    assert len({float(draw[0, 0]) for draw in draws}) == len(draws) == 8


def test_initial_values_have_the_deviation_of_their_own_width():
    """Stacked over layers and heads, a kernel starts as each copy alone would."""
    term, values = repeat(4, linear(64) @ heads(4, linear(16))), of(1, 64)
    params = term.init(jax.random.key(0), values)
    for kernel in (params["heads"]["linear"]["kernel"], params["linear"]["kernel"]):
        # LeCun's deviation is 1/8; of 16,384 draws the estimate is within 0.6 %, taken five times.
        np.testing.assert_allclose(np.std(kernel), 1 / 8, rtol=0.03)


# Separate blocks


def test_separate_blocks_keep_what_layers_share_once():
    term = repeat(2, shared(linear(4), across="layers") @ rms_norm())
    params = term.init(jax.random.key(0), x)
    separate = unstack(term, params)
    assert sizes(separate) == {
        "linear/kernel": (4, 4),
        "0/rms_norm/scale": (4,),
        "1/rms_norm/scale": (4,),
    }
    assert separate["linear"]["kernel"] is params["linear"]["kernel"]


def test_separate_blocks_of_a_pattern_go_in_turn():
    term = repeat(4, linear(4), rms_norm())
    params = term.init(jax.random.key(0), x)
    separate = unstack(term, params)
    assert [sorted(separate[str(i)]) for i in range(4)] == [["kernel"], ["scale"]] * 2
    np.testing.assert_array_equal(separate["2"]["kernel"], params["linear"]["kernel"][1])


def test_repeats_within_repeats_come_apart_together():
    term = repeat(2, linear(4) @ repeat(3, linear(4)))
    params = term.init(jax.random.key(0), x)
    separate = unstack(term, params)
    assert sorted(separate) == ["0", "1"]
    assert sorted(separate["0"]["repeat"]) == ["0", "1", "2"]
    chex.assert_trees_all_equal(stack(term, separate), params)


def test_a_missing_block_is_named():
    term = repeat(3, linear(4))
    separate = unstack(term, term.init(jax.random.key(0), x))
    del separate["1"]
    with pytest.raises(ParameterError, match=re.escape("repeat has 3 blocks; 1 missing")):
        stack(term, separate)
