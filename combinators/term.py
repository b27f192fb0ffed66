"""Terms: immutable descriptions of pure functions with parameters.

A term is a small tree of frozen dataclasses and holds no arrays: what is learned is a parameter,
any other array is context. There are two sorts. A *leaf* computes: it declares `parameters(x)`
and applies itself, `apply(params, x, context)`. A *form* combines: it has `parts`, and `wire`
says how data flows among them. What it means to run a part is left to an execution (`Run`), so
one wiring serves the plain call, the declaration of parameters, and every other execution.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from types import CodeType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import jax
import numpy as np
from jax import Array

from .errors import CompositionError
from .records import Entries, Marks, Scores, Weights, Width

__all__ = ["Leaf", "Parameter", "Run", "Stage", "Term"]

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
Later = TypeVar("Later")
Earlier = TypeVar("Earlier")

Context = dict[str, Any]
Initializer = Callable[[Array, tuple[int, ...], Any], Array]
Name = str | Mapping[str, str]
"""Where a part's parameters lie in its form's: under a name, under several names of the form
(a composition inside another form gives its stages' parameters to that form), or, for "", all."""

MISSING: Any = dataclasses.MISSING
PACKAGE = __name__.split(".")[0] + "."


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Parameter:
    """The declaration of one learned array: shape, initializer, and a logical name for each axis.

    `copies` records the axes that forms around the leaf added, innermost first: (axis, size), or
    None for a form whose copies share this parameter. `shared` names the forms that still have
    to skip it.
    """

    shape: tuple[int, ...]
    init: Initializer
    axes: tuple[str, ...]
    dtype: Any = None
    copies: tuple[tuple[int, int] | None, ...] = ()
    shared: frozenset[str] = frozenset()

    def __post_init__(self):
        if len(self.axes) != len(self.shape):
            raise CompositionError(f"a parameter of shape {self.shape} has axes {self.axes}")

    def copied(self, name: str, size: int, axis: Callable[[Parameter], int]) -> Parameter:
        """This parameter once per copy, along a new axis called `name`; or shared by the copies."""
        if name in self.shared:
            return dataclasses.replace(
                self, copies=(*self.copies, None), shared=self.shared - {name}
            )
        at = axis(self)
        return dataclasses.replace(
            self,
            shape=(*self.shape[:at], size, *self.shape[at:]),
            axes=(*self.axes[:at], name, *self.axes[at:]),
            copies=(*self.copies, (at, size)),
        )

    def inner(self) -> Parameter:
        """The parameter as one copy of the outermost form sees it."""
        last = self.copies[-1]
        rest = dataclasses.replace(self, copies=self.copies[:-1])
        if last is None:
            return rest
        at = last[0]
        drop = lambda items: items[:at] + items[at + 1 :]  # noqa: E731
        return dataclasses.replace(rest, shape=drop(self.shape), axes=drop(self.axes))

    def make(self, key: Array) -> Array:
        """The parameter's first value; every copy is drawn from a key of its own."""
        if not self.copies:
            return self.init(key, self.shape, self.dtype)
        inner, last = self.inner(), self.copies[-1]
        if last is None:
            return inner.make(key)
        return jax.vmap(inner.make, out_axes=last[0])(jax.random.split(key, last[1]))


class Term(Generic[In, Out]):
    """An immutable, hashable description of a pure function with parameters.

    `term.init(rng, x, **context)` makes the parameters, `term(params, x, **context)` runs it.
    Terms compose with `@` (after), add with `+`, repeat with `**`.
    """

    word: ClassVar[str] = ""
    parts: tuple[Term, ...]
    labels: tuple[str | None, ...] = ()
    given: bool = False
    repeats: int = 0

    def __new__(cls, *args, **keywords):
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
                    f"{self.name} got an array for {field.name}, and terms hold no arrays: what "
                    "is learned is a parameter (learned(shape)), any other array is context "
                    "(read(name))"
                )

    # What a term is: its fields.

    @cached_property
    def fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(cast(Any, self)))

    @cached_property
    def digest(self) -> int:
        return hash((type(self), self.fields))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other)
            and self.digest == other.digest
            and self.fields == other.fields
        )

    def __hash__(self) -> int:
        return self.digest

    @property
    def name(self) -> str:
        """The word by which a form names this part's parameters."""
        return self.word or type(self).__name__

    def __repr__(self) -> str:
        return f"{self.word or type(self).__name__}({arguments(self)})"

    def __str__(self) -> str:
        return repr(self)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The context that this term or a part of it reads, by name."""
        return frozenset().union(*(part.reads for part in self.parts))

    @property
    def constant(self) -> bool:
        """Whether what comes out does not depend on x (it comes from context or parameters)."""
        return False

    # What a term does.

    def flow(self, kind: Any) -> Any:
        """The kind of value that comes out when `kind` goes in; raises when it cannot go in."""
        if isinstance(kind, (Entries, Scores, Weights)):
            raise CompositionError(mistaken(self, "an array", kind))
        return Width()

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        """How data flows through the term's parts under an execution."""
        raise NotImplementedError(f"{type(self).__name__} defines neither apply nor wire")

    @property
    def init(self) -> Callable[..., dict[str, Any]]:
        """`term.init(rng, x, **context)`: the parameters; every shape is checked.

        x and the context may be abstract (jax.ShapeDtypeStruct). Randomness is addressed by the
        stage's path, so adding a stage leaves the others' parameters as they are.
        """
        from .parameters import Init

        return Init(self)

    def __call__(self, params: Mapping[str, Any], x: In = MISSING, **context: Any) -> Out:
        """Run the term: pure, so it goes into jit, vmap, grad and the rest as it is."""
        from .parameters import call

        return call(self, params, x, context)[0]

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
            if label is not None:
                exports[label] = Export(label, label, True)
                return label
            if part.exports is None:
                return take(part.name, part.given)
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

    def __add__(self, other: Term) -> Term:
        from .compose import add

        return add(self, other)

    def __sub__(self, other: Term) -> Term:
        from .compose import subtract

        return subtract(self, other)

    def __mul__(self, factor: Any) -> Term:
        from .compose import scaled

        return scaled(self, factor)

    __rmul__ = __mul__

    def __pow__(self, count: int) -> Term:
        from .repeat import repeat

        return repeat(count, self)


