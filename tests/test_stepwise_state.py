"""What the state of steps is: bytes, names and types, and sums in place of rows."""
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import drawn
from sampling import agree
from test_stepwise_cases import POSITIONED, TOKENS, WIDTH, fed, model

from combinax import models
from combinax.combinators import *


def size(state: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("form", [stack, unstack])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_bytes_of_state_per_token(groups, dtype, form):
    layers, key, value = 3, 4, 6

    def entries(width):
        return project(query=key, key=key, value=value)

    attention = models.grouped_heads(16, 4, groups, entries, models.causal_scores)
    term = tied(embed(10, 16), repeat(layers, identity + attention))
    params = form(term, drawn(term, TOKENS))
    start, _ = stepwise(term, dtype=dtype)
    sizes = [size(start(params, TOKENS[:1], n)) for n in (8, 9)]
    assert sizes[1] - sizes[0] == layers * groups * (key + value) * (2 if dtype else 4)


@pytest.mark.parametrize("capacity", [100, 1000, 1080, 1100, 1170, 2047])
def test_blocks_are_stepped_at_any_capacity_that_holds_one(capacity):
    term = model(seen=block_causal(100), layers=1)
    params, (start, _) = drawn(term, TOKENS), stepwise(term)
    jax.eval_shape(lambda: start(params, TOKENS[:1], capacity))
    with pytest.raises(CompositionError, match="a query sees keys that come later"):
        start(params, TOKENS[:1], 99)


def test_state_of_a_window_is_constant():
    term = POSITIONED["window"]
    params = drawn(term, TOKENS)
    sizes = {size(stepwise(term).start(params, TOKENS[:1], n)) for n in (8, 9, 1000)}
    assert len(sizes) == 1


def test_state_has_the_names_of_the_parameters():
    term = POSITIONED["learned"]
    params = drawn(term, TOKENS)
    (layers,) = stepwise(term).start(params, TOKENS[:1], 7)["memory"].values()
    memory = layers["attention"]["heads"]["score"]["memory"]
    assert jax.tree.map(jnp.shape, memory) == {
        "rows": {"key": (2, 2, 7, 4), "value": (2, 2, 7, 4)}, "length": (2, 1), "reach": (2, 1),
    }  # fmt: skip
    assert set(params) > {"repeat"} and set(params["repeat"]) >= {"attention"}


def test_types_of_state():
    term = model()
    params = drawn(term, TOKENS)
    y, state = fed(term, params, TOKENS, (5, 6), dtype=jnp.bfloat16)
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert {leaf.dtype for leaf in floats} == {jnp.dtype(jnp.bfloat16)}
    assert y.dtype == jnp.float32
    # Keys and values have 8 bits, and scores that differ by that weigh differently by as much.
    np.testing.assert_allclose(y, jax.jit(term)(params, TOKENS), atol=0.5)
    split, _ = fed(term, params, TOKENS, (1,) * 11, dtype=jnp.bfloat16)
    agree(split, y)  # however it is cut


def test_start_takes_abstract_rows():
    term = model()
    params, (start, _) = drawn(term, TOKENS), stepwise(term)
    abstract = start(params, jax.ShapeDtypeStruct((3,), jnp.int32), 8)
    chex.assert_trees_all_equal(abstract, start(params, TOKENS[:1], 8))


def test_equal_terms_step_alike():
    one, two = stepwise(model()), stepwise(model())
    assert one == two and hash(one) == hash(two)
    assert stepwise(model(layers=1)) != one


def test_a_memory_is_read_once():
    term = models.reading_decoder(2, WIDTH, 2, 3)
    x, memory = jnp.ones((2, WIDTH)), jnp.ones((3, WIDTH))
    params = drawn(term, x, memory=memory)
    start, step = stepwise(term)
    state = start(params, x, 4, memory=memory)
    assert state["given"]["memory"].shape == (0, 3, WIDTH)
    text = str(jax.make_jaxpr(step)(params, state, x))
    assert f"f32[3,{WIDTH}] = dot_general" not in text
    with pytest.raises(ContextError, match="memory was given to start, which reads it"):
        step(params, state, x, memory=memory)


# Sums in place of rows


def raised(x):
    return jax.nn.elu(x) + 1


@pytest.mark.parametrize("how", [row_sum, identity])
def test_keys_that_are_summed_up_take_constant_memory(how):
    """Linear attention: state is as large after 140 rows as before, and steps are the whole."""
    scores = mask(causal) @ score(features(pointwise(raised)))
    attention = compose(aggregate(), normalize(how), scores, project(4))
    term = (identity + 0.01 * (linear(WIDTH) @ heads(2, attention))) ** 2
    x = np.random.default_rng(0).standard_normal((140, WIDTH)).astype(np.float32)
    params = drawn(term, x)
    y, state = fed(term, params, x, (130, 3, *(1,) * 7), capacity=1)
    np.testing.assert_allclose(y, jax.jit(materialized(term))(params, x), rtol=1e-4, atol=1e-4)
    kept = {leaf.shape for leaf in jax.tree.leaves(state["memory"])}
    assert kept == {(2, 2, 4, 4), (2, 2, 4), (2, 1)}
