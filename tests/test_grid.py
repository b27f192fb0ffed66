"""Tiles of a plan: every part of a table that takes part lies in one tile, and in one alone."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import ask
from hypothesis import strategies as st
from sampling import examples

from combinax.combinators import causal, mask, materialized, streamed, window
from combinax.combinators.streaming import choose
from combinax.combinators.streaming.grid import ALL, NONE, SOME, Grid, bands

numbers = st.integers(1, 4)


@st.composite
def grids(draw):
    """A table in blocks, the last ones shorter, and what takes part of it."""
    rows, columns = draw(numbers), draw(st.integers(1, 9))
    block = draw(numbers), draw(numbers)
    cells = st.sampled_from([NONE, NONE, SOME, ALL])
    width = draw(st.integers(1, 3))  # of what rows see, that plans of one tile a row are drawn too
    plan = np.zeros((rows, columns), np.int8)
    for row in plan:
        first = draw(st.integers(0, columns - 1))
        part = row[first : first + width]
        part[:] = draw(st.lists(cells, min_size=len(part), max_size=len(part)))
    shape = [
        n * size - draw(st.integers(0, size - 1)) for n, size in zip(plan.shape, block, strict=True)
    ]
    grid = Grid(tuple(shape), block, plan)
    return grid.widened() if draw(st.booleans()) else grid


def visits(grid, plan):
    """How often tiles visit each element of the table, and whether one does as seen whole."""
    count, whole = np.zeros((2, *grid.shape), int)
    for first, number, rows in grid.runs(0):
        for band in bands(grid, plan[first : first + number]):
            starts, live = np.asarray(band.starts), np.asarray(band.live)
            for row, (columns, n) in enumerate(zip(starts, live, strict=True)):
                top = first * grid.block[0] + row * rows
                for left in columns[:n]:
                    assert 0 <= left <= grid.shape[1] - band.width
                    tile = slice(top, top + rows), slice(left, left + band.width)
                    count[tile] += 1
                    whole[tile] += band.full
    return count, whole


@examples
@hypothesis.given(grids())
def test_what_takes_part_is_visited_once(grid):
    parts = np.repeat(np.repeat(grid.plan, grid.block[0], 0), grid.block[1], 1)
    parts = parts[: grid.shape[0], : grid.shape[1]]
    traced = [jnp.asarray(grid.plan)] if grid.reach == 1 else []
    for plan in (grid.plan, *traced):
        count, whole = visits(grid, plan)
        assert count.max() <= 1
        assert (count[parts != NONE] == 1).all()
        assert grid.reach > 1 or not count[parts == NONE].any()
        assert (whole <= (parts == ALL)).all()


@pytest.mark.parametrize(("length", "full"), [(12, True), (11, False)])
def test_a_tile_that_is_moved_from_the_end_is_not_whole(length, full):
    """For then it lies over what its row does not see."""
    grid = Grid((8, length), (4, 4), np.array([[0, 2, 2], [0, 2, 2]], np.int8)).widened()
    (band,) = bands(grid, grid.plan)
    assert (grid.reach, band.width, band.full) == (2, 8, full)
    assert band.starts.max() == length - 8


@pytest.mark.parametrize(
    ("plan", "number"),
    [
        ([[2, 0, 0], [1, 1, 0], [0, 1, 1]], 2),
        ([[1, 0, 0], [1, 1, 0], [1, 1, 1]], 1),  # too much of what is seen by no one
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], 1),
        ([[1, 0, 1], [1, 1, 1], [1, 1, 1]], 3),
        ([[0, 0, 0], [0, 2, 2], [1, 1, 0], [1, 1, 0], [2, 2, 0]], 2),
        ([[1] * 13] * 3, 1),  # too slender
    ],
)
def test_what_a_row_sees_is_one_tile_where_it_lies_close(plan, number):
    known = np.array(plan, np.int8)
    reach = lambda block, plan: Grid((9, 9), block, plan).widened().reach  # noqa: E731
    assert reach((4, 1), known) == number
    assert reach((2**10, 2**9), known) == 1  # too large
    assert reach((4, 1), jnp.asarray(known)) == 1  # known only when it runs


@pytest.mark.parametrize("query", [0, None])
@pytest.mark.parametrize("length", [16, 23])
@pytest.mark.parametrize("seen", [window(3) & causal, window(2), causal & (window(6) & ~window(1))])
def test_one_tile_a_row_gives_what_the_table_gives(monkeypatch, query, length, seen):
    """Rows that see nothing, a last block that is shorter, and every derivative; each copy with
    queries of its own, or all with the same."""
    term = ask(mask(seen))
    x = list(jax.random.normal(jax.random.key(0), (3, 2, length, 5)))
    x[0] = x[0] if query == 0 else x[0][0]

    def run(how, *x):
        one = lambda q, k, v: how(term)({}, q, key=k, value=v)  # noqa: E731
        return jnp.sin(jax.vmap(one, (query, 0, 0))(*x)).sum()

    def derivatives(how):
        gradient = jax.grad(lambda *x: run(how, *x), (0, 1, 2))
        return jax.jit(lambda *x: (gradient(*x), jax.jvp(gradient, x, x)[1]))(*x)

    monkeypatch.setattr(choose, "BLOCKS", ((8, 3),))
    for a, b in zip(*map(jax.tree.leaves, map(derivatives, (streamed, materialized))), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    sweeps = [
        eqn.params["what"]
        for eqn in jax.make_jaxpr(lambda *x: run(streamed, *x))(*x).eqns
        if "what" in eqn.params
    ]
    assert [what.grid.reach > 1 for what in sweeps] == [True]
