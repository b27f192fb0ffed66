"""Streamed lookups equal those on one table: values and derivatives, whatever is asked."""

import functools
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import GIVEN, NORMALIZERS, ask, fast, given
from hypothesis import strategies as st

from combinax.combinators import (
    CompositionError,
    Partial,
    aggregate,
    alibi,
    bias,
    bilinear,
    block_causal,
    causal,
    compose,
    cosine,
    dilated,
    distance,
    dot,
    dropout,
    each,
    features,
    heads,
    identity,
    largest,
    learned,
    linear,
    log_sum_exp,
    mask,
    materialized,
    merge,
    multiply,
    named,
    normalize,
    pointwise,
    prefix,
    project,
    read,
    relative,
    row_sum,
    same,
    scaled_dot,
    score,
    shared,
    sink,
    slots,
    softcap,
    softmax,
    streamed,
    temperature,
    tiles,
    union,
    valid,
    window,
)

D = 4
STREAMING = {
    name: NORMALIZERS[name]
    for name in (
        "softmax", "sigmoid", "relu", "relu_squared", "gelu", "gelu_tanh", "silu", "identity",
        "row_sum",
    )
}  # fmt: skip


def near(query, key):
    return key.position <= query.position + 5


def raised(x):
    return jax.nn.elu(x) + 1


def kernel(query, key):
    return jnp.exp(-jnp.abs(query[:, None] - key[None]).sum(-1))


MASKS = {
    "all": None,
    "causal": causal,
    "window": window(3),
    "causal window": causal & window(4),
    "prefix": prefix(3),
    "dilated": dilated(2) & causal,
    "block causal": block_causal(3),
    "not causal": ~causal,
    "nothing": causal & ~causal,
    "segments": same("segments", "key_segments") & causal,
    "lengths": valid("lengths"),
    "table": read("seen"),
    "either": window(2) | valid("lengths"),
    "a function": near,
}
SCORES = {
    "dot": score(dot),
    "scaled_dot": score(scaled_dot),
    "cosine": score(cosine),
    "distance": score(distance),
    "bilinear": score(bilinear()),
    "a function": score(kernel),
    "bias": bias(learned(())) @ score(dot),
    "table bias": bias(read("table")) @ score(dot),
    "relative": bias(relative(2)) @ score(dot),
    "soft-cap": softcap(2.0) @ score(dot),
    "temperature": temperature(learned(())) @ score(dot),
    "a sum": score(dot) + 0.5 * score(cosine),
    "pointwise": pointwise(jnp.tanh) @ score(dot),
    "named": named("scored", score(bilinear())),
}


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def asked(t: int, s: int, seed: int = 0) -> dict[str, Any]:
    """Queries, keys, values and whatever else the masks and scores above may read."""
    draw = np.random.default_rng(seed)
    return dict(
        query=normal(seed, t, D), key=normal(seed + 1, s, D), value=normal(seed + 2, s, 3),
        segments=np.sort(draw.integers(0, 3, t)), key_segments=np.sort(draw.integers(0, 3, s)),
        lengths=np.int32(draw.integers(0, s + 1)), seen=draw.random((t, s)) < 0.4,
        table=normal(seed + 3, t, s),
    )  # fmt: skip


def both(term, block, t: int, s: int, seed: int = 0, tolerance: float = 2e-5, **more: Any) -> None:
    """A stream and one table give the same output and the same derivatives."""
    given = asked(t, s, seed)
    x = given.pop("query")
    given = {name: value for name, value in given.items() if name in term.reads}
    params = jax.tree.map(
        lambda leaf: normal(seed + 5, *leaf.shape),
        jax.eval_shape(lambda key: term.init(key, x, **given), jax.random.key(0)),
    )
    smooth = {n: v for n, v in given.items() if np.result_type(v) == np.float32}
    rest = {**{n: v for n, v in given.items() if n not in smooth}, **more}

    def run(how):
        def loss(params, x, smooth):
            y = how(term)(params, x, **smooth, **rest)
            return (
                jnp.where(jnp.isfinite(y), y, 0) * jnp.cos(jnp.arange(y.size)).reshape(y.shape)
            ).sum(), y

        return fast(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(params, x, smooth)

    (_, y), gradients = run(functools.partial(streamed, block=block))
    (_, wanted), wanted_gradients = run(materialized)

    def close(ours: Any, theirs: Any) -> None:
        size = np.abs(theirs[np.isfinite(theirs)]).max(initial=1)
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * size)

    close(y, wanted)
    jax.tree.map(close, gradients, wanted_gradients)


