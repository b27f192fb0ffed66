"""mask: which keys may a query see? Predicates are values that combine with &, | and ~.

A predicate is one function of the marks of queries and keys. True means: may attend. It is a
boolean, never a number: masks combine before any number is made.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool

from .core.context import Context
from .core.errors import CompositionError
from .core.kinds import Kind, fits, mistaken, symbolic
from .core.leaf import Leaf, after_union, spread
from .core.marks import Marks, Range, Rows
from .core.pairs import check_pairs
from .core.records import Entries, Scores
from .core.source import PACKAGE
from .core.term import form
from .core.types import Value
from .intervals.span import Span
from .logic import Predicate, as_predicate, predicate

__all__ = ["mask"]


def check_fits(what: str, shape: tuple[int, ...], table: tuple[int, int]) -> None:
    if not fits(shape, table):
        raise CompositionError(
            f"a mask over {table[0]} queries and {table[1]} keys has shape {table}, where 1 counts "
            f"for all; {what} gives {shape}"
        )


def check_table(name: str, table: ArrayLike, shape: tuple[int, int]) -> None:
    if jnp.result_type(table) != jnp.bool_:
        raise CompositionError(
            f"a mask is boolean, True = may attend; {name} is {jnp.result_type(table)}: pass "
            f"{name} != 0 if 1 is visible, {name} == 0 if it is added to scores (0 visible, "
            "-inf hidden)"
        )
    if jnp.ndim(table) != 2:
        raise CompositionError(
            f"a mask of one sequence and head has shape (T, S); {name} has {jnp.shape(table)}: map "
            f"it together with x, each(term), or give each head its own, heads(n, f, {name}=…)"
        )
    check_fits(f"read({name!r})", jnp.shape(table), shape)


def written_by_user(part: Predicate) -> bool:
    """Whether a predicate is a function, or a class, that is none of this package's."""
    function = isinstance(part, predicate) and not part.label
    return function or not type(part).__module__.startswith(PACKAGE)


@form
class mask(Leaf):
    """Lets each query see only the keys that a predicate allows: Scores -> Scores.

    It takes a predicate, a function of marks, or `read(name)` for a boolean (T, S) table. Masks
    commute with everything between score and normalize and combine by `&`, so they are evaluated
    first, before any number is made. A query that sees nothing gets weights 0 and output 0.

    Raises CompositionError for a mask that is not boolean, or of a shape that is not (T, S).

    >>> mask(causal & window(4) & same("segments"))
    mask(causal & window(4) & same('segments'))
    """

    role = "masks"

    rowwise = True

    predicate: Any

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "predicate", as_predicate(self.predicate))

    marked = True

    @property
    def facts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.predicate.rows

    @functools.cached_property
    def row_facts(self) -> frozenset[str]:
        return self.reads.difference(self.predicate.tables)

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        return frozenset().union(*self.facts)

    def flow(self, kind: Kind) -> Kind:
        if kind is None or isinstance(kind, (Entries, Scores)):
            return kind
        raise CompositionError(mistaken(self, "scores", kind))

    def visible(self, marks: Marks) -> Bool[Array, "t s"]:
        """What a tile's queries may see: boolean, broadcasting to (t, s)."""
        visible = jnp.asarray(self.predicate(marks.query, marks.key))
        if visible.dtype != jnp.bool_:
            raise CompositionError(
                f"a mask is boolean, True = may attend; {self.predicate!r} gives {visible.dtype}"
            )
        return visible

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        if not isinstance(x, (Entries, Scores)):
            raise CompositionError(mistaken(self, "scores", x))
        if x.marks is None:
            raise after_union(self)
        shape = (x.marks.query.length, x.marks.key.length)
        for name in () if x.marks.in_part else self.predicate.tables:
            check_table(name, context[name], shape)
        for name in self.predicate.each_row:
            if not jnp.ndim(context[name]):
                raise CompositionError(
                    f"{name} has one entry per row, and here it is a single number; jax.vmap maps "
                    f"every keyword over its first axis: each(term, fixed=({name!r},)) keeps it "
                    "whole"
                )
        marks: Any = spread(self, x.marks, context)
        for part in () if x.marks.in_part else self.predicate.leaves:
            if written_by_user(part):
                check_pairs(repr(part), part, marks)
        visible = self.visible(marks)
        check_fits(repr(self.predicate), visible.shape, shape)
        visible = jnp.broadcast_to(visible, shape)
        all_seen, all_see = self.diagonal(x.marks)
        if x.visible is not None:
            visible = x.visible & visible
            all_seen, all_see = (
                all_seen and x.active_keys is None,
                all_see and x.active_queries is None,
            )
        keys = None if all_seen else visible.any(0)
        queries = None if all_see else visible.any(1)
        return x.replace(visible=visible, active_keys=keys, active_queries=queries)

    def diagonal(self, marks: Marks) -> tuple[bool, bool]:
        """Whether every key is certainly seen by some query, and every query certainly sees some
        key: known without looking at the table where a query may see the key at its own place.
        """
        query, key = marks.query.position, marks.key.position
        if not isinstance(query, Range) or not isinstance(key, Range):
            return False, False
        if symbolic((query.length, key.length)):
            return False, False
        start, stop = max(query.start, key.start), min(query.stop, key.stop)
        place = np.arange(start, stop, dtype=np.int32)[:, None, None, None]
        queries, keys = (
            Rows(Span.point(place), Span.point(place - np.int32(side.start)))
            for side in (query, key)
        )
        if not np.all(self.predicate.ask(queries, keys).every):
            return False, False
        return key == Range(start, stop - start), query == Range(start, stop - start)
