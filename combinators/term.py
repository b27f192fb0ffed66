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
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .context import OwnNames
from .dtypes import widened
from .errors import CompositionError
from .guards import ARRAYS, check_class
from .kinds import Width, mistaken, told
from .parameter import Parameter
from .records import Entries, Marks, Scores, Weights
from .run import Context, Name, Run
from .written import PACKAGE, Write, arguments, imported, portable, written

__all__ = ["Leaf", "Parameter", "Stage", "Term"]

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
Later = TypeVar("Later")
Earlier = TypeVar("Earlier")
Class = TypeVar("Class")

MISSING: Any = dataclasses.MISSING


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
        return self.text(str)

    def text(self, write: Write) -> str:
        """The term in words, its parts by `write`: repr for Python, str for the equation."""
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

    @cached_property
    def init(self) -> Callable[..., dict[str, Any]]:
        """`term.init(rng, x, **context)`: the parameters; every shape is checked.

        x and the context may be abstract (jax.ShapeDtypeStruct). Randomness is addressed by the
        stage's path, so adding a stage leaves the others' parameters as they are.
        """
        from .declare import Init

        return Init(self)

    def __call__(
        self, params: Mapping[str, Any] = MISSING, x: In = MISSING, /, **context: Any
    ) -> Out:
        """Run the term: pure, so it goes into jit, vmap, grad and the rest as it is."""
        from .apply import call
        from .choose import Choose

        return call(self, params, x, context, Choose)[0]

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

    # How terms are written.

    def __matmul__(self, earlier: Term[Earlier, In]) -> Term[Earlier, Out]:
        from .compose import compose

        return compose(self, earlier)

    def __rmatmul__(self, later: Any) -> Term:
        from .compose import compose

        return compose(later, self)

    def __add__(self, other: Any) -> Term:
        from .arithmetic import add

        return add(self, other)

    def __radd__(self, other: Any) -> Term:
        from .arithmetic import add

        return add(other, self)

    def __sub__(self, other: Any) -> Term:
        from .arithmetic import subtract

        return subtract(self, other)

    def __rsub__(self, other: Any) -> Term:
        from .arithmetic import subtract

        return subtract(other, self)

    def __mul__(self, factor: Any) -> Term:
        from .arithmetic import scaled

        return scaled(self, factor)

    __rmul__ = __mul__

    def __pow__(self, count: int) -> Term:
        from .repeat import repeat

        return repeat(count, self)


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


class Leaf(Term[In, Out]):
    """A primitive: what it learns, and what it computes. The base for your own.

    Write a frozen dataclass with two pure methods; widths are read off x, never written twice.

    >>> import dataclasses, jax, jax.numpy as jnp
    >>> @dataclasses.dataclass(frozen=True)
    ... class shift(Leaf):
    ...     def parameters(self, x):
    ...         return {"by": Parameter(x.shape[-1:], jax.nn.initializers.ones, ("out",))}
    ...     def apply(self, params, x, context):
    ...         return x + params["by"]
    >>> params = shift().init(jax.random.key(0), jnp.zeros((2, 3)))
    >>> shift()(params, jnp.zeros((2, 3)))[0]
    Array([1., 1., 1.], dtype=float32)
    """

    parts = ()
    random: ClassVar[bool] = False
    rowwise: ClassVar[bool] = False
    """Whether a row of what it gives depends on that row of x alone, and may run step by step."""

    @property
    def learns(self) -> bool:
        """Whether it may declare parameters of its own."""
        return type(self).parameters is not Leaf.parameters

    def parameters(self, x: Any) -> dict[str, Parameter]:
        """What is learned, from the (abstract) value that goes in."""
        return {}

    def apply(self, params: Mapping[str, Array], x: Any, context: Context) -> Any:
        """The equation."""
        raise NotImplementedError(f"{type(self).__name__} does not define apply")

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        return run.leaf(self, x, context)


