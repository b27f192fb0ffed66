"""Dependence: on which arguments, and along which axes, results depend, read off a jaxpr."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Jaxpr
from jaxtyping import PyTree

from .types import Axes

__all__ = ["UNKNOWN", "axes_of", "reached", "unmapped"]


def unmapped(
    function: Callable[..., PyTree[Array]], arguments: tuple, axes: tuple[Axes, ...]
) -> PyTree[bool]:
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


def reached(jaxpr: Jaxpr, begin: Sequence[bool]) -> list[bool]:
    """For each result of a jaxpr: whether an operation leads to it from an argument that `begin`
    marks."""
    pairs = zip(jaxpr.invars, begin, strict=True)
    # Variables are compared by identity: literals among them have no hash.
    dependent = {id(variable) for variable, marked in pairs if marked}
    for equation in jaxpr.eqns:
        if any(id(variable) in dependent for variable in equation.invars):
            dependent.update(map(id, equation.outvars))
    return [id(variable) in dependent for variable in jaxpr.outvars]


REDUCED, UNKNOWN = -1, -2
"""In place of an axis: an operation has mixed the rows along one, or is none known here."""


def axes_of(jaxpr: Jaxpr, begin: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """For each result of a jaxpr: the axes along which it varies, from those of its arguments.

    An operation that sums, sorts, cuts or otherwise mixes what differs along an axis gives REDUCED.
    """
    found = {id(x): axes for x, axes in zip(jaxpr.invars, begin, strict=True)}
    given = lambda x: found.get(id(x), frozenset())  # noqa: E731
    for equation in jaxpr.eqns:
        axes = [given(x) for x in equation.invars]
        if not any(axes):
            continue
        if equation.primitive.name in ("jit", "pjit", "custom_jvp_call"):
            name = "call_jaxpr" if "call_jaxpr" in equation.params else "jaxpr"
            results = axes_of(equation.params[name].jaxpr, axes)
        else:
            results = [axes_after(equation, axes)] * len(equation.outvars)
        found.update(zip(map(id, equation.outvars), results, strict=True))
    return [given(x) for x in jaxpr.outvars]


def axes_after(equation: Any, given: list[frozenset[int]]) -> frozenset[int]:
    """The axes along which the result of one operation varies."""
    name, options, rows = equation.primitive.name, equation.params, given[0]
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    every = frozenset().union(*given)
    if name == "transpose":
        return renamed(rows, {axis: new for new, axis in enumerate(options["permutation"])})
    if name == "broadcast_in_dim":
        return renamed(rows, dict(enumerate(options["broadcast_dimensions"])))
    if name in ("reshape", "squeeze"):  # an axis is the one before which as many entries stand
        places = {(math.prod(after[:new]), n): new for new, n in enumerate(after) if n != 1}
        old = {axis: (math.prod(before[:axis]), n) for axis, n in enumerate(before)}
        return renamed(rows, {axis: places.get(at, UNKNOWN) for axis, at in old.items()})
    if "axes" in options and name.startswith(("reduce_", "arg")):
        left = [axis for axis in range(len(before)) if axis not in options["axes"]]
        return renamed(rows, {axis: new for new, axis in enumerate(left)})
    if name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "rev"):
        mixed = options.get("axis", options.get("dimension", options.get("dimensions")))
        mixed = mixed if isinstance(mixed, tuple) else (mixed,)
        return every | {REDUCED} if every.intersection(mixed) else every
    if name in ("slice", "dynamic_slice"):
        return renamed(rows, {axis: axis for axis, n in enumerate(before) if n == after[axis]})
    if name == "gather" and rows:
        return frozenset({REDUCED})
    if name == "dot_general":
        sides = zip(given, options["dimension_numbers"][0], strict=True)
        return frozenset({REDUCED if any(a.intersection(c) for a, c in sides) else UNKNOWN})
    if all(x.aval.ndim == len(after) for x, a in zip(equation.invars, given, strict=True) if a):
        return every
    return (every & {REDUCED}) | {UNKNOWN}


def renamed(axes: frozenset[int], names: dict[int, int]) -> frozenset[int]:
    """The axes after an operation; one without a new name is reduced."""
    return frozenset(axis if axis < 0 else names.get(axis, REDUCED) for axis in axes)
