"""The logic of masks: predicates are values that combine with &, | and ~."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from jax import Array
from jaxtyping import Bool

from .core.errors import CompositionError
from .core.guards import as_names
from .core.kinds import told
from .core.marks import PairFunction, Rows
from .core.pairs import answered
from .core.source import reference
from .intervals.program import Program
from .intervals.three_valued import ANYTHING, Maybe, truth
from .primitives import read

__all__ = ["Predicate", "predicate"]

Class = TypeVar("Class")
Answer = TypeVar("Answer", Array, Maybe)


@dataclass_transform(frozen_default=True)
def value(cls: type[Class]) -> type[Class]:
    """A frozen dataclass that keeps the predicate's own repr."""
    return dataclasses.dataclass(frozen=True, repr=False)(cls)


class Predicate:
    """Which keys a query may see, as a function of marks: `predicate(query, key)` -> boolean.

    `rows` names the facts that it wants in query[name] and in key[name] beside `position` and
    `index`.
    """

    rows: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    tables: tuple[str, ...] = ()
    """Context that is a whole table, (T, S)."""
    each_row: tuple[str, ...] = ()
    """Context that has one entry per row, where a single number cannot be meant."""

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def ask(self, query: Rows, key: Rows, computing: bool = True) -> Maybe:
        """What it says of rows that hold spans: bounds of blocks, distances, or single numbers,
        on which JAX may be `computing` what there is no rule for.

        A predicate that asks for more may hold of any pair; what is wrong with it itself shows
        when it is called with arrays.
        """
        sides = zip(self.rows, (query.facts, key.facts), strict=True)
        if any(name not in facts for names, facts in sides for name in names):
            return ANYTHING
        try:
            return Program(self, query, key).seen(computing)
        except (TypeError, AttributeError, LookupError, ValueError):
            return ANYTHING

    @property
    def leaves(self) -> tuple[Predicate, ...]:
        """The predicates that it is put together from."""
        return (self,)

    def __and__(self, other: Predicate | read | PairFunction) -> Predicate:
        return Both(self, as_predicate(other))

    def __or__(self, other: Predicate | read | PairFunction) -> Predicate:
        return Either(self, as_predicate(other))

    def __invert__(self) -> Predicate:
        return Not(self)

    def __bool__(self) -> bool:
        raise CompositionError("predicates combine with &, | and ~, not with and, or and not")

    __rand__ = __and__
    __ror__ = __or__

    def __repr__(self) -> str:
        shown = [
            f"{value!r}"
            for field in dataclasses.fields(cast(Any, self))
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@value
class Pair(Predicate):
    """Two predicates as one."""

    symbol: ClassVar[str]
    first: Predicate
    second: Predicate

    @property
    def rows(self):
        pairs = zip(self.first.rows, self.second.rows, strict=True)
        return tuple(tuple(dict.fromkeys(a + b)) for a, b in pairs)

    @property
    def tables(self):
        return self.first.tables + self.second.tables

    @property
    def each_row(self):
        return self.first.each_row + self.second.each_row

    @property
    def leaves(self):
        return self.first.leaves + self.second.leaves

    def join(self, first: Answer, second: Answer) -> Answer:
        raise NotImplementedError(f"{type(self).__name__} does not define join")

    def __repr__(self) -> str:
        # Python reads a & b & c from the left: no brackets there.
        left = isinstance(self.first, Pair) and type(self.first) is not type(self)
        first = f"({self.first!r})" if left else repr(self.first)
        return f"{first} {self.symbol} {apart(self.second)}"

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        return self.join(self.first(query, key), self.second(query, key))

    def ask(self, query: Rows, key: Rows, computing: bool = True) -> Maybe:
        asked = (part.ask(query, key, computing) for part in (self.first, self.second))
        return self.join(*asked)


@value
class Both(Pair):
    symbol = "&"

    def join(self, first: Answer, second: Answer) -> Answer:
        return first & second


@value
class Either(Pair):
    symbol = "|"

    def join(self, first: Answer, second: Answer) -> Answer:
        return first | second


@value
class Not(Predicate):
    inner: Predicate

    @property
    def leaves(self):
        return self.inner.leaves

    @property
    def rows(self):
        return self.inner.rows

    @property
    def tables(self):
        return self.inner.tables

    @property
    def each_row(self):
        return self.inner.each_row

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        return ~truth(self.inner(query, key))

    def ask(self, query: Rows, key: Rows, computing: bool = True) -> Maybe:
        return ~self.inner.ask(query, key, computing)

    def __repr__(self) -> str:
        return f"~{apart(self.inner)}"


def apart(part: Predicate) -> str:
    """A part's text, in brackets if it is a pair."""
    return f"({part!r})" if isinstance(part, Pair) else repr(part)


@value
class predicate(Predicate):
    """Any function of the marks of queries and keys as a predicate.

    It answers for each pair: from query.position (T, 1) and key.position (1, S) it gives (T, S), or
    1 along a side that it does not look at. `names` is context that has one entry per row of
    queries, of keys or of both, or one for all: `query[name]`, `key[name]`.

    A stream skips the blocks in which the predicate holds for no pair. It finds them from the least
    and the largest position, index and fact of each block of rows, which bound what is computed of
    integers and truths by `+ - * // %`, powers, comparisons, `& | ^ ~ << >>`, jnp.abs, sign,
    minimum, maximum, clip, where, any and all, by changes of shape or type, and by entries of a
    table, `table[query.position]`. The rest, such as floats, is computed for all pairs: once when
    it is traced where positions tell up to 2²⁸ of them, otherwise when it runs, if that costs less
    than the blocks. Where it does not, every block is visited, and `describe` says so.

    Raises CompositionError, when it runs, for a result that folds a side up.

    >>> even = predicate(lambda query, key: key.position % 2 == 0)
    >>> mask(causal & even).predicate.first
    causal
    """

    function: PairFunction
    names: str | tuple[str, ...] = ()
    label: str = ""

    def __post_init__(self):
        object.__setattr__(self, "names", as_names(self.names, "predicate"))

    @property
    def rows(self):
        names = as_names(self.names, "predicate")
        return names, names

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        return truth(answered(self, self.function(query, key)))

    def __repr__(self) -> str:
        names = f", {self.names!r}" if self.names else ""
        return self.label or f"predicate({reference(self.function)}{names})"


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

    def __call__(self, query: Rows, key: Rows) -> Bool[Array, "t s"]:
        return key.take(query[self.name], 1)

    def __repr__(self) -> str:
        return f"read({self.name!r})"


def as_predicate(what: object) -> Predicate:
    """The predicate that a user means by a predicate, a function of marks, or `read(name)`."""
    if isinstance(what, Predicate):
        return what
    if isinstance(what, read):
        return captured(what.label)
    name = getattr(what, "__name__", "")
    if isinstance(what, type) and issubclass(what, Predicate):
        raise CompositionError(f"{name} is a predicate not called: write {name}(…)")
    if callable(what) and not hasattr(what, "wire"):
        return predicate(cast(Any, what))
    kind = getattr(what, "dtype", None)
    shown = f"an array of {kind}" if kind is not None else told(what)
    raise CompositionError(
        f"a mask is a predicate such as causal, a boolean function of marks, or read(name), "
        f"True = may attend; not {shown}"
    )
