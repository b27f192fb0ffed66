"""Stepping: situations with the right answer known, and what is refused."""
# ruff: noqa: F403, F405

from __future__ import annotations

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import NORMALIZERS
from plain import drawn
from sampling import agree
from test_stepwise import turned

from combinax import models
from combinax.combinators import *

WIDTH, TOKENS = 8, np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], np.int32)


def model(*stages: Term, entries: Any = project, seen: Any = causal, layers: int = 2) -> Term:
    """A small language model; what stands between score and normalize, and before all, is given."""
    scores = compose(*stages, mask(seen), score(scaled_dot))
    attention = models.multi_head(WIDTH, 2, entries, scores)
    layer = models.block(attention=attention, dictionary=models.dictionary(6))
    return tied(embed(10, WIDTH), rms_norm() @ repeat(layers, layer))


BODY: Any = model().parts[1]
POSITIONED = {
    "learned": tied(embed(10, WIDTH), BODY @ position_embed(16)),
    "rotary": model(entries=turned),
    "alibi": model(bias(alibi)),
    "window": model(seen=causal & window(4)),
}


def fed(term: Term, params: Any, x: Any, sizes: Any, capacity: int = 16, **options: Any) -> Any:
    """What the steps give, and the last state."""
    start, step = stepwise(term, **options)
    state, parts, at = start(params, x[:1], capacity), [], 0
    compiled: Any = jax.jit(step)
    for size in sizes:
        state, y = compiled(params, state, x[at : at + size])
        parts.append(y)
        at += size
    assert compiled._cache_size() == len(set(sizes))  # one compilation for all positions
    return jnp.concatenate(parts), state


@pytest.mark.parametrize("name", POSITIONED)
@pytest.mark.parametrize("sizes", [(5,), (3, 2), (1,) * 5], ids=str)
def test_cached_generation_is_the_full_forward(name, sizes):
    term = POSITIONED[name]
    params = drawn(term, TOKENS)
    tree = unstack(term, params) if sizes == (3, 2) else params
    agree(fed(term, tree, TOKENS[:5], sizes)[0], jax.jit(term)(params, TOKENS[:5]))


@pytest.mark.parametrize("sizes", [(1,) * 11, (3, 3, 5)], ids=str)
@pytest.mark.parametrize("rewind", [0, 3])
def test_a_window_of_four_fed_eleven_tokens(sizes, rewind):
    term = POSITIONED["window"]
    params = drawn(term, TOKENS)
    y, state = fed(term, params, TOKENS, sizes, capacity=11, rewind=rewind)
    agree(y, jax.jit(term)(params, TOKENS))
    tables = [leaf for leaf in jax.tree.leaves(state["memory"]) if leaf.ndim == 4]
    assert {leaf.shape for leaf in tables} == {(2, 2, 4 + rewind, 4)}


def test_a_row_that_is_no_number_counts_where_it_is_seen():
    """A NaN row, seen by itself and by the rows of its window, in steps and in one."""
    attention = compose(
        aggregate(), normalize(softmax), mask(causal & window(2)), score(dot), project(WIDTH)
    )
    x = np.random.default_rng(0).standard_normal((6, WIDTH)).astype(np.float32)
    params = drawn(attention, x)
    onward = jax.jit(attention)(params, x)[3:]
    for bad in (np.nan, np.inf):
        x[1] = bad
        for sizes in ((6,), (1,) * 6, (2, 2, 2)):
            y = fed(attention, params, x, sizes)[0]
            assert np.isnan(y[1:3]).all()
            agree(y[3:], onward)


def test_padding_of_what_is_read_reaches_no_step():
    """Two of five rows of a memory are padding, and NaN; so are rows of the sequence before it."""
    cross = models.cross_attention(WIDTH, 2, scores=mask(valid("lengths")) @ score(scaled_dot))
    rows = np.random.default_rng(0).standard_normal((5, WIDTH)).astype(np.float32)
    x = rows[::-1].copy()
    params = drawn(cross, x, memory=rows, lengths=3)
    start, step = stepwise(cross)
    clean = jax.jit(cross)(params, x, memory=rows[:3], lengths=3)
    rows[3:] = np.nan
    state = start(params, x[:1], 8, memory=rows, lengths=3)
    for at in range(5):
        state, y = step(params, state, x[at : at + 1], lengths=3)
        agree(y, clean[at : at + 1])


