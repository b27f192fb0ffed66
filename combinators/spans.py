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
from .mesh import compiler_divides, explicit_array
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
    like = explicit_array(marks)
    if like is None:
        return survey_of(seen, marks, block, affordable)
    undecided = []

    def parts(marks: Marks) -> Any:
        found = survey_of(seen, marks, block, affordable)
        undecided.append(found.undecided)
        return found.parts

    return Plan(compiler_divides(parts, like, 0)(marks), *undecided)


def survey_of(seen: Predicate, marks: Marks, block: tuple[int, int], affordable: float) -> Plan:
    """The plan of a table of which the marks are all that a predicate asks for."""
    counts = blocks_of(marks, block)
    whole, numbered = laid(marks, seen.tables), ranges(marks)
    program = program_of(seen, whole)
    if any(map(is_traced, jax.tree.leaves(whole))):
        parts = parts_of(seen.ask(*bounds(whole, block)), counts)
        left = parts == SOME
        if program is None or program.is_tight([*map(is_traced, jax.tree.leaves(whole))]):
            return Plan(parts, program is None)
        if parts.size <= BLOCKS:
            left = left & ~corners_differ(seen, whole, block, marks)
    elif numbered and program:
        wide = jax.config.read("jax_enable_x64")  # closures may hold integers of 64 bits
        parts, left = surveyed_once(seen, block, numbered, wide)
    else:
        parts, left = surveyed(seen, block, marks, program is not None)
        with jax.ensure_compile_time_eval():  # facts differ from call to call, programs do not
            parts = parts if numbered else jnp.asarray(parts)
    if not isinstance(left, jax.Array) and (not left.any() or (program and program.understood)):
        return Plan(parts)  # or too many blocks to look into
    if program is None or program.length > affordable:
        return Plan(parts, undecided=True)
    return Plan(settled(mask(seen), block, marks, parts, left))


@functools.lru_cache(64)
def surveyed_once(seen: Predicate, block: tuple[int, int], numbered: Any, wide: bool) -> Any:
    """`surveyed` for marks that are numbers of rows."""
    query, key = (Rows(*sides) for sides in numbered)
    found = surveyed(seen, block, Marks(query, key), True)
    for array in found:
        array.flags.writeable = False
    return found


def ranges(marks: Marks) -> Any:
    """Positions and indices of queries and of keys, if they are ranges and all that is asked."""
    sides = tuple((rows.position, rows.index) for rows in (marks.query, marks.key))
    known = all(isinstance(x, Range) for side in sides for x in side)
    return sides if known and not (marks.query.facts or marks.key.facts) else None


def surveyed(seen: Predicate, block: tuple[int, int], marks: Marks, sound: bool) -> Any:
    """The parts of all blocks for marks that are known, and which of them are left undecided;
    `sound` tells whether the predicate can be called with arrays."""
    counts, whole = blocks_of(marks, block), laid(marks, seen.tables)
    ends, parts = bounds(whole, block), np.empty(counts, np.int8)
    size = max(1, BLOCKS // counts[1])
    for start in range(0, counts[0], size):
        rows = parts[start : start + size]
        rows[:] = parts_of(seen.ask(*some(ends, slice(start, start + size))), rows.shape)
    return parts, decided(seen, whole, block, marks, parts, sound)


def parts_of(seen: Maybe, counts: tuple[int, int]) -> Any:
    """What is seen of blocks."""
    xp = namespace(seen.some, seen.every)
    parts = xp.where(seen.every, np.int8(ALL), xp.where(seen.some, np.int8(SOME), np.int8(NONE)))
    return xp.broadcast_to(parts, counts)


def program_of(seen: Predicate, whole: Any) -> Program | None:
    """The program of a predicate for a pair; None for one that cannot be asked."""
    try:
        return Program(
            seen, *jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), whole)
        )
    except (TypeError, AttributeError, LookupError, ValueError):
        return None
