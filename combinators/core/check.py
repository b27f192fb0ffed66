"""Checks that input, context and parameters fit a term; errors say which part does not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from types import NoneType
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from .context import Context
from .dtypes import numbered, uncounted
from .errors import CompositionError, ContextError, ParameterError, brief
from .kinds import show, spec, symbolic
from .layers import apart
from .marks import Range, Rows
from .parameter import Declarations, Parameter
from .term import Term
from .types import Outputs, Params, Value

__all__ = [
    "check_context", "check_input", "check_integers", "check_key", "check_names", "check_numbers",
    "check_rows", "entering", "fit", "is_key",
]  # fmt: skip

NUMBERS = bool, int, float, complex, Range

OPTIONAL = frozenset({"rng", "positions"})
"""Context that every term takes and none needs: a random key, and the positions of rows."""


def check_input(x: Value) -> None:
    """Raise CompositionError for a list of numbers or a string, which have no shape."""
    if isinstance(x, (list, str)) and not any(hasattr(v, "shape") for v in jax.tree.leaves(x)):
        raise CompositionError(f"x is an array, not a {show(x)}: write jnp.array(…) of numbers")


def check_numbers(what: str, x: Value) -> None:
    """Raise CompositionError for an x whose length is a symbol."""
    if any(symbolic(jnp.shape(leaf)) for leaf in jax.tree.leaves(x)):
        raise CompositionError(
            f"{what} takes a known number of rows, and gets {show(spec(x))}, whose length is a "
            "symbol: give it numbers"
        )


def entering(term: Term, x: Value, names: Mapping[str, Value]) -> tuple[Value, dict[str, Value]]:
    """x and context as a term runs on them, with positions and row metadata as int32.

    Raises ContextError for what is no array, positions that are no integers, and numbers outside
    int32.
    """
    for name in sorted((term.reads | {"positions"}) & names.keys()):
        for leaf in jax.tree.leaves(names[name]):
            if not hasattr(leaf, "dtype") and not isinstance(leaf, NUMBERS):
                raise ContextError(f"{name} holds arrays, not a {type(leaf).__name__}")
    names = numbered(names, term.row_facts | {"positions"})
    if not isinstance(positions := names.get("positions"), (Range, NoneType)):
        check_positions(positions)
    rows = lambda value: value.numbered() if isinstance(value, Rows) else value  # noqa: E731
    x = jax.tree.map(rows, x, is_leaf=lambda value: isinstance(value, Rows))
    return x, names


def check_integers(positions: ArrayLike) -> None:
    """Raise ContextError for positions that are no integers."""
    kind = jnp.result_type(positions)
    if not jnp.issubdtype(kind, jnp.integer):
        raise ContextError(uncounted("positions", kind))


def check_positions(positions: ArrayLike) -> None:
    """Raise ContextError unless positions are integers, one per row."""
    check_integers(positions)
    if jnp.ndim(positions) == 0:
        raise ContextError(
            "positions has one integer per row of x, and here it is a single number; jax.vmap maps "
            "every keyword over its first axis: each(term, fixed=('positions',)) keeps one whole"
        )


def check_key(rng: Value) -> None:
    """Raise ContextError unless rng is one random key."""
    if not is_key(rng):
        got = "None" if rng is None else show(rng)
        raise ContextError(f"rng takes a key, jax.random.key(0), and gets {got}")
    if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key) and rng.ndim:
        raise ContextError(
            f"rng is one key, and here it has shape {rng.shape}; jax.vmap maps a batch of keys"
        )


def is_key(value: Value) -> bool:
    """Whether a value is a random key, of jax.random.key or of the older PRNGKey."""
    kind = getattr(value, "dtype", None)
    return kind is not None and (
        jnp.issubdtype(kind, jax.dtypes.prng_key) or (kind == jnp.uint32 and value.shape == (2,))
    )


def check_context(term: Term, context: Context) -> None:
    """Raise ContextError unless the context holds the names that the term reads, and no others."""
    unknown = sorted(context.keys() - term.reads - OPTIONAL)
    for name in sorted(term.reads - context.keys()):
        what = f"{brief(repr(reader(term, name)))} needs {name}=… in the context"
        close = get_close_matches(name, unknown, 1)
        raise ContextError(f"{what}; did you mean {name} by {close[0]}?" if close else what)
    for name in unknown:
        known = ", ".join(sorted(term.reads | OPTIONAL))
        raise ContextError(f"no stage reads {name!r}; this term knows {known}")
    if "rng" in context:
        check_key(context["rng"])


def check_rows(term: Term, x: Value, context: Context) -> None:
    """Raise ContextError unless every row of every sequence that `each` maps has a position."""
    positions = context.get("positions")
    if positions is None or isinstance(positions, Range):
        return
    # Past the mapped axes, a sequence of vectors has two axes, and one of tokens has one.
    least = [term.mapped_axes + jnp.issubdtype(v.dtype, jnp.floating) for v in jax.tree.leaves(x)]
    axes = zip(map(jnp.ndim, jax.tree.leaves(x)), least, strict=True)
    if jnp.ndim(positions) <= term.mapped_axes and any(n > least for n, least in axes):
        raise ContextError(
            f"positions has one integer per row of every sequence that each maps, and here it has "
            f"shape {jnp.shape(positions)}; fixed=('positions',) gives every sequence the same"
        )


def check_names(term: Term, taken: Collection[str], where: str) -> None:
    """Raise ContextError if a stage reads a name that the function `where` takes for itself."""
    for name in sorted(term.reads & {*taken}):
        raise ContextError(
            f"{where} takes {name} for itself, and {brief(repr(reader(term, name)))} reads it from "
            "the context: give what is read another name"
        )


def reader(term: Term, name: str) -> Term:
    """The innermost part of a term that reads a name."""
    for part in term.parts:
        if name in part.reads:
            return reader(part, name)
    return term


def fit(term: Term, declared: Outputs, params: Params) -> Outputs:
    """The declarations, with each repeat stacked or unstacked as in the parameters.

    Raises ParameterError for parameters that do not fit.
    """
    declared = apart(term, declared, params)
    wrong = list(misfits(declared, params, ()))
    if wrong:
        shown = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise ParameterError(f"these parameters belong to another term than {term.name}: {shown}")
    return declared


def misfits(
    declared: Parameter | Declarations, params: Array | Params, path: tuple[str, ...]
) -> Iterator[str]:
    """A sentence for each place where the parameters do not fit the declarations."""
    where = ".".join(path) or "the tree"
    if isinstance(declared, Parameter):
        if isinstance(params, Mapping):
            yield f"{where} is one array of shape {declared.shape}, not a dict"
        elif jnp.shape(params) != declared.shape:
            yield f"{where} should have shape {declared.shape} and has {jnp.shape(params)}"
        elif not type_fits(jnp.result_type(params), declared.dtype):
            kinds = (jnp.dtype(kind) for kind in (declared.dtype, jnp.result_type(params)))
            yield "{} should hold {} and holds {}".format(where, *kinds)
        return
    if not isinstance(params, Mapping):
        names = ", ".join(declared)
        yield f"{where} is a dict of {names}, not an array of shape {jnp.shape(params)}"
        return
    for name in sorted(declared.keys() - params.keys()):
        yield f"{'.'.join((*path, name))} is missing"
    for name in sorted(params.keys() - declared.keys()):
        yield f"{'.'.join((*path, name))} is none of its parameters"
    for name in sorted(declared.keys() & params.keys()):
        yield from misfits(declared[name], params[name], (*path, name))


def type_fits(kind: DTypeLike, declared: Any) -> bool:
    """Whether parameters may have a dtype: any float for a declared float, else the declared."""
    floats = jnp.issubdtype(declared, jnp.floating)
    return jnp.issubdtype(kind, jnp.floating) if floats else kind == declared
