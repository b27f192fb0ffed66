"""equal: two terms by their normal forms, else by a number on which they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..core.arguments import as_term
from ..core.check import check_names
from ..core.declare import declare
from ..core.errors import CompositionError
from ..core.printing import equation
from ..core.term import Term
from ..core.types import Value
from ..laws import law
from .rewrite import Direction, Program, Rewrite, applied, rewrites
from .verdict import Finding, Verdict, apart, counterexample, doubled, drawn, tolerance

__all__ = ["Equality", "equal"]

FORWARD = (
    "product", "sum", "factor", "factor before", "gain", "values", "keys", "heads", "weights",
    "shift", "masks", "unions", "matrix", "network",
)  # fmt: skip
BACKWARD = "side by side", "keys and values", "branches", "brackets", "blocks", "map"
NORMAL = [*map(Direction, map(law, FORWARD)), *(Direction(law(n), True) for n in BACKWARD)]
"""The direction of each law that leads to the normal form: one map in place of several, columns
taken apart, and executions forgotten."""

STEPS = 200
"""Rewrites after which a normal form is given up."""


class Equality(Verdict):
    """Whether two terms are equal: `equal` is True, False, or None where that is not known."""

    @property
    def equal(self) -> bool | None:
        return self.findings[0].holds

    def __bool__(self) -> bool:
        return self.equal is True


def equal(
    f: Term, g: Term, x: Value, /, params: PyTree = None,
    **context: Value,
) -> Equality:  # fmt: skip
    """Whether two terms are the same function: by normal form, else by numbers.

    Both are rewritten by laws to a normal form. If these are one term with one set of parameters,
    the two are equal, for every input. Else a sample on which they differ shows that they are not.
    If none is found, it is not known. `params` are those of both terms, or a pair; by default they
    are drawn, and both terms take them. x, a sample of the input, gives the shapes.

    Raises CompositionError for terms with other parameters than each other, if none are given.

    >>> from combinax.combinators import aggregate, dot, identity, normalize, score, slots, streamed
    >>> f = aggregate() @ normalize(identity) @ score(dot) @ slots(3)
    >>> equal(f, streamed(f), jnp.ones((5, 4)))
    aggregate() ∘ ... = streamed(aggregate() ∘ ...)
      ✓ equal: both are linear(4)
    """
    f, g = as_term(f, "equal"), as_term(g, "equal")
    check_names(f, ("params",), "equal")
    allowed = tolerance(params)
    with jax.enable_x64(True):
        x, context, params = doubled((x, context, params))
        one, other = given(f, g, x, context, params)
        subject = f"{equation(f)} = {equation(g)}"
        forms = [normal(Program(*pair, x, context)) for pair in ((f, one), (g, other))]
        if forms[0].term == forms[1].term and apart(forms[0].params, forms[1].params) <= allowed:
            both = "the same term" if f == g else f"both are {equation(forms[0].term)}"
            return Equality(subject, (Finding("equal", True, both),))

        def sides(x: Value) -> tuple[Any, Any]:
            return f(one, x, **context), g(other, x, **context)

        if not apart(*sides(x)) <= allowed:
            found = counterexample(sides, x, allowed)
            return Equality(subject, (Finding("equal", False, found),))
        note = "they agree on the sample, and no laws lead from one to the other"
        return Equality(subject, (Finding("equal", None, f"not known: {note}"),))


def given(
    f: Term,
    g: Term,
    x: Value,
    context: Mapping[str, Value],
    params: PyTree,
) -> tuple[Any, Any]:
    """The parameters of both terms."""
    if params is not None:
        return params if isinstance(params, tuple) else (params, params)
    one, other = (drawn(term, x, context, np.random.default_rng(0)) for term in (f, g))
    if jax.tree.map(jnp.shape, one) != jax.tree.map(jnp.shape, other):
        raise CompositionError(
            f"{equation(f)} and {equation(g)} take other parameters: give both, params=(p, q)"
        )
    return one, other


def normal(program: Program) -> Program:
    """The program in normal form."""
    for _ in range(STEPS):
        declared = declare(program.term, program.x, program.context)[0]
        found = next(
            (r for r in rewrites(program.term, declared, NORMAL) if isinstance(r, Rewrite)), None
        )
        if found is None:
            return program
        program = applied(found, program)
    return program
