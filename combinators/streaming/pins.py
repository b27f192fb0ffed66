"""Pins: forms that fix the execution of the lookups inside them, whatever `choose` would decide."""

from __future__ import annotations

import dataclasses

from ..core.arguments import as_term, at_least
from ..core.context import Context
from ..core.errors import CompositionError
from ..core.execution import Run
from ..core.kinds import told
from ..core.term import Term, form
from ..core.types import Value
from ..wrappers import Wrapper

__all__ = ["materialized", "streamed"]


class Pin(Wrapper):
    """A form that fixes the execution of the lookups inside it."""

    term: Term

    def changes(self) -> dict[str, object]:
        """The fields of Execution that it sets."""
        raise NotImplementedError

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        execution = dataclasses.replace(context.scope.execution, **self.changes())
        return run.part(self, 0, x, context.within(execution=execution))


@form
class Materialized(Pin):
    """See `materialized`."""

    term: Term
    word = "materialized"

    def changes(self) -> dict[str, object]:
        return {"pin": "materialized", "block": None}


@form
class Stream(Pin):
    """See `streamed`."""

    term: Term
    block: tuple[int, int] | None = None
    word = "streamed"

    def changes(self) -> dict[str, object]:
        return {"pin": "streamed", "block": self.block}


def materialized(term: Term) -> Term:
    """The same term, each of its lookups on one table of scores (T, S).

    >>> from combinax.combinators import linear
    >>> materialized(linear(3))
    materialized(linear(3))
    """
    return Materialized(as_term(term, "materialized"))


def streamed(term: Term, block: int | tuple[int, int] | None = None) -> Term:
    """The same term, each of its lookups streamed: exact, in memory O(T + S) (Dao et al. 2022).

    `block` is the size of a tile, (queries, keys) or one number for both. Without it, the cheapest
    of several sizes is chosen.

    Raises CompositionError for a block below 1. Running a lookup that cannot be streamed raises
    CompositionError with the reason.

    >>> from combinax.combinators import aggregate, normalize, project, score, scaled_dot, softmax
    >>> head = aggregate() @ normalize(softmax) @ score(scaled_dot) @ project(4)
    >>> import jax, jax.numpy as jnp
    >>> x = jnp.ones((5, 4))
    >>> params = head.init(jax.random.key(0), x)
    >>> bool(jnp.allclose(streamed(head, 2)(params, x), head(params, x)))
    True
    """
    term = as_term(term, "streamed")
    sizes = (block, block) if isinstance(block, int) else block
    if sizes is not None:
        if not isinstance(sizes, tuple) or len(sizes) != 2:
            raise CompositionError(f"block of streamed is a number or a pair, not {told(block)}")
        for size in sizes:
            at_least(1, "streamed", block=size)
    return Stream(term, sizes)