def test_two_rows_at_different_offsets_in_one_compilation():
    term = POSITIONED["rotary"]
    params, (start, step) = drawn(term, TOKENS), stepwise(term)
    offsets = (2, 5)
    states = []
    for offset in offsets:
        state, _ = jax.jit(step)(params, start(params, TOKENS[:1], 12), TOKENS[:offset])
        states.append(state)
    state = jax.tree.map(lambda *rows: jnp.stack(rows), *states)
    whole = jax.jit(term)(params, TOKENS)
    mapped: Any = jax.jit(jax.vmap(step, (None, 0, 0)))
    for ahead in range(3):
        rows = np.stack([TOKENS[offset + ahead :][:1] for offset in offsets])
        state, y = mapped(params, state, rows)
        agree(y[:, 0], whole[np.array(offsets) + ahead])
    assert mapped._cache_size() == 1
    assert state["position"].tolist() == [5, 8]


def test_rows_of_each_at_different_offsets():
    term = each(POSITIONED["alibi"])
    batch = np.stack([TOKENS, TOKENS[::-1]])
    params, (start, step) = drawn(term, batch), stepwise(term, rewind=3)
    state = start(params, batch[:, :5], 12)
    compiled: Any = jax.jit(step)
    state, _ = compiled(params, state, batch[:, :5])  # the first row's last three are padding
    whole = jax.jit(term)(params, batch)
    for ahead in range(2):
        at = np.array([[2 + ahead], [5 + ahead]], np.int32)
        rows = np.take_along_axis(batch, at, 1)
        state, y = compiled(params, state, rows, positions=at)
        agree(y, np.take_along_axis(whole, at[..., None], 1))


def test_slots_that_are_not_filled_have_no_weight():
    ask = project(query=pointwise(jnp.zeros_like), key=identity, value=pointwise(jnp.ones_like))
    for how in NORMALIZERS.values():
        term = compose(aggregate(), normalize(how), mask(causal), score(dot), ask)
        start, step = stepwise(term)
        x = jnp.ones((3, 2))
        _, y = step({}, start({}, x, 8), x)
        agree(y, term({}, x))
        if how == softmax:
            chex.assert_trees_all_equal(y, jnp.ones((3, 2)))


# What cannot be answered


def passed(term: Term, *, sizes: Any, positions: Any = None, **options: Any) -> Any:
    """The last of several steps, eagerly and compiled."""
    params = drawn(term, TOKENS)
    capacity = options.pop("capacity", 6)
    start, step = stepwise(term, **options)
    state, at = start(params, TOKENS[:1], capacity), 0
    for size in sizes[:-1]:
        state, _ = jax.jit(step)(params, state, TOKENS[at : at + size])
        at += size
    last = TOKENS[at : at + sizes[-1]]
    place = {} if positions is None else {"positions": jnp.asarray(positions)}
    return partial(step, params, state, last, **place), partial(jax.jit(step), params, state, last,
                                                                **place)  # fmt: skip


FLAT = tied(embed(10, WIDTH), compose(aggregate(), normalize(softmax), mask(causal),
                                      score(dot), project(WIDTH)))  # fmt: skip
NEAR = tied(embed(10, WIDTH), compose(aggregate(), normalize(softmax), mask(causal & window(3)),
                                      score(dot), project(WIDTH)))  # fmt: skip