form = dataclasses.dataclass(frozen=True, eq=False, repr=False)
"""Makes a term class: a frozen dataclass that keeps the term's own equality, hash and repr."""


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

    `operands` is whatever the tile needs beside the scores and marks, computed once; `tile` is
    static and sees one tile: score (t, s), and marks with every fact laid along its axis, so
    that `marks.query.position - marks.key.position` is a (t, s) table. Every execution, with the
    whole table as one tile or many small ones, calls these two and nothing else.
    """

    @property
    def facts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The context that the tile finds in marks.query and in marks.key, by name."""
        return (), ()

    @cached_property
    def reads(self) -> frozenset[str]:
        return frozenset().union(*self.facts)

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
        return x.replace(score=self.tile(self.operands(params, context), x.score, marks))


class Run:
    """An execution: what it means to run a term's parts. Here is what all executions share.

    `outputs` is what an execution leaves behind beside the value, named like the parameters:
    declarations, observed values, new state.
    """

    def __init__(self, root: Any, path: tuple[str, ...] = (), aliases: Any = None):
        self.root, self.path, self.aliases = root, path, aliases or {}
        self.outputs: dict[str, Any] = {}

    def leaf(self, term: Leaf, x: Any, context: Context) -> Any:
        """Run a primitive."""
        raise NotImplementedError

    def enter(self, name: Name) -> Run:
        """This execution, for what lies under `name`."""
        raise NotImplementedError

    def place(self, name: Name) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """The path and the aliases of what lies under `name`."""
        if not isinstance(name, str):
            return self.path, {k: self.aliases.get(v, v) for k, v in name.items()}
        if not name:
            return self.path, self.aliases
        return (*self.path, self.aliases.get(name, name)), {}

    def part(self, form: Term, index: int, x: Any, context: Context) -> Any:
        """Run one part of a form."""
        name, part = form.names[index], form.parts[index]
        inner = self.enter(name)
        if isinstance(name, str) and name:
            with jax.named_scope(name):
                y = part.wire(inner, x, context)
        else:
            y = part.wire(inner, x, context)
        self.outputs = put(self.outputs, name, inner.outputs)
        return y

    def mapped(
        self, form: Term, x: Any, context: Context, size: int, axis: int | None,
        given: Context, copies: str | None,
    ) -> Any:  # fmt: skip
        """Run a form's one part `size` times side by side; results are stacked on axis 0.

        x is mapped over `axis` (None: every copy gets it whole), the context in `given` over axis
        0. `copies` names the axis of parameters that each copy has to itself.
        """
        inner = self.enter(form.names[0])
        arguments, axes, resume = inner.copies(copies)

        def one(arguments, x, given):
            run = resume(arguments)
            y = form.parts[0].wire(run, x, {**context, **given})
            return y, run.kept()

        mapped = jax.vmap(one, in_axes=(axes, axis, 0), axis_size=size)
        y, kept = mapped(arguments, x, given)
        self.outputs = put(self.outputs, form.names[0], inner.regain(kept, copies, size))
        return y

    def copies(self, name: str | None) -> tuple[Any, Any, Callable[[Any], Run]]:
        """What vmap maps for each copy: arrays, their axes, and the execution they resume."""
        raise NotImplementedError

    def kept(self) -> Any:
        """What of the outputs leaves a mapped function: arrays."""
        return self.outputs

    def regain(self, kept: Any, name: str | None, size: int) -> dict[str, Any]:
        """The outputs of a mapped function, from what left it."""
        return kept


def select(tree: Mapping[str, Any], name: Name) -> Mapping[str, Any]:
    """The part of a tree that lies under a name."""
    if not isinstance(name, str):
        return {local: tree[place] for local, place in name.items() if place in tree}
    return tree.get(name, {}) if name else tree


