"""Combining forms: compose, fanout, parallel, and the pointwise sum, difference and product."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .errors import CompositionError, Line, TermError, brief
from .lookup import hoisted
from .records import Scores, Weights, Width, show, spec
from .term import Context, Export, Leaf, Run, Term, as_term, form, place
from .values import constant, identity

__all__ = [
    "add", "compose", "fanout", "join", "multiply", "parallel", "pick", "subtract",
]  # fmt: skip


def listed(term: Term, parts: tuple[Term, ...]) -> str:
    return f"{term.name}({', '.join(map(repr, parts))})"


# f ∘ g


@form
class Compose(Term):
    """Stages in order of application; see `compose`."""

    parts: tuple[Term, ...]

    def __post_init__(self):
        self.flow(None)

    word = "compose"

    def __repr__(self) -> str:
        return listed(self, self.parts[::-1])

    def __str__(self) -> str:
        return " ∘ ".join(map(str, self.parts[::-1]))

    @property
    def exports(self) -> tuple[Export, ...]:
        return self.layout[1]

    @property
    def constant(self) -> bool:
        return any(part.constant for part in self.parts)

    @cached_property
    def order(self) -> tuple[int, ...]:
        return hoisted(self.parts)

    def flow(self, kind: Any) -> Any:
        lines: list[Line] = []
        for part in self.parts:
            try:
                after = part.flow(kind)
            except TermError as error:
                raise self.blame(error, part, lines, kind) from error.__cause__
            lines.append(Line(repr(part), f"{show(kind)} -> {show(after)}"))
            kind = after
        return kind

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        lines: list[Line] = []
        for index in self.order:
            part = self.parts[index]
            try:
                y = run.part(self, index, x, context)
            except TermError as error:
                raise self.blame(error, part, lines, spec(x)) from error.__cause__
            lines.append(Line(repr(part), f"{show(spec(x))} -> {show(spec(y))}"))
            if part.constant:  # positions are those of the rows of x, and x ends here
                context = {k: v for k, v in context.items() if k != "positions"}
            x = y
        return x

    def blame(self, error: TermError, part: Term, lines: list[Line], value: Any) -> TermError:
        """The error with the pipeline up to the stage at fault."""
        giver = f"what {brief(lines[-1].stage)} gives" if lines else show(value)
        headline = f"{brief(repr(part))} cannot read {giver}"
        return error.placed(
            headline, [*lines, Line(repr(part), f"written at {place(*part.written)}")]
        )


def compose(*terms: Term) -> Term:
    """`compose(f, g)(x)` is `f(g(x))`: apply the last term first. Also written `f @ g`.

    Compositions flatten, so bracketing changes neither the term nor its parameters; `compose()`
    is `identity` and `compose(f)` is `f` (Backus 1978). A wrong order is refused when written.

    Raises CompositionError when a stage cannot read what the stage before it gives.

    >>> from combinax.combinators import linear, rms_norm
    >>> compose(linear(4), compose(rms_norm(), identity)) == linear(4) @ rms_norm()
    True
    """
    parts: list[Term] = []
    for term in reversed(terms):
        term = as_term(term, "compose")
        parts.extend(term.parts if isinstance(term, Compose) else (term,))
    parts = [part for part in parts if part != identity]
    if len(parts) < 2:
        return parts[0] if parts else identity
    return Compose(tuple(parts))


# [f, g] and f × g


class Branches(Term):
    """A form whose parts stand side by side."""

    parts: tuple[Term, ...]

    def __repr__(self) -> str:
        return listed(self, self.parts)

    @property
    def constant(self) -> bool:
        return all(part.constant for part in self.parts)


@form
class Fanout(Branches):
    """See `fanout`."""

    parts: tuple[Term, ...]
    word = "fanout"

    def flow(self, kind: Any) -> Any:
        return tuple(part.flow(kind) for part in self.parts)

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        return tuple(run.part(self, i, x, context) for i in range(len(self.parts)))


def fanout(*terms: Term) -> Term:
    """`fanout(f, g)(x)` is `(f(x), g(x))` (Backus's construction).

    >>> import jax.numpy as jnp
    >>> fanout(identity, identity)({}, jnp.ones(1))
    (Array([1.], dtype=float32), Array([1.], dtype=float32))
    """
    return Fanout(tuple(as_term(term, "fanout") for term in terms))


@form
class Join(Branches):
    """See `join`."""

    parts: tuple[Term, ...]
    axis: int = -1
    word = "join"

    def __repr__(self) -> str:
        axis = f", axis={self.axis}" if self.axis != -1 else ""
        return f"join({', '.join(map(repr, self.parts))}{axis})"

    def flow(self, kind: Any) -> Any:
        kinds = [part.flow(kind) for part in self.parts]
        widths = [k.width if isinstance(k, Width) else None for k in kinds]
        known = [width for width in widths if width is not None]
        return Width(sum(known) if self.axis == -1 and len(known) == len(widths) else None)

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        values = [run.part(self, i, x, context) for i in range(len(self.parts))]
        return jnp.concatenate(values, self.axis)


def join(*terms: Term, axis: int = -1) -> Term:
    """`join(f, g)(x)` is f(x) and g(x) joined into one array along `axis`.

    >>> import jax.numpy as jnp
    >>> join(identity, identity)({}, jnp.ones((1, 2))).shape
    (1, 4)
    """
    return Join(tuple(as_term(term, "join") for term in terms), axis)


@form
class Parallel(Branches):
    """See `parallel`."""

    parts: tuple[Term, ...]
    word = "parallel"

    def check(self, value: Any) -> None:
        if not isinstance(value, tuple) or len(value) != len(self.parts):
            raise CompositionError(
                f"parallel of {len(self.parts)} takes a tuple of {len(self.parts)} and gets "
                f"{show(value)}"
            )

    def flow(self, kind: Any) -> Any:
        kinds = (None,) * len(self.parts) if kind is None else kind
        self.check(kinds)
        return tuple(part.flow(k) for part, k in zip(self.parts, kinds, strict=True))

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        self.check(x)
        return tuple(run.part(self, i, x[i], context) for i in range(len(self.parts)))


def parallel(*terms: Term) -> Term:
    """`parallel(f, g)((x, y))` is `(f(x), g(y))`.

    >>> import jax.numpy as jnp
    >>> parallel(identity, pick(0))({}, (1.0, (2.0, 3.0)))
    (1.0, 2.0)
    """
    return Parallel(tuple(as_term(term, "parallel") for term in terms))


@form
class pick(Leaf):
    """`pick(i)` selects one component of a tuple (Backus's selector).

    Raises CompositionError for anything but a tuple that has that component.

    >>> pick(1)({}, (2.0, 3.0))
    3.0
    """

    index: int

    def flow(self, kind: Any) -> Any:
        return None if kind is None else self.apply({}, kind, {})

    def apply(self, params: Any, x: Any, context: Context) -> Any:
        if not isinstance(x, tuple):
            raise CompositionError(f"pick takes a tuple and gets {show(x)}")
        if not -len(x) <= self.index < len(x):
            raise CompositionError(f"pick({self.index}) cannot select from a tuple of {len(x)}")
        return x[self.index]


# f + g, f - g, f · g


class Pointwise(Branches):
    """A form that combines its parts' results number by number.

    On Scores it combines the scores of keys that every part leaves visible, on Weights the
    weights; both then stand for one table over the same values.
    """

    parts: tuple[Term, ...]
    symbol: ClassVar[str]
    combine: ClassVar[Callable[[Any, Any], Any]]

    def __str__(self) -> str:
        return "(" + f" {self.symbol} ".join(map(str, self.parts)) + ")"

    def flow(self, kind: Any) -> Any:
        kinds = [part.flow(kind) for part in self.parts]
        sorts = {type(k) for k in kinds if k is not None}
        if len(sorts) > 1:
            raise CompositionError(
                f"{self.name} combines like with like, and its parts give "
                + " and ".join(map(show, kinds))
            )
        varying = [k for k, part in zip(kinds, self.parts, strict=True) if not part.constant]
        widths = {k.width for k in varying if isinstance(k, Width) and k.width is not None}
        if len(widths) > 1:
            raise CompositionError(
                f"{self.name} combines values of one shape, and its parts give "
                + " and ".join(map(show, kinds))
            )
        if sorts == {Width}:
            return Width(next(iter(widths), None))
        return next((k for k in kinds if k is not None), None)

    def wire(self, run: Run, x: Any, context: Context) -> Any:
        values = [run.part(self, i, x, context) for i in range(len(self.parts))]
        self.check(values)
        return functools.reduce(self.merge, values)

    def check(self, values: list[Any]) -> None:
        sorts = {type(v) if isinstance(v, (Scores, Weights)) else Width for v in values}
        varying = [v for v, part in zip(values, self.parts, strict=True) if not part.constant]
        shapes = {tuple(jnp.shape(leaf) for leaf in table(v)) for v in varying}
        if len(sorts) > 1 or len(shapes) > 1:
            raise CompositionError(
                f"{self.name} combines values of one shape, and its parts give "
                + " and ".join(show(spec(v)) for v in values)
            )

    def merge(self, a: Any, b: Any) -> Any:
        if isinstance(a, Scores):
            masks = [mask for mask in (a.visible, b.visible) if mask is not None]
            visible = functools.reduce(jnp.logical_and, masks) if masks else None
            live = None if visible is None else visible.any(0)
            return a.replace(score=self.combine(a.score, b.score), visible=visible, live=live)
        if isinstance(a, Weights):
            live = None if a.live is None or b.live is None else a.live | b.live
            return a.replace(weight=self.combine(a.weight, b.weight), live=live)
        return self.combine(a, b)


def table(value: Any) -> tuple[Any, ...]:
    """The arrays of a value whose shapes have to agree."""
    if isinstance(value, Scores):
        return value.score, value.value
    if isinstance(value, Weights):
        return value.weight, value.value
    return tuple(jax.tree.leaves(value))


@form
class Add(Pointwise):
    """See `add`."""

    parts: tuple[Term, ...]
    word, symbol, combine = "add", "+", staticmethod(operator.add)


@form
class Subtract(Pointwise):
    """See `subtract`."""

    parts: tuple[Term, ...]
    word, symbol, combine = "subtract", "-", staticmethod(operator.sub)


@form
class Multiply(Pointwise):
    """See `multiply`."""

    parts: tuple[Term, ...]
    word, symbol, combine = "multiply", "·", staticmethod(operator.mul)


def add(*terms: Any) -> Term:
    """`add(f, g)(x)` is `f(x) + g(x)`; written `f + g`. A residual is `identity + f`.

    Works on arrays of one shape, on Scores and on Weights. Raises CompositionError where shapes
    differ; only a constant (`learned`, `read`, a number) broadcasts.

    >>> import jax.numpy as jnp
    >>> (identity + identity)({}, jnp.ones(1))
    Array([2.], dtype=float32)
    """
    first, *rest = (value_term(term, "add") for term in terms)
    return Add((*(first.parts if isinstance(first, Add) else (first,)), *rest))


def subtract(f: Any, g: Any) -> Term:
    """`subtract(f, g)(x)` is `f(x) - g(x)`; written `f - g`.

    >>> import jax.numpy as jnp
    >>> (identity - identity)({}, jnp.ones(1))
    Array([0.], dtype=float32)
    """
    return Subtract((value_term(f, "subtract"), value_term(g, "subtract")))


def multiply(*terms: Any) -> Term:
    """`multiply(f, g)(x)` is `f(x) g(x)`, number by number. A gate (Shazeer 2020) is
    `multiply(silu @ linear(m), linear(m))`.

    Between terms there is no `*`, because Python gives `*` and `@` one precedence; a number or
    `learned(…)` may be written `2.0 * f`.

    >>> import jax.numpy as jnp
    >>> multiply(identity, identity)({}, jnp.full(1, 3.0))
    Array([9.], dtype=float32)
    """
    return Multiply(tuple(value_term(term, "multiply") for term in terms))


def value_term(value: Any, where: str) -> Term:
    """A term, where a number stands for the constant function."""
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        return constant(value)
    return as_term(value, where)


def scaled(term: Term, factor: Any) -> Term:
    """What `factor * term` means: a number or a learned constant, nothing else."""
    if isinstance(factor, Term) and not (factor.constant or term.constant):
        raise CompositionError(
            "write multiply(f, g) for a product of terms: Python gives * and @ one precedence, "
            "so f * g @ h would be read as (f * g) @ h"
        )
    return multiply(factor, term)
