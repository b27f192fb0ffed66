"""Kinds: what composition knows of a value in advance, and values as error messages show them."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .errors import brief
from .records import Entries, Scores, Weights
from .types import Value

__all__ = ["Width", "fits", "mistaken", "show", "spec", "symbolic", "told"]


@dataclasses.dataclass(frozen=True)
class Width:
    """The kind of an array: the width of its last axis, None if it is not known.

    The kind of a record is the record with a Width in place of each array. The kind of a tuple is
    a tuple of kinds. None is the kind of a value of which nothing is known.
    """

    width: int | None = None


Kind: TypeAlias = Width | Entries | Scores | Weights | tuple | None
"""The facts about a value that are known before the term runs; a tuple holds kinds. See `Width`."""


def spec(value: Value) -> Value:
    """The abstract value: the same tree with a ShapeDtypeStruct in place of each array."""

    def one(leaf):
        if isinstance(leaf, Width):
            return leaf
        return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf))

    return jax.tree.map(one, value)


def symbolic(shape: tuple[object, ...]) -> bool:
    """Whether a length is a symbol of `jax.export`, which stands for many numbers."""
    return not all(isinstance(length, (int, np.integer)) for length in shape)


def fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to `whole`."""
    padded = (1,) * (len(whole) - len(shape)) + shape
    return len(padded) == len(whole) and all(
        n in (1, m) for n, m in zip(padded, whole, strict=True)
    )


def show(value: Any) -> str:
    """A value, abstract value or kind, as an error message shows it."""
    match value:
        case None:
            return "anything"
        case Width(width=None):
            return "an array"
        case Width(width=width):
            return f"(…, {width})"
        case Entries(query=query, key=key, value=mixed):
            return f"query {show(query)}, key {show(key)}, value {show(mixed)}"
        case Scores(score=score, value=mixed):
            return f"scores {show(score)}, value {show(mixed)}"
        case Weights(weight=weight, value=mixed):
            return f"weights {show(weight)}, value {show(mixed)}"
        case tuple() if not hasattr(value, "_fields"):
            return "(" + "; ".join(map(show, value)) + ")"
        case _ if hasattr(value, "shape") and hasattr(value, "dtype"):
            shape = "(" + ", ".join(map(str, value.shape)) + ("," * (value.ndim == 1)) + ")"
            return shape if value.dtype == jnp.float32 else f"{shape} {value.dtype}"
        case _:
            return type(value).__name__


def told(value: object) -> str:
    """An argument as an error message quotes it: an array by its shape, a long repr cut."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return f"an array {show(value)}"
    return brief(repr(value))


class HasName(Protocol):
    """A term, of which an error needs only the name."""

    @property
    def name(self) -> str: ...


def mistaken(term: HasName, wanted: str, kind: Kind | Value) -> str:
    """The error text for a term that takes `wanted` and gets `kind`, with the missing stage."""
    between = {
        (Entries, "scores"): "score(…) turns entries into scores",
        (Entries, "weights"): "score(…), then normalize(…), turn entries into weights",
        (Scores, "weights"): "normalize(…) turns scores into weights",
        (Entries, "an array"): "aggregate() @ normalize(…) @ score(…) turns entries into an array",
        (Scores, "an array"): "aggregate() @ normalize(…) turns scores into an array",
        (Weights, "an array"): "aggregate() turns weights into an array",
        (Weights, "scores"): "it stands before normalize: normalize(…) @ mask(…) @ score(…)",
        (Scores, "entries"): "score comes right after project(…) or slots(…)",
        (Weights, "entries"): "score comes right after project(…) or slots(…)",
        (Width, "entries"): "project(…) or slots(…) turn an array into entries",
        (Width, "scores"): "score(…) @ project(…) turns an array into scores",
        (Width, "weights"): "normalize(…) @ score(…) @ project(…) turns an array into weights",
    }
    sort = Width if hasattr(kind, "shape") else type(kind)
    got = {Entries: "entries", Scores: "scores", Weights: "weights", Width: "an array"}
    name = got.get(sort, "a tuple" if isinstance(kind, tuple) else sort.__name__)
    hint = between.get((sort, wanted))
    return f"{term.name} takes {wanted} and gets {name}" + (f"; {hint}" if hint else "")
