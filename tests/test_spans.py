"""Predicates on blocks of rows: what they say of a tile is true of every pair in it."""

import tracemalloc
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from combinax.combinators import (
    Context,
    Entries,
    Marks,
    Range,
    Rows,
    aggregate,
    block_causal,
    causal,
    compose,
    describe,
    dilated,
    mask,
    normalize,
    predicate,
    prefix,
    project,
    read,
    same,
    scaled_dot,
    score,
    softmax,
    valid,
    window,
)
from combinax.combinators.streaming.block_plan import plan
from combinax.combinators.streaming.grid import ALL, NONE, SOME

ODD = jnp.array([False, True, False, True])
SIMPLE = [
    causal, window(1), window(5), prefix(0), prefix(4), dilated(3), block_causal(4),
    same("segments"), same("kinds"), valid("lengths"), read("seen"),
    predicate(lambda query, key: query.position * 2 - 3 > key.position),
    predicate(lambda query, key: abs(key.position - query.position) != 2),
    predicate(lambda query, key: key.position % 4 >= query.position // 3),
    predicate(lambda query, key: 5 - key.index == 2 * query.index),
    predicate(lambda query, key: query["kinds"] & key["kinds"], ("kinds",)),
    predicate(lambda query, key: query["odd"] - key["odd"] < 2, ("odd",)),
    predicate(lambda query, key: (key.position * 1103515245 + 12345) % 1000 < 500),
    predicate(lambda query, key: query["day"] - key["day"] >= 0, ("day",)),
    predicate(lambda query, key: abs(query["day"] * 3 + 1) <= key["day"] + key.position, ("day",)),
    predicate(lambda query, key: ODD[key.position % 4]),
]  # fmt: skip
"""Every predicate, and every operation on marks that spans follow."""

predicates = st.recursive(
    st.sampled_from([mask(p).predicate for p in SIMPLE]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda p: ~p),
    ),
    max_leaves=4,
)


def table(stage: mask, marks: Marks, context: dict[str, Any]) -> np.ndarray:
    """What a mask leaves visible, pair by pair."""
    t, s = marks.query.length, marks.key.length
    x = Entries(np.zeros((t, 1), np.float32), np.zeros((s, 1), np.float32), None, marks)
    return np.asarray(stage.apply({}, x, Context(context)).visible)


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    predicates, st.sampled_from([1, 5, 8]), st.integers(-3, 3),
    st.sampled_from([(1, 3), (2, 2), (4, 1), (5, 5)]), st.integers(0, 9),
)  # fmt: skip
def test_a_plan_is_true_of_every_pair(seen, t, offset, block, seed):
    draw = np.random.default_rng(seed)
    index = Range(0, t)
    marks = Marks(Rows(Range(offset, t), index), Rows(index, index))
    context = dict(
        segments=jnp.asarray(draw.integers(0, 2, t)), kinds=jnp.asarray(draw.random(t) < 0.5),
        lengths=jnp.asarray(draw.integers(0, t + 1)), seen=jnp.asarray(draw.random((t, t)) < 0.5),
        odd=jnp.asarray(draw.integers(0, 9, t), jnp.uint8),
        day=jnp.asarray(draw.integers(-128, 128, t), jnp.int8),
    )  # fmt: skip
    stage = mask(seen)
    visible = table(stage, marks, context)
    parts = np.asarray(plan([stage], marks, Context(context), block))
    assert parts.shape == tuple(-(-t // size) for size in block)
    for (i, j), part in np.ndenumerate(parts):
        rows, columns = (
            slice(i * block[0], (i + 1) * block[0]),
            slice(j * block[1], (j + 1) * block[1]),
        )
        tile = visible[rows, columns]
        assert part in (NONE, SOME, ALL)
        assert part != ALL or tile.all()
        assert part != NONE or not tile.any()


@pytest.mark.parametrize(
    ("seen", "full", "partial"),
    [
        (causal, 28, 8),
        (window(8) & causal, 0, 8 + 7),
        (block_causal(16), 28 + 8, 0),
        (prefix(16), 28 + 1, 7),
        (~causal, 28, 8),
        (causal & ~causal, 0, 0),
    ],
)
def test_a_plan_that_is_known_is_exact_where_marks_are_positions(seen, full, partial):
    """Eight by eight blocks of 16 rows: 28 below the diagonal, 8 on it."""
    rows = Rows(Range(0, 128), Range(0, 128))
    parts = plan([mask(seen)], Marks(rows, rows), Context(), (16, 16))
    assert isinstance(parts, np.ndarray)
    assert ((parts == ALL).sum(), (parts == SOME).sum()) == (full, partial)


def test_a_table_is_part_of_a_plan_as_what_is_computed_is():
    rows = Rows(Range(0, 8), Range(0, 8))
    odd = predicate(lambda query, key: ODD[key.position % 4])
    tiles = lambda seen: plan([mask(seen)], Marks(rows, rows), Context(), (4, 4)).tolist()  # noqa: E731
    assert tiles(causal & odd) == [[SOME, NONE], [SOME, SOME]]
    assert tiles(causal | ~odd) == [[SOME, SOME], [ALL, SOME]]


def test_floats_among_the_facts_are_compared_pair_by_pair():
    """NaN compares with nothing, so bounds would say too much."""
    rows = Rows(Range(0, 4), Range(0, 4))
    higher = predicate(lambda query, key: key["height"] >= query["height"], ("height",))
    context = Context({"height": jnp.array([1.0, jnp.nan, 2.0, 3.0])})
    parts = np.asarray(plan([mask(higher)], Marks(rows, rows), context, (2, 2)))
    assert parts.tolist() == [[SOME, SOME], [NONE, SOME]]


def test_integers_of_any_size_go_round_as_they_do_in_the_table():
    rows = Rows(Range(0, 8), Range(0, 8))
    marks, draw = Marks(rows, rows), np.random.default_rng(0)
    far = predicate(lambda query, key: query["time"] - key["time"] > 100, ("time",))
    later = predicate(lambda query, key: query["time"] >= key["time"] + 90, ("time",))
    with jax.enable_x64():
        for kind, most in (("int8", 2**7), ("int16", 2**15), ("int32", 2**31), ("int64", 2**62)):
            times = jnp.asarray(np.sort(draw.integers(-most, most, 8)), kind)
            for stage in (mask(far), mask(later), mask(~far & causal)):
                visible = table(stage, marks, {"time": times})
                parts = np.asarray(plan([stage], marks, Context({"time": times}), (2, 2)))
                tiles = visible.reshape(4, 2, 4, 2)
                assert (tiles.all((1, 3)) | (parts != ALL)).all()
                assert (~tiles.any((1, 3)) | (parts != NONE)).all()
    assert (
        np.asarray(plan([mask(same("time"))], marks, Context({"time": jnp.arange(8)}), (2, 2)))
        == np.diag([SOME] * 4)
    ).all()


def test_no_table_is_built_to_describe_a_million_rows():

    term = compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot), project(8))
    tracemalloc.start()
    text = str(describe(term, jax.ShapeDtypeStruct((1_000_000, 8), jnp.float32)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * 2**20
    visited = "3,820,069 of 7,634,278 blocks visited (3,816,162 full, 3,907 partial)"
    assert f"streamed in 512 × 256: {visited}" in text