class Stage(Leaf[Scores, Scores]):
    """A step between score and normalize: one pure function of a tile of scores.

    `operands` is whatever the tile needs of parameters and context beside the scores and marks;
    `tile` sees one tile: score (t, s), and marks with every fact laid along its axis, so that
    `marks.query.position - marks.key.position` is a (t, s) table. Executions call `apply`, with
    the whole table as one tile or with many small ones, and `apply` calls these two.
    """

    rowwise = True

    @property
    def marked(self) -> bool:
        """Whether the tile looks at marks."""
        return False

    @property
    def facts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The context that the tile finds in marks.query and in marks.key, by name."""
        return (), ()

    @cached_property
    def row_facts(self) -> frozenset[str]:
        return frozenset().union(*self.facts)

    @cached_property
    def reads(self) -> frozenset[str]:
        return self.row_facts

    def operands(self, params: Mapping[str, Array], context: Context) -> Any:
        return params

    def tile(self, operands: Any, score: Array, marks: Marks | None) -> Array:
        """The equation, on one tile."""
        raise NotImplementedError(f"{type(self).__name__} does not define tile")

    def flow(self, kind: Any) -> Any:
        if kind is None:
            return Scores(Width(), Width(), None)
        if not isinstance(kind, Scores):
            raise CompositionError(mistaken(self, "scores", kind))
        return kind

    def apply(self, params: Mapping[str, Array], x: Scores, context: Context) -> Scores:
        marks = spread(self, x.marks, context)
        score = self.tile(self.operands(params, context), x.covered, marks)
        return x.replace(score=widened(of_pairs(self, score, x.score)))


def of_pairs(term: Any, table: Any, before: Array) -> Any:
    """A table in place of another: one number for each pair of a query and a key, as before."""
    if jnp.shape(table) != before.shape:
        raise CompositionError(
            f"{term!r} gives one number for each pair of a query and a key, {before.shape}, and "
            f"here it gives {jnp.shape(table)}"
        )
    return table


def spread(term: Any, marks: Marks | None, context: Context) -> Marks | None:
    """Marks with the facts that a stage asks for, laid along the axes of the whole table."""
    if marks is None:
        if term.marked:
            raise after_union(term)
        return None
    query, key = term.facts
    return marks.read(query, key, context).spread()


def after_union(term: Term) -> CompositionError:
    """After union, rows of several dictionaries stand side by side, and marks mean nothing."""
    return CompositionError(
        f"write {term!r} inside each branch of union, before keys of several dictionaries stand "
        "side by side"
    )


def as_function(value: Any, word: str, takes: str) -> Any:
    """The value if it is a plain function; else an error that says what the word takes."""
    if isinstance(value, type) and value.__module__.startswith(PACKAGE):
        raise CompositionError(f"{value.__name__} is a word not called: write {value.__name__}(…)")
    if isinstance(value, Term) and takes == "a plain function":
        raise CompositionError(f"{word} takes {takes}, and {value!r} is a term already")
    if isinstance(value, Term) or not callable(value):
        raise CompositionError(f"{word} takes {takes}, not {told(value)}")
    return value


def as_term(value: Any, where: str) -> Term:
    """The value if it is a term; else an error that says how to make it one."""
    if isinstance(value, Term):
        return value
    name = getattr(value, "__name__", "")
    if hasattr(value, "shape"):
        fix = f"{told(value)} is not a term: {ARRAYS}"
    elif not callable(value) or not name:
        fix = f"{told(value)} is not a term; terms are built from words such as linear(64)"
    elif not getattr(value, "__module__", "").startswith(PACKAGE):
        shown = name if name.isidentifier() else "…"
        fix = (
            f"{name} is a plain function: write lift({shown}), or pointwise({shown}) if it acts "
            "position by position"
        )
    else:
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else (None,)
        needed = [f for f in fields if f is None or f.default is dataclasses.MISSING]
        fix = f"{name} is a word not called: write {name}({'…' if needed else ''})"
    raise CompositionError(f"{where} joins terms, and {fix}")
