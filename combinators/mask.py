"""mask: which keys may a query see? Predicates are values that combine with &, | and ~.

A predicate is one function of the marks of queries and keys. True means: may attend. It is a
boolean, never a number: masks combine before any number is made.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import CompositionError
from .project import at_least_one
from .records import Entries, Marks, Range, Rows, Scores
from .term import Context, Leaf, form, mistaken, reference, spread
from .values import read

__all__ = [
    "Predicate", "block_causal", "causal", "dilated", "mask", "predicate", "prefix", "same", "valid",
    "window",
]  # fmt: skip

value = dataclasses.dataclass(frozen=True, repr=False)


class Predicate:
    """Which keys a query may see, as a function of marks: `predicate(query, key)` -> boolean.

    `rows` names the facts that it wants in query[name] and in key[name] beside `position` and
    `index`.
    """

    rows: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    tables: tuple[str, ...] = ()

    def __call__(self, query: Rows, key: Rows) -> Array:
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def __and__(self, other: Any) -> Predicate:
        return Both(self, as_predicate(other))

    def __or__(self, other: Any) -> Predicate:
        return Either(self, as_predicate(other))

    def __invert__(self) -> Predicate:
        return Not(self)

    __rand__ = __and__
    __ror__ = __or__

    def __repr__(self) -> str:
        shown = [
            f"{value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@value
class Pair(Predicate):
    """Two predicates as one."""

    first: Predicate
    second: Predicate

    @property
    def rows(self):
        pairs = zip(self.first.rows, self.second.rows, strict=True)
        return tuple(tuple(dict.fromkeys(a + b)) for a, b in pairs)

    @property
    def tables(self):
        return self.first.tables + self.second.tables


@value
class Both(Pair):
    def __call__(self, query: Rows, key: Rows) -> Array:
        return self.first(query, key) & self.second(query, key)

    def __repr__(self) -> str:
        return f"({self.first!r} & {self.second!r})"


@value
class Either(Pair):
    def __call__(self, query: Rows, key: Rows) -> Array:
        return self.first(query, key) | self.second(query, key)

    def __repr__(self) -> str:
        return f"({self.first!r} | {self.second!r})"


@value
class Not(Predicate):
    inner: Predicate

    @property
    def rows(self):
        return self.inner.rows

    @property
    def tables(self):
        return self.inner.tables

    def __call__(self, query: Rows, key: Rows) -> Array:
        return ~self.inner(query, key)

    def __repr__(self) -> str:
        return f"~{self.inner!r}"


@value
class predicate(Predicate):
    """Any function of the marks of queries and keys as a predicate.

    `rows` names context that has one entry per row, or one for all: `query[name]`, `key[name]`.

    >>> even = predicate(lambda query, key: key.position % 2 == 0)
    >>> mask(causal & even).predicate.first
    causal
    """

    function: Callable[[Rows, Rows], Array]
    names: tuple[str, ...] = ()
    label: str = ""

    @property
    def rows(self):
        return self.names, self.names

    def __call__(self, query: Rows, key: Rows) -> Array:
        return self.function(query, key)

    def __repr__(self) -> str:
        names = f", {self.names!r}" if self.names else ""
        return self.label or f"predicate({reference(self.function)}{names})"


def at_or_before(query: Rows, key: Rows) -> Array:
    return key.position <= query.position


causal = predicate(at_or_before, label="causal")
"""A query sees the keys at its own position and before."""


@value
class window(Predicate):
    """|distance| < w: with `causal` exactly w keys, the query's own included (Beltagy et al. 2020)."""

    width: int

    def __post_init__(self):
        at_least_one(self, width=self.width)

    def __call__(self, query: Rows, key: Rows) -> Array:
        apart = query.position - key.position
        return (apart < self.width) & (apart > -self.width)


@value
class prefix(Predicate):
    """The first p keys and, beyond them, `causal`: a prefix language model (Raffel et al. 2020)."""

    length: int

    def __call__(self, query: Rows, key: Rows) -> Array:
        return (key.position < self.length) | (key.position <= query.position)


@value
class dilated(Predicate):
    """Every d-th key, counted from the query's own position (Beltagy et al. 2020)."""

    step: int

    def __post_init__(self):
        at_least_one(self, step=self.step)

    def __call__(self, query: Rows, key: Rows) -> Array:
        return (query.position - key.position) % self.step == 0


@value
class block_causal(Predicate):
    """Causal from block to block of b positions, and both ways within a block."""

    size: int

    def __post_init__(self):
        at_least_one(self, size=self.size)

    def __call__(self, query: Rows, key: Rows) -> Array:
        return key.position // self.size <= query.position // self.size


@value
class same(Predicate):
    """Query and key carry the same number in the context: `same("segments")` keeps packed documents
    apart. Where keys come from elsewhere, `same("segments", "memory_segments")` names theirs."""

    query_name: str
    key_name: str = ""

    @property
    def rows(self):
        return (self.query_name,), (self.key_name or self.query_name,)

    def __call__(self, query: Rows, key: Rows) -> Array:
        return query[self.query_name] == key[self.key_name or self.query_name]


