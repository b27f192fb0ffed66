"""Plans: which blocks of a table take part, and which do so whole, found without the table.

A predicate is one function. Run on arrays it gives a mask; run on bounds of the marks of a block
it tells which blocks no query sees anything of, and which are seen whole. A block of which bounds
do not tell is settled pair by pair, by the mask itself.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .blocks import blocks_of, bounds, is_traced, laid, some, with_facts
from .bounds import Program
from .grid import ALL, NONE, SOME
from .intervals import namespace
from .mask import mask
from .maybe import Maybe
from .predicates import Predicate
from .records import Marks, Range, Rows
from .settle import corners_differ, decided, settled

__all__ = ["Plan", "plan", "survey"]

BLOCKS = 2**18
"""The most blocks that are bounded at once."""


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
    if not known:
        parts = parts_of(seen.ask(*ends), counts)
        left = parts == SOME
        if parts.size <= BLOCKS:
            left = left & ~corners_differ(seen, whole, block, marks)
        return parts, left
    parts, size = np.empty(counts, np.int8), max(1, BLOCKS // counts[1])
    for start in range(0, counts[0], size):
        rows = parts[start : start + size]
        rows[:] = parts_of(seen.ask(*some(ends, slice(start, start + size))), rows.shape)
    return parts, decided(seen, whole, block, marks, parts, operations)


def parts_of(seen: Maybe, counts: tuple[int, int]) -> Any:
    """What is seen of blocks."""
    xp = namespace(seen.some, seen.every)
    parts = xp.where(seen.every, np.int8(ALL), xp.where(seen.some, np.int8(SOME), np.int8(NONE)))
    return xp.broadcast_to(parts, counts)


def length_of(seen: Predicate, marks: Marks) -> float:
    """How many operations a predicate has for a pair; infinitely many if it cannot be asked."""
    pair = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), laid(marks, seen.tables)
    )
    try:
        return Program(seen, *pair).length
    except (TypeError, AttributeError, LookupError, ValueError):
        return math.inf