def lookup(how: Any, seen: Any, scores: Any):
    masks = [] if seen is None else [mask(seen)]
    return compose(aggregate(), normalize(how), *masks, scores, GIVEN)


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    st.sampled_from(sorted(MASKS)), st.sampled_from(sorted(SCORES)),
    st.sampled_from(sorted(STREAMING)), st.sampled_from([1, 2, 7, 8, 11]),
    st.sampled_from([1, 2, 7, 9]), st.sampled_from([2, 3, (4, 2), 8]), st.integers(0, 9),
)  # fmt: skip
def test_a_stream_equals_one_table(seen, scores, how, t, s, block, seed):
    hypothesis.assume(how != "row_sum" or scores == "a function")  # a sum of mixed signs may be 0
    both(lookup(STREAMING[how], MASKS[seen], SCORES[scores]), block, t, s, seed)


@pytest.mark.parametrize("seen", sorted(MASKS))
def test_every_mask_streams(seen):
    both(lookup(softmax, MASKS[seen], SCORES["scaled_dot"]), 3, 8, 7)


@pytest.mark.parametrize("scores", sorted(SCORES))
def test_every_score_streams(scores):
    both(lookup(softmax, causal, SCORES[scores]), (2, 3), 7, 7)


@pytest.mark.parametrize("how", sorted(STREAMING))
def test_every_streaming_normalizer_streams(how):
    both(lookup(STREAMING[how], causal, SCORES["a function"]), (3, 2), 7, 8)


LENGTHS = [(0, 5), (5, 0), (1, 1), (2, 31), (33, 7), (65, 127), (129, 8), (137, 137), (1025, 1000)]


@pytest.mark.parametrize(("t", "s"), LENGTHS)
def test_any_lengths(t, s):
    both(lookup(softmax, causal, SCORES["scaled_dot"]), (64, 32), t, s)


def test_a_mask_that_varies_within_a_block():
    def within_50(query, key):
        return key.position <= query.position + 50

    both(lookup(softmax, within_50, SCORES["dot"]), 128, 256, 256)


# Forms around and inside a lookup


HEAD = compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot), project(2))
KEYS = shared(linear(2), across="heads")
GROUP = compose(
    aggregate(), normalize(softmax), mask(causal), score(scaled_dot),
    project(query=2, key=KEYS, value=KEYS),
)  # fmt: skip


@pytest.mark.parametrize(
    "term",
    [
        heads(3, HEAD),
        heads(2, heads(2, GROUP)),
        (identity + heads(2, HEAD)) ** 3,
        heads(4, compose(aggregate(), normalize(softmax), bias(alibi), score(dot), project(1))),
    ],
    ids=["heads", "groups", "layers", "alibi"],
)
def test_forms_around_a_lookup(term):
    both(term, 3, 7, 7, tolerance=1e-4)


SINKS = union(mask(causal) @ score(dot), sink())
PREFIXED = union(mask(causal) @ score(scaled_dot), bias(learned(())) @ score(scaled_dot) @ slots(5))


@pytest.mark.parametrize("first", [SINKS, PREFIXED, union(score(dot), score(cosine))])
@pytest.mark.parametrize("after", [(), (softcap(1.5),)], ids=["", "soft-cap"])
def test_several_dictionaries_stream_as_one(first, after):
    both(compose(aggregate(), normalize(softmax), *after, first, GIVEN), (2, 3), 7, 7)


@pytest.mark.parametrize("scores", [score(dot), SINKS], ids=["one", "union"])
def test_weight_dropout_does_not_depend_on_blocks(scores):
    term = compose(aggregate(), dropout(0.4), normalize(softmax), scores, GIVEN)
    both(term, (2, 3), 7, 7, rng=jax.random.key(3))


def test_parameters_that_stand_elsewhere():
    """Named, shared by name, and shared across heads: a tile finds its parameters."""
    scores = named("a", score(bilinear())) + shared(score(bilinear()), name="everywhere")
    head = compose(aggregate(), normalize(softmax), mask(causal), scores, project(2))
    both(heads(2, head), 3, 7, 7, tolerance=1e-4)


