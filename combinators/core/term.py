"""Terms: immutable descriptions of pure functions with parameters.

A term is a small tree of frozen dataclasses without arrays: a learned array is a parameter, any
other array is context. There are two kinds of term. A *leaf* computes: it declares `parameters(x)`
and defines `apply(params, x, context)`. A *form* combines: it has `parts`, and `wire` passes data
among them. An execution (`Run`) decides what running a part means, so one `wire` serves the plain
call, the declaration of parameters, and every other execution.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    cast,
    dataclass_transform,
)

import jax
import numpy as np
from jax import Array
from jaxtyping import PyTree

from .context import Context, OwnNames
from .errors import CompositionError
from .execution import Name, Run
from .guards import ARRAYS, check_class
from .kinds import Kind, Width, mistaken
from .printing import ATOM, Write, equation, laid_out
from .records import Entries, Scores, Weights
from .source import arguments, imported, portable, written
from .types import Params, Value

__all__ = ["Term"]

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
Later = TypeVar("Later")
Earlier = TypeVar("Earlier")
Class = TypeVar("Class")

Role = Literal["", "scores", "masks", "adjusts", "normalizes", "aggregates"]
"""The role of a term in a lookup; one that adjusts maps scores to scores, tile by tile."""


class Term(Generic[In, Out]):
    """An immutable, hashable description of a pure function with parameters.

    `term.init(rng, x, **context)` makes the parameters, `term(params, x, **context)` runs it.
    Terms compose with `@` (after), add with `+`, repeat with `**`.
    """

    __signature__ = OwnNames()
    word: ClassVar[str] = ""
    __array_ufunc__: ClassVar[None] = None  # NumPy leaves operators to the term
    parts: tuple[Term, ...]
    labels: tuple[str | None, ...] = ()
    written: tuple[str, int] | None
    given: bool = False
    repeats: int = 0
    role: ClassVar[Role] = ""
    bare: ClassVar[bool] = False
    """Whether the term is a constant of the vocabulary, such as softmax, printed by name."""
    binding: int = ATOM

    def __new__(cls, *args, **keywords):
        check_class(cls)
        term = object.__new__(cls)
        object.__setattr__(term, "written", written())
        return term

    def __post_init__(self):
        for field in dataclasses.fields(cast(Any, self)):
            value = getattr(self, field.name)
            if isinstance(value, (np.generic, tuple)):
                object.__setattr__(self, field.name, of_python(value))
            elif isinstance(value, (jax.Array, np.ndarray)):
                raise CompositionError(
                    f"{self.name} got an array for {field.name}, and terms hold no arrays: {ARRAYS}"
                )
        self.layout  # noqa: B018 - colliding names raise here, where the term is written

    # Identity: a term is its fields

    @cached_property
    def fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(cast(Any, self)))

    @cached_property
    def digest(self) -> int:
        return hash((type(self), exact(self.fields)))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other)
            and isinstance(other, Term)
            and self.digest == other.digest
            and exact(self.fields) == exact(other.fields)
        )

    def __hash__(self) -> int:
        return self.digest

    @property
    def name(self) -> str:
        """The word, under which a form keeps this part's parameters."""
        return self.word or type(self).__name__

    def __repr__(self) -> str:
        return self.text(repr)

    def __str__(self) -> str:
        return laid_out(equation(self))

    def text(self, write: Write) -> str:
        """The term on one line, its parts by `write`: `repr` for Python, or `equation`."""
        if self.bare:
            return self.name
        return f"{self.word or type(self).__name__}({arguments(self, write)})"

    def __reduce__(self) -> tuple[object, ...]:
        return rebuilt, (type(self), tuple(map(portable, self.fields)), self.written)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names in the context that this term, or a part of it, reads."""
        return frozenset().union(*(part.reads for part in self.parts))

    @cached_property
    def row_facts(self) -> frozenset[str]:
        """The names of row metadata in the context, such as segments: integers become int32."""
        return frozenset().union(*(part.row_facts for part in self.parts))

    @property
    def constant(self) -> bool:
        """Whether the output does not depend on x, but on context or parameters alone."""
        return False

    def follows(self, made: frozenset[str]) -> bool:
        """Whether its output has the rows of x: it reads x, or a name in `made` computed from x."""
        return not self.constant or bool(self.reads & made)

    @property
    def mapped_axes(self) -> int:
        """The number of axes of x that `each` maps, before the term sees a sequence."""
        return 0

    # Dataflow

    def flow(self, kind: Kind) -> Kind:
        """The kind of the output for an input of `kind`; raises CompositionError if none fits."""
        if isinstance(kind, (Entries, Scores, Weights)):
            raise CompositionError(mistaken(self, "an array", kind))
        return Width()

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        """The output for an input x, with the parts run by an execution."""
        raise NotImplementedError(f"{type(self).__name__} defines neither apply nor wire")

    if TYPE_CHECKING:  # set in `operators`, as operators are words and words build on terms

        @property
        def init(self) -> Callable[..., dict[str, PyTree[Array]]]: ...
        def __call__(self, params: Params = ..., x: In = ..., /, **context: Value) -> Out: ...
        def __matmul__(self, earlier: Term[Earlier, In]) -> Term[Earlier, Out]: ...
        def __rmatmul__(self, later: object) -> Term: ...
        def __add__(self, other: object) -> Term: ...
        def __radd__(self, other: object) -> Term: ...
        def __sub__(self, other: object) -> Term: ...
        def __rsub__(self, other: object) -> Term: ...
        def __mul__(self, factor: object) -> Term: ...
        def __rmul__(self, factor: object) -> Term: ...
        def __pow__(self, count: int) -> Term: ...

    # Places of parameters

    @cached_property
    def layout(self) -> tuple[tuple[Name, ...], tuple[Export, ...]]:
        """Each part's place among this term's parameters, and each place with its word.

        Parts are named by their word in the order of application; a second one is `word_2`. A
        composition as a part is transparent: its stages are named here, beside the other parts.
        Names given by `named`, and a form's labels (query, key, value), are taken unchanged.
        """
        seen: Counter[str] = Counter()
        exports: dict[str, Export] = {}

        def take(word: str, given: bool) -> str:
            seen[word] += 1
            place = word if given or seen[word] == 1 else f"{word}_{seen[word]}"
            if place in exports:
                raise CompositionError(
                    f"{self.name} has two parts called {place!r}: give one another name with "
                    f"named({place + '_b'!r}, …)"
                )
            exports[place] = Export(place, word, given)
            return place

        def settle(part: Term, label: str | None) -> Name:
            if label is not None and not part.given:
                return take(label, True)
            if part.exports is None:
                return take(part.name, False)
            return {export.place: take(export.word, export.given) for export in part.exports}

        labels = self.labels or (None,) * len(self.parts)
        names = tuple(settle(p, label) for p, label in zip(self.parts, labels, strict=True))
        return names, tuple(exports.values())

    @property
    def names(self) -> tuple[Name, ...]:
        return self.layout[0]

    @property
    def exports(self) -> tuple[Export, ...] | None:
        """The places that this term gives the form around it; None if it takes a single place."""
        return None


def of_python(value: object) -> object:
    """NumPy's scalars as numbers of Python, in tuples too: they print and compare as such."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(of_python, value)) if type(value) is tuple else value


def exact(value: object) -> object:
    """A field as terms compare it: with its type, as 1 == 1.0 in Python and dtypes differ."""
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    return (type(value), value) if isinstance(value, (int, float)) else value


def rebuilt(cls: type[Term], fields: tuple[object, ...], written: tuple[str, int] | None) -> Term:
    """A term from its fields, as pickle and copy need it."""
    term = object.__new__(cls)
    for field, value in zip(dataclasses.fields(cast(Any, cls)), fields, strict=True):
        object.__setattr__(term, field.name, imported(value))
    object.__setattr__(term, "written", written)
    return term


@dataclass_transform(frozen_default=True, eq_default=False)
def form(cls: type[Class]) -> type[Class]:
    """Makes a term class: a frozen dataclass that keeps the term's own equality, hash and repr."""
    return dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)


class Export(NamedTuple):
    """A place among a form's parameters, its word, and whether a user or a form gave the name."""

    place: str
    word: str
    given: bool
