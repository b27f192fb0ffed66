"""The rules of meaning: number types, randomness, and runs that never differ."""

import copy
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy64
import pytest
from asking import GIVEN, NORMALIZERS, ask, fast, given, running, scores, weights
from jax.extend.core import jaxprs_in_params
from plain import close

from combinax.combinators import (
    add,
    aggregate,
    causal,
    compose,
    copies,
    cosine,
    distance,
    dot,
    dropout,
    embed,
    gelu,
    heads,
    identity,
    layer_norm,
    learned,
    lift,
    linear,
    log_sum_exp,
    mask,
    normalize,
    observe,
    pointwise,
    precision,
    project,
    read,
    repeat,
    rms_norm,
    row_sum,
    scaled_dot,
    score,
    slots,
    softcap,
    softmax,
    streamed,
    temperature,
    tied,
    unstack,
)

HALF = ["bfloat16", "float16"]
N = 4096
"""So many ones: in bfloat16 a running sum of them stops at 256, in float16 at 2048."""

SUMS = {"dot_general", "reduce_sum", "cumsum", "add_any", "conv_general_dilated"}

# Sums in at least float32, rounded once


@pytest.mark.parametrize("dtype", HALF)
def test_running_sums_are_in_float32(dtype):
    wide, deep = jnp.ones((1, N), dtype), jnp.ones((N, 1), dtype)
    assert fast(linear(1))({"kernel": jnp.ones((N, 1), dtype)}, wide).tolist() == [[N]]
    assert running(scores(function=dot))(wide, wide, wide).tolist() == [[N]]
    assert running(scores(function=distance))(wide, -wide, wide).tolist() == [[-4 * N]]
    one = jnp.ones((1, 1), dtype)
    assert running(ask(how=identity))(one, deep, deep).tolist() == [[N]]
    for how in (softmax, row_sum):
        assert running(ask(how=how))(one, deep, deep).tolist() == [[1]]
    log = running(compose(log_sum_exp, score(dot), GIVEN))(one, deep, deep)
    close(log, [1 + np.log(N)], rtol=1e-6)


