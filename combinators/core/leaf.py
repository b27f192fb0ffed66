"""Leaves: the primitives of the language, each a function of one input without parts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from .context import Context
from .dtypes import widened
from .errors import CompositionError, TermError, brief
from .execution import Run
from .kinds import Kind, Width, mistaken, told
from .marks import Marks
from .parameter import Declarations, Parameter, is_parameter
from .records import Scores
from .source import file_line
from .term import In, Out, Term
from .types import Params, Table, Value

__all__ = ["Leaf", "SameShape", "Stage"]


class Leaf(Term[In, Out]):
    """A primitive: the base class for your own.

    Write a frozen dataclass with two pure methods. `parameters(x)` declares what is learned, with
    widths read off x; `apply(params, x, context)` is the equation.

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
    """Whether each row of the output depends on that row of x alone, so that steps may run it."""

    @property
    def learns(self) -> bool:
        """Whether the class declares parameters."""
        return type(self).parameters is not Leaf.parameters

    def parameters(self, x: Value) -> dict[str, Parameter]:
        """The declarations of parameters by name, for an abstract input x."""
        return {}

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        """The equation."""
        raise NotImplementedError(f"{type(self).__name__} does not define apply")

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        return run.leaf(self, x, context)


class SameShape(Leaf):
    """A leaf that gives an array of the shape that it takes."""

    def flow(self, kind: Kind) -> Kind:
        super().flow(kind)
        return kind


class Stage(Leaf[Scores, Scores]):
    """A stage between score and normalize: one pure function of a tile of scores.

    `operands(params, context)` gives the arrays that `tile` reads beside scores and marks.
    `tile(operands, score, marks)` maps a tile (t, s) to a tile (t, s). Row metadata of queries has
    shape (t, 1) and that of keys (1, s), so `marks.query.position - marks.key.position` is (t, s).
    Executions call `apply` on the whole table (T, S) or on many small tiles.
    """

    rowwise = True
    role = "adjusts"

    @property
    def marked(self) -> bool:
        """Whether `tile` reads marks."""
        return False

    @property
    def facts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of row metadata that `tile` reads in marks.query, and those in marks.key."""
        return (), ()

    @cached_property
    def row_facts(self) -> frozenset[str]:
        return frozenset().union(*self.facts)

    @cached_property
    def reads(self) -> frozenset[str]:
        return self.row_facts

    def operands(self, params: Mapping[str, Array], context: Context) -> PyTree[Array]:
        return params

    def tile(self, operands: PyTree[Array], score: Table, marks: Marks | None) -> Table:
        """The equation, on one tile."""
        raise NotImplementedError(f"{type(self).__name__} does not define tile")

    def flow(self, kind: Kind) -> Kind:
        if kind is None:
            return Scores(Width(), Width(), None)
        if not isinstance(kind, Scores):
            raise CompositionError(mistaken(self, "scores", kind))
        return kind

    def apply(self, params: Mapping[str, Array], x: Scores, context: Context) -> Scores:
        marks = spread(self, x.marks, context)
        score = self.tile(self.operands(params, context), x.covered, marks)
        return x.replace(score=widened(of_pairs(self, score, x.score)))


def of_pairs(term: object, table: Table, before: Table) -> Table:
    """The table; raises CompositionError unless it has the shape of the scores before it."""
    if jnp.shape(table) != before.shape:
        raise CompositionError(
            f"{term!r} gives one number for each pair of a query and a key, {before.shape}, and "
            f"here it gives {jnp.shape(table)}"
        )
    return table


def spread(term: Any, marks: Marks | None, context: Context) -> Marks | None:
    """Marks with the row metadata that a stage reads, queries as (T, 1) and keys as (1, S)."""
    if marks is None:
        if term.marked:
            raise after_union(term)
        return None
    query, key = term.facts
    return marks.read(query, key, context).spread()


def after_union(term: Term) -> CompositionError:
    """The error for a stage that reads marks after `union`, whose keys have no common positions."""
    return CompositionError(
        f"write {term!r} inside each branch of union, before keys of several dictionaries stand "
        "side by side"
    )


UNDECIDED = (
    "asks whether an array is true, as `if`, `and`, `or`, `not` and 1 < x < 2 do: every number of "
    "an array has its own truth, so combine them with &, | and ~, and choose with jnp.where"
)


def asks_for_truth(error: Exception) -> bool:
    """Whether an error comes from using an array, traced or not, as one truth value."""
    traced = isinstance(error, jax.errors.TracerBoolConversionError)
    return traced or "truth value of an array" in str(error)


def parameters_of(term: Leaf, x: Value) -> Declarations:
    """The parameters that a primitive declares, in a dict, checked."""

    def check(declared: object, name: str) -> None:
        if is_parameter(declared):
            return
        if not isinstance(declared, Mapping):
            raise CompositionError(
                f"{term.name} declares {name} as {told(declared)}, and what is learned is declared "
                "by shape, initializer and axes: Parameter((4,), jax.nn.initializers.ones, "
                "('out',))"
            )
        for inner, value in declared.items():
            check(value, str(inner))

    declared = term.parameters(x)
    if is_parameter(declared):
        raise CompositionError(
            f"parameters of {term.name} gives one Parameter; it gives a dict of them by name"
        )
    check(declared, "its parameters")
    return declared


def compute(term: Leaf, params: Params, x: Value, context: Context, path: tuple[str, ...]) -> Value:
    """Apply a leaf, in the precision of the context and with a random key of its own."""
    read = {name: context[name] for name in term.reads - term.row_facts}
    params, read = context.scope.precision.cast((params, read))
    context = context | read
    if term.random and "rng" in context:
        address = zlib.crc32("/".join(path).encode())
        context = context | {"rng": jax.random.fold_in(context["rng"], address)}
    with blaming(term):
        return term.apply(params, x, context)


@contextmanager
def blaming(term: Leaf) -> Iterator[None]:
    """Add the primitive at fault to an exception that it raises."""
    try:
        yield
    except TermError:
        raise
    except (TypeError, ValueError) as error:
        if asks_for_truth(error):
            raise CompositionError(f"{brief(repr(term))} {UNDECIDED}") from error
        says = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise CompositionError(f"{term!r} raised {says}") from error
    except Exception as error:  # keeps its type, and gains a note
        error.add_note(
            f"in {term!r}" + (f", written at {file_line(*term.written)}" if term.written else "")
        )
        raise
