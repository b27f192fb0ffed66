"""Functions of marks give one entry per pair of a query and a key, whichever tile holds the pair.

So a function of marks may not reduce over queries or keys. Its result has shape (T, S), or 1 along
a side whose rows it does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import PyTree

from .dependence import UNKNOWN, axes_of
from .errors import CompositionError
from .marks import Marks

__all__ = ["answered", "check_pairs"]

Answer = TypeVar("Answer")


def answered(what: object, answer: Answer | None) -> Answer:
    """The result of a function of marks; raises CompositionError for None."""
    if answer is None:
        raise CompositionError(f"{what!r} gives None: its function lacks a return")
    return answer


def check_pairs(
    what: str, function: Callable[..., ArrayLike], marks: Marks, *operands: PyTree[Array]
) -> None:
    """Raise CompositionError unless `function(*operands, query, key)` gives one entry per pair.

    `marks` are spread: metadata of queries is (T, 1), of keys (1, S). Operands are the same for all
    pairs.
    """
    leaves, tree = jax.tree.flatten((marks, operands))
    outline = tuple(jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    shape, axes = traced(function, outline, tree, len(jax.tree.leaves(marks)))
    reads = tuple(map(bool, axes))
    table = marks.query.position.shape[0], marks.key.position.shape[1]
    if len(shape) == 2:
        sides = zip(shape, table, reads, strict=True)
        reduced = any(size == 1 != n and read for size, n, read in sides)
    else:
        sides = zip(table, reads, strict=True)
        reduced = len(shape) == 1 or (not shape and any(read and n != 1 for n, read in sides))
    mixed = any(along - {side, UNKNOWN} for side, along in enumerate(axes))
    if reduced or mixed:
        this = f"this one is {shape}" if reduced else "an entry of this one mixes or swaps rows"
        raise CompositionError(
            f"{what} answers for each pair of a query and a key: query.position is "
            f"{(table[0], 1)}, key.position {(1, table[1])} and the result {table}, or 1 along a "
            f"side that it does not look at; {this}: keep both axes, fold none by "
            "any, all or an index"
        )


@lru_cache(maxsize=512)
def traced(
    function: Callable[..., ArrayLike],
    outline: tuple[jax.ShapeDtypeStruct, ...],
    tree: Hashable,
    count: int,
) -> tuple[tuple[int, ...], tuple[frozenset[int], frozenset[int]]]:
    """The shape of a function of marks, and the axes along which queries and keys vary it.

    The first `count` leaves are those of marks, the others operands.
    """

    def table(leaves: list[Array]) -> Array:
        marks, operands = jax.tree.unflatten(tree, leaves)
        return jnp.asarray(function(*operands, marks.query, marks.key))

    closed, made = jax.make_jaxpr(table, return_shape=True)(list(outline))

    def varies(side: int) -> frozenset[int]:
        def begin(leaf: jax.ShapeDtypeStruct) -> frozenset[int]:
            if leaf.ndim <= side or leaf.shape[side] == 1:
                return frozenset()
            spread = leaf.ndim == 2 and leaf.shape[1 - side] == 1
            return frozenset({side if spread else UNKNOWN})

        operands = [frozenset()] * (len(outline) - count)
        return axes_of(closed.jaxpr, [*map(begin, outline[:count]), *operands])[0]

    return made.shape, (varies(0), varies(1))
