"""Plans: NONE, SOME or ALL for every block of a mask, found without the (T, S) mask.

A predicate is one function. On arrays it gives a mask; on bounds of positions and other row
metadata it decides whole blocks. In blocks of 4, causal attention asks `key <= query`:

    queries 4-7, keys 0-3    every key is at most 3, every query at least 4      ALL
    queries 0-3, keys 4-7    every key is at least 4, every query at most 3      NONE
    queries 4-7, keys 4-7    bounds overlap: may hold, may not                   SOME

Bounds can be too wide to decide. The mask then decides SOME blocks pair by pair (`block_pairs`): at
trace time if positions and facts are known, otherwise at run time if that costs little.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Integer

from ..core.marks import Marks, Range, Rows
from ..core.mesh import compiler_divides, explicit_array
from ..core.types import Value
from ..intervals.program import Program
from ..intervals.span import namespace
from ..intervals.three_valued import Maybe
from ..logic import Predicate
from ..mask import mask
from .block_bounds import Sides, along_sides, blocks_of, bounds, is_traced, some, with_facts
from .block_pairs import corners_differ, decided, settled
from .grid import ALL, NONE, SOME, Parts

__all__ = ["Plan", "plan", "survey"]

BLOCKS_AT_ONCE = 2**18
"""The most blocks whose bounds are held in memory at a time."""


Ranges: TypeAlias = tuple[tuple[Range, Range], ...]
"""Position and index of the queries, then of the keys."""

Surveyed: TypeAlias = tuple[Integer[np.ndarray, "n m"], Bool[np.ndarray, "n m"]]
"""The parts of all blocks, and which blocks stay undecided."""


class Plan(NamedTuple):
    """NONE, SOME or ALL for every block: a NumPy array if known at trace time, else a JAX array.

    `undecided` is True if blocks with SOME may turn out to be NONE or ALL.
    """

    parts: Parts
    undecided: bool = False


def plan(
    masks: Iterable[mask], marks: Marks, context: Mapping[str, Value], block: tuple[int, int]
) -> Parts:
    """The parts of `survey`: NONE, SOME or ALL for every block."""
    return survey(masks, marks, context, block).parts


def survey(
    masks: Iterable[mask],
    marks: Marks,
    context: Mapping[str, Value],
    block: tuple[int, int],
    affordable: float = math.inf,
) -> Plan:
    """The plan of the table of all queries and keys under some masks.

    Blocks that bounds leave undecided are decided pair by pair at trace time, if that takes few
    enough pairs, or at run time, if the masks take at most `affordable` operations per pair.
    """
    predicates = [stage.predicate for stage in masks]
    counts = blocks_of(marks, block)
    if not predicates or 0 in counts:
        return Plan(np.full(counts, ALL, np.int8))
    seen = functools.reduce(operator.and_, predicates)
    marks = with_facts(marks, seen, context)
    like = explicit_array(marks)
    if like is None:
        return survey_of(seen, marks, block, affordable)
    undecided = []

    def parts(marks: Marks) -> Parts:
        found = survey_of(seen, marks, block, affordable)
        undecided.append(found.undecided)
        return found.parts

    return Plan(compiler_divides(parts, like, 0)(marks), *undecided)


def survey_of(seen: Predicate, marks: Marks, block: tuple[int, int], affordable: float) -> Plan:
    """`survey` of one predicate on marks that lie on no explicit mesh."""
    counts = blocks_of(marks, block)
    whole, numbered = along_sides(marks, seen.tables), ranges(marks)
    program = program_of(seen, whole)
    if any(map(is_traced, jax.tree.leaves(whole))):
        parts = parts_of(seen.ask(*bounds(whole, block)), counts)
        left = parts == SOME  # the undecided blocks
        if program is None or program.is_tight([*map(is_traced, jax.tree.leaves(whole))]):
            return Plan(parts, program is None)
        if parts.size <= BLOCKS_AT_ONCE:
            left = left & ~corners_differ(seen, whole, block, marks)
    elif numbered and program:
        wide = jax.config.read("jax_enable_x64")  # part of the key: a closure may hold int64
        parts, left = surveyed_once(seen, block, numbered, wide)
    else:
        parts, left = surveyed(seen, block, marks, program is not None)
        # Facts differ from call to call. As an operand, the plan leaves the program unchanged.
        with jax.ensure_compile_time_eval():
            parts = parts if numbered else jnp.asarray(parts)
    if not isinstance(left, jax.Array) and (not left.any() or (program and program.understood)):
        return Plan(parts)  # decided, or too many pairs to evaluate: SOME is always correct
    if program is None or program.length > affordable:
        return Plan(parts, undecided=True)
    return Plan(settled(mask(seen), block, marks, parts, left))


@functools.lru_cache(64)
def surveyed_once(
    seen: Predicate, block: tuple[int, int], numbered: Ranges, wide: bool
) -> Surveyed:
    """`surveyed` for marks that are ranges: they are hashable, so the plan is cached."""
    query, key = (Rows(*sides) for sides in numbered)
    arrays = surveyed(seen, block, Marks(query, key), True)
    for array in arrays:
        array.flags.writeable = False
    return arrays


def ranges(marks: Marks) -> Ranges | None:
    """Positions and indices of queries and keys, if they are ranges and there are no facts."""
    sides = tuple((rows.position, rows.index) for rows in (marks.query, marks.key))
    known = all(isinstance(x, Range) for side in sides for x in side)
    return sides if known and not (marks.query.facts or marks.key.facts) else None


def surveyed(seen: Predicate, block: tuple[int, int], marks: Marks, sound: bool) -> Surveyed:
    """The parts of all blocks for marks known at trace time, and which of them stay undecided.

    `sound` is True if the predicate can be traced, so that all pairs can be evaluated.
    """
    counts, whole = blocks_of(marks, block), along_sides(marks, seen.tables)
    ends, parts = bounds(whole, block), np.empty(counts, np.int8)
    size = max(1, BLOCKS_AT_ONCE // counts[1])
    for start in range(0, counts[0], size):
        rows = parts[start : start + size]
        rows[:] = parts_of(seen.ask(*some(ends, slice(start, start + size))), rows.shape)
    return parts, decided(seen, whole, block, marks, parts, sound)


def parts_of(seen: Maybe, counts: tuple[int, int]) -> Parts:
    """NONE, SOME or ALL from what a predicate says of blocks."""
    xp = namespace(seen.some, seen.every)
    parts = xp.where(seen.every, np.int8(ALL), xp.where(seen.some, np.int8(SOME), np.int8(NONE)))
    return xp.broadcast_to(parts, counts)


def program_of(seen: Predicate, whole: Sides) -> Program | None:
    """The program of a predicate for one pair; None if it cannot be traced."""
    try:
        return Program(
            seen, *jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), whole)
        )
    except (TypeError, AttributeError, LookupError, ValueError):
        return None