def test_log_sum_exp_streams():
    """Given [0, 0, 0, 0] it is log 4; where nothing is seen it is -inf, with derivative 0."""
    for seen in (causal, valid("lengths"), read("seen")):
        both(compose(log_sum_exp, mask(seen), score(dot), GIVEN), 3, 7, 7)
    term = streamed(compose(log_sum_exp, mask(valid("lengths")), score(dot), GIVEN), 3)
    x = np.zeros((4, D), np.float32)
    run = functools.partial(term, {}, x[:2], key=x)
    np.testing.assert_allclose(run(lengths=4, value=x), [1.386294] * 2, rtol=1e-6)
    assert (run(lengths=0, value=x) == -np.inf).all()


# Rules of meaning


def test_a_row_that_sees_nothing_and_padding_that_is_nan():
    """Key 3 is padding and row 1 sees nothing: NaN in them reaches no output and no gradient."""
    seen = np.ones((4, 4), bool)
    seen[1], seen[:, 3] = False, False
    term = lookup(softmax, read("seen"), SCORES["scaled_dot"])
    given = asked(4, 4)
    q, k, v = given["query"], given["key"], given["value"]

    def run(term, q, k, v):
        out, back = jax.vjp(lambda q, k, v: term({}, q, key=k, value=v, seen=seen), q, k, v)
        return out, *back(jnp.ones_like(out))

    wanted = run(materialized(term), q, k, v)
    q[1], k[3], v[3] = np.nan, np.nan, np.inf
    for block in (1, 2, 4):
        ours = run(streamed(term, block), q, k, v)
        for a, b in zip(ours, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert (ours[0][1] == 0).all() and (ours[1][1] == 0).all()


def test_huge_logits_of_any_type():
    """float16 logits of 230,400 before scaling: finite, and the largest wins."""
    q = np.full((3, 64), 60, np.float16)
    k = np.concatenate([q, q / 2])
    v = np.arange(6, dtype=np.float16)[:, None]
    y = streamed(ask(mask(causal)), 2)({}, q, key=k, value=v)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y[:, 0], [0, 0.5, 1], atol=1e-3)


def test_a_function_that_captures_a_traced_array_keeps_its_table():
    """It runs and is differentiated as before, however long the rows; a pin says why it cannot."""
    x = normal(0, 1100, D)

    def run(weight, seen, how):
        scores = mask(lambda query, key: seen[key.position]) @ score(
            lambda q, k: weight * (q @ k.T)
        )
        term = how(compose(aggregate(), normalize(softmax), scores, GIVEN))
        return term({}, x, key=x, value=x)[:5].sum()

    seen = np.arange(1100) % 3 != 0
    ours, table = (
        fast(jax.grad(functools.partial(run, how=how)))(0.5, seen)
        for how in (lambda f: f, materialized)
    )
    np.testing.assert_array_equal(ours, table)
    with pytest.raises(CompositionError, match="captures a traced array"):
        jax.jit(functools.partial(run, how=streamed))(0.5, seen)


def test_an_equal_stream_is_compiled_once(caplog):
    """Called as it is, outside of jit, and differentiated."""
    term = ask(mask(causal & window(3)))
    given = asked(7, 7)
    x, context = given["query"], dict(key=given["key"], value=given["value"])

    def call():
        run = lambda x: streamed(term, 3)({}, x, **context).sum()  # noqa: E731
        return jax.value_and_grad(run)(x)

    call()
    with jax.log_compiles(True), caplog.at_level("WARNING"):
        call()
    assert not [record for record in caplog.messages if "Compiling" in record]


def test_float64():
    with jax.enable_x64(True):
        draw = np.random.default_rng(0)
        q, k, v = (draw.standard_normal((33, 8)) for _ in range(3))
        term = ask(mask(causal))
        ours, table = (
            t({}, q, key=k, value=v) for t in (streamed(term, (8, 5)), materialized(term))
        )
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, table, rtol=1e-12, atol=1e-12)


def test_bfloat16_errs_at_most_twice_as_much():
    draw = np.random.default_rng(0)
    exact = [draw.standard_normal((65, 16)) for _ in range(3)]
    term = ask(mask(causal))
    with jax.enable_x64(True):
        wanted = np.asarray(materialized(term)({}, exact[0], key=exact[1], value=exact[2]))
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in exact)
    ours, table = (
        np.abs(np.asarray(t({}, q, key=k, value=v), np.float64) - wanted).max()
        for t in (streamed(term, 16), materialized(term))
    )
    assert ours <= 2 * table


