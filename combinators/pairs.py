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

from .alike import reached
from .errors import CompositionError
from .records import Marks

__all__ = ["check_pairs"]


def check_pairs(what: str, function: Callable[[Any, Any], Any], marks: Marks) -> None:
    """Refuse a function of marks, laid out as a table, whose result is not one entry per pair."""
    leaves, tree = jax.tree.flatten(marks)
    outline = tuple(jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    shape, looks = seen(function, outline, tree)
    table = marks.query.position.shape[0], marks.key.position.shape[1]
    looked = [n for n, look in zip(table, looks, strict=True) if look and n != 1]
    if len(shape) == 2:
        pairs = zip(shape, table, looks, strict=True)
        folded = any(size == 1 != n and look for size, n, look in pairs)
    else:
        folded = len(shape) == 1 or (not shape and bool(looked))
    if folded:
        raise CompositionError(
            f"{what} answers for each pair of a query and a key: query.position is "
            f"{(table[0], 1)}, key.position {(1, table[1])} and the result {table}, or 1 along a "
            f"side that it does not look at; this one is {shape}: keep both axes, fold none by "
            "any, all or an index"
        )


@lru_cache(maxsize=512)
def seen(
    function: Callable[[Any, Any], Any], outline: tuple[Any, ...], tree: Any
) -> tuple[tuple[int, ...], tuple[bool, bool]]:
    """The shape that a function of marks gives, and whether it looks at the rows of each side."""

    def table(leaves: Any) -> Any:
        marks = jax.tree.unflatten(tree, leaves)
        return jnp.asarray(function(marks.query, marks.key))

    closed, made = jax.make_jaxpr(table, return_shape=True)(list(outline))
    of_rows = lambda axis: [leaf.ndim > axis and leaf.shape[axis] > 1 for leaf in outline]  # noqa: E731
    looks = tuple(reached(closed.jaxpr, of_rows(axis))[0] for axis in (0, 1))
    return made.shape, (looks[0], looks[1])
