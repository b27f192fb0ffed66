"""Terms: immutable descriptions of pure functions with parameters.

A term is a small tree of frozen dataclasses and holds no arrays: what is learned is a parameter,
any other array is context. There are two sorts. A *leaf* computes: it declares `parameters(x)`
and applies itself, `apply(params, x, context)`. A *form* combines: it has `parts`, and `wire`
says how data flows among them. What it means to run a part is left to an execution (`Run`), so
one wiring serves the plain call, the declaration of parameters, and every other execution.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
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

from .context import Context
from .errors import CompositionError
from .execution import Name, Run
from .guards import ARRAYS, check_class
from .kinds import Width, mistaken
from .printing import ATOM, Write, equation, laid_out
from .records import Entries, Scores, Weights
from .source import arguments, imported, portable, written

__all__ = ["Term"]

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
Later = TypeVar("Later")
Earlier = TypeVar("Earlier")
Class = TypeVar("Class")

Role = Literal["", "scores", "masks", "adjusts", "normalizes", "aggregates"]
"""What a term does in a lookup; a term that adjusts turns scores into scores, tile by tile."""


class Term(Generic[In, Out]):
    """An immutable, hashable description of a pure function with parameters.

    `term.init(rng, x, **context)` makes the parameters, `term(params, x, **context)` runs it.
    Terms compose with `@` (after), add with `+`, repeat with `**`.
    """

    word: ClassVar[str] = ""
    __array_ufunc__: ClassVar[None] = None  # NumPy leaves operators to the term
    parts: tuple[Term, ...]
    labels: tuple[str | None, ...] = ()
    written: tuple[str, int] | None
    given: bool = False
    repeats: int = 0
    role: ClassVar[Role] = ""
    bare: ClassVar[bool] = False
    """Whether the term is a value of the vocabulary, such as softmax, and printed by its name."""
    binding: int = ATOM

    def __new__(cls, *args, **keywords):
        check_class(cls)
        term = object.__new__(cls)
        object.__setattr__(term, "written", written())
        return term

    def __post_init__(self):
        for field in dataclasses.fields(cast(Any, self)):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
            elif isinstance(value, (jax.Array, np.ndarray)):
                raise CompositionError(
                    f"{self.name} got an array for {field.name}, and terms hold no arrays: {ARRAYS}"
                )
        self.layout  # noqa: B018 - names that collide are refused here

    # What a term is: its fields.

    @cached_property
    def fields(self) -> tuple[Any, ...]:
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
        """The word by which a form names this part's parameters."""
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

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (type(self), tuple(map(portable, self.fields)), self.written)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The context that this term or a part of it reads, by name."""
        return frozenset().union(*(part.reads for part in self.parts))

    @cached_property
    def row_facts(self) -> frozenset[str]:
        """The context that tells something of each row, by name: its integers become int32."""
        return frozenset().union(*(part.row_facts for part in self.parts))

    @property
    def constant(self) -> bool:
        """Whether what comes out does not depend on x (it comes from context or parameters)."""
        return False

    def follows(self, made: frozenset[str]) -> bool:
        """Whether its rows come from those of x: it takes them, or reads a name made of them."""
        return not self.constant or bool(self.reads & made)

    @property
    def mapped_axes(self) -> int:
        """How many axes of x `each` maps before the term sees a sequence."""
        return 0

    # What a term does.

    def flow(self, kind: Any) -> Any:
        """The kind of value that comes out when `kind` goes in; raises when it cannot go in."""
        if isinstance(kind, (Entries, Scores, Weights)):
            raise CompositionError(mistaken(self, "an array", kind))
        return Width()

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        """How data flows through the term's parts under an execution."""
        raise NotImplementedError(f"{type(self).__name__} defines neither apply nor wire")

    if TYPE_CHECKING:  # `operators` gives terms these: they are words, and words build on terms.

        @property
        def init(self) -> Callable[..., dict[str, Any]]: ...
        def __call__(
            self, params: Mapping[str, Any] = ..., x: In = ..., /, **context: Any
        ) -> Out: ...
        def __matmul__(self, earlier: Term[Earlier, In]) -> Term[Earlier, Out]: ...
        def __rmatmul__(self, later: Any) -> Term: ...
        def __add__(self, other: Any) -> Term: ...
        def __radd__(self, other: Any) -> Term: ...
        def __sub__(self, other: Any) -> Term: ...
        def __rsub__(self, other: Any) -> Term: ...
        def __mul__(self, factor: Any) -> Term: ...
        def __rmul__(self, factor: Any) -> Term: ...
        def __pow__(self, count: int) -> Term: ...

    # Where its parameters lie.

    @cached_property
    def layout(self) -> tuple[tuple[Name, ...], tuple[Export, ...]]:
        """Each part's place among this term's parameters, and every place with its word.

        Parts are named by their word in order of application, a second one `word_2` and so on. A
        composition that is a part is transparent: its stages are named here. Only `named` and a
        form's own labels (query, key, value) stand by themselves.
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
        """The places that this term hands to the form around it; None when it is one place."""
        return None


def exact(value: Any) -> Any:
    """A field as terms compare it: 1 and 1.0, equal to Python, give numbers of other types."""
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    return (type(value), value) if isinstance(value, (int, float)) else value


def rebuilt(cls: type[Term], fields: tuple[Any, ...], written: tuple[str, int] | None) -> Term:
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
    """A place among a form's parameters, the word it comes from, and whether it was given."""

    place: str
    word: str
    given: bool
