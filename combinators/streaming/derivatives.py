"""The two primitives of sweeps, `tile_sum` and `tile_fold`: their lowering, vmap and derivatives.

                 jvp                         transpose
    tile_fold ─────────→ tile_sum of tangents ─────────→ tile_sum of cotangents

The jvp of a sum and the transpose of a sum are sums again, so every order of derivative and every
vmap of it is one of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..core.mesh import lowering, partitions, program, type_like, varying_alike
from .grid import Side
from .sweep import Fold, Sum, Sweep, put_in, taken

__all__ = ["fold"]


def one_after_other(*operands: Array, what: Sweep) -> list[Array]:
    """Groups of batch elements in a loop, each group small enough for the cache."""
    return what.in_groups().run(*operands)


def side_by_side(*operands: Array, what: Sweep) -> list[Array]:
    """All batch elements at once."""
    return what.side_by_side(*operands)


def batch(
    primitive: Primitive, operands: Sequence[Array], dims: Sequence[int | None], *, what: Sweep
) -> tuple[list[Array], list[int]]:
    """The batching rule: one more batch axis, first in every operand that has it."""
    along = [d is not None for d in dims]
    (size,) = {x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None}
    pairs = zip(operands, dims, strict=True)
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in pairs]
    results = primitive.bind(*moved, what=what.mapped(size, along))
    return results, [0] * len(results)


def sweeping(name: str) -> Primitive:
    """A primitive that runs a sweep.

    A CPU runs groups of batch elements one after the other, so that a tile stays in the cache.
    Other platforms run all batch elements side by side. So does a CPU where the compiler divides
    them among devices: in a loop over batch elements each device would need all of them.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    @partial(jax.jit, static_argnames="what")
    def compiled(*operands: Array, what: Sweep) -> list[Array]:
        if any(isinstance(x, Tracer) for x in operands):
            return primitive.bind(*operands, what=what)
        return one_after_other(*operands, what=what)  # under jax.disable_jit

    together, alone = lowering(side_by_side), lowering(one_after_other)

    def on_cpu(context: mlir.LoweringRuleContext, *operands: Any, what: Sweep) -> Any:
        rule = alone if partitions(context) == 1 else together
        return rule(context, *operands, what=what)

    primitive.def_impl(compiled)
    primitive.def_abstract_eval(
        lambda *operands, what: [type_like(operands[0], s.shape, s.dtype) for s in what.shapes]
    )
    batching.primitive_batchers[primitive] = partial(batch, primitive)
    mlir.register_lowering(primitive, together)
    mlir.register_lowering(primitive, on_cpu, platform="cpu")
    return primitive


tile_sum, tile_fold = sweeping("tile_sum"), sweeping("tile_fold")


Tangent: TypeAlias = Array | ad.Zero
"""A tangent or a cotangent; Zero where a derivative is known to vanish."""


def sum_tangent(
    primals: Sequence[Array], tangents: Sequence[Tangent], *, what: Sum
) -> tuple[list[Array], list[Array]]:
    """The jvp of a sum: the sum of the tangents."""
    active = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    moved = tile_sum.bind(*primals, *taken(tangents, active), what=what.tangent(active))
    return tile_sum.bind(*primals, what=what), moved


def sum_transpose(cotangents: Sequence[Tangent], *operands: Any, what: Sum) -> list[Array | None]:
    """The transpose of a sum: a sum whose inputs and outputs have changed sides."""
    linear = [ad.is_undefined_primal(x) for x in operands]
    avals = [x.aval for x in taken(operands, linear)]
    active = [not isinstance(cotangent, ad.Zero) for cotangent in cotangents]
    known = taken(operands, [not is_linear for is_linear in linear])
    back = what.transposed(linear, avals, active)
    got = tile_sum.bind(*known, *taken(cotangents, active), what=back)
    return put_in([None] * len(linear), linear, got)


def fold_tangent(
    primals: Sequence[Array], tangents: Sequence[Tangent], *, what: Fold
) -> tuple[list[Array], list[Tangent]]:
    """The jvp of a fold: its first result is a constant, the others are a sum."""
    results = tile_fold.bind(*primals, what=what)
    active = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    rate = what.sum.tangent([*active, False])
    moved = tile_sum.bind(*primals, results[0], *taken(tangents, active), what=rate)
    return results, [ad.Zero(jax.typeof(results[0])), *moved]


ad.primitive_jvps[tile_sum] = sum_tangent
ad.primitive_transposes[tile_sum] = sum_transpose
ad.primitive_jvps[tile_fold] = fold_tangent


def fold(what: Fold, operands: Sequence[Array]) -> list[Array]:
    """The results of a fold. Its derivatives of every order and its vmap are sweeps as well."""
    pairs = zip(operands, what.inputs, strict=True)
    rows = next(x for x, slicing in pairs if slicing.side is Side.ROWS)
    return program(tile_fold.bind, rows, what=what)(*varying_alike(operands))
