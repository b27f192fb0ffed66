"""What the tests of laws draw and compare."""

from __future__ import annotations

import functools
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from hypothesis import strategies as st
from plain import close

from combinax.combinators import Term

T, D = 5, 4  # rows and width: one size for all, so that compiled operations are shared
examples = hypothesis.settings(max_examples=40)
few = hypothesis.settings(max_examples=6)  # where every example compiles something
seeds = st.integers(0, 2**16)


def paths(term: Term, *shape: int) -> dict[str, tuple[int, ...]]:
    """The path and shape of every parameter."""
    x = jax.ShapeDtypeStruct(shape or (T, D), jnp.float32)
    params: Any = flatten_dict(jax.eval_shape(term.init, jax.random.key(0), x), sep="/")
    return {path: leaf.shape for path, leaf in params.items()}


agree = functools.partial(close, rtol=1e-5, atol=2e-5)
"""Equal but for the order in which a few float32 numbers of size one are summed."""
