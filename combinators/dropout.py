"""dropout: weights, or numbers of an array, are left out at random."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, UInt

from .core.arguments import floats
from .core.context import Context
from .core.errors import CompositionError
from .core.kinds import Kind
from .core.leaf import Leaf
from .core.marks import numbers, rows_at
from .core.records import Weights
from .core.term import form
from .core.types import Table, Value

__all__ = ["dropout"]


@form
class dropout(Leaf):
    """Drops each number with probability `rate` and divides the rest by 1 - rate (Srivastava et
    al. 2014); without `rng` in the context it does nothing.

    On arrays a number is addressed by its row's position and its column, on Weights by the query's
    and the key's row, and by the stage's path. The address goes through a 32-bit mixer
    (`mixed_bits`), so the same rng drops the same numbers in every execution, whatever its blocks.

    Raises CompositionError unless 0 <= rate < 1.

    >>> dropout(0.5)({}, jnp.ones((1, 4)), rng=jax.random.key(0))
    Array([[2., 2., 0., 0.]], dtype=float32)
    """

    rowwise = True

    rate: float
    random = True

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.rate, (int, float)) or not 0 <= self.rate < 1:
            raise CompositionError(
                f"rate is the probability of dropping, 0 <= rate < 1, not {self.rate!r}"
            )

    def flow(self, kind: Kind) -> Kind:
        return kind

    def operands(self, params: Mapping[str, Array], context: Context) -> UInt[Array, "2"] | None:
        if "rng" not in context or not self.rate:
            return None
        return jax.random.bits(context["rng"], (2,), jnp.uint32)

    def tile(
        self, operands: UInt[Array, "2"] | None, weight: Table,
        rows: Int[Array, "t 1"], columns: Int[Array, "s"],
    ) -> Table:  # fmt: skip
        """One tile: rows and columns broadcast to the address of each number."""
        if operands is None:
            return weight
        bits = mixed_bits(operands, rows, columns)
        kept = bits >= jnp.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        return jnp.where(kept, weight / (1 - self.rate), 0)

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        seed = self.operands(params, context)
        if seed is None:
            return x
        if isinstance(x, Weights):
            if x.marks is None:
                rows, columns = (jnp.arange(size) for size in x.weight.shape)
            else:
                rows, columns = (numbers(rows.index) for rows in (x.marks.query, x.marks.key))
            return x.replace(weight=self.tile(seed, x.weight, rows[:, None], columns))
        floats(self, x)
        flat = x.reshape(-1, x.shape[-1])
        rows = numbers(rows_at(context if x.ndim == 2 else Context(), flat.shape[0]).position)
        return self.tile(seed, flat, rows[:, None], jnp.arange(x.shape[-1])).reshape(x.shape)


def mixed_bits(seed: Array, rows: Array, columns: Array) -> Array:
    """32 random bits for each address (row, column) under two words of seed.

    The finalizer with the multipliers 0x7feb352d and 0x846ca68b, the lowest bias found by search
    among those of two rounds (Wellons 2018), applied to the row and then to the column.
    """

    def mix(x):
        x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
        x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
        return x ^ (x >> 16)

    rows, columns = rows.astype(jnp.uint32), columns.astype(jnp.uint32)
    return mix(mix(rows + seed[0]) ^ (columns * jnp.uint32(0x9E3779B9) + seed[1]))
