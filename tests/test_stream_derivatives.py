"""Streams: derivatives of every order, maps and copies, and the memory they take."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import GIVEN, ask, fast
from plain import single
from streams import (
    D,
    agree,
    asked,
)

from combinax.combinators import (
    aggregate,
    bias,
    causal,
    compose,
    dot,
    each,
    mask,
    materialized,
    normalize,
    read,
    same,
    scaled_dot,
    score,
    softmax,
    streamed,
    valid,
)
from combinax.combinators.streaming import sweep

# Derivatives of every order, and maps


def pair(seen: Any = causal):
    """One function of query, key and value: streamed, and on one table."""
    term = ask(mask(seen), function=dot)
    run = lambda t: lambda q, k, v: t({}, q, key=k, value=v)  # noqa: E731
    return run(streamed(term, (3, 2))), run(materialized(term))


def three(seed: int = 0, *front: int) -> list[Any]:
    return [0.5 * single(*front, 7, D, seed=seed + i) for i in range(3)]


def loss(f: Any) -> Any:
    return lambda x: jnp.sin(f(*x)).sum()


DERIVATIVES = {
    "jvp": lambda f, x: jax.jvp(f, tuple(x), tuple(three(9)))[1],
    "jacrev": lambda f, x: jax.jacrev(f, (0, 1, 2))(*x),
    "jacfwd": lambda f, x: jax.jacfwd(f, (0, 1, 2))(*x),
    "Hessian-vector": lambda f, x: jax.jvp(jax.grad(loss(f)), (x,), (three(9),))[1],
    "gradient of gradient": lambda f, x: jax.grad(
        lambda x: sum((g**2).sum() for g in jax.grad(loss(f))(x))
    )(x),
    "gradient of jvp": lambda f, x: jax.grad(
        lambda x: (jax.jvp(f, tuple(x), tuple(three(9)))[1] ** 2).sum()
    )(x),
    "third": lambda f, x: jax.jvp(
        lambda x: jax.jvp(jax.grad(loss(f)), (x,), (three(9),))[1], (x,), (three(6),)
    )[1],
    "rematerialized": lambda f, x: jax.grad(loss(jax.checkpoint(f)))(x),
    "linearized": lambda f, x: jax.linearize(f, *x)[1](*three(9)),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_every_derivative(name):
    ours, table = (fast(functools.partial(DERIVATIVES[name], f))(three()) for f in pair())
    agree(ours, table)


@pytest.mark.parametrize(
    "axes", [(0, None, None), (None, 0, 0), (0, 0, 0), (None, None, 0), (2, 1, 1)]
)
def test_maps_over_any_operands(axes):
    x = [
        value if axis is None else np.moveaxis(np.stack([value, 2 * value]), 0, axis)
        for value, axis in zip(three(), axes, strict=True)
    ]
    for take in (lambda f: f, lambda f: jax.grad(lambda *x: jnp.sin(f(*x)).sum(), (0, 1, 2))):
        ours, table = (fast(jax.vmap(take(f), axes))(*x) for f in pair())
        agree(ours, table)
    outer = lambda f: jax.grad(lambda x: jnp.sin(jax.vmap(f, axes)(*x)).sum())  # noqa: E731
    agree(*(fast(outer(f))(x) for f in pair()))


def test_a_map_over_captured_arrays():
    term = ask(mask(read("seen")), bias(read("table")))
    given, seen = asked(7, 5), np.random.default_rng(1).random((2, 7, 5)) < 0.5
    tables = single(2, 7, 5, seed=4)

    def run(t):
        one = lambda seen, table: t(  # noqa: E731
            {}, given["query"], key=given["key"], value=given["value"], seen=seen, table=table
        )
        mapped = jax.grad(lambda table: (jax.vmap(one)(seen, table) ** 2).sum())
        return fast(jax.vmap(one))(seen, tables), fast(mapped)(tables)

    agree(run(streamed(term, 3)), run(materialized(term)))


def test_new_values_compile_nothing_anew():
    run = jax.jit(streamed(ask(mask(valid("lengths") & same("segments", "key_segments"))), 3))
    given = asked(7, 7)
    x = given.pop("query")
    del given["seen"], given["table"]
    for lengths in (0, 3, 7):
        run({}, x, **{**given, "lengths": lengths, "segments": given["segments"] + lengths})
    assert getattr(run, "_cache_size")() == 1  # noqa: B009


def test_copies_run_side_by_side_where_there_is_no_cache_to_keep():
    """What other platforms than a CPU run: all copies at once. It lowers for them, too."""
    f, _ = pair(causal)
    x = three(0, 2)
    gradient = jax.grad(lambda x: jnp.sin(jax.vmap(f, (0, 0, 0))(*x)).sum())
    sweeps = [e for e in jax.make_jaxpr(gradient)(x).eqns if "what" in e.params]
    assert {e.primitive.name for e in sweeps} == {"tile_fold", "tile_sum"}
    for eqn in sweeps:
        operands = [single(*v.aval.shape, seed=i) for i, v in enumerate(eqn.invars)]
        what = eqn.params["what"]
        agree(fast(what.side_by_side)(*operands), fast(what.run)(*operands), 1e-4)
    for platform in ("cuda", "tpu"):
        jax.jit(gradient).trace(x).lower(lowering_platforms=(platform,))


@pytest.mark.parametrize(("room", "left"), [(1, (2, 4)), (2, (2, 2)), (3, (2, 2)), (8, (1, 1))])
@pytest.mark.parametrize("axes", [None, (None, None), (0, None), (None, 0), (0, 0)])
def test_copies_share_a_tile_where_cores_share_the_work(monkeypatch, room, left, axes):
    """As many copies in a tile as there is room for and as divide an axis, forward and backward;
    not where each has a plan of its own: `axes` are those of segments, of rows and of heads."""
    monkeypatch.setattr(sweep, "CPU", sweep.Cores(shared=1, room=3 * 2 * room))
    jax.clear_caches()
    outer, inner = axes or (None, None)
    front = [n for n, axis in zip((2, 4), (outer, inner), strict=True) if axis == 0]
    given = {"segments": np.broadcast_to([0, 0, 1, 1, 1, 2, 2], (*front, 7))} if axes else {}
    term = ask(mask(same("segments") if axes else causal), function=dot)

    def run(how, query, key, value):
        one = lambda q, k, v, given: how(term)({}, q, key=k, value=v, **given)  # noqa: E731
        heads = jax.vmap(one, (0, 0, None, inner))
        return jnp.sin(jax.vmap(heads, (0, None, 0, outer))(query, key, value, given)).sum()

    gradient = lambda how: jax.grad(functools.partial(run, how), (0, 1, 2))  # noqa: E731
    stream = functools.partial(streamed, block=(3, 2))
    x = single(2, 4, 7, D, seed=0), single(4, 7, D, seed=1), single(2, 7, D, seed=2)
    agree(fast(gradient(stream))(*x), fast(gradient(materialized))(*x), 1e-4)
    first = jax.make_jaxpr(gradient(stream))(*x)
    found = [e.params["what"] for e in first.eqns if "what" in e.params]
    assert [type(what) for what in found] == [sweep.Fold, sweep.Sum]
    if not front:
        assert [what.in_groups().sizes for what in found] == [left, left]
    elif len(front) == 2:
        assert [what.in_groups().sizes for what in found] == [(2, 4), (2, 4)]


def test_copies_are_not_joined_where_tiles_of_derivatives_hold_much():
    term = streamed(ask(mask(causal)), (512, 256))
    attend = jax.vmap(lambda x: term({}, x, key=x, value=x))
    gradient = jax.grad(lambda x: (attend(x) ** 2).sum())
    x = jax.ShapeDtypeStruct((4, 1024, D), jnp.float32)
    graph = jax.make_jaxpr(lambda x: jax.jvp(gradient, (x,), (x,)))(x)
    sweeps = [eqn.params["what"] for eqn in graph.eqns if "what" in eqn.params]
    assert {what.order for what in sweeps} == {0, 1, 2}
    assert all((what.in_groups() is what) == (what.order == 2) for what in sweeps)


@pytest.mark.parametrize("how", [lambda head: head, lambda head: streamed(head, 16), streamed])
def test_no_copies_at_all(how):
    head, rows = how(ask(mask(causal))), jnp.zeros((0, 600, D))
    one = lambda x: head({}, x, key=x, value=x)  # noqa: E731
    together = each(head)({}, rows, key=rows, value=rows)
    assert together.shape == jax.vmap(one)(rows).shape == rows.shape


def test_copies_that_no_small_number_divides_are_joined_whole():
    term = streamed(ask(mask(causal)), (512, 256))
    for count, left in ((8, 1), (11, 1), (12, 2), (32, 4), (997, 997)):
        x = jax.ShapeDtypeStruct((count, 1024, D), jnp.float32)
        graph = jax.make_jaxpr(jax.vmap(lambda x: term({}, x, key=x, value=x)))(x)
        (what,) = (eqn.params["what"] for eqn in graph.eqns if "what" in eqn.params)
        assert what.in_groups().sizes == (left,)


# Memory


@pytest.mark.parametrize(
    ("order", "limit"), [("forward", 18), ("gradient", 40), ("Hessian-vector", 48), ("second", 60)]
)
def test_memory_is_linear(order, limit):
    """4 heads of width 64, T = S = 4096: MiB of temporaries; one table alone has 256."""
    head = compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot), GIVEN)
    term = each(head)
    run = lambda x: term({}, x[0], key=x[1], value=x[2])  # noqa: E731
    gradient = jax.grad(lambda x: (run(x) ** 2).sum())
    orders = {
        "forward": run,
        "gradient": gradient,
        "Hessian-vector": lambda x: jax.jvp(gradient, (x,), (x,))[1],
        "second": jax.grad(lambda x: sum((g**2).sum() for g in gradient(x))),
    }

    def mebibytes(length: int) -> float:
        shape = jax.ShapeDtypeStruct((4, length, 64), jnp.float32)
        compiled = jax.jit(orders[order]).lower((shape,) * 3).compile()
        analysis: Any = compiled.memory_analysis()
        return analysis.temp_size_in_bytes / 2**20

    assert mebibytes(4096) <= limit
    assert mebibytes(8192) <= 2 * limit