PREFIX = tied(embed(10, WIDTH), compose(aggregate(), normalize(softmax), mask(prefix(3)),
                                        score(dot), project(WIDTH)))  # fmt: skip
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "past the capacity": (
        dict(term=FLAT, sizes=(6, 1)), "position 6 is past the capacity of 6 positions"
    ),
    "past the capacity in layers": (
        dict(term=model(), sizes=(5, 2)), "position 6 is past the capacity of 6 positions"
    ),
    "a chunk past the capacity": (
        dict(term=FLAT, sizes=(7,)), "position 6 is past the capacity of 6 positions"
    ),
    "a gap": (
        dict(term=FLAT, sizes=(2, 1), positions=3),
        "position 2 comes next, and a step at position 3 leaves a gap",
    ),
    "positions that do not follow": (
        dict(term=FLAT, sizes=(2, 2), positions=[2, 4]),
        "the positions of a step follow each other by one",
    ),
    "too far back": (
        dict(term=NEAR, sizes=(6, 1), positions=3, rewind=2, capacity=9),
        "a step at position 3 rewinds by 3, and the cache below",
    ),
    "a prefix in parts": (
        dict(term=PREFIX, sizes=(2, 1)),
        "mask(prefix(3)) lets queries before position 2 see keys from position 2 on: give",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_answered_is_an_error_or_nan(name):
    options, text = WRONG[name]
    eager, compiled = passed(**options)
    with pytest.raises(CompositionError) as caught:
        eager()
    assert text in str(caught.value)
    assert np.isnan(compiled()[1]).all()


def later(state: Any, steps: int) -> Any:
    """The state as it would be had all rows stood so many positions later."""

    def one(path: Any, leaf: Any) -> Any:
        return leaf + steps if path[-1].key in ("position", "length", "reach") else leaf

    return jax.tree_util.tree_map_with_path(one, state)


@pytest.mark.parametrize("how", [lambda step: step, jax.jit], ids=["eager", "compiled"])
def test_a_window_goes_on(how):
    """Its rows go round, so a multiple of their number later all stand where they stood."""
    params, (start, step) = drawn(NEAR, TOKENS), stepwise(NEAR)
    state, _ = step(params, start(params, TOKENS[:1], 4), TOKENS[:4])
    for steps in (0, 3, 3 * 2**20, 3 * 2**28):
        _, y = how(step)(params, later(state, steps), TOKENS[4:])
        agree(y, jax.jit(NEAR)(params, TOKENS)[4:])


def far(query, key):
    return query.position - key.position == 2**21


@pytest.mark.parametrize(
    "seen, limit", [(causal & window(3), 2**30 - 1), (causal & (window(3) | far), 2**20)]
)
def test_positions_end_where_sight_does(seen, limit):
    """What may be seen from farther than was asked, key by key, is not in a window's memory."""
    term = tied(embed(10, WIDTH), compose(aggregate(), normalize(softmax), mask(seen), score(dot),
                                          project(WIDTH)))  # fmt: skip
    params, (start, step) = drawn(term, TOKENS), stepwise(term)
    state = later(start(params, TOKENS[:1], 4), limit - 1)
    state, y = jax.jit(step)(params, state, TOKENS[:1])
    assert jnp.isfinite(y).all() and jnp.isnan(jax.jit(step)(params, state, TOKENS[:1])[1]).all()
    with pytest.raises(CompositionError, match=f"position {limit} is past the capacity of {limit}"):
        step(params, state, TOKENS[:1])


# Going back, forking, keeping


@pytest.mark.parametrize("term", [FLAT, NEAR], ids=["all", "window"])
def test_going_back_overwrites(term):
    params, (start, step) = drawn(term, TOKENS), stepwise(term, rewind=2)
    state = start(params, TOKENS[:1], 12)
    other = np.array([7, 8, 8], np.int32)
    state, _ = jax.jit(step)(params, state, TOKENS[:6])
    state, y = jax.jit(step)(params, state, other[:1], positions=4)
    state, z = jax.jit(step)(params, state, other[1:])
    expected = jax.jit(term)(params, np.concatenate([TOKENS[:4], other]))
    agree(jnp.concatenate([y, z]), expected[4:])


def test_a_prefix_is_forked():
    term = POSITIONED["rotary"]
    params, (start, step) = drawn(term, TOKENS), stepwise(term)
    state, _ = jax.jit(step)(params, start(params, TOKENS[:1], 8), TOKENS[:4])
    kept = jax.tree.map(np.asarray, state)  # plain arrays: they can be saved
    for then in (TOKENS[4:6], TOKENS[6:8]):
        _, y = jax.jit(step)(params, kept, then)
        agree(y, jax.jit(term)(params, np.concatenate([TOKENS[:4], then]))[4:])


def test_state_can_be_donated():
    term = model()
    params, (start, step) = drawn(term, TOKENS), stepwise(term)
    state = start(params, TOKENS[:1], 8)
    donating = jax.jit(step, donate_argnums=1)
    whole = jax.jit(term)(params, TOKENS[:3])
    for at in range(3):
        before = state
        state, y = donating(params, state, TOKENS[at : at + 1])
        agree(y[0], whole[at])
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before["memory"]))


def test_a_chunk_of_no_rows_changes_nothing():
    term = POSITIONED["learned"]
    params, (start, step) = drawn(term, TOKENS), stepwise(term)
    state, _ = jax.jit(step)(params, start(params, TOKENS[:0], 8), TOKENS[:3])
    again, y = jax.jit(step)(params, state, TOKENS[:0])
    chex.assert_trees_all_equal(again, state)
    assert y.shape == (0, 10)


def test_the_gradient_of_steps_is_that_of_the_whole():
    term = model(seen=causal & window(2))
    params, (start, step) = drawn(term, TOKENS), stepwise(term)

    def stepped(params):
        state, first = step(params, start(params, TOKENS[:1], 6), TOKENS[:2])
        return jnp.sin(jnp.concatenate([first, step(params, state, TOKENS[2:5])[1]])).sum()

    gradient = jax.jit(jax.grad(stepped))(params)
    agree(gradient, jax.jit(jax.grad(lambda p: jnp.sin(term(p, TOKENS[:5])).sum()))(params))
