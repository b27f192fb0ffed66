"""Blocks of which bounds do not tell enough: what single pairs show of them, and all pairs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .blocks import at, at_each, blocks_of, laid, samples
from .grid import ALL, NONE, SOME
from .intervals import namespace
from .mask import mask
from .predicates import Predicate
from .records import Marks, Range, Rows, Slice

__all__ = ["corners_differ", "decided", "settled", "tile_of"]

PAIRS = 2**28
"""The most pairs that are looked at while a plan is made: it takes about a second."""
FEW = 2**21
"""The most of them that are looked at without a program that is compiled for them."""


def corners_differ(seen: Predicate, whole: Any, block: tuple[int, int], marks: Marks) -> Any:
    """Which blocks have both, a corner that is seen and one that is not."""
    rows, columns = (
        samples(side.length, size)[:, [0, -1]]
        for side, size in zip((marks.query, marks.key), block, strict=True)
    )
    found = seen.ask(*at(whole, rows.reshape(-1, 1), columns.reshape(1, -1)), computing=False)
    lay = partial(namespace(found.some, found.every).broadcast_to, shape=(rows.size, columns.size))
    corners = len(rows), 2, len(columns), 2
    shown, hidden = (lay(x).reshape(corners).any((1, 3)) for x in (found.every, ~found.some))
    return shown & hidden


# While a plan is made


def decided(
    seen: Predicate, block: tuple[int, int], marks: Marks, parts: np.ndarray, operations: float
) -> tuple[np.ndarray, np.ndarray]:
    """The parts of all blocks after a look into those with SOME, and which are undecided still.

    First some pairs are looked at, which mostly show that a block holds both; then all of them, by
    a compiled program where they are many.
    """
    whole, flat = laid(marks, seen.tables), parts.ravel()
    shown, hidden = np.zeros(flat.size, bool), np.zeros(flat.size, bool)
    left = np.flatnonzero(flat == SOME)
    for rows, columns in patterns(marks, block):
        size = rows.shape[1], columns.shape[1]
        if not len(left) or len(left) * math.prod(size) > FEW:
            break
        tiles = np.divmod(left, parts.shape[1])
        found = seen.ask(*at_each(whole, rows[tiles[0]], columns[tiles[1]]), computing=False)
        lay = partial(np.broadcast_to, shape=(len(left) * size[0], size[1]))
        every, none = (lay(x).reshape(len(left), -1) for x in (found.every, ~found.some))
        if not (every | none).any():
            break  # single pairs tell no more than blocks
        shown[left] |= every.any(1)
        hidden[left] |= none.any(1)
        done = shown[left] & hidden[left]
        if size == block:
            done |= (every | none).all(1)
            flat[left] = np.where(every.all(1), ALL, np.where(none.all(1), NONE, SOME))
        left = left[~done]
    if len(left) and len(left) * math.prod(block) <= PAIRS and operations < math.inf:
        # Their number is rounded up to a power of two, so that few programs are compiled.
        places = np.resize(left, 1 << (len(left) - 1).bit_length()).astype(np.int32)
        with jax.ensure_compile_time_eval():
            flat[left] = np.asarray(parts_at(mask(seen), block, marks, places))[: len(left)]
        left = left[:0]
    undecided = np.zeros(flat.size, bool)
    undecided[left] = True
    return flat.reshape(parts.shape), undecided.reshape(parts.shape)


def patterns(marks: Marks, block: tuple[int, int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows and columns of each block whose pairs are looked at, in turn: a few, lines, all."""
    every = [samples(marks.query.length, block[0]), samples(marks.key.length, block[1])]
    few = [
        rows[:, [0, min(1, size - 1), size // 2, -1]]
        for rows, size in zip(every, block, strict=True)
    ]
    ends = [rows[:, [0, -1]] for rows in every]
    yield few[0], few[1]
    yield ends[0], every[1]
    yield every[0], ends[1]
    yield every[0], every[1]


# All pairs of a block


@partial(jax.jit, static_argnames=("stage", "block"))
def settled(stage: mask, block: tuple[int, int], marks: Marks, parts: Any, left: Any) -> Any:
    """The parts of all blocks, where those that are left are settled one by one when it runs."""

    def settle(state: Any) -> Any:
        parts, left = state
        place = jnp.argmax(left)
        part = part_of(stage, block, marks, place)
        return parts.at[place].set(part), left.at[place].set(False)

    state = jnp.ravel(parts), jnp.ravel(left)
    return jax.lax.while_loop(lambda state: state[1].any(), settle, state)[0].reshape(parts.shape)


@partial(jax.jit, static_argnames=("stage", "block"))
def parts_at(stage: mask, block: tuple[int, int], marks: Marks, places: Any) -> Any:
    """The parts of some blocks, by their numbers row by row."""
    return jax.lax.map(partial(part_of, stage, block, marks), places)


def part_of(stage: mask, block: tuple[int, int], marks: Marks, place: Any) -> Any:
    """NONE, SOME or ALL for one block, as the mask says of its pairs."""
    count = blocks_of(marks, block)[1]
    query, rows = cut(marks.query, jax.lax.div(place, count), block[0])
    key, columns = cut(marks.key, jax.lax.rem(place, count), block[1])
    seen, pairs = stage.visible(Marks(query, key).spread()), query.length * key.length
    seen = jnp.broadcast_to(seen, (query.length, key.length))
    if rows is not None or columns is not None:
        own = (True if rows is None else rows[:, None]) & (True if columns is None else columns)
        seen, pairs = seen & own, jnp.broadcast_to(own, seen.shape).sum()
    found = jnp.count_nonzero(seen)
    return jnp.where(found == pairs, ALL, jnp.where(found > 0, SOME, NONE)).astype(jnp.int8)


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
