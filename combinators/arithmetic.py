"""Arithmetic of terms: the pointwise sum, difference and product."""

from __future__ import annotations

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .branches import Branches
from .core.arguments import as_term, is_number
from .core.context import Context
from .core.dtypes import floating
from .core.errors import CompositionError
from .core.execution import Run
from .core.kinds import Kind, Width, show, spec
from .core.printing import COMPOSITION, PRODUCT, SUM, Write, bracketed, equation
from .core.records import Record, Scores, Weights, both, covered, either
from .core.term import Term, form
from .core.types import Value
from .primitives import constant

__all__ = ["add", "multiply", "subtract"]


class Pointwise(Branches):
    """A form that combines its parts' results number by number.

    On Scores it combines the scores of keys that every part leaves visible, on Weights the
    weights: of tables over the same values, which the result is a table over as well.
    """

    parts: tuple[Term, ...]
    symbol: ClassVar[str]
    binding = SUM

    def combine(self, a: Array, b: Array) -> Array:
        """The arithmetic, number by number."""
        raise NotImplementedError

    def reached(self, a: Array | None, b: Array | None) -> Array | None:
        """Which values the combined weights reach, from those that each part's weights reach."""
        return either(a, b)

    def text(self, write: Write) -> str:
        if write is equation:
            # (f ∘ g) · h: Python, too, gives @ and * one precedence.
            inside = COMPOSITION if self.binding == PRODUCT else self.binding
            return f" {self.symbol} ".join(bracketed(part, inside) for part in self.parts)
        return super().text(write)

    def flow(self, kind: Kind) -> Kind:
        kinds = [part.flow(kind) for part in self.parts]
        known = [k for k in self.varying(kinds) if k is not None]
        widths = {k.width for k in known if isinstance(k, Width) and k.width is not None}
        if len({type(k) for k in known}) > 1 or len(widths) > 1:
            raise CompositionError(self.mixed(kinds))
        if widths:
            return Width(widths.pop())
        return known[0] if known else kinds[0]

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        values = [run.part(self, i, x, context) for i in range(len(self.parts))]
        varying = self.varying(values)
        shapes = {tuple(jnp.shape(leaf) for leaf in jax.tree.leaves(table(v))) for v in varying}
        if len({type(v) for v in varying if isinstance(v, Record)}) > 1 or len(shapes) > 1:
            raise CompositionError(self.mixed([spec(v) for v in values]))
        tables = [v for v in varying if isinstance(v, Record)]
        if any(one.value is not tables[0].value for one in tables):
            raise CompositionError(
                f"{self.name} combines tables over the same values, and each of its parts has its "
                "own: project before it, once, or aggregate each part"
            )
        if varying and all(isinstance(v, Array) for v in varying):
            kind = jnp.result_type(*varying)
            if jnp.issubdtype(kind, jnp.floating):  # which a constant does not change
                values = [jnp.asarray(v, kind) for v in values]
        return functools.reduce(self.merge, values)

    def varying(self, values: list[Value]) -> list[Value]:
        """The values of the parts that are not constant: these have to agree in shape."""
        return [v for v, part in zip(values, self.parts, strict=True) if not part.constant]

    def mixed(self, values: list[Value]) -> str:
        shown = " and ".join(map(show, values))
        return f"{self.name} combines values of one shape, and its parts give {shown}"

    def merge(self, a: Value, b: Value) -> Value:
        match a, b:
            case Scores(), Scores():
                visible = both(a.visible, b.visible)
                keys, queries = (visible if visible is None else visible.any(i) for i in (0, 1))
                score = self.combine(covered(a.score, visible), covered(b.score, visible))
                return a.replace(
                    score=score, visible=visible, active_keys=keys, active_queries=queries
                )
            case Weights(), Weights():
                weight = self.combine(a.weight, b.weight)
                active = self.reached(a.active_keys, b.active_keys)
                return a.replace(weight=weight, active_keys=active)
            case Scores(), _:
                return a.replace(score=self.combine(a.covered, as_number(b, a.score)))
            case _, Scores():
                return b.replace(score=self.combine(as_number(a, b.score), b.covered))
            case Weights(), _:
                return a.replace(weight=self.combine(a.weight, as_number(b, a.weight)))
            case _, Weights():
                return b.replace(weight=self.combine(as_number(a, b.weight), b.weight))
        return self.combine(a, b)


def as_number(value: ArrayLike, like: Array) -> Array:
    """A constant in the type of the table that it is combined with."""
    return floating(jnp.asarray(value)).astype(like.dtype)


def table(value: Value) -> Value:
    """The part of a value whose shape has to agree."""
    match value:
        case Scores(score=score, value=mixed):
            return score, mixed
        case Weights(weight=weight, value=mixed):
            return weight, mixed
    return value


@form
class Add(Pointwise):
    """See `add`."""

    parts: tuple[Term, ...]
    word = "add"
    symbol = "+"

    def combine(self, a: Array, b: Array) -> Array:
        return a + b


@form
class Subtract(Pointwise):
    """See `subtract`."""

    parts: tuple[Term, ...]
    word = "subtract"
    symbol = "-"

    def combine(self, a: Array, b: Array) -> Array:
        return a - b


@form
class Multiply(Pointwise):
    """See `multiply`."""

    parts: tuple[Term, ...]
    word = "multiply"
    symbol = "·"
    binding = PRODUCT

    def combine(self, a: Array, b: Array) -> Array:
        return a * b

    def reached(self, a: Array | None, b: Array | None) -> Array | None:
        return both(a, b)


def add(*terms: Term | float) -> Term:
    """`add(f, g)(x)` is `f(x) + g(x)`; written `f + g`. A residual is `identity + f`.

    Works on arrays of one shape, and on Scores or Weights over the same values. Raises
    CompositionError where shapes differ, or values; only a constant (`learned`, `read`, a number)
    broadcasts.

    >>> import jax.numpy as jnp
    >>> (identity + identity)({}, jnp.ones(1))
    Array([2.], dtype=float32)
    """
    first, *rest = (value_term(term, "add") for term in terms)
    return Add((*(first.parts if isinstance(first, Add) else (first,)), *rest))


def subtract(f: Term | float, g: Term | float) -> Term:
    """`subtract(f, g)(x)` is `f(x) - g(x)`; written `f - g`.

    >>> import jax.numpy as jnp
    >>> (identity - identity)({}, jnp.ones(1))
    Array([0.], dtype=float32)
    """
    return Subtract((value_term(f, "subtract"), value_term(g, "subtract")))


def multiply(*terms: Term | float) -> Term:
    """`multiply(f, g)(x)` is `f(x) g(x)`, number by number. A gate (Shazeer 2020) is
    `multiply(silu @ linear(m), linear(m))`.

    Between terms there is no `*`, because Python gives `*` and `@` one precedence; a number or
    `learned(…)` may be written `2.0 * f`.

    >>> import jax.numpy as jnp
    >>> multiply(identity, identity)({}, jnp.array([3.0]))
    Array([9.], dtype=float32)
    """
    return Multiply(tuple(value_term(term, "multiply") for term in terms))


def value_term(value: object, where: str) -> Term:
    """A term, where a number stands for the constant function."""
    if is_number(value):
        return constant(value)
    return as_term(value, where)


def scaled(term: Term, factor: Term | float) -> Term:
    """What `factor * term` means: a number or a learned constant, nothing else."""
    if isinstance(factor, Term) and not (factor.constant or term.constant):
        raise CompositionError(
            "write multiply(f, g) for a product of terms: Python gives * and @ one precedence, "
            "so f * g @ h would be read as (f * g) @ h"
        )
    return multiply(factor, term)