def equations(jaxpr):
    """All equations of a program, those of its inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


@pytest.mark.parametrize("dtype", HALF)
def test_no_sum_of_a_model_runs_in_a_short_type(dtype):
    """A processor may sum wide anyway: what counts is what the program asks for."""
    params = jax.eval_shape(MODEL.init, jax.random.key(0), TOKENS)
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), params)
    program = jax.make_jaxpr(MODEL)(params, TOKENS)
    assert program.out_avals[0].dtype == dtype
    sums = [e for e in equations(program.jaxpr) if e.primitive.name in SUMS]
    assert {e.primitive.name for e in sums} >= {"dot_general", "reduce_sum"} and len(sums) > 10
    assert {e.outvars[0].aval.dtype.name for e in sums} == {"float32"}


@pytest.mark.parametrize("dtype", [*HALF, "float32", "float64"])
@pytest.mark.parametrize("name", NORMALIZERS)
def test_weights_are_float32_and_outputs_have_the_type_of_the_values(dtype, name):
    how = NORMALIZERS[name]
    with jax.enable_x64(dtype == "float64"):
        q, k, v = (jax.ShapeDtypeStruct(x.shape, dtype) for x in given(4, 5))
        w, y = (
            jax.eval_shape(lambda q, k, v, f=f: f({}, q, key=k, value=v), q, k, v)
            for f in (weights(mask(causal), how=how), ask(mask(causal), how=how))
        )
    assert w.dtype == ("float64" if dtype == "float64" else "float32")
    assert y.dtype == dtype


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("function", [dot, scaled_dot, cosine, distance])
def test_scores_of_short_numbers_are_rounded_once(dtype, function):
    """Width 3, whose root is no power of two: scaling before the sum would round the query."""
    q, k, v = (jnp.asarray(x, dtype) for x in given(4, 5, d=3))
    exact = [np.asarray(x).astype(np.float64) for x in (q, k)]
    table = running(scores(function=function))(q, k, v)
    assert table.dtype == jnp.float32
    close(table, numpy64.SCORES[function.__name__](*exact), atol=4e-6)  # float32, numbers up to 10


def test_distances_far_from_the_origin():
    """Differences are taken first: of 1e4 squared, float32 would keep no fraction."""
    q, k, _ = given(4, 5, d=64)
    q[0] = k[0]
    table = fast(jax.vmap(distance, (0, 0)))(q[None] + np.float32(1e4), k[None] + np.float32(1e4))
    near = [np.asarray(x + np.float32(1e4), np.float64) for x in (q, k)]
    close(table[0], numpy64.SCORES["distance"](*near), rtol=1e-6)
    assert table[0, 0, 0] == 0
    keys = jnp.asarray(k)
    slope = fast(jax.grad(lambda q: jnp.cos(distance(q, keys / 8)).sum()))(q / 8)
    curve = fast(jax.hessian(lambda q: distance(q, keys).sum()))(q)
    exact = numpy64.SCORES["distance"](q.astype(float) / 8, k.astype(float) / 8)
    pulls = 2 * (k[None] - q[:, None]).astype(float) / 8
    close(slope, -(np.sin(exact)[..., None] * pulls).sum(1), atol=1e-5)
    close(curve.reshape(256, 256), -2 * 5 * np.eye(256))


@pytest.mark.parametrize("size", [1e-30, 5e-6, 1, 1e20, 1e30])
def test_cosines_do_not_depend_on_size(size):
    q, k, _ = given(4, 5)
    sized, exact = np.float32(size) * q, numpy64.SCORES["cosine"](q.astype(float), k.astype(float))
    close(fast(cosine)(sized, k), exact, atol=1e-6)
    close(fast(cosine)(sized, sized).diagonal(), np.ones(4), atol=1e-6)
    table = lambda q: (cosine(q, jnp.asarray(k)) * exact).sum()  # noqa: E731
    close(size * fast(jax.grad(table))(sized), fast(jax.grad(table))(q), atol=1e-5)


def test_the_cosine_with_nothing_is_zero_and_has_a_slope():
    none, k = jnp.zeros((1, 3)), jnp.ones((2, 3))
    assert cosine(none, k).tolist() == [[0, 0]]
    assert jnp.isfinite(jax.grad(lambda q: cosine(q, k).sum())(none)).all()


@pytest.mark.parametrize("dtype", HALF)
def test_attention_in_short_numbers_is_float32_rounded_at_the_end(dtype):
    q, k, v = (jnp.asarray(x, dtype) for x in given(4, 5))
    y = running(ask(mask(causal)))(q, k, v)
    exact = [np.asarray(x).astype(np.float64) for x in (q, k, v)]
    # the weights and the output are each rounded by half of eps, of values up to 3
    expected = numpy64.attend(*exact, visible=np.tri(4, 5) > 0)
    close(y, expected, atol=3 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("norm", [layer_norm(), rms_norm()], ids=repr)
def test_norms_are_in_float32(dtype, norm):
    """1000 ± 8: squares pass float16's range, and bfloat16 has steps of 4."""
    x = jnp.where(jnp.arange(N) % 2, 1008, 992).astype(dtype)[None]
    wide = np.asarray(x).astype(np.float64)
    y = fast(norm)(norm.init(jax.random.key(0), x), x)
    centred = wide - wide.mean() if norm == layer_norm() else wide
    assert y.dtype == dtype
    close(y, centred / np.sqrt(np.square(centred).mean()), rtol=float(jnp.finfo(dtype).eps))


def test_float64_stays_float64():
    """1 + 1e-12 is 1 in float32; here it survives every word."""
    with jax.enable_x64(True):
        x = jnp.array([[1.0, 1 + 1e-12]])
        for term in (layer_norm(eps=1e-30), gelu, linear(2), identity + rms_norm(), softmax):
            y = term(term.init(jax.random.key(0), x), x)
            assert y.dtype == jnp.float64
        y = layer_norm(eps=1e-30)({"scale": jnp.ones(2), "bias": jnp.zeros(2)}, x)
        close(y, [[-1, 1]], atol=1e-3)  # 1e-12 itself has a grain of 2e-16


# Randomness


def test_dropout_comes_after_the_denominator():
    """What is kept is the softmax over all keys, divided by the rate of keeping."""
    drop = compose(dropout(0.25), normalize(softmax), mask(causal), score(scaled_dot), GIVEN)
    q, k, v = given(16, 16)
    kept = running(compose(lift(weight_of), drop))(q, k, v, rng=jax.random.key(0))
    w = running(weights(mask(causal)))(q, k, v)
    assert (kept[w != 0] == 0).any() and (kept[w == 0] == 0).all()
    close(kept, np.where(kept != 0, w / (1 - 0.25), 0))
    assert abs(kept.sum(1) - 1).max() > 0.1


def weight_of(weights):
    return weights.weight


def dropping(rate=0.5):
    kept = compose(aggregate(), dropout(rate), normalize(softmax), mask(causal))
    attention = kept @ score(scaled_dot) @ project(4)
    return repeat(2, identity + dropout(rate) @ heads(2, attention))


