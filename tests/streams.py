"""What the tests of streams share: every mask, score and normalizer, and how two ways agree."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from asking import GIVEN, NORMALIZERS, fast
from plain import single

from combinax.combinators import (
    aggregate,
    bias,
    bilinear,
    block_causal,
    causal,
    compose,
    cosine,
    dilated,
    distance,
    dot,
    learned,
    mask,
    materialized,
    named,
    normalize,
    pointwise,
    prefix,
    read,
    relative,
    same,
    scaled_dot,
    score,
    softcap,
    streamed,
    temperature,
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


def asked(t: int, s: int, seed: int = 0) -> dict[str, Any]:
    """Queries, keys, values and whatever else the masks and scores above may read."""
    draw = np.random.default_rng(seed)
    return dict(
        query=single(t, D, seed=seed), key=single(s, D, seed=seed + 1),
        value=single(s, 3, seed=seed + 2), table=single(t, s, seed=seed + 3),
        segments=np.sort(draw.integers(0, 3, t)), key_segments=np.sort(draw.integers(0, 3, s)),
        lengths=np.int32(draw.integers(0, s + 1)), seen=draw.random((t, s)) < 0.4,
    )  # fmt: skip


def both(term, block, t: int, s: int, seed: int = 0, tolerance: float = 2e-5, **more: Any) -> None:
    """A stream and one table give the same output and the same derivatives."""
    given = asked(t, s, seed)
    x = given.pop("query")
    given = {name: value for name, value in given.items() if name in term.reads}
    params = jax.tree.map(
        lambda leaf: single(*leaf.shape, seed=seed + 5),
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

    def agree(ours: Any, theirs: Any) -> None:
        size = np.abs(theirs[np.isfinite(theirs)]).max(initial=1)
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * size)

    agree(y, wanted)
    jax.tree.map(agree, gradients, wanted_gradients)


def lookup(how: Any, seen: Any, scores: Any):
    masks = [] if seen is None else [mask(seen)]
    return compose(aggregate(), normalize(how), *masks, scores, GIVEN)


LENGTHS = [(0, 5), (5, 0), (1, 1), (2, 31), (33, 7), (65, 127), (129, 8), (137, 137), (1025, 1000)]


def agree(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), ours, theirs
    )
