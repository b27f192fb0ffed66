"""copies and heads: one term several times side by side, each with parameters of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from .core.arguments import as_term, at_least
from .core.context import Context
from .core.dtypes import numbered
from .core.errors import CompositionError
from .core.execution import Run
from .core.guards import unread
from .core.kinds import Kind, Width, show
from .core.leaf import Leaf
from .core.printing import Write
from .core.source import documented
from .core.term import Term, form
from .core.types import Params, Value
from .repeat import folded

__all__ = ["copies", "heads", "total"]


@form
class Copies(Term):
    """See `copies` and `heads`."""

    count: int
    term: Term
    given_values: tuple[tuple[str, tuple], ...] = ()
    joined: bool = False

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, count=self.count)
        self.flow(None)
        for name, values in self.given_values:
            if np.shape(values)[:1] != (self.count,):
                raise CompositionError(
                    f"{self.name} gives one {name} to each of {self.count} copies, and it has "
                    f"shape {np.shape(values)}"
                )

    @property
    def word(self) -> str:
        return "heads" if self.joined else "copies"

    @property
    def parts(self) -> tuple[Term, ...]:
        return (self.term,)

    @property
    def reads(self) -> frozenset[str]:
        return self.term.reads - {name for name, _ in self.given_values}

    def text(self, write: Write) -> str:
        values = "".join(f", {name}={value!r}" for name, value in self.given_values)
        return f"{self.word}({self.count}, {write(self.term)}{values})"

    def flow(self, kind: Kind) -> Kind:
        after = self.term.flow(kind)
        if not self.joined:
            return None
        if after is not None and not isinstance(after, Width):
            raise CompositionError(f"heads joins arrays, and its term gives {show(after)}")
        width = after.width if after is not None else None
        return Width(width and width * self.count)

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        values = {name: jnp.asarray(values) for name, values in self.given_values}
        given = numbered(values, self.term.row_facts)
        if "rng" in context:
            given["rng"] = folded(context["rng"], self.count)
        y = run.mapped(self, x, context, self.count, None, given, "heads")
        if not self.joined:
            return y
        last = jnp.moveaxis(y, 0, -2)
        return last.reshape(*last.shape[:-2], last.shape[-2] * last.shape[-1])


def copies(count: int, term: Term, /, **values: Array | np.ndarray | Sequence) -> Term:
    """`copies(n, f)` is f n times side by side, with parameters of their own: x -> (n, …).

    Parameters are stacked on the axis before the last. A keyword value with n entries is given
    out one per copy, as context: `copies(2, f, slope=(0.5, 0.25))`.

    Raises CompositionError for a keyword that f does not read, or of another length.

    >>> from combinax.combinators import linear
    >>> copies(3, linear(4)).init(jax.random.key(0), jnp.zeros(2))["linear"]["kernel"].shape
    (2, 3, 4)
    """
    return make_copies("copies", count, term, values, joined=False)


def heads(count: int, term: Term, /, **values: Array | np.ndarray | Sequence) -> Term:
    """`heads(n, f)` is n copies of f, joined on the last axis: x -> (T, n · e).

    Every copy learns for itself, except for what is `shared(…, across="heads")`; each knows which
    head it is. Grouped heads nest: `heads(2, heads(4, f))` (Ainslie et al. 2023).

    Raises CompositionError for a keyword that f does not read, or of another length.

    >>> from combinax.combinators import linear
    >>> term = heads(3, linear(4))
    >>> term(term.init(jax.random.key(0), jnp.zeros((1, 2))), jnp.zeros((1, 2))).shape
    (1, 12)
    """
    return make_copies("heads", count, term, values, joined=True)


def make_copies(word: str, count: int, term: Term, values: Mapping[str, Any], joined: bool) -> Term:
    if isinstance(count, Term):
        raise CompositionError(f"{word} takes the number first: {word}(n, {count!r})")
    term = as_term(term, word)
    for name in values:
        if name not in term.reads:
            raise unread(f"{word} gives out {name!r} to", name, term, term.reads)
    given_values = tuple(
        (name, plain(np.asarray(value).tolist())) for name, value in values.items()
    )
    return Copies(count, term, given_values, joined)


def plain(values: PyTree) -> PyTree:
    """Nested lists as tuples, which a term may hold."""
    return tuple(map(plain, values)) if isinstance(values, list) else values


@form
class Total(Leaf):
    """See `total`."""

    rowwise = True
    word = "total"
    bare = True

    def flow(self, kind: Kind) -> Kind:
        return None

    def apply(self, params: Params, x: Array, context: Context) -> Array:
        return jnp.sum(x, 0)


total = documented("The sum over copies, (n, …) -> (…).", Total())
