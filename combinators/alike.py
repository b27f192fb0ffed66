"""What copies have in common: the results of a mapped function that do not differ among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["alike"]


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
    pairs = zip(closed.jaxpr.invars, spread, strict=True)
    differ = {id(variable) for variable, axis in pairs if axis is not None}
    for equation in closed.jaxpr.eqns:
        if any(id(variable) in differ for variable in equation.invars):
            differ.update(map(id, equation.outvars))
    same = [id(variable) not in differ for variable in closed.jaxpr.outvars]
    return jax.tree.unflatten(jax.tree.structure(shape), same)
