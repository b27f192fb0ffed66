"""Blocks of which bounds do not tell enough: what single pairs show of them, and all pairs."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.marks import Marks, Range, Rows, Slice
from ..intervals.span import namespace
from ..logic import Predicate
from ..mask import mask
from .block_bounds import at, at_each, blocks_of, samples
from .grid import ALL, NONE, SOME

__all__ = ["corners_differ", "decided", "settled", "tile_of"]

PAIRS = 2**28
"""The most pairs that are looked at while a plan is made: it takes about a second."""
FEW, PIECE = 2**22, 2**19
"""The most of them that are looked at without a program that is compiled for them, and at once."""


def corners_differ(seen: Predicate, whole: Any, block: tuple[int, int], marks: Marks) -> Any:
    """Which blocks have both, a corner that is seen and one that is not."""
    lengths, numbers = (
        (marks.query.length, marks.key.length),
        map(np.arange, blocks_of(marks, block)),
    )
    ends = (np.array([0, size - 1]) for size in block)
    rows, columns = map(samples, lengths, block, numbers, ends)
    found = seen.ask(*at(whole, rows.reshape(-1, 1), columns.reshape(1, -1)), computing=False)
    lay = partial(namespace(found.some, found.every).broadcast_to, shape=(rows.size, columns.size))
    corners = len(rows), 2, len(columns), 2
    shown, hidden = (lay(x).reshape(corners).any((1, 3)) for x in (found.every, ~found.some))
    return shown & hidden


# While a plan is made


def decided(
    seen: Predicate, whole: Any, block: tuple[int, int], marks: Marks, parts: Any, sound: bool
) -> np.ndarray:
    """Look into the blocks with SOME, change those that are seen whole or not at all, and tell
    which are undecided still.

    First some pairs are looked at, which mostly show that a block holds both; then all of them, by
    a compiled program where they are many.
    """
    left = parts == SOME
    tiles = np.argwhere(left)
    shown, hidden = (np.zeros(len(tiles), bool) for _ in range(2))
    for chosen in patterns(block):
        size = len(chosen[0]), len(chosen[1])
        if not len(tiles) or len(tiles) * math.prod(size) > FEW:
            break
        more, none, clear = looked_at(seen, whole, block, marks, tiles, chosen)
        if not (more.any() or none.any()):
            break  # single pairs tell no more than blocks
        shown, hidden = shown | more, hidden | none
        done = clear if size == block else shown & hidden
        parts[tuple(tiles[done].T)] = np.where(shown, np.where(hidden, SOME, ALL), NONE)[done]
        left[tuple(tiles[done].T)] = False
        tiles, shown, hidden = tiles[~done], shown[~done], hidden[~done]
    if len(tiles) and len(tiles) * math.prod(block) <= PAIRS and sound:
        # Their number is rounded up to a power of two, so that few programs are compiled.
        count = 1 << (len(tiles) - 1).bit_length()
        with jax.ensure_compile_time_eval():
            found = parts_at(mask(seen), block, marks, np.resize(tiles, (count, 2)))
        parts[tuple(tiles.T)] = np.asarray(found)[: len(tiles)]
        left[:] = False
    return left


def looked_at(
    seen: Predicate, whole: Any, block: tuple[int, int], marks: Marks, tiles: Any, chosen: Any
) -> tuple[np.ndarray, ...]:
    """Of each of some blocks: whether some chosen pair is seen, whether some is not, and whether
    that is known of every one."""
    size = len(chosen[0]), len(chosen[1])
    lengths = marks.query.length, marks.key.length
    step, found = max(1, PIECE // math.prod(size)), []
    for start in range(0, len(tiles), step):
        piece = tiles[start : start + step]
        rows, columns = map(samples, lengths, block, piece.T, chosen)
        told = seen.ask(*at_each(whole, rows, columns), computing=False)
        lay = partial(np.broadcast_to, shape=(len(piece) * size[0], size[1]))
        every, none = (lay(x).reshape(len(piece), -1) for x in (told.every, ~told.some))
        found.append((every.any(1), none.any(1), (every | none).all(1)))
    return tuple(map(np.concatenate, zip(*found, strict=True)))


def patterns(block: tuple[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Which rows and columns of a block have their pairs looked at, in turn: a few, lines, all."""
    few = [np.array([0, min(1, size - 1), size // 2, size - 1]) for size in block]
    ends = [np.array([0, size - 1]) for size in block]
    every = [np.arange(size) for size in block]
    return [(few[0], few[1]), (ends[0], every[1]), (every[0], ends[1]), (every[0], every[1])]


# All pairs of a block


@partial(jax.jit, static_argnames=("stage", "block"))
def settled(stage: mask, block: tuple[int, int], marks: Marks, parts: Any, left: Any) -> Any:
    """The parts of all blocks, where those that are left are settled one by one when it runs."""
    columns, order = parts.shape[1], jnp.argsort(~jnp.ravel(left), stable=True)

    def settle(number: Any, parts: Any) -> Any:
        tile = jax.lax.div(order[number], columns), jax.lax.rem(order[number], columns)
        part = part_of(stage, block, marks, tile)
        return jax.lax.dynamic_update_slice(parts, part[None, None], tile)

    return jax.lax.fori_loop(0, jnp.count_nonzero(left), settle, jnp.asarray(parts))


@partial(jax.jit, static_argnames=("stage", "block"))
def parts_at(stage: mask, block: tuple[int, int], marks: Marks, tiles: Any) -> Any:
    """The parts of some blocks, by their row and their column: (n, 2) -> (n,)."""
    return jax.lax.map(partial(part_of, stage, block, marks), tiles)


def part_of(stage: mask, block: tuple[int, int], marks: Marks, tile: Any) -> Any:
    """NONE, SOME or ALL for one block, as the mask says of its pairs."""
    (query, rows), (key, columns) = (
        cut(side, tile[axis], block[axis]) for axis, side in enumerate((marks.query, marks.key))
    )
    shape = query.length, key.length
    seen, pairs = jnp.broadcast_to(stage.visible(Marks(query, key).spread()), shape), None
    if rows is not None or columns is not None:
        own = (True if rows is None else rows[:, None]) & (True if columns is None else columns)
        own = jnp.broadcast_to(own, shape)
        seen, pairs = seen & own, jnp.count_nonzero(own)
    found = jnp.count_nonzero(seen)
    whole = found == (math.prod(shape) if pairs is None else pairs)
    return jnp.where(whole, ALL, jnp.where(found > 0, SOME, NONE)).astype(jnp.int8)


def cut(rows: Rows, number: Any, size: int) -> tuple[Rows, Any]:
    """The rows of a block; the last begins earlier where the rows do not fill it, and then it is
    told which of its rows are its own."""
    size, own = min(size, rows.length), None
    first = start = number * size
    if rows.length % size:
        start = jnp.minimum(first, rows.length - size)
        own = start + np.arange(size, dtype=np.int32) >= first

    def one(leaf: Any) -> Any:
        whole = leaf.shape[:1] != (rows.length,)
        return leaf if whole else jax.lax.dynamic_slice_in_dim(leaf, start, size)

    return tile_of(jax.tree.map(one, rows), start, size), own


def tile_of(rows: Rows, start: Any, length: int) -> Rows:
    """Some of the rows, where those known without an array begin at `start`."""
    move = lambda x: Slice(x.start + start, length) if isinstance(x, Range) else x  # noqa: E731
    return dataclasses.replace(rows, position=move(rows.position), index=move(rows.index))
