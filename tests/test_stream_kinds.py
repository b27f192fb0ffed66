"""Streams of a kind: a platform's kernel, linear attention, the monoid, and what is no stream."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import GIVEN, NORMALIZERS, ask
from streams import (
    MASKS,
    agree,
    asked,
    both,
    lookup,
    raised,
)

from combinax.combinators import (
    CompositionError,
    Partial,
    aggregate,
    block_causal,
    causal,
    compose,
    dot,
    each,
    features,
    identity,
    largest,
    mask,
    merge,
    multiply,
    normalize,
    pointwise,
    row_sum,
    score,
    softcap,
    softmax,
    streamed,
    valid,
    window,
)


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


@pytest.mark.parametrize("how", LINEAR)
@pytest.mark.parametrize("seen", [block_causal(100), causal & window(90), window(300), causal])
def test_features_in_blocks_that_are_chosen(how, seen):
    scores = score(features(pointwise(raised)))
    both(lookup(LINEAR[how], seen, scores), None, 1000, 1000, tolerance=1e-4)


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
        chex.assert_trees_all_equal(merged, a)


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