def test_quiet_under_debug_nans_and_infs():
    term = streamed(ask(mask(causal & window(2))), 2)
    given = asked(5, 5)
    run = lambda q: term({}, q, key=given["key"], value=given["value"]).sum()  # noqa: E731
    with jax.debug_nans(True), jax.debug_infs(True):
        jax.block_until_ready(jax.jit(jax.value_and_grad(run))(given["query"]))


# Derivatives of every order, and maps


def pair(seen: Any = causal):
    """One function of query, key and value: streamed, and on one table."""
    term = ask(mask(seen), function=dot)
    run = lambda t: lambda q, k, v: t({}, q, key=k, value=v)  # noqa: E731
    return run(streamed(term, (3, 2))), run(materialized(term))


def three(seed: int = 0, *front: int) -> list[Any]:
    return [0.5 * normal(seed + i, *front, 7, D) for i in range(3)]


def agree(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, theirs
    )


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
    tables = normal(4, 2, 7, 5)

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
        operands = [normal(i, *v.aval.shape) for i, v in enumerate(eqn.invars)]
        what = eqn.params["what"]
        agree(fast(what.side_by_side)(*operands), fast(what.run)(*operands), 1e-4)
    for platform in ("cuda", "tpu"):
        jax.jit(gradient).trace(x).lower(lowering_platforms=(platform,))


@pytest.mark.parametrize(("room", "left"), [(1, (2, 4)), (2, (2, 2)), (3, (2, 2)), (8, (1, 1))])
@pytest.mark.parametrize("axes", [None, (None, None), (0, None), (None, 0), (0, 0)])
def test_copies_share_a_tile_where_cores_share_the_work(monkeypatch, room, left, axes):
    """As many copies in a tile as there is room for and as divide an axis, forward and backward;
    not where each has a plan of its own: `axes` are those of segments, of rows and of heads."""
    monkeypatch.setattr(tiles, "SHARED", 1)
    monkeypatch.setattr(tiles, "ROOM", 3 * 2 * room)
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
    x = normal(0, 2, 4, 7, D), normal(1, 4, 7, D), normal(2, 2, 7, D)
    agree(fast(gradient(stream))(*x), fast(gradient(materialized))(*x), 1e-4)
    first = jax.make_jaxpr(gradient(stream))(*x)
    found = [e.params["what"] for e in first.eqns if "what" in e.params]
    assert [type(what) for what in found] == [tiles.Fold, tiles.Sum]
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


def test_dictionaries_within_dictionaries_are_streamed_and_so_is_nothing():
    inner = union(mask(causal) @ score(scaled_dot), sink())
    term = compose(aggregate(), normalize(softmax), union(inner, sink(0.0)), GIVEN)
    q, k, v = given(6, 6, D, D)
    params = term.init(jax.random.key(0), q, key=k, value=v)
    agree(streamed(term, 4)(params, q, key=k, value=v), term(params, q, key=k, value=v), 1e-6)
    for rows in (q[:0], q):
        assert streamed(term)(params, rows, key=k[:0], value=v[:0]).shape == rows.shape


@pytest.mark.parametrize("shape", [(7, 1), (5,), (7, 5)])
def test_temperatures_of_rows_are_cut_as_tables_are(shape):
    term = ask(temperature(read("t")))
    q, k, v = given(7, 5, D, D)
    context = dict(key=k, value=v, t=np.random.default_rng(0).random(shape) + 0.5)
    agree(streamed(term, (3, 2))({}, q, **context), term({}, q, **context), 1e-6)
    one, table = (term({}, q, **{**context, "t": t}) for t in (2.0, np.full(shape, 2.0)))
    agree(one, table, 1e-6)
    with pytest.raises(CompositionError, match=r"needs a table of shape \(7, 5\)"):
        term({}, q, **{**context, "t": np.ones((3, 1))})


def test_copies_that_no_small_number_divides_are_joined_whole():
    term = streamed(ask(mask(causal)), (512, 256))
    for count, left in ((8, 1), (11, 1), (12, 2), (32, 4), (997, 997)):
        x = jax.ShapeDtypeStruct((count, 1024, D), jnp.float32)
        graph = jax.make_jaxpr(jax.vmap(lambda x: term({}, x, key=x, value=x)))(x)
        (what,) = (eqn.params["what"] for eqn in graph.eqns if "what" in eqn.params)
        assert what.in_groups().sizes == (left,)