def test_one_rng_one_result_in_every_execution():
    term, x, rng = dropping(), given(6, 6, d=8)[0], jax.random.key(5)
    params, run = term.init(jax.random.key(0), x), fast(term)
    scanned = run(params, x, rng=rng)
    again = repeat(2, *term.parts, remat=jax.checkpoint)
    apart = unstack(term, params)
    for other in (
        run(apart, x, rng=rng),
        fast(again)(params, x, rng=rng),
        fast(again)(apart, x, rng=rng),
        fast(streamed(precision(again, compute="float32")))(apart, x, rng=rng),
        fast(observe(again))(apart, x, rng=rng)[1]["1"],
    ):
        close(other, scanned, atol=3e-6)  # the same numbers drop; sums are fused differently
    assert abs(run(params, x, rng=jax.random.key(6)) - scanned).max() > 0.1
    without = run(params, x)
    assert abs(without - scanned).max() > 0.1
    close(fast(dropping(0.0))(params, x), without)


# Runs that never differ


ATTENTION = compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot), project(4))
DICTIONARY = compose(aggregate(), normalize(gelu), score(dot), slots(16))
BLOCK = (identity + DICTIONARY @ rms_norm()) @ (identity + linear(8) @ heads(2, ATTENTION))
MODEL = tied(embed(11, 8), layer_norm() @ BLOCK**2)
TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)


def descended(params):
    """One step down the gradient of a loss."""

    def loss(params):
        return jnp.square(MODEL(params, jnp.asarray(TOKENS))).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


def test_runs_are_bit_identical():
    """Called again, compiled again, made again from the same key."""
    run = fast(descended)
    first = run(MODEL.init(jax.random.key(0), TOKENS))
    for again in (run, fast(lambda params: descended(params))):
        second = again(MODEL.init(jax.random.key(0), TOKENS))
        chex.assert_trees_all_equal(first, second)


def test_nothing_is_mutated():
    """Neither parameters nor context nor the term itself remember a call."""
    params = MODEL.init(jax.random.key(0), TOKENS)
    before, printed, hashed = copy.deepcopy(params), repr(MODEL), hash(MODEL)
    run = fast(MODEL)
    np.testing.assert_array_equal(run(params, TOKENS), run(params, TOKENS))
    chex.assert_trees_all_equal(params, before)
    assert (repr(MODEL), hash(MODEL)) == (printed, hashed)
    with pytest.raises(AttributeError, match="cannot assign to field"):
        setattr(MODEL.parts[0], "width", 3)  # noqa: B010


def test_equal_terms_share_a_jit_cache():
    """Written twice, they are equal, hash alike, and are traced once; so are their inits.

    jax keeps what it compiled as long as the function lives: here the first of the two does.
    """
    traces = []

    def counted(x):
        traces.append("run")
        return x

    def drawn(key, shape, dtype):
        traces.append("init")
        return jax.random.normal(key, shape, dtype)

    def written():
        count: Any = np.int64(2)
        return learned((3,), drawn) * linear(3) @ pointwise(counted) @ heads(count, linear(4))

    first, second = written(), written()
    assert first is not second and first == second and hash(first) == hash(second)
    x = given(4, 4)[0]
    for term in (first, second, first):
        params = jax.jit(term.init)(jax.random.key(0), x)
    assert traces.count("init") == 1
    traces.clear()
    for seed, term in enumerate((first, second, written())):
        jax.jit(term)(params, given(4, 4, seed=seed)[0])
    assert traces == ["run"]
    assert linear(4) @ first != linear(3) @ first


def test_a_learned_temperature_keeps_the_type():
    term = repeat(2, softcap(5.0) @ temperature(learned(())))
    x = jnp.array([[1.0, 2.0]], jnp.bfloat16)
    assert term(term.init(jax.random.key(0), x), x).dtype == jnp.bfloat16
    halved: Any = temperature(2.0)
    assert halved({}, jnp.array([3])).tolist() == [1.5]


def test_numbers_of_other_types_are_other_terms():
    """1 and 1.0 are equal to Python; a jit cached for one term would serve the other."""
    ones, x = (add(identity, 1), add(identity, 1.0)), jnp.arange(3)
    assert ones[0] != ones[1] and ones[0] == add(identity, 1)
    assert copies(1, read("a"), a=(1,)) != copies(1, read("a"), a=(1.0,))
    assert [jax.jit(term)({}, x).dtype for term in ones] == [jnp.int32, jnp.float32]
