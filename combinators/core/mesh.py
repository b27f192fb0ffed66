"""Values on a mesh of devices, as far as their types tell where they lie.

Along an explicit axis, the default of `jax.make_mesh`, a type says which dimension is divided;
along a manual axis, inside `jax.shard_map`, whether the value varies. An automatic axis is the
compiler's, and no type speaks of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray, Tracer
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec, auto_axes, reshard, use_abstract_mesh
from jax.typing import DTypeLike
from jaxtyping import PyTree

from .types import Axes

__all__ = [
    "compiler_divides", "concatenated", "divided_alike", "divided_as", "entries_at",
    "explicit_array", "lowering", "on_mesh", "partitions", "program", "type_like", "undivided",
    "varying_alike",
]  # fmt: skip

Tree = TypeVar("Tree")


# Explicit axes


def sharding_of(array: Array) -> NamedSharding:
    """The mesh and the spec that the type of an array tells; an empty mesh where it tells none."""
    return jax.typeof(array).sharding


def explicit_array(tree: PyTree) -> Array | None:
    """The first array of a tree that lies on a mesh with explicit axes."""
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Array))
    return next((array for array in arrays if sharding_of(array).mesh.explicit_axes), None)


def explicit_mesh(tree: PyTree) -> Any:
    """The mesh with explicit axes that arrays of a tree lie on, or None."""
    array = explicit_array(tree)
    return None if array is None else sharding_of(array).mesh


def on_mesh(tree: Tree) -> tuple[Tree, AbstractContextManager[object]]:
    """The tree with all arrays on the explicit mesh of one of them, and a context in which
    new arrays lie there as well: JAX joins no divided array with one that lies on no mesh.

    Outside jit the caller enters the mesh with `jax.set_mesh`.
    """
    mesh = explicit_mesh(tree)
    if mesh is None or not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        return tree, nullcontext()

    def placed(leaf: object) -> object:
        if not isinstance(leaf, Array) or not sharding_of(leaf).mesh.empty:
            return leaf
        return reshard(leaf, NamedSharding(mesh, PartitionSpec()))

    with use_abstract_mesh(mesh):
        return jax.tree.map(placed, tree), use_abstract_mesh(mesh)


def compiler_divides(
    function: Callable[..., PyTree[Array]], like: Array, axes: int = 1
) -> Callable[..., PyTree[Array]]:
    """The function with explicit axes automatic inside; the first `axes` dimensions of each result
    are divided as those of `like`. It has no derivative outside jit: see `program`."""
    sharding = first_axes(like, axes)
    explicit = sharding.mesh.explicit_axes
    return auto_axes(function, axes=explicit, out_sharding=sharding) if explicit else function


def first_axes(like: Array, axes: int) -> NamedSharding:
    """How the first dimensions of an array are divided."""
    sharding = sharding_of(like)
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:axes]))


def program(
    function: Callable[..., PyTree[Array]], like: Array, axes: int = 1, **options: Hashable
) -> Callable[..., PyTree[Array]]:
    """`compiler_divides` as one compiled program, so that its derivatives run on its own mesh.

    Outside jit a transpose runs when the mesh is explicit again, where automatic types are refused.
    Equal functions with equal options share a program.
    """
    sharding = first_axes(like, axes)
    if not sharding.mesh.explicit_axes:
        return partial(function, **options)
    return partial(compiled, function=function, sharding=sharding, options=(*options.items(),))


@partial(jax.jit, static_argnames=("function", "sharding", "options"))
def compiled(
    *arrays: Array, function: Callable[..., PyTree[Array]], sharding: NamedSharding,
    options: tuple[tuple[str, Hashable], ...],
) -> PyTree[Array]:  # fmt: skip
    run = partial(function, **dict(options))
    return auto_axes(run, axes=sharding.mesh.explicit_axes, out_sharding=sharding)(*arrays)


def side_by_side(*tables: Array) -> Array:
    return jnp.concatenate(tables, -1)


def concatenated(tables: Sequence[Array]) -> Array:
    """Tables (T, s) side by side, their rows divided as those of the first table that has them so;
    masks (s,) one after the other."""
    like = next((table for table in tables if sharding_of(table).spec[0]), tables[0])
    return program(side_by_side, like)(*tables)


def entries(table: Array, index: Array, **options: Any) -> Array:
    return table.at[index].get(**options)


def entries_at(table: Array, index: Array, **options: Any) -> Array:
    """table[index], divided as the index is; options are those of `table.at[index].get`."""
    return program(entries, index, index.ndim, **options)(table, index)


def divided_as(rows: Array, like: Array) -> Array:
    """Rows that explicit axes divide as the first dimension of `like`."""
    sharding = sharding_of(like)
    if not sharding.mesh.explicit_axes or sharding_of(rows).spec[0] == sharding.spec[0]:
        return rows
    spec = PartitionSpec(sharding.spec[0], *sharding_of(rows).spec[1:])
    return reshard(rows, NamedSharding(sharding.mesh, spec))


def undivided(rows: Array) -> Array:
    """Rows that no explicit axis divides, as keys are: what divides the rows of a table of scores
    cannot divide its columns as well."""
    sharding = sharding_of(rows)
    if not sharding.mesh.explicit_axes or sharding.spec[0] is None:
        return rows
    return reshard(rows, NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec[1:])))


def divided_alike(values: Tree, axes: Axes) -> Tree:
    """Values for `jax.vmap` over `axes`: where the mapped axis of some is divided, all are."""
    mesh = explicit_mesh(values)
    if mesh is None:
        return values
    prefix, outline = jax.tree.flatten(axes, is_leaf=lambda axis: axis is None)
    pairs = [*zip(prefix, outline.flatten_up_to(values), strict=True)]
    mapped = [(axis, x) for axis, part in pairs if axis is not None for x in jax.tree.leaves(part)]
    found = {sharding_of(x).spec[axis] for axis, x in mapped} - {None}
    if len(found) != 1:
        return values

    def divide(axis: int, x: Array) -> Array:
        spec = [*sharding_of(x).spec]
        (spec[axis],) = found
        return reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))

    parts = [x if axis is None else jax.tree.map(partial(divide, axis), x) for axis, x in pairs]
    return outline.unflatten(parts)


# Manual axes


def varying_alike(arrays: Sequence[Array]) -> list[Array]:
    """The arrays, each varying along every manual axis that one of them varies along."""
    types = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    every = frozenset().union(*types)
    return [
        jax.lax.pcast(array, tuple(sorted(every - own)), to="varying") if every - own else array
        for array, own in zip(arrays, types, strict=True)
    ]


def type_like(like: ShapedArray, shape: tuple[int, ...], dtype: DTypeLike) -> ShapedArray:
    """The type of an array on the mesh of another, varying as that does and not divided."""
    whole = NamedSharding(like.sharding.mesh, PartitionSpec(*[None] * len(shape)))
    return like.update(shape=shape, dtype=dtype, weak_type=False, sharding=whole)


# What is lowered


def lowering(run: Callable[..., Sequence[Array]]) -> mlir.LoweringRule:
    """The lowering rule of a function of arrays, traced without any mesh in their types."""
    rule = mlir.lower_fun(run, multiple_results=True)

    def lower(context: Any, *operands: Any, **parameters: object) -> Any:
        plain = [ShapedArray(a.shape, a.dtype) for a in context.avals_in]
        return rule(context.replace(avals_in=plain), *operands, **parameters)

    return lower


def partitions(context: mlir.LoweringRuleContext) -> int:
    """The number of devices among which the compiler divides what is lowered."""
    around = context.module_context.axis_context
    if isinstance(around, mlir.ShardingContext):
        return around.num_devices
    if isinstance(around, mlir.SPMDAxisContext):
        sizes = around.mesh.shape
        return math.prod(sizes[name] for name in sizes if name not in around.manual_axes)
    return 1
