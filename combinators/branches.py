"""Branches: forms whose parts stand side by side, and the choice of one of their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from .compose import listed
from .core.arguments import as_term, at_least, integer
from .core.context import Context
from .core.errors import CompositionError
from .core.execution import Run
from .core.kinds import Kind, Width, show, spec, told
from .core.leaf import Leaf
from .core.printing import Write
from .core.term import Term, form
from .core.types import Value

__all__ = ["columns", "fanout", "join", "parallel", "pick"]


class Branches(Term):
    """A form whose parts stand side by side."""

    parts: tuple[Term, ...]

    def __post_init__(self):
        super().__post_init__()
        self.flow(None)

    def text(self, write: Write) -> str:
        return listed(self, self.parts, write)

    @property
    def constant(self) -> bool:
        return all(part.constant for part in self.parts)


@form
class Fanout(Branches):
    """See `fanout`."""

    parts: tuple[Term, ...]
    word = "fanout"

    def flow(self, kind: Kind) -> Kind:
        return tuple(part.flow(kind) for part in self.parts)

    def wire(self, run: Run, x: Value, context: Context) -> Value:
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

    def __post_init__(self):
        integer("axis of join", self.axis)
        super().__post_init__()

    def text(self, write: Write) -> str:
        axis = f", axis={self.axis}" if self.axis != -1 else ""
        return f"join({', '.join(map(write, self.parts))}{axis})"

    def flow(self, kind: Kind) -> Kind:
        kinds = [part.flow(kind) for part in self.parts]
        widths = [k.width if isinstance(k, Width) else None for k in kinds]
        known = [width for width in widths if width is not None]
        return Width(sum(known) if self.axis == -1 and len(known) == len(widths) else None)

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        values = [run.part(self, i, x, context) for i in range(len(self.parts))]
        if len({across(value.shape, self.axis) for value in values}) > 1:
            raise CompositionError(
                f"join joins arrays that agree but for axis {self.axis}, and its parts give "
                + " and ".join(show(spec(value)) for value in values)
            )
        return jnp.concatenate(values, self.axis)


def across(shape: tuple[int, ...], axis: int) -> tuple[int, ...] | None:
    """The shape less one axis; None if it lacks the axis."""
    if not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


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

    def check(self, value: Value) -> None:
        if not isinstance(value, tuple) or len(value) != len(self.parts):
            raise CompositionError(
                f"parallel of {len(self.parts)} takes a tuple of {len(self.parts)} and gets "
                f"{show(value)}"
            )

    def flow(self, kind: Kind) -> Kind:
        kinds: Any = (None,) * len(self.parts) if kind is None else kind
        self.check(kinds)
        return tuple(part.flow(k) for part, k in zip(self.parts, kinds, strict=True))

    def wire(self, run: Run, x: Value, context: Context) -> Value:
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

    rowwise = True

    index: int

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.index, int) or isinstance(self.index, bool):
            raise CompositionError(f"pick takes the number of a part, not {told(self.index)}")

    def flow(self, kind: Kind) -> Kind:
        return None if kind is None else self.apply({}, kind, Context())

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        if not isinstance(x, tuple):
            raise CompositionError(f"pick takes a tuple and gets {show(x)}")
        if not -len(x) <= self.index < len(x):
            raise CompositionError(f"pick({self.index}) cannot select from a tuple of {len(x)}")
        return x[self.index]


@form
class columns(Leaf):
    """`columns(a, b)(x)` is `x[..., a:b]`: some numbers of each row, (…, d) -> (…, b - a).

    Raises CompositionError for columns that x lacks, and for none at all.

    >>> import jax.numpy as jnp
    >>> columns(1, 3)({}, jnp.arange(4))
    Array([1, 2], dtype=int32)
    """

    rowwise = True

    start: int
    stop: int

    def __post_init__(self):
        super().__post_init__()
        at_least(0, self, start=self.start)
        at_least(self.start + 1, self, stop=self.stop)

    def flow(self, kind: Any) -> Any:
        super().flow(kind)
        if isinstance(kind, Width) and kind.width is not None and kind.width < self.stop:
            raise CompositionError(f"{self!r} reads columns of an array of width {kind.width}")
        return Width(self.stop - self.start)

    def apply(self, params: Any, x: Any, context: Context) -> Any:
        if x.shape[-1] < self.stop:
            raise CompositionError(f"{self!r} reads columns of an array of width {x.shape[-1]}")
        return x[..., self.start : self.stop]
