"""What copies have in common: the results of a mapped function that do not differ among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["alike", "reached"]


def alike(function: Callable[..., Any], arguments: tuple, axes: tuple) -> Any:
    """For each array that `function(*arguments)` gives: whether it is the same for all copies.

    `axes` are those of `jax.vmap`; an array is the same where no operation leads to it from an
    argument that is mapped.

    >>> alike(lambda a, b: (a + b, 2 * b), (jnp.ones(3), jnp.ones(())), (0, None))
    (False, True)
    """
    places, outline = jax.tree.flatten(axes, is_leaf=lambda axis: axis is None)
    parts = zip(places, outline.flatten_up_to(arguments), strict=True)
    spread = [axis for axis, part in parts for _ in jax.tree.leaves(part)]
    leaves, tree = jax.tree.flatten(arguments)
    one = [
        leaf if axis is None else jnp.take(leaf, 0, axis)
        for leaf, axis in zip(leaves, spread, strict=True)
    ]
    closed, shape = jax.make_jaxpr(
        lambda *leaves: function(*jax.tree.unflatten(tree, leaves)), return_shape=True
    )(*one)
    differ = reached(closed.jaxpr, [axis is not None for axis in spread])
    return jax.tree.unflatten(jax.tree.structure(shape), [not far for far in differ])


def reached(jaxpr: Any, begin: Sequence[bool]) -> list[bool]:
    """For each result of a jaxpr: whether an operation leads to it from one of some arguments."""
    pairs = zip(jaxpr.invars, begin, strict=True)
    found = {id(variable) for variable, here in pairs if here}
    for equation in jaxpr.eqns:
        if any(id(variable) in found for variable in equation.invars):
            found.update(map(id, equation.outvars))
    return [id(variable) in found for variable in jaxpr.outvars]