@pytest.mark.parametrize(
    ("stages", "kernels"),
    [
        ((), 1),
        ((mask(causal),), 1),
        ((mask(window(4) & causal),), 1),
        ((mask(window(4)),), 0),
        ((softcap(2.0), mask(causal)), 0),
    ],
)
def test_on_a_gpu_plain_attention_is_the_kernel_of_cudnn(monkeypatch, stages, kernels):
    """Seen in the computation lowered for a GPU, forward and backward; there is none to run it."""
    from jax._src.cudnn import fused_attention_stablehlo as checks

    monkeypatch.setattr(checks, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(checks, "check_compute_capability", lambda least: True)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    term = each(ask(*stages))
    x = jax.ShapeDtypeStruct((3, 2, 64, 16), jnp.bfloat16)
    run = lambda x: term({}, x[0], key=x[1], value=x[2])  # noqa: E731
    for function, name in (
        (run, "fmhaSoftmax("),
        (jax.grad(lambda x: run(x).astype(float).sum()), "fmhaSoftmaxBackward("),
    ):
        lowered = jax.jit(function).trace(x).lower(lowering_platforms=("cuda",))
        assert lowered.as_text().count(f"__cudnn${name}") == kernels


# Reassociated


LINEAR = {"row_sum": row_sum, "identity": identity}


@pytest.mark.parametrize("how", LINEAR)
@pytest.mark.parametrize("seen", ["all", "causal", "segments", "lengths", "causal window", "table"])
def test_features_are_summed_up_before_they_are_asked(how, seen):
    scores = score(features(pointwise(raised)))
    both(lookup(LINEAR[how], MASKS[seen], scores), (3, 2), 8, 7, tolerance=1e-4)


def test_padded_keys_leave_the_denominator():
    term = lookup(row_sum, valid("lengths"), score(features(pointwise(raised))))
    given = asked(4, 6)
    q, k, v = given["query"], given["key"], given["value"]
    wanted = term({}, q, key=k[:4], value=v[:4], lengths=4)
    k[4:], v[4:] = np.nan, np.nan
    agree(streamed(term, 2)({}, q, key=k, value=v, lengths=4), wanted)


# The monoid


def partials(seed: int) -> Partial:
    draw = np.random.default_rng(seed)
    return Partial(
        jnp.asarray(draw.normal(size=3), jnp.float32),
        jnp.asarray(draw.random(3), jnp.float32),
        jnp.asarray(draw.normal(size=(3, 2)), jnp.float32),
    )


def test_merging_is_associative_and_an_empty_part_changes_nothing():
    a, b, c = map(partials, range(3))
    agree(merge(softmax, merge(softmax, a, b), c), merge(softmax, a, merge(softmax, b, c)))
    lowest = jnp.full(3, jnp.finfo(jnp.float32).min)
    empty = Partial(lowest, jnp.zeros(3), jnp.zeros((3, 2)))
    for merged in (merge(softmax, a, empty), merge(softmax, empty, a)):
        jax.tree.map(np.testing.assert_array_equal, merged, a)


# What cannot be streamed


@pytest.mark.parametrize(
    ("term", "reason"),
    [
        (ask(how=NORMALIZERS["sparsemax"]), "normalize(sparsemax) needs whole rows of scores"),
        (ask(how=NORMALIZERS["top_k"]), "normalize(top_k(2)) needs whole rows of scores"),
        (
            compose(aggregate(largest), normalize(softmax), score(dot), GIVEN),
            "aggregate(largest) needs whole rows of weights",
        ),
        (
            compose(aggregate(), pointwise(jnp.square), normalize(softmax), score(dot), GIVEN),
            "pointwise(jax.numpy.square) needs whole rows of weights",
        ),
        (
            compose(normalize(softmax), score(dot), GIVEN),
            "its scores or weights are asked for",
        ),
    ],
)
def test_what_cannot_be_streamed_says_why(term, reason):
    given = asked(4, 4)
    with pytest.raises(CompositionError) as error:
        streamed(term, 2)({}, given["query"], key=given["key"], value=given["value"])
    assert f"this lookup cannot be streamed: {reason}" in str(error.value)


def test_a_difference_of_weights_is_on_one_table():
    one = normalize(softmax) @ score(dot)
    term = compose(aggregate(), one - multiply(0.5, one), GIVEN)
    given = asked(4, 4)
    with pytest.raises(CompositionError, match="its scores or weights are asked for"):
        streamed(term)({}, given["query"], key=given["key"], value=given["value"])


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
