"""Blocks that bounds leave undecided: the mask decides them pair by pair.

Bounds of `q % 3 == k % 3` say that a block of 4 × 4 may hold visible pairs, and hidden ones. Two
pairs are enough to know that it holds both: SOME. A block that is ALL or NONE takes all its pairs.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Integer

from ..core.marks import Marks, Range, Rows, Slice
from ..intervals.span import namespace
from ..logic import Predicate
from ..mask import mask
from .block_bounds import Sides, at, at_each, blocks_of, samples
from .grid import ALL, NONE, SOME, Number

__all__ = ["corners_differ", "decided", "settled", "tile_of"]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Numbers of pairs that are evaluated at trace time.

    `compiled`: at most this many, by a compiled program; they take about a second.
    `eager`: at most this many without compiling one.
    `at_once`: the size of a chunk of eager pairs.
    """

    compiled: int
    eager: int
    at_once: int


LIMITS = Limits(compiled=2**28, eager=2**22, at_once=2**19)


def corners_differ(
    seen: Predicate, whole: Sides, block: tuple[int, int], marks: Marks
) -> Bool[Array, "n m"] | Bool[np.ndarray, "n m"]:
    """Whether a block has a visible corner and a hidden corner, for every block."""
    lengths = marks.query.length, marks.key.length
    numbers = map(np.arange, blocks_of(marks, block))
    ends = (np.array([0, size - 1]) for size in block)
    rows, columns = map(samples, lengths, block, numbers, ends)
    known = seen.ask(*at(whole, rows.reshape(-1, 1), columns.reshape(1, -1)), computing=False)
    xp, pairs = namespace(known.some, known.every), (rows.size, columns.size)
    corners = len(rows), 2, len(columns), 2
    visible, hidden = (
        xp.broadcast_to(x, pairs).reshape(corners).any((1, 3)) for x in (known.every, ~known.some)
    )
    return visible & hidden


# At trace time


def decided(
    seen: Predicate, whole: Sides, block: tuple[int, int], marks: Marks,
    parts: Integer[np.ndarray, "n m"], sound: bool,
) -> Bool[np.ndarray, "n m"]:  # fmt: skip
    """Decide blocks with SOME by their pairs: write `parts`, return which stay undecided.

    A growing choice of pairs is evaluated first. Mostly a few pairs show that a block holds both
    visible and hidden ones. A compiled program then takes all pairs of the blocks that are left.
    """
    undecided = parts == SOME
    blocks = np.argwhere(undecided)
    visible, hidden = (np.zeros(len(blocks), bool) for _ in range(2))
    for chosen in patterns(block):
        size = len(chosen[0]), len(chosen[1])
        if not len(blocks) or len(blocks) * math.prod(size) > LIMITS.eager:
            break
        more_visible, more_hidden, known = evaluated(seen, whole, block, marks, blocks, chosen)
        if not (more_visible.any() or more_hidden.any()):
            break  # single pairs stay unknown, as the block did
        visible, hidden = visible | more_visible, hidden | more_hidden
        done = known if size == block else visible & hidden
        parts[tuple(blocks[done].T)] = np.where(visible, np.where(hidden, SOME, ALL), NONE)[done]
        undecided[tuple(blocks[done].T)] = False
        blocks, visible, hidden = blocks[~done], visible[~done], hidden[~done]
    if len(blocks) and len(blocks) * math.prod(block) <= LIMITS.compiled and sound:
        # Rounding the number of blocks up to a power of two keeps the number of programs small.
        count = 1 << (len(blocks) - 1).bit_length()
        with jax.ensure_compile_time_eval():
            found = parts_at(mask(seen), block, marks, np.resize(blocks, (count, 2)))
        parts[tuple(blocks.T)] = np.asarray(found)[: len(blocks)]
        undecided[:] = False
    return undecided


