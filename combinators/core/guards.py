"""Guards: checks of the fields of a term, of names, and of classes that users write."""

from __future__ import annotations

import dataclasses
import inspect
from difflib import get_close_matches
from functools import cache
from typing import Any, cast

from .errors import CompositionError, brief
from .kinds import told

__all__ = ["ARRAYS", "as_name", "as_names", "as_place", "check_class", "check_hashable", "unread"]

ARRAYS = "what is learned is a parameter (learned(shape)), any other array is context (read(name))"


@cache
def check_class(cls: type) -> None:
    """Raise CompositionError unless a class is a frozen dataclass whose every field is declared."""
    own = {
        name for name, kind in inspect.get_annotations(cls).items() if "ClassVar" not in str(kind)
    }
    declared = getattr(cls, "__dataclass_fields__", None)
    fix = f"write @dataclasses.dataclass(frozen=True) above class {cls.__name__}"
    if declared is None or own - declared.keys():
        raise CompositionError(f"{cls.__name__} is not a dataclass, as every term is: {fix}")
    if not cast(Any, cls).__dataclass_params__.frozen:
        raise CompositionError(f"{cls.__name__} can be changed, and terms are immutable: {fix}")


def check_hashable(term: Any) -> None:
    """Raise CompositionError for a term with an unhashable field, and name the part that has it."""
    try:
        hash(term)
    except TypeError:
        for part in term.parts:
            check_hashable(part)
        for field in dataclasses.fields(cast(Any, term)):
            value = getattr(term, field.name)
            if not hashable(value):
                fix = ARRAYS if hasattr(value, "shape") else "give it as a tuple"
                raise CompositionError(
                    f"{term.name} holds {told(value)} in {field.name}, and terms are hashed by "
                    f"their fields: {fix}"
                ) from None
        raise


def hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


# Names of the context


def as_name(value: object, word: str) -> str:
    """The value, which is a name in the context; raises CompositionError for anything else."""
    if not isinstance(value, str) or not value:
        raise CompositionError(f"{word} takes a name of the context, not {told(value)}")
    return value


def as_place(value: object, word: str) -> str:
    """The value, which is an identifier; raises CompositionError for anything else."""
    if not isinstance(value, str) or not value.isidentifier():
        raise CompositionError(f"{word} takes a name, not {told(value)}")
    return value


def as_names(value: object, word: str) -> tuple[str, ...]:
    """One name in the context, or several, as a tuple of names."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list, set, frozenset)):
        raise CompositionError(f"{word} takes names of the context, not {told(value)}")
    names = names if isinstance(names, (tuple, list)) else sorted(names)
    return tuple(as_name(name, word) for name in names)


def unread(
    gives: str, name: str, term: object, known: frozenset[str], verb: str = "reads"
) -> CompositionError:
    """The error for a form that gives a term context which no part of it reads."""
    close = get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    names = ", ".join(sorted(known)) or "nothing"
    return CompositionError(f"{gives} {brief(repr(term))}, which {verb} {names}{hint}")
