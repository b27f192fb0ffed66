"""Dependence: which results of a function depend on which of its arguments, read off its jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["reached", "unmapped"]


def unmapped(function: Callable[..., Any], arguments: tuple, axes: tuple) -> Any:
    """For each array of `function(*arguments)` under vmap: whether it is equal for all indices.

    `axes` are those of `jax.vmap`. An array is equal for all indices if no operation leads to it
    from a mapped argument.

    >>> unmapped(lambda a, b: (a + b, 2 * b), (jnp.ones(3), jnp.ones(())), (0, None))
    (False, True)
    """
    # `axes` may be a prefix of the arguments: one axis, or None, for a whole subtree.
    given, outline = jax.tree.flatten(axes, is_leaf=lambda axis: axis is None)
    parts = zip(given, outline.flatten_up_to(arguments), strict=True)
    leaf_axes = [axis for axis, part in parts for _ in jax.tree.leaves(part)]
    leaves, tree = jax.tree.flatten(arguments)
    one = [
        leaf if axis is None else jnp.take(leaf, 0, axis)
        for leaf, axis in zip(leaves, leaf_axes, strict=True)
    ]
    closed, shape = jax.make_jaxpr(
        lambda *leaves: function(*jax.tree.unflatten(tree, leaves)), return_shape=True
    )(*one)
    depends = reached(closed.jaxpr, [axis is not None for axis in leaf_axes])
    return jax.tree.unflatten(jax.tree.structure(shape), [not mapped for mapped in depends])


def reached(jaxpr: Any, begin: Sequence[bool]) -> list[bool]:
    """For each result of a jaxpr: whether an operation leads to it from an argument that `begin`
    marks."""
    pairs = zip(jaxpr.invars, begin, strict=True)
    # Variables are compared by identity: literals among them have no hash.
    dependent = {id(variable) for variable, marked in pairs if marked}
    for equation in jaxpr.eqns:
        if any(id(variable) in dependent for variable in equation.invars):
            dependent.update(map(id, equation.outvars))
    return [id(variable) in dependent for variable in jaxpr.outvars]
