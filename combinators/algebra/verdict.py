"""Verdicts: what was tried, whether it held, and the smallest counterexample if it did not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.kinds import show, spec
from ..core.term import Term
from ..core.types import Params, Value

__all__ = ["Finding", "Verdict", "apart", "counterexample", "doubled", "drawn", "tolerance"]

TOLERANCE = 1e-9
"""Of the largest number compared: float64 rounds to 1e-16, and what is compared is short."""


def tolerance(params: Params) -> float:
    """TOLERANCE, or a hundred roundings of the narrowest floats among parameters: products of them
    that were taken before are rounded to these."""
    kinds = (jnp.result_type(leaf) for leaf in jax.tree.leaves(params))
    floats = (float(jnp.finfo(kind).eps) for kind in kinds if jnp.issubdtype(kind, jnp.floating))
    return max(TOLERANCE, 100 * max(floats, default=0.0))


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was tried; `holds` is None where it could not be."""

    what: str
    holds: bool | None
    note: str = ""

    def __str__(self) -> str:
        mark = {True: "✓", False: "✗", None: "–"}[self.holds]
        return f"{mark} {self.what}" + (f": {self.note}" if self.note else "")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The findings about a subject: true unless one failed; prints line by line."""

    subject: str
    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return all(finding.holds is not False for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join([self.subject, *(f"  {finding}" for finding in self.findings)])

    __repr__ = __str__


def doubled(tree: Any) -> Any:
    """The tree with its floats as float64."""

    def one(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree)


def drawn(term: Term, x: Value, context: Mapping[str, Value], random: np.random.Generator) -> Any:
    """Parameters of a term, every one of them normal."""
    shapes = jax.eval_shape(term.init, jax.random.key(0), x, **context)
    return jax.tree.map(lambda leaf: jnp.asarray(random.standard_normal(leaf.shape)), shapes)


def apart(one: Any, other: Any) -> float:
    """The largest difference of two values, relative to their largest number; infinite where their
    shapes differ."""
    first, second = (jax.tree.leaves(value) for value in (one, other))
    if [jnp.shape(leaf) for leaf in first] != [jnp.shape(leaf) for leaf in second]:
        return float("inf")
    worst = 0.0
    for a, b in zip(first, second, strict=True):
        a, b = (np.asarray(value, np.float64) for value in (a, b))
        if a.size:
            scale = max(1.0, float(np.abs(a).max()), float(np.abs(b).max()))
            worst = max(worst, float(np.abs(a - b).max()) / scale)
    return worst


def counterexample(
    sides: Callable[[Value], tuple[Value, Value]], x: Value, allowed: float = TOLERANCE
) -> str:
    """The smallest input, made of x, on which two sides differ: few rows, then many zeros."""

    def differs(x: Value) -> bool:
        return not apart(*sides(x)) <= allowed

    rows = np.asarray(x)
    floats = np.issubdtype(rows.dtype, np.floating)
    for count in range(1, len(rows) if rows.ndim else 1):
        if differs(jnp.asarray(rows[:count])):
            rows = rows[:count]
            break
    for at in np.ndindex(rows.shape) if floats else ():
        for simple in (0.0, 1.0):
            tried = rows.copy()
            tried[at] = simple
            if rows[at] != simple and differs(jnp.asarray(tried)):
                rows = tried
                break
    one, other = sides(jnp.asarray(rows))
    return f"on x = {told(rows)} the left gives {told(one)} and the right {told(other)}"


def told(value: Value) -> str:
    """A small value by its numbers, a larger one by its shape."""
    if sum(np.size(leaf) for leaf in jax.tree.leaves(value)) > 12:
        return show(spec(value))
    numbers = jax.tree.map(lambda leaf: np.round(np.asarray(leaf, float), 3).tolist(), value)
    return str(numbers)
