"""check: a law on random terms, two terms against each other, or all that every term promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..core.arguments import as_term
from ..core.check import check_names
from ..core.errors import CompositionError, TermError
from ..core.kinds import show, spec
from ..core.printing import equation
from ..core.term import Term
from ..core.types import Params, Value
from ..repeat import each
from ..rules.law import Law
from ..stepping.stepwise import stepwise
from ..streaming.pins import materialized, streamed
from .rewrite import Program, Rewrite, applied, directions, rewrites
from .verdict import TOLERANCE, Finding, Verdict, apart, counterexample, doubled, drawn, tolerance

__all__ = ["check"]

SAMPLES = 6
"""Random terms for each law."""


def check(
    what: Law | Term | tuple[Term, Term],
    x: Value = None,
    /,
    params: PyTree = None,
    **context: Value,
) -> Verdict:
    """Whether a law holds, two terms agree, or a term keeps what every term promises.

    `check(law)` draws random terms, parameters and inputs, rewrites them by the law in both
    directions, and compares in float64. `check((f, g), x)` compares two terms, with normal
    parameters that both take, or a pair of them as `params`. `check(term, x)` tries one term: its
    declared shape is the real one, jit, vmap and derivatives agree with the plain call, bfloat16
    stays, steps are the whole, streams are tables. x is a sample of the input.

    The verdict is true unless something failed, and prints; of two sides that differ it shows the
    smallest counterexample made of x.

    Raises CompositionError without a sample, and what `term.init` raises.

    >>> from combinax.combinators import gelu, linear, silu
    >>> print(check(linear(3) @ silu, jnp.ones((5, 4))))
    linear(3) ∘ silu
      ✓ declared shape = real shape: (5, 3)
      ✓ jit = call
      ✓ vmap = each
      ✓ derivative = finite difference
      ✓ bfloat16 gives bfloat16
      ✓ steps = whole
      – stream = table: no lookup
    >>> print(check((gelu, silu), jnp.ones((5, 1))))
    gelu = silu
      ✗ equal in float64: on x = [[1.0]] the left gives [[0.841]] and the right [[0.731]]
    """
    allowed = tolerance(params)
    with jax.enable_x64(True):
        if isinstance(what, Law):
            return Verdict(repr(what), tuple(of_law(what)))
        if x is None:
            raise CompositionError("check takes a sample of the input: check(term, x)")
        x, context, params = doubled((x, context, params))
        if isinstance(what, tuple):
            f, g = (as_term(term, "check") for term in what)
            return Verdict(
                f"{equation(f)} = {equation(g)}", (of_pair(f, g, x, params, context, allowed),)
            )
        term = as_term(what, "check")
        check_names(term, ("params",), "check")
        random = np.random.default_rng(0)
        params = drawn(term, x, context, random) if params is None else params
        return Verdict(equation(term), tuple(of_term(term, params, x, context)))


# Laws


def of_law(law: Law) -> Iterator[Finding]:
    """One finding for each random term that fails, else one for all."""
    used = 0
    for seed in range(SAMPLES):
        random = np.random.default_rng(seed)
        term, shape, names = law.sample(random)
        x = jnp.asarray(random.standard_normal(shape))
        context = {name: jnp.asarray(random.standard_normal(s)) for name, s in names.items()}
        program = Program(term, drawn(term, x, context, random), x, context)
        for what, sides in instances(law, program):
            used += 1
            if not apart(*sides(x)) <= TOLERANCE:
                yield Finding(what, False, counterexample(sides, x))
                return
    what = f"{used} instances on {SAMPLES} random terms, in float64"
    yield Finding(what, bool(used), "" if used else "the law fits none of its samples")


Sides = Callable[[Value], tuple[Value, Value]]


def instances(law: Law, program: Program) -> Iterator[tuple[str, Sides]]:
    """The instances of a law in a program: a text, and a function of x that gives both sides."""
    term, params, _, context = program
    if both := law.sides:
        yield equation(term), lambda x: both(term, params, x, **context)
    for found in rewrites(term, program.declared, directions([law])):
        if isinstance(found, Rewrite):
            new = applied(found, program)
            yield (
                f"{equation(term)} = {equation(new.term)}",
                lambda x, new=new: (term(params, x, **context), new.term(new.params, x, **context)),
            )


# Two terms


def of_pair(
    f: Term,
    g: Term,
    x: Value,
    params: PyTree,
    context: Mapping[str, Value],
    allowed: float,
) -> Finding:
    """Whether two terms give the same on a sample, and in case they do not, where."""
    one, other = params if isinstance(params, tuple) else (params, params)
    if params is None:
        one, other = (drawn(t, x, context, np.random.default_rng(0)) for t in (f, g))
        if jax.tree.map(jnp.shape, one) != jax.tree.map(jnp.shape, other):
            return Finding(
                "equal in float64", None,
                "their parameters differ, so give both: check((f, g), x, params=(p, q))",
            )  # fmt: skip

    def sides(x: Value) -> tuple[Any, Any]:
        return f(one, x, **context), g(other, x, **context)

    difference = apart(*sides(x))
    if difference <= allowed:
        return Finding("equal in float64", True, f"largest difference {difference:.1e}")
    return Finding("equal in float64", False, counterexample(sides, x, allowed))


# One term


def of_term(
    term: Term, params: Params, x: Value, context: Mapping[str, Value]
) -> Iterator[Finding]:
    """The findings on the promises that every term makes."""
    y = term(params, x, **context)
    run = partial(term, params, **context)
    tries: dict[str, Callable[[], Any]] = {
        "jit = call": lambda: apart(jax.jit(term)(params, x, **context), y) <= TOLERANCE,
        "vmap = each": lambda: mapped(term, params, x, context),
        "derivative = finite difference": lambda: differentiated(run, x, y),
        "bfloat16 gives bfloat16": lambda: rounded(term, params, x, context, y),
        "steps = whole": lambda: stepped(term, params, x, context, y),
        "stream = table": lambda: in_tiles(term, params, x, context),
    }
    declared = spec(jax.eval_shape(term, params, x, **context))
    shape = show(spec(y)).replace(" float64", "")
    yield Finding("declared shape = real shape", declared == spec(y), shape)
    for what, run_it in tries.items():
        try:
            answer = run_it()
        except TermError as error:
            answer = error.reason
        yield Finding(what, None, answer) if isinstance(answer, str) else Finding(what, answer)


def mapped(term: Term, params: Params, x: Value, context: Mapping[str, Value]) -> bool | str:
    if context or not jax.tree.leaves(x):
        return "what the context holds may not be mapped"
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1]]), x)
    return apart(jax.vmap(partial(term, params))(two), each(term)(params, two)) <= TOLERANCE


def differentiated(run: Callable[[Any], Any], x: Value, y: Value) -> bool | str:
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves((x, y))):
        return "what goes in or comes out is not of floats"
    random = np.random.default_rng(1)
    way = jax.tree.map(lambda leaf: jnp.asarray(random.standard_normal(leaf.shape)), x)
    _, slope = jax.jvp(run, (x,), (way,))
    ahead, behind = (run(jax.tree.map(lambda a, b, s=s: a + s * b, x, way)) for s in (1e-6, -1e-6))
    finite = jax.tree.map(lambda a, b: (a - b) / 2e-6, ahead, behind)
    return apart(slope, finite) < 1e-6  # steps of 1e-6 lose ten of sixteen digits


def rounded(
    term: Term, params: Params, x: Value, context: Mapping[str, Value], y: Value
) -> bool | str:
    if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(x)):
        return "x is not of floats"
    cast = lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float64 else leaf  # noqa: E731
    small = jax.eval_shape(term, *jax.tree.map(cast, (params, x)), **jax.tree.map(cast, context))
    pairs = zip(jax.tree.leaves(small), jax.tree.leaves(y), strict=True)
    return all(a.dtype == jnp.bfloat16 for a, b in pairs if b.dtype == jnp.float64)


def stepped(
    term: Term, params: Params, x: Value, context: Mapping[str, Value], y: Value
) -> bool | str:
    if context or not hasattr(x, "shape") or x.ndim < 1:
        return "x is no sequence alone"
    start, step = stepwise(term)
    state = start(params, x, max(len(x), 1))
    parts = []
    for row in range(len(x)):
        state, part = step(params, state, x[row : row + 1])
        parts.append(part)
    whole = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
    return apart(whole, y) <= TOLERANCE


def in_tiles(term: Term, params: Params, x: Value, context: Mapping[str, Value]) -> bool | str:
    if not any(part.role == "aggregates" for part in parts_of(term)):
        return "no lookup"
    tiles, table = streamed(term, 2)(params, x, **context), materialized(term)(params, x, **context)
    return apart(tiles, table) <= TOLERANCE


def parts_of(term: Term) -> Iterator[Term]:
    yield term
    for part in term.parts:
        yield from parts_of(part)
