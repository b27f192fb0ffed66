"""What models are compared with: layers in NumPy float64, and derivatives by differences."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy64 import attend


def rms_norm(x, scale, eps=1e-6):
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + eps) * scale


def layer_norm(x, scale, bias, eps=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * scale + bias


def multi_head(params, x, memory=None, visible=None):
    """softmax(Q Kᵀ / √d) V for every head, side by side, from kernels (in, heads, out)."""
    query, key, value = (params[slot] for slot in ("query", "key", "value"))
    query, key, value = (slot.get("linear", slot)["kernel"] for slot in (query, key, value))
    memory = x if memory is None else memory
    return np.concatenate(
        [
            attend(x @ query[:, h], memory @ key[:, h], memory @ value[:, h], visible)
            for h in range(query.shape[1])
        ],
        -1,
    )


def normal(*shape: int, seed: int = 1, dtype: DTypeLike = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


single = functools.partial(normal, dtype=np.float32)


def filled(tree, seed=0):
    """Numbers in float64 for each leaf of a tree: none is zero or one, as many are at first."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: 0.5 * rng.standard_normal(leaf.shape), tree)


def drawn(term, x, seed=0, **context):
    """Parameters of a term; unlike init, it compiles nothing."""
    return filled(jax.eval_shape(term.init, jax.random.key(0), x, **context), seed)


def close(actual, expected, atol=None, rtol=None):
    """By default to 6e-7, ten roundings of numbers near 1 in float32, half a unit each."""
    if atol is None and rtol is None:
        atol = 6e-7
    actual, expected = jax.tree.map(
        lambda x: np.asarray(x).astype(np.float64),
        (actual, expected),
        is_leaf=lambda x: isinstance(x, list),
    )
    chex.assert_trees_all_close(actual, expected, atol=atol or 0, rtol=rtol or 0)


def layer(params, index):
    """The parameters of one of the repeated blocks."""
    return jax.tree.map(lambda leaf: leaf[index], params)


@functools.cache
def compiled(term):
    return jax.jit(term)


def run(term, params, x, **context):
    """term(params, x), compiled; parameters may be NumPy arrays."""
    return np.asarray(compiled(term)(params, x, **context))


def check_derivative(term, params, x, **context):
    """The gradient is finite, reaches every parameter, and has the slope that differences have.

    Along a ray of length 1, central differences with a step of 1e-5 are exact to about 1e-10 in
    float64, and a few digits less where the slope is small: hence 1e-6.
    """
    shape = jax.eval_shape(lambda params: term(params, x, **context), params).shape
    asked = normal(*shape, seed=2)
    loss = jax.jit(jax.value_and_grad(lambda params: jnp.vdot(asked, term(params, x, **context))))
    _, gradient = loss(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 0, path
    rng = np.random.default_rng(3)
    ray = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), params)
    size = np.sqrt(sum(np.sum(way**2) for way in jax.tree.leaves(ray)))
    ray = jax.tree.map(lambda way: way / size, ray)
    ahead, behind = (
        loss(jax.tree.map(lambda leaf, way, h=h: leaf + h * way, params, ray))[0]
        for h in (1e-5, -1e-5)
    )
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(ray), strict=True)
    slope = sum(np.vdot(leaf, way) for leaf, way in pairs)
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-6)
