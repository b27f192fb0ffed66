"""The types that signatures share. Shapes are written as in jaxtyping: Float[Array, "T d"]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from jax import Array
from jaxtyping import Bool, Float, PyTree

__all__ = ["Axes", "Outputs", "Params", "Table", "Value", "Visible"]

Value: TypeAlias = PyTree
"""A value between stages, or in the context: an array, a record, or a tree of arrays."""

Params: TypeAlias = Mapping[str, PyTree]
"""Parameters: under each name an array, or the parameters of a part."""

Outputs: TypeAlias = dict[str, PyTree]
"""The outputs of an execution beside the value, in a tree named like the parameters."""

Axes: TypeAlias = PyTree
"""The axes that `jax.vmap` maps: an integer for each array or subtree, None for one kept whole."""

Table: TypeAlias = Float[Array, "t s"]
"""A number for each of t queries and s keys: of a tile, or of the whole table (T, S)."""

Visible: TypeAlias = Bool[Array, "t s"] | None
"""Whether each query may see each key; None where every query sees all keys."""
