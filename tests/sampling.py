"""What the tests of laws draw and compare."""

from __future__ import annotations

from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from hypothesis import strategies as st

from combinax.combinators import Term

T, D = 5, 4  # rows and width: one size for all, so that compiled operations are shared
examples = hypothesis.settings(max_examples=40)
few = hypothesis.settings(max_examples=6)  # where every example compiles something
seeds = st.integers(0, 2**16)


def normal(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def drawn(term: Term, x: Any, seed: int = 0, **context: Any) -> dict[str, Any]:
    """Parameters for a term, every one of them normal; unlike init, it compiles nothing."""
    shapes = jax.eval_shape(term.init, jax.random.key(0), x, **context)
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(draw.standard_normal(leaf.shape), leaf.dtype), shapes
    )


def paths(term: Term, *shape: int) -> dict[str, tuple[int, ...]]:
    """The path and shape of every parameter."""
    x = jax.ShapeDtypeStruct(shape or (T, D), jnp.float32)
    params: Any = flatten_dict(jax.eval_shape(term.init, jax.random.key(0), x), sep="/")
    return {path: leaf.shape for path, leaf in params.items()}


def close(a: Any, b: Any) -> None:
    """Equal but for the order in which a few float32 numbers of size one are summed."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-5), a, b)


def identical(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)
