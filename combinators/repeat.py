"""Repetition: in depth (`repeat`, f ** n), over an axis (`each`), and in copies (`heads`)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .core.arguments import as_term, at_least, integer
from .core.context import Context
from .core.errors import CompositionError
from .core.execution import Run
from .core.guards import as_names, unread
from .core.kinds import Kind, Width, show, spec, told
from .core.marks import Range
from .core.printing import POWER, Write, bracketed, equation
from .core.source import reference
from .core.term import Term, form
from .core.types import Value
from .wrappers import Wrapper

__all__ = ["each", "repeat"]


# fⁿ


def keep(function: Callable) -> Callable:
    return function


@form
class Repeat(Term):
    """See `repeat`."""

    count: int
    parts: tuple[Term, ...]
    remat: Callable[[Callable], Callable] = keep

    word = "repeat"
    binding = POWER

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, count=self.count)
        if self.count % len(self.parts):
            raise CompositionError(
                f"repeat makes whole patterns: {self.count} blocks do not divide into patterns of "
                f"{len(self.parts)}"
            )
        if not callable(self.remat):
            raise CompositionError(
                f"remat takes a transformation of functions, remat=jax.checkpoint, not "
                f"{told(self.remat)}"
            )
        self.flow(None)

    @property
    def repeats(self) -> int:
        return self.count

    @property
    def periods(self) -> int:
        return self.count // len(self.parts)

    def text(self, write: Write) -> str:
        if write is equation:
            block, *others = self.parts
            pattern = " ; ".join(map(equation, self.parts))
            return f"{f'({pattern})' if others else bracketed(block, POWER)}^{self.count}"
        parts = ", ".join(map(write, self.parts))
        remat = "" if self.remat is keep else f", remat={reference(self.remat)}"
        return f"repeat({self.count}, {parts}{remat})"

    def flow(self, kind: Kind) -> Kind:
        after = kind
        for part in self.parts:
            after = part.flow(after)
        if isinstance(kind, Width) and isinstance(after, Width) and None not in (
            kind.width, after.width,
        ) and kind != after:  # fmt: skip
            raise CompositionError(
                f"a repeated block gives back the shape it takes; this one turns {show(kind)} "
                f"into {show(after)}"
            )
        return after if after is not None else kind

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        return run.repeated(self, x, context)


def repeat(count: int, *terms: Term, remat: Callable[[Callable], Callable] = keep) -> Term:
    """`repeat(n, f)` applies f n times, each time with parameters of its own; also `f ** n`.

    `repeat(n, f, g)` makes n blocks of an alternating pattern f, g, f, g, …, f first. Parameters
    are stacked on a leading axis `layers` and run as one `lax.scan`; `unstack` makes them n
    dicts, which run unrolled. `remat=jax.checkpoint` recomputes each block in the backward pass.

    Raises CompositionError when a block changes the shape, or n is no whole number of patterns.

    >>> from combinax.combinators import linear
    >>> repeat(3, linear(4)).init(jax.random.key(0), jnp.zeros((2, 4)))["linear"]["kernel"].shape
    (3, 4, 4)
    """
    if not terms or isinstance(count, Term):
        raise CompositionError("repeat takes the number and the term to repeat: repeat(n, f)")
    return Repeat(count, tuple(as_term(term, "repeat") for term in terms), remat)


# α f


@form
class Each(Wrapper):
    """See `each`."""

    term: Term
    axis: int = 0
    fixed: tuple[str, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        integer("axis of each", self.axis)
        for name in self.fixed:
            if name not in self.known:
                raise unread(f"each keeps {name!r} whole for", name, self.term, self.known, "knows")

    @property
    def known(self) -> frozenset[str]:
        """The context that is mapped, but for what is fixed."""
        return self.term.reads | {"positions"}

    @property
    def mapped_axes(self) -> int:
        return self.term.mapped_axes + (self.axis == 0 and "positions" not in self.fixed)

    def text(self, write: Write) -> str:
        axis = f", axis={self.axis}" if self.axis else ""
        fixed = f", fixed={self.fixed}" if self.fixed else ""
        return f"each({write(self.term)}{axis}{fixed})"

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        leaves = jax.tree.leaves(x)
        sizes = {leaf.shape[self.axis] for leaf in leaves if has_axis(leaf, self.axis)}
        if len(sizes) != 1 or not all(has_axis(leaf, self.axis) for leaf in leaves):
            raise CompositionError(f"each maps over axis {self.axis}, which {show(spec(x))} lacks")
        (size,) = sizes
        names = self.known - {*self.fixed, "rng"}
        if "positions" in names and numbers_rows(context):
            # Positions of the rows of x: of each row f sees one, or what lies across all of them.
            names -= {"positions"}
            if self.axis in (0, -leaves[0].ndim):
                context = context.without("positions")
        given = {name: context[name] for name in names if name in context}
        for name, value in given.items():
            shape = jnp.shape(value)
            if not has_axis(value, self.axis) or shape[self.axis] != size:
                raise CompositionError(
                    f"each maps {size} rows together with {name}, which has shape {shape}; "
                    f"fixed=({name!r},) gives it to every row whole"
                )
        keys = {"rng": folded(context["rng"], size)} if "rng" in context else {}
        moved = {name: jnp.moveaxis(jnp.asarray(v), self.axis, 0) for name, v in given.items()}
        y = run.mapped(self, x, context, size, self.axis, {**moved, **keys}, None)
        if not all(has_axis(leaf, self.axis) for leaf in jax.tree.leaves(y)):
            raise CompositionError(
                f"each puts its results back along axis {self.axis}, and {size} of them make "
                f"{show(spec(y))}, which lacks it; map over axis 0"
            )
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, self.axis), y)


def numbers_rows(context: Context) -> bool:
    """Whether positions are those of one sequence."""
    positions = context.get("positions")
    if positions is None:
        return False
    return isinstance(positions, Range) or jnp.ndim(positions) == 1


def has_axis(value: ArrayLike, axis: int) -> bool:
    return -jnp.ndim(value) <= axis < jnp.ndim(value)


def each(term: Term, axis: int = 0, fixed: str | tuple[str, ...] = ()) -> Term:
    """`each(f)` maps f over an axis, a batch for instance: (B, …) -> (B, …) (Backus's α).

    Results stand along the axis that was mapped: (T, B, …) -> (T, B, …) with `axis=1`. The context
    that f reads is mapped along the same axis, except the names in `fixed`, or the one name; `rng`
    is folded by row, so every row drops numbers of its own. Positions of the rows that are mapped
    say nothing of what is in them: inside, rows count from 0.

    Raises CompositionError for a fixed name that f does not read, and where x, a result or a piece
    of context lacks the axis.

    >>> from combinax.combinators import pointwise
    >>> each(pointwise(jnp.square))({}, jnp.arange(3.0))
    Array([0., 1., 4.], dtype=float32)
    """
    return Each(as_term(term, "each"), axis, as_names(fixed, "fixed of each"))


def folded(rng: Array, size: int) -> Array:
    return jax.vmap(lambda row: jax.random.fold_in(rng, row))(jnp.arange(size))


# n copies
