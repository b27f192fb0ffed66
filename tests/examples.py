"""Each term of the catalogue as an example: with parameters, in every type, and what it gives."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import catalogue
import jax
import jax.numpy as jnp
import pytest
from catalogue import CATALOGUE, MODELS

from combinax import combinators, models
from combinax.combinators import (
    Term,
)

NAMESPACE = {
    **{name: getattr(combinators, name) for name in combinators.__all__},
    **vars(catalogue),
    **{name: getattr(models, name) for name in models.__all__},
    "catalogue": catalogue,
    "jax": jax,
}
ENTRIES = {**CATALOGUE, **{f"models.{name}": entry for name, entry in MODELS.items()}}


def is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def cast(tree: Any, dtype: Any = None) -> Any:
    """The tree as JAX arrays, floats in the given type."""

    def one(leaf):
        leaf = jnp.asarray(leaf)
        return leaf.astype(dtype) if dtype and is_float(leaf) else leaf

    return jax.tree.map(one, tree)


def spec(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), tree)


def shapes(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: (
            leaf
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        ),
        tree,
    )


def floats(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)]


def inner(a: list[Any], b: list[Any]) -> float:
    return sum(float(jnp.vdot(x, y)) for x, y in zip(a, b, strict=True))


def tables(record: Any) -> dict[str, Any]:
    """The table of a record: its scores or weights."""
    return {k: getattr(record, k) for k in ("score", "weight") if hasattr(record, k)}


def of_floats(term: Term, arguments: tuple[Any, Any, dict[str, Any]]) -> tuple[list[Any], Any]:
    """The float leaves of parameters, input and context, and the floats of the value from them."""
    leaves, tree = jax.tree.flatten(arguments)

    def value(moved: list[Any]) -> list[Any]:
        rest = iter(moved)
        whole = [next(rest) if is_float(leaf) else leaf for leaf in leaves]
        params, x, context = jax.tree.unflatten(tree, whole)
        return floats(term(params, x, **context))

    return floats(leaves), value


def walk(term: Term) -> Iterator[Term]:
    yield term
    for part in term.parts:
        yield from walk(part)


class Example:
    """An entry as float32 arrays, with its parameters and its value, eager and compiled."""

    def __init__(self, name: str):
        entry = ENTRIES[name]
        self.name, self.term = name, entry.term
        self.x, self.context = cast(entry.x), cast(dict(entry.context))
        # init has a key of its own; the one in the context is for dropout.
        self.facts = {name: v for name, v in self.context.items() if name != "rng"}
        self.params = self.term.init(jax.random.key(0), self.x, **self.facts)

    @functools.cached_property
    def value(self) -> Any:
        return self.term(self.params, self.x, **self.context)

    @functools.cached_property
    def compiled(self) -> Any:
        return jax.jit(self.term)

    def batch(self) -> tuple[Any, dict[str, Any]]:
        """Two rows that differ, and their context."""

        def two(leaf):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.vmap(jax.random.fold_in, (None, 0))(leaf, jnp.arange(2))
            return jnp.stack(
                [leaf, leaf / 2 if is_float(leaf) else jnp.flip(leaf, range(leaf.ndim))]
            )

        return jax.tree.map(two, self.x), jax.tree.map(two, self.context)


@pytest.fixture(scope="module", params=ENTRIES)
def this(request: pytest.FixtureRequest) -> Example:
    """Each entry in turn; all tests of one entry follow each other and share its values."""
    return Example(request.param)