def put(tree: dict[str, Any], name: Name, inner: dict[str, Any]) -> dict[str, Any]:
    """The tree with `inner` under a name, merged with what is there; empty dicts are dropped."""
    if not inner:
        return tree
    if isinstance(name, str) and name:
        inner = {name: inner}
    elif not isinstance(name, str):
        inner = {name[local]: value for local, value in inner.items()}
    merged = dict(tree)
    for key, value in inner.items():
        old = merged.get(key)
        merged[key] = put(old, "", value) if isinstance(old, dict) else value
    return merged


def spread(term: Any, marks: Marks | None, context: Context) -> Marks | None:
    """Marks with the facts that a stage asks for, laid along the axes of the whole table."""
    if marks is None:
        if any(term.facts):
            raise CompositionError(f"write {term!r} inside each branch of union: after it, keys of "
                                   "several dictionaries stand side by side")  # fmt: skip
        return None
    return marks.read(*term.facts, context).spread()


def mistaken(term: Term, wanted: str, kind: Any) -> str:
    """Why a term cannot read a value of this kind, and what is missing in between."""
    between = {
        (Entries, "scores"): "score(…) turns entries into scores",
        (Entries, "weights"): "score(…), then normalize(…), turn entries into weights",
        (Scores, "weights"): "normalize(…) turns scores into weights",
        (Entries, "an array"): "aggregate() @ normalize(…) @ score(…) turns entries into an array",
        (Scores, "an array"): "aggregate() @ normalize(…) turns scores into an array",
        (Weights, "an array"): "aggregate() turns weights into an array",
        (Width, "entries"): "project(…) or slots(…) turn an array into entries",
        (Width, "scores"): "score(…) @ project(…) turns an array into scores",
        (Width, "weights"): "normalize(…) @ score(…) @ project(…) turns an array into weights",
    }
    got = {Entries: "entries", Scores: "scores", Weights: "weights", Width: "an array"}
    name = got.get(type(kind), "a tuple" if isinstance(kind, tuple) else type(kind).__name__)
    hint = between.get((type(kind), wanted))
    return f"{term.name} takes {wanted} and gets {name}" + (f"; {hint}" if hint else "")


def as_term(value: Any, where: str) -> Term:
    """The value if it is a term; else an error that says how to make it one."""
    if isinstance(value, Term):
        return value
    name = getattr(value, "__name__", None)
    if callable(value) and name:
        if getattr(value, "__module__", "").startswith(PACKAGE):
            fix = f"{name} is a word not called: write {name}(…)"
            if isinstance(value, type) and not any(
                f.default is dataclasses.MISSING for f in dataclasses.fields(value)
            ):
                fix = f"{name} is a word not called: write {name}()"
        else:
            fix = f"{name} is a plain function: write lift({name}), or pointwise({name}) if it acts position by position"
    else:
        fix = f"{value!r} is not a term; terms are built from words such as linear(64)"
    raise CompositionError(f"{where} joins terms, and {fix}")


def reference(value: Any) -> str:
    """A field as Python that evaluates to it: an importable function by name, others by place."""
    if isinstance(value, Term) or not callable(value):
        return repr(value)
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    home = public_home(value, name)
    if home is not None:
        return name if home == "__main__" or home.startswith(PACKAGE) else f"{home}.{name}"
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        return f"<{code.co_name} {place(code.co_filename, code.co_firstlineno)}>"
    return repr(value)


def public_home(value: Any, name: str) -> str | None:
    """The shortest module that has the function under its name, public if there is one."""
    home = getattr(value, "__module__", None) or ""
    if not name.isidentifier() or getattr(sys.modules.get(home), name, None) is not value:
        return None
    top = home.split(".")[0]
    homes = [
        module
        for module in list(sys.modules)
        if module.split(".")[0] == top
        and "._" not in module
        and getattr(sys.modules[module], "__dict__", {}).get(name) is value
    ]
    return min(homes, key=lambda module: (module.count("."), module), default=home)


def arguments(term: Term) -> str:
    """A term's fields as the arguments of its word, without those that have their default."""
    shown, positional = [], True
    for field in dataclasses.fields(cast(Any, term)):
        value = getattr(term, field.name)
        if field.default is not dataclasses.MISSING and field.default == value:
            positional = False
            continue
        positional = positional and not field.kw_only
        shown.append(reference(value) if positional else f"{field.name}={reference(value)}")
    return ", ".join(shown)


def written() -> tuple[str, int]:
    """Where the user wrote the word that is being evaluated: the first frame outside this package."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith((PACKAGE, "dataclasses")):
        frame = frame.f_back
    filename = frame.f_code.co_filename
    if "ipykernel" in filename and "IPython" in sys.modules:
        filename = f"notebook cell {sys.modules['IPython'].get_ipython().execution_count}"
    return filename, frame.f_lineno


def place(filename: str, line: int) -> str:
    """A place in the user's code: "model.py, line 3"."""
    return f"{filename.rsplit('/', 1)[-1]}, line {line}"
