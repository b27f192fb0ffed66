"""Plans: which blocks of a table take part, and which do so whole, found without the table.

A predicate is one function. Run on arrays it gives a mask; run on bounds of the marks of a block
it tells which blocks no query sees anything of, and which are seen whole. A block of which bounds
do not tell is settled pair by pair, by the mask itself.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .blocks import at, bounds, is_traced, laid, samples, some, with_facts
from .bounds import Program
from .grid import ALL, NONE, SOME
from .intervals import namespace
from .mask import mask
from .maybe import Maybe
from .predicates import Predicate
from .records import Marks, Range, Rows, Slice

__all__ = ["Plan", "plan", "survey", "tile_of"]

PAIRS = 2**28
"""The most pairs that are looked at while a plan is made: it takes about a second."""
BLOCKS = 2**18
"""The most blocks that are bounded at once, and the most from which single pairs are taken."""
SAMPLES = 4
"""The rows and columns of a block that single pairs are taken from, the outermost among them."""


class Plan(NamedTuple):
    """NONE, SOME or ALL for every block: known now (NumPy), or only when it runs (JAX).

    `undecided` tells that some blocks with SOME may hold nothing, or all.
    """

    parts: Any
    undecided: bool = False


def plan(
    masks: Iterable[mask], marks: Marks, context: Mapping[str, Any], block: tuple[int, int]
) -> Any:
    """NONE, SOME or ALL for every block: known now (NumPy), or only when it runs (JAX)."""
    return survey(masks, marks, context, block).parts


def survey(
    masks: Iterable[mask],
    marks: Marks,
    context: Mapping[str, Any],
    block: tuple[int, int],
    affordable: float = math.inf,
) -> Plan:
    """The plan of a table: exact where its masks have at most `affordable` operations for a pair,
    or where few enough pairs have to be looked at."""
    predicates = [stage.predicate for stage in masks]
    counts = blocks_of(marks, block)
    if not predicates or 0 in counts:
        return Plan(np.full(counts, ALL, np.int8))
    seen = functools.reduce(operator.and_, predicates)
    marks = with_facts(marks, seen, context)
    numbered = static(marks)
    operations = length_of(seen, marks)
    if numbered and operations < math.inf:
        parts, left = surveyed_once(seen, block, numbered, jax.config.read("jax_enable_x64"))
    else:
        parts, left = surveyed(seen, block, marks, operations)
        # What differs from call to call is no part of what is compiled.
        parts = parts if numbered else jnp.asarray(parts)
    if not isinstance(left, jax.Array) and not left.any():
        return Plan(parts)
    if operations > affordable or operations == math.inf:
        return Plan(parts, undecided=True)
    return Plan(settled(mask(seen), block, marks, parts, left))


def blocks_of(marks: Marks, block: tuple[int, int]) -> tuple[int, int]:
    """How many blocks there are of queries and of keys."""
    return -(-marks.query.length // block[0]), -(-marks.key.length // block[1])


@functools.lru_cache(64)
def surveyed_once(seen: Predicate, block: tuple[int, int], numbered: Any, wide: bool) -> Any:
    """`surveyed` for marks that are numbers of rows; `wide` says whether there are 64 bits."""
    query, key = (Rows(*ranges) for ranges in numbered)
    found = surveyed(seen, block, Marks(query, key), operations=0)
    for array in found:
        array.flags.writeable = False
    return found


def static(marks: Marks) -> Any:
    """Positions and indices of queries and of keys, if they are ranges and all that is asked."""
    sides = tuple((rows.position, rows.index) for rows in (marks.query, marks.key))
    ranges = all(isinstance(x, Range) for side in sides for x in side)
    return sides if ranges and not (marks.query.facts or marks.key.facts) else None


def surveyed(seen: Predicate, block: tuple[int, int], marks: Marks, operations: float) -> Any:
    """The parts of all blocks, and which of them are left undecided."""
    counts, whole = blocks_of(marks, block), laid(marks, seen.tables)
    ends, known = bounds(whole, block), not any(map(is_traced, jax.tree.leaves(whole)))
    size = max(1, BLOCKS // counts[1]) if known else counts[0]
    steps = [slice(start, start + size) for start in range(0, counts[0], size)]
    rows = [parts_of(seen.ask(*some(ends, step)), counts, step) for step in steps]
    parts = np.concatenate(rows) if len(rows) > 1 else rows[0]
    left = parts == SOME
    if not known:
        return parts, left & ~mixed(seen, whole, block, marks) if parts.size <= BLOCKS else left
    tiles = np.argwhere(left)
    if len(tiles) <= BLOCKS:
        left[(*tiles[mixed_of(tiles, seen, whole, block, marks)].T,)] = False
    if left.any() and np.count_nonzero(left) * math.prod(block) <= PAIRS and operations < math.inf:
        with jax.ensure_compile_time_eval():
            parts = np.array(settled(mask(seen), block, marks, parts, left))
        left = np.zeros_like(left)
    return parts, left


def parts_of(seen: Maybe, counts: tuple[int, int], step: slice) -> Any:
    """What is seen of some rows of blocks."""
    xp = namespace(seen.some, seen.every)
    parts = xp.where(seen.every, ALL, xp.where(seen.some, SOME, NONE)).astype(np.int8)
    return xp.broadcast_to(parts, (len(range(*step.indices(counts[0]))), counts[1]))


def length_of(seen: Predicate, marks: Marks) -> float:
    """How many operations a predicate has for a pair; infinitely many if it cannot be asked."""
    pair = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), laid(marks, seen.tables)
    )
    try:
        return Program(seen, *pair).length
    except (TypeError, AttributeError, LookupError, ValueError):
        return math.inf


# Single pairs: what they show of a block need not be looked for


def mixed(seen: Predicate, whole: Any, block: tuple[int, int], marks: Marks) -> Any:
    """Which blocks have both, a pair at a corner that is seen and one that is not."""
    rows, columns = (
        samples(side.length, size, 2)
        for side, size in zip((marks.query, marks.key), block, strict=True)
    )
    pairs = at(whole, rows.reshape(-1, 1), columns.reshape(1, -1))
    shape = len(rows), 2, len(columns), 2
    size = 2 * len(rows), 2 * len(columns)
    return differ(seen.ask(*pairs, computing=False), size, shape, (1, 3))


def mixed_of(
    tiles: np.ndarray, seen: Predicate, whole: Any, block: tuple[int, int], marks: Marks
) -> Any:
    """Which of some blocks have both, a pair that is seen and one that is not, among a few."""
    rows, columns = (
        samples(side.length, size, SAMPLES)[tile]
        for side, size, tile in zip((marks.query, marks.key), block, tiles.T, strict=True)
    )
    pairs = at(whole, rows.reshape(-1, 1), columns.repeat(SAMPLES, 0))
    size = len(tiles) * SAMPLES, SAMPLES
    return differ(seen.ask(*pairs, computing=False), size, (len(tiles), SAMPLES**2), (1,))


def differ(seen: Maybe, size: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    """Whether some pairs are seen and some are not, along axes of the pairs laid in a shape."""
    xp = namespace(seen.some, seen.every)
    spread = [xp.broadcast_to(x, size).reshape(shape) for x in (seen.every, ~seen.some)]
    shown, hidden = (x.any(axes) for x in spread)
    return shown & hidden


# All pairs of a block


@partial(jax.jit, static_argnames=("stage", "block"))
def settled(stage: mask, block: tuple[int, int], marks: Marks, parts: Any, left: Any) -> Any:
    """The parts of all blocks, where those that are left are what the mask says of their pairs."""
    sizes = [min(size, rows.length) for rows, size in zip(sides(marks), block, strict=True)]
    parts, order = jnp.asarray(parts), jnp.argsort(~jnp.ravel(left), stable=True)

    def settle(state: Any) -> Any:
        number, parts = state
        tile = jnp.divmod(order[number], parts.shape[1])
        firsts = [i * size for i, size in zip(tile, sizes, strict=True)]
        starts = [
            jnp.minimum(first, rows.length - size)  # the last block is cut where the table ends
            for first, rows, size in zip(firsts, sides(marks), sizes, strict=True)
        ]
        own = [
            start + jnp.arange(size) >= first
            for start, first, size in zip(starts, firsts, sizes, strict=True)
        ]
        within = own[0][:, None] & own[1]
        rows = map(cut, sides(marks), starts, sizes)
        seen = jnp.broadcast_to(stage.visible(Marks(*rows).spread()), within.shape)
        every, any_ = jnp.all(seen | ~within), jnp.any(seen & within)
        part = jnp.where(every, ALL, jnp.where(any_, SOME, NONE)).astype(parts.dtype)
        return number + 1, parts.at[tile].set(part)

    count = jnp.count_nonzero(left)
    return jax.lax.while_loop(lambda state: state[0] < count, settle, (0, parts))[1]


def sides(marks: Marks) -> tuple[Rows, Rows]:
    return marks.query, marks.key


def cut(rows: Rows, start: Any, size: int) -> Rows:
    """`size` rows from one on, with what is known of each of them."""

    def one(leaf: Any) -> Any:
        whole = leaf.shape[:1] != (rows.length,)
        return leaf if whole else jax.lax.dynamic_slice_in_dim(leaf, start, size)

    return tile_of(jax.tree.map(one, rows), start, size)


def tile_of(rows: Rows, start: Any, length: int) -> Rows:
    """Some of the rows, where those known without an array begin at `start`."""
    move = lambda x: Slice(x.start + start, length) if isinstance(x, Range) else x  # noqa: E731
    return dataclasses.replace(rows, position=move(rows.position), index=move(rows.index))