@value
class valid(Predicate):
    """The first n keys, n in the context: `valid("lengths")` keeps padding out."""

    name: str

    @property
    def rows(self):
        return (), (self.name,)

    def __call__(self, query: Rows, key: Rows) -> Array:
        return key.index < key[self.name]


@value
class captured(Predicate):
    """A boolean table (T, S) from the context, as `mask(read("adjacency"))` means it."""

    name: str

    @property
    def rows(self):
        return (self.name,), ()

    @property
    def tables(self):
        return (self.name,)

    def __call__(self, query: Rows, key: Rows) -> Array:
        return key.take(query[self.name], 1)

    def __repr__(self) -> str:
        return f"read({self.name!r})"


def as_predicate(value: Any) -> Predicate:
    if isinstance(value, Predicate):
        return value
    if isinstance(value, read):
        return captured(value.label)
    if isinstance(value, type) and issubclass(value, Predicate):
        raise CompositionError(
            f"{value.__name__} is a predicate not called: write {value.__name__}(…)"
        )
    if callable(value) and not hasattr(value, "wire"):
        return predicate(value)
    shown = f"an array of {value.dtype}" if hasattr(value, "dtype") else repr(value)
    raise CompositionError(
        f"a mask is a predicate such as causal, a boolean function of marks, or read(name), "
        f"True = may attend; not {shown}"
    )


def check_table(name: str, table: Any) -> None:
    if jnp.result_type(table) != jnp.bool_:
        raise CompositionError(
            f"a mask is boolean, True = may attend; {name} is {jnp.result_type(table)}: pass "
            f"{name} != 0"
        )
    if jnp.ndim(table) != 2:
        raise CompositionError(
            f"a mask of one sequence and head has shape (T, S); {name} has {jnp.shape(table)}: map "
            f"it together with x, each(term), or give each head its own, heads(n, f, {name}=…)"
        )


@form
class mask(Leaf):
    """Lets each query see only the keys that a predicate allows: Scores -> Scores.

    It takes a predicate, a function of marks, or `read(name)` for a boolean (T, S) table. Masks
    commute with everything between score and normalize and combine by `&`, so they are evaluated
    first, before any number is made. A query that sees nothing gets weights 0 and output 0.

    Raises CompositionError for a mask that is not boolean, or of a shape that is not (T, S).

    >>> mask(causal & window(4) & same("segments"))
    mask(((causal & window(4)) & same('segments')))
    """

    predicate: Any

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "predicate", as_predicate(self.predicate))

    @property
    def facts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.predicate.rows

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        return frozenset().union(*self.facts)

    def flow(self, kind: Any) -> Any:
        if kind is None or isinstance(kind, (Entries, Scores)):
            return kind
        raise CompositionError(mistaken(self, "scores", kind))

    def visible(self, marks: Marks) -> Array:
        """What a tile's queries may see: boolean, broadcasting to (t, s)."""
        visible = jnp.asarray(self.predicate(marks.query, marks.key))
        if visible.dtype != jnp.bool_:
            raise CompositionError(
                f"a mask is boolean, True = may attend; {self.predicate!r} gives {visible.dtype}"
            )
        return visible

    def apply(self, params: Mapping[str, Array], x: Any, context: Context) -> Any:
        if not isinstance(x, (Entries, Scores)):
            raise CompositionError(mistaken(self, "scores", x))
        for name in self.predicate.tables:
            check_table(name, context[name])
        visible = self.visible(spread(self, x.marks, context))
        shape = (x.marks.query.length, x.marks.key.length)
        if visible.ndim > 2 or np.broadcast_shapes(visible.shape, shape) != shape:
            raise CompositionError(
                f"a mask over {shape[0]} queries and {shape[1]} keys has shape {shape}, where 1 "
                f"counts for all; {self.predicate!r} gives {visible.shape}"
            )
        visible = jnp.broadcast_to(visible, shape)
        if x.visible is not None:
            visible = x.visible & visible
        return x.replace(visible=visible, live=self.live(x, visible))

    def live(self, x: Any, visible: Array) -> Array | None:
        """The keys that some query sees; None where all are, known without looking at the table.

        A key is certainly seen where the query at its own place may see it.
        """
        if (x.visible is None or x.live is None) and self.sees_itself(x.marks):
            return None
        return visible.any(0)

    def sees_itself(self, marks: Marks) -> bool:
        query, key = marks.query.position, marks.key.position
        static = isinstance(query, Range) and isinstance(key, Range) and not any(self.facts)
        if not static or not (
            query.start <= key.start and key.start + key.length <= query.start + query.length
        ):
            return False
        with jax.ensure_compile_time_eval():
            diagonal = np.arange(key.start, key.start + key.length)
            rows = Rows(diagonal, diagonal - key.start)
            return bool(np.all(self.predicate(Rows(diagonal, diagonal - query.start), rows)))
