"""Functions of marks answer for pairs: what they give of one table is what they give of its tiles.

A tile holds some queries and some keys, so a function of marks may not fold a side up: along each
side its result has one entry per row, or a single one where it does not look at the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from .dependence import UNKNOWN, axes_of
from .errors import CompositionError
from .marks import Marks

__all__ = ["check_pairs"]


def check_pairs(what: str, function: Callable[[Any, Any], Any], marks: Marks) -> None:
    """Refuse a function of marks, laid out as a table, whose result is not one entry per pair."""
    leaves, tree = jax.tree.flatten(marks)
    outline = tuple(jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    shape, varies = seen(function, outline, tree)
    table = len(marks.query.position), marks.key.position.shape[1]
    looks = tuple(bool(axes) for axes in varies)
    looked = [n for n, look in zip(table, looks, strict=True) if look and n != 1]
    mixed = any(axes - {side, UNKNOWN} for side, axes in enumerate(varies))
    if len(shape) == 2:
        pairs = zip(shape, table, looks, strict=True)
        folded = any(size == 1 != n and look for size, n, look in pairs)
    else:
        folded = len(shape) == 1 or (not shape and bool(looked))
    if folded or mixed:
        this = f"this one is {shape}" if folded else "an entry of this one mixes or swaps rows"
        raise CompositionError(
            f"{what} answers for each pair of a query and a key: query.position is "
            f"{(table[0], 1)}, key.position {(1, table[1])} and the result {table}, or 1 along a "
            f"side that it does not look at; {this}: keep both axes, fold none by any, all or an "
            "index"
        )


@lru_cache(maxsize=512)
def seen(
    function: Callable[[Any, Any], Any], outline: tuple[Any, ...], tree: Any
) -> tuple[tuple[int, ...], tuple[frozenset[int], frozenset[int]]]:
    """The shape that a function of marks gives, and the axes along which it varies with the rows
    of each side."""

    def table(leaves: Any) -> Any:
        marks = jax.tree.unflatten(tree, leaves)
        return jnp.asarray(function(marks.query, marks.key))

    closed, made = jax.make_jaxpr(table, return_shape=True)(list(outline))

    def varies(side: int) -> frozenset[int]:
        def begin(leaf: Any) -> frozenset[int]:
            if leaf.ndim <= side or leaf.shape[side] == 1:
                return frozenset()
            laid = leaf.ndim == 2 and leaf.shape[1 - side] == 1
            return frozenset({side if laid else UNKNOWN})

        return axes_of(closed.jaxpr, [*map(begin, outline)])[0]

    return made.shape, (varies(0), varies(1))