def evaluated(
    seen: Predicate, whole: Sides, block: tuple[int, int], marks: Marks,
    blocks: Integer[np.ndarray, "n 2"], chosen: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """For each block three booleans about the chosen pairs.

    Some pair is visible; some pair is hidden; every pair is known to be one or the other.
    """
    size = len(chosen[0]), len(chosen[1])
    lengths = marks.query.length, marks.key.length
    step, results = max(1, LIMITS.at_once // math.prod(size)), []
    for start in range(0, len(blocks), step):
        chunk = blocks[start : start + step]
        rows, columns = map(samples, lengths, block, chunk.T, chosen)
        known = seen.ask(*at_each(whole, rows, columns), computing=False)
        spread = partial(np.broadcast_to, shape=(len(chunk) * size[0], size[1]))
        visible, hidden = (spread(x).reshape(len(chunk), -1) for x in (known.every, ~known.some))
        results.append((visible.any(1), hidden.any(1), (visible | hidden).all(1)))
    return tuple(map(np.concatenate, zip(*results, strict=True)))


def patterns(block: tuple[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Growing choices of rows and columns of a block: 4 × 4 pairs, the four edges, all pairs."""
    few = [np.array([0, min(1, size - 1), size // 2, size - 1]) for size in block]
    ends = [np.array([0, size - 1]) for size in block]
    every = [np.arange(size) for size in block]
    return [(few[0], few[1]), (ends[0], every[1]), (every[0], ends[1]), (every[0], every[1])]


# At run time: all pairs of a block


@partial(jax.jit, static_argnames=("stage", "block"))
def settled(
    stage: mask, block: tuple[int, int], marks: Marks,
    parts: Integer[Array, "n m"], undecided: Bool[Array, "n m"],
) -> Integer[Array, "n m"]:  # fmt: skip
    """The parts of all blocks, after a loop at run time over those that are undecided."""
    columns, order = parts.shape[1], jnp.argsort(~jnp.ravel(undecided), stable=True)

    def settle(number: Number, parts: Array) -> Array:
        index = jax.lax.div(order[number], columns), jax.lax.rem(order[number], columns)
        part = part_of(stage, block, marks, index)
        return jax.lax.dynamic_update_slice(parts, part[None, None], index)

    return jax.lax.fori_loop(0, jnp.count_nonzero(undecided), settle, jnp.asarray(parts))


@partial(jax.jit, static_argnames=("stage", "block"))
def parts_at(
    stage: mask, block: tuple[int, int], marks: Marks, indices: Integer[Array, "n 2"]
) -> Integer[Array, "n"]:
    """The parts of n blocks, (n,), from their rows and columns, (n, 2)."""
    return jax.lax.map(partial(part_of, stage, block, marks), indices)


def part_of(
    stage: mask, block: tuple[int, int], marks: Marks, index: Array | tuple[Number, Number]
) -> Integer[Array, ""]:
    """NONE, SOME or ALL for one block, from the mask of all its pairs."""
    (query, rows), (key, columns) = (
        cut(side, index[axis], block[axis]) for axis, side in enumerate((marks.query, marks.key))
    )
    shape = query.length, key.length
    seen, pairs = jnp.broadcast_to(stage.visible(Marks(query, key).spread()), shape), None
    if rows is not None or columns is not None:
        own = (True if rows is None else rows[:, None]) & (True if columns is None else columns)
        own = jnp.broadcast_to(own, shape)
        seen, pairs = seen & own, jnp.count_nonzero(own)
    visible = jnp.count_nonzero(seen)
    full = visible == (math.prod(shape) if pairs is None else pairs)
    return jnp.where(full, ALL, jnp.where(visible > 0, SOME, NONE)).astype(jnp.int8)


def cut(rows: Rows, number: Number, size: int) -> tuple[Rows, Bool[Array, "size"] | None]:
    """The rows of a block, and which of them are its own (None for all).

    All blocks have `size` rows. An incomplete last block starts earlier, so it shares its first
    rows with the block before: 10 rows in blocks of 4 are 0-3, 4-7 and 6-9, where 8 and 9 are own.
    """
    size, own = min(size, rows.length), None
    first = start = number * size
    if rows.length % size:
        start = jnp.minimum(first, rows.length - size)
        own = start + np.arange(size, dtype=np.int32) >= first

    def one(leaf: Array) -> Array:
        uncut = leaf.shape[:1] != (rows.length,)
        return leaf if uncut else jax.lax.dynamic_slice_in_dim(leaf, start, size)

    return tile_of(jax.tree.map(one, rows), start, size), own


def tile_of(rows: Rows, start: Number, length: int) -> Rows:
    """The rows of a tile: a Range becomes a Slice from `start` on, arrays are cut already."""
    move = lambda x: Slice(x.start + start, length) if isinstance(x, Range) else x  # noqa: E731
    return dataclasses.replace(rows, position=move(rows.position), index=move(rows.index))
