"""Predicates: which keys may a query see, as values that combine with &, | and ~."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool

from .core.arguments import at_least
from .core.dtypes import uncounted
from .core.errors import CompositionError
from .core.guards import as_name
from .core.marks import Rows
from .core.source import documented
from .logic import Predicate, predicate, value

__all__ = ["block_causal", "causal", "dilated", "prefix", "same", "valid", "window"]


def at_or_before(query: Rows, key: Rows) -> Bool[Array, "t s"]:
    return key.position <= query.position


causal = documented(
    "A query sees the key at its own position and those before it.",
    predicate(at_or_before, label="causal"),
)


@value
class window(Predicate):
    """|distance| < w: with `causal` exactly w keys, its own included (Beltagy et al. 2020).

    >>> query, keys = Rows(3, 3), Rows(jnp.arange(6), jnp.arange(6))
    >>> window(2)(query, keys).astype(int)
    Array([0, 0, 1, 1, 1, 0], dtype=int32)
    """

    width: int

    def __post_init__(self):
        at_least(1, self, width=self.width)

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        apart = query.position - key.position
        return (apart < self.width) & (apart > -self.width)


@value
class prefix(Predicate):
    """The first p keys and, beyond them, `causal`: a prefix language model (Raffel et al. 2020).

    >>> query, keys = Rows(1, 1), Rows(jnp.arange(6), jnp.arange(6))
    >>> prefix(4)(query, keys).astype(int)
    Array([1, 1, 1, 1, 0, 0], dtype=int32)
    """

    length: int

    def __post_init__(self):
        at_least(0, self, length=self.length)

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        return (key.position < self.length) | (key.position <= query.position)


@value
class dilated(Predicate):
    """Every d-th key, counted from the query's own position (Beltagy et al. 2020).

    >>> query, keys = Rows(3, 3), Rows(jnp.arange(6), jnp.arange(6))
    >>> dilated(2)(query, keys).astype(int)
    Array([0, 1, 0, 1, 0, 1], dtype=int32)
    """

    step: int

    def __post_init__(self):
        at_least(1, self, step=self.step)

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        return (query.position - key.position) % self.step == 0


@value
class block_causal(Predicate):
    """Causal from block to block of b positions, and both ways within a block.

    >>> query, keys = Rows(2, 2), Rows(jnp.arange(6), jnp.arange(6))
    >>> block_causal(2)(query, keys).astype(int)
    Array([1, 1, 1, 1, 0, 0], dtype=int32)
    """

    size: int

    def __post_init__(self):
        at_least(1, self, size=self.size)

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        return key.position // self.size <= query.position // self.size


@value
class same(Predicate):
    """Query and key carry the same number in the context: `same("segments")` keeps packed documents
    apart. Where keys come from elsewhere, `same("segments", "memory_segments")` names theirs.

    Raises CompositionError for floats.

    >>> query = Rows(2, 2, {"segments": 1})
    >>> keys = Rows(jnp.arange(4), jnp.arange(4), {"segments": jnp.array([0, 1, 1, 2])})
    >>> same("segments")(query, keys).astype(int)
    Array([0, 1, 1, 0], dtype=int32)
    """

    query_name: str
    key_name: str = ""

    def __post_init__(self):
        for name in (self.query_name, self.key_name or self.query_name):
            as_name(name, "same")

    @property
    def rows(self):
        return (self.query_name,), (self.key_name or self.query_name,)

    @property
    def each_row(self):
        return (self.query_name, self.key_name or self.query_name)

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        names = self.query_name, self.key_name or self.query_name
        for name, fact in zip(names, (query[names[0]], key[names[1]]), strict=True):
            refuse_floats(self, name, fact)
        return query[names[0]] == key[names[1]]


@value
class valid(Predicate):
    """The first n keys, n in the context: `valid("lengths")` keeps padding out.

    The name holds one number; an attention mask of 1 and 0 is none, its `mask.sum(-1)` is.

    Raises CompositionError for booleans, floats, and one entry per row.

    >>> query, keys = Rows(0, 0), Rows(jnp.arange(4), jnp.arange(4), {"lengths": 3})
    >>> valid("lengths")(query, keys).astype(int)
    Array([1, 1, 1, 0], dtype=int32)
    """

    name: str

    def __post_init__(self):
        as_name(self.name, "valid")

    @property
    def rows(self):
        return (), (self.name,)

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        length = key[self.name]
        refuse_floats(self, self.name, length)
        if getattr(length, "dtype", None) == "bool":
            raise CompositionError(
                f"{self!r} keeps the first n keys, and {self.name} is boolean: pass numbers, for "
                "an attention mask mask.sum(-1)"
            )
        if getattr(length, "size", 1) > 1:
            raise CompositionError(
                f"{self!r} keeps the first n keys, and {self.name} has an entry for each of "
                f"{length.size} rows: pass one number, {self.name}.sum(-1) for an attention mask "
                f"that ends in zeros; same({self.name!r}) keeps rows of 1 and 0 apart wherever "
                "they are"
            )
        return key.index < length


def refuse_floats(which: Predicate, name: str, value: ArrayLike) -> None:
    kind = getattr(value, "dtype", None)
    if kind is not None and not (kind == "bool" or jnp.issubdtype(kind, jnp.integer)):
        raise CompositionError(f"{which!r} compares numbers of rows: {uncounted(name, kind)}")
