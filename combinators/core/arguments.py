"""Checks of a word's arguments, made where the word is written; errors say what would fit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeGuard, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import CompositionError
from .guards import ARRAYS
from .kinds import mistaken, show, told
from .source import PACKAGE
from .term import Term
from .types import Value

Function = TypeVar("Function")

__all__ = [
    "NOTHING",
    "as_function",
    "as_term",
    "at_least",
    "boolean",
    "floats",
    "integer",
    "is_number",
    "number",
    "one_sequence",
    "positive",
]


class Nothing:
    """The default of an argument for which None is a value; `help` shows it as nothing."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING: Any = Nothing()


def as_function(value: Function, word: str, takes: str) -> Function:
    """The value, which is a plain function; raises CompositionError for anything else."""
    if isinstance(value, type) and value.__module__.startswith(PACKAGE):
        raise CompositionError(f"{value.__name__} is a word not called: write {value.__name__}(…)")
    if isinstance(value, Term) and takes == "a plain function":
        raise CompositionError(f"{word} takes {takes}, and {value!r} is a term already")
    if isinstance(value, Term) or not callable(value):
        raise CompositionError(f"{word} takes {takes}, not {told(value)}")
    return value


def as_term(value: object, where: str) -> Term:
    """The value, which is a term; raises a CompositionError that says how to make it one."""
    if isinstance(value, Term):
        return value
    name = getattr(value, "__name__", "")
    if hasattr(value, "shape"):
        fix = f"{told(value)} is not a term: {ARRAYS}"
    elif not callable(value) or not name:
        fix = f"{told(value)} is not a term; terms are built from words such as linear(64)"
    elif not getattr(value, "__module__", "").startswith(PACKAGE):
        shown = name if name.isidentifier() else "…"
        fix = (
            f"{name} is a plain function: write lift({shown}), or pointwise({shown}) if it acts "
            "position by position"
        )
    else:
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else (None,)
        needed = [f for f in fields if f is None or f.default is dataclasses.MISSING]
        fix = f"{name} is a word not called: write {name}({'…' if needed else ''})"
    raise CompositionError(f"{where} joins terms, and {fix}")


def one_sequence(what: str, rows: Array) -> None:
    """Raise CompositionError unless rows are one sequence (T, d), and say how to map a batch."""
    if rows.ndim != 2:
        batch = "; for a batch write each(term)" if rows.ndim == 3 else ""
        raise CompositionError(
            f"{what} takes one sequence of vectors, (T, d), and gets {show(rows)}{batch}"
        )


def floats(term: Term, x: Value) -> None:
    """Raise CompositionError unless x is an array of floats with an axis."""
    if not hasattr(x, "dtype"):
        raise CompositionError(mistaken(term, "an array", x))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise CompositionError(
            f"{term.name} takes floats and gets {show(x)}; embed(vocabulary, width) turns "
            "integers into vectors"
        )
    if not x.ndim:
        raise CompositionError(f"{term.name} takes vectors and gets a single number")


def at_least(least: int, term: object, **numbers: object) -> None:
    """Raise CompositionError unless every number is an integer of at least `least`."""
    word = term if isinstance(term, str) else getattr(term, "name", type(term).__name__)
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise CompositionError(
                f"{name} of {word} is an integer of at least {least}, not {told(number)}"
            )


def integer(what: str, value: object) -> None:
    """Raise CompositionError unless the value is an integer."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise CompositionError(f"{what} is an integer, not {told(value)}")


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number, such as 2, 0.5 or np.float32(1); True is none."""
    real = isinstance(value, (int, float, np.integer, np.floating))
    return real and not isinstance(value, bool)


def number(what: str, value: object) -> None:
    """Raise CompositionError unless the value is a real number."""
    if not is_number(value):
        raise CompositionError(f"{what} is a number, not {told(value)}")


def positive(what: str, value: object) -> None:
    """Raise CompositionError unless the value is a number above 0 and below infinity."""
    if not is_number(value) or not 0 < value < math.inf:
        raise CompositionError(f"{what} is a positive number, not {told(value)}")


def boolean(term: Term, **flags: object) -> None:
    """Raise CompositionError unless every flag is True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise CompositionError(f"{name} of {term.name} is True or False, not {flag!r}")
