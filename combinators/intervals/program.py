"""Predicates on spans: the jaxpr of a predicate, evaluated on bounds of its inputs.

A predicate is traced for one pair of rows. The rule of each primitive bounds its result; a result
without a rule may be any number of its dtype.

    causal: key <= query    queries [4, 7], keys [0, 3]    le: some and every are True
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray, Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.typing import DTypeLike
from jaxtyping import PyTree

from .elementwise import INTEGERS, ORDERED, exact, floor_divide, remainder
from .indexing import SHAPES, looked_up
from .span import End, Options, Span, anything, is_true, is_whole
from .three_valued import Maybe

__all__ = ["Program"]

Bound = Span | None
"""Bounds of an array, or None if it has none (floats)."""


class Program:
    """The jaxpr of a predicate on one pair of rows.

    Rows hold spans, or shapes and dtypes without bounds. Raises TypeError for a function whose
    result is not one boolean, or that captures a traced array.
    """

    def __init__(self, predicate: Callable[[Any, Any], Any], query: PyTree, key: PyTree):
        self.given, shape = jax.tree.flatten((query, key))
        one = lambda *leaves: predicate(*jax.tree.unflatten(shape, leaves))  # noqa: E731
        self.closed = jax.make_jaxpr(one)(
            *(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self.given)
        )
        if any(isinstance(value, Tracer) for value in self.closed.consts):
            raise TypeError("the predicate captures a traced array, whose bounds are not known")
        (result,) = self.closed.out_avals
        if result.dtype != np.bool_ or result.shape not in ((), (1, 1)):
            raise TypeError(f"a predicate gives one boolean for a pair of rows, not {result}")

    @property
    def length(self) -> int:
        """The number of operations."""
        return sum(1 for _ in operations(self.closed.jaxpr))

    @property
    def understood(self) -> bool:
        """Whether every operation has a rule and every input has bounds."""
        facts = all(is_whole(leaf.dtype) for leaf in self.given)
        return facts and all(map(has_rule, operations(self.closed.jaxpr)))

    def is_tight(self, late: Sequence[bool]) -> bool:
        """Whether bounds decide every block, where the leaves marked `late` are known at run time.

        One comparison `a <= b` is decided by the bounds of a and b. Two comparisons may each hold
        for some pair of a block, and both for none. For `a == b`, bounds that overlap need not
        share a number. Floats have no bounds.
        """
        kinds = [leaf.dtype for leaf, is_late in zip(self.given, late, strict=True) if is_late]
        if not all(map(is_whole, kinds)):
            return False
        given = sum(kind == np.bool_ for kind in kinds)
        return given + truths(self.closed.jaxpr, late)[0] < 2

    def seen(self, computing: bool) -> Maybe:
        """The predicate on the bounds of its rows.

        With `computing`, JAX computes operations without a rule if their inputs are known.
        """
        given = [leaf if isinstance(leaf, Span) else anything(leaf) for leaf in self.given]
        with np.errstate(all="ignore"):  # integers wrap around, as those of JAX do
            (result,) = run(self.closed.jaxpr, self.closed.consts, given, computing)
        assert result is not None
        every, some = (end.reshape(end.shape[:2]) for end in (result.lo, result.hi))
        return Maybe(some, every)


def operations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The operations of a jaxpr, those of the jaxprs it calls included."""
    for operation in jaxpr.eqns:
        division = operation.params.get("name") in DIVISIONS
        inner = None if division else called(operation)
        yield from operations(inner.jaxpr) if inner else (operation,)


def truths(jaxpr: Jaxpr, late: Sequence[bool]) -> tuple[int, list[bool]]:
    """The number of booleans that a jaxpr makes of late inputs, and which of its results are late.

    Booleans from other operations than `<`, `<=`, `>` and `>=` count twice: see `is_tight`.
    """
    found = {x for x, is_late in zip(jaxpr.invars, late, strict=True) if is_late}
    count, is_late = 0, lambda x: not isinstance(x, Literal) and x in found
    for operation in jaxpr.eqns:
        given, name, inner = [*map(is_late, operation.invars)], operation.primitive.name, None
        results = [any(given)] * len(operation.outvars)
        if operation.params.get("name") not in DIVISIONS:
            inner = called(operation)
        if inner:
            more, results = truths(inner.jaxpr, given)
            count += more
        elif any(given):
            count += 1 if name in ("lt", "le", "gt", "ge") else 0
            count += 2 if name in ("eq", "ne") or not has_rule(operation) else 0
        found |= {x for x, is_late in zip(operation.outvars, results, strict=True) if is_late}
    return count, [*map(is_late, jaxpr.outvars)]


def has_rule(operation: Any) -> bool:
    """Whether a rule bounds the result of an operation."""
    name = operation.primitive.name
    integers = all(is_whole(x.aval.dtype) for x in operation.invars)
    rules = {*ORDERED, *SHAPES, "gather", *(INTEGERS if integers else ())}
    return name in rules or operation.params.get("name") in DIVISIONS


def called(operation: JaxprEqn) -> ClosedJaxpr | None:
    """The jaxpr that an operation calls, as jit and remat do; None for other operations."""
    if operation.primitive.name not in CALLS:
        return None
    names = ("jaxpr", "call_jaxpr")
    inner = next(operation.params[name] for name in names if name in operation.params)
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


CALLS = {
    "jit", "pjit", "core_call", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint",
    "remat", "remat2",
}  # fmt: skip


def run(
    jaxpr: Jaxpr, consts: Sequence[np.ndarray | Array], given: Sequence[Bound], computing: bool
) -> list[Bound]:
    """Bounds of the results of a jaxpr."""
    spans: dict[Var, Bound] = dict(zip(jaxpr.constvars, map(constant, consts), strict=True))
    spans |= dict(zip(jaxpr.invars, given, strict=True))

    def read(x: Var | Literal) -> Bound:
        if isinstance(x, Literal):
            dtype: Any = getattr(x.aval, "dtype", None)
            return constant(np.asarray(x.val, dtype))
        return spans[x]

    for operation in jaxpr.eqns:
        results = bounded(operation, [read(x) for x in operation.invars], computing)
        spans |= dict(zip(operation.outvars, results, strict=True))
    return [read(x) for x in jaxpr.outvars]


def constant(value: np.ndarray | Array) -> Bound:
    """The span of a constant of a jaxpr."""
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return None
    return Span.point(np.asarray(value)[None, None])


def bounded(operation: Any, given: list[Bound], computing: bool) -> list[Bound]:
    """Bounds of the results of one operation."""
    inner = called(operation)
    if inner:
        rounded = divided(operation, inner, given)
        if rounded is not None:
            return [rounded]
        return run(inner.jaxpr, inner.consts, given, computing)
    avals = [x.aval for x in operation.outvars]
    spans = [span for span in given if span is not None]
    if len(spans) < len(given):
        return [anything(aval) for aval in avals]
    if len(avals) == 1:
        span = ruled(operation.primitive.name, operation.params, avals[0], spans)
        if span is not None:
            return [span]
    if computing and all(span.known for span in spans):
        return computed(operation, spans)
    return [anything(aval) for aval in avals]


def ruled(name: str, options: Options, aval: ShapedArray, spans: Sequence[Span]) -> Bound:
    """Bounds of one result by the rule of a primitive; None without a rule."""
    bases = [span.base for span in spans]
    base = OF_DISTANCES.get(name, lambda *bases: None)(*bases) if any(bases) else 0
    if base is None:
        return None
    if name in SHAPES:
        low = SHAPES[name](options, aval, *(span.lo for span in spans))
        alike = all(span.lo is span.hi for span in spans)
        high = low if alike else SHAPES[name](options, aval, *(span.hi for span in spans))
        return Span(low, high, base, tuple(spans) if name == "concatenate" else ())
    if name == "gather":
        return looked_up(options, aval, *spans)
    spans = aligned(spans, aval)
    integers = all(is_whole(span.dtype) for span in spans)
    if integers and all(span.lo is span.hi for span in spans):
        value = exact(name, options, *(span.lo for span in spans))
        return None if value is None else Span.point(value, base)
    rule = (INTEGERS.get(name) if integers else None) or ORDERED.get(name)
    if rule is None or all(span.known for span in spans):
        return None
    span = rule(*spans, **{key: options[key] for key in OPTIONS.get(name, ())})
    return span and Span(span.lo, span.hi, base)


OPTIONS = {"integer_pow": ("y",), "convert_element_type": ("new_dtype",)}


def aligned(spans: Sequence[Span], aval: ShapedArray) -> list[Span]:
    """Spans of one rank, so that scalars broadcast against arrays."""
    lay = lambda end: end.reshape(end.shape + (1,) * (aval.ndim + 2 - end.ndim))  # noqa: E731
    return [span if span.lo.ndim == aval.ndim + 2 else span.each(lay) for span in spans]


def computed(operation: JaxprEqn, spans: Sequence[Span]) -> list[Bound]:
    """The results on known arrays: the primitive itself, mapped over the blocks."""
    arrays = [span.lo for span in spans]
    sides = np.broadcast_shapes((1, 1), *(x.shape[:2] for x in arrays))

    def once(*arrays: Array) -> list[Array]:
        values = operation.primitive.bind(*arrays, **operation.params)
        return values if operation.primitive.multiple_results else [values]

    def each(*arrays: End) -> list[Array]:
        if not arrays:
            return [value[None, None] for value in once()]
        return jax.vmap(jax.vmap(once))(*(jnp.broadcast_to(x, sides + x.shape[2:]) for x in arrays))

    if any(isinstance(x, jax.Array) for x in arrays):
        return [Span.point(value) for value in each(*arrays)]
    with jax.ensure_compile_time_eval():
        return [Span.point(np.asarray(value)) for value in each(*arrays)]


# Distances: positions relative to an unknown number (`Span.base`)


def one(*bases: int) -> int | None:
    return bases[0] if len(set(bases)) == 1 else None


OF_DISTANCES: dict[str, Callable[..., int | None]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "neg": lambda a: -a,
    "select_n": lambda which, *bases: None if which else one(*bases),
    **dict.fromkeys(("max", "min", *SHAPES), one),
    **dict.fromkeys(
        ("eq", "ne", "lt", "le", "gt", "ge"), lambda *bases: None if one(*bases) is None else 0
    ),
}  # fmt: skip
"""The factor of the unknown number in a result, from its factors in the inputs.

`(position + 2) - position` has the factor 1 - 1 = 0: the distance is known. None for a result that
depends on the number in another way."""


# Divisions that round down: JAX has no primitive for them, but a jitted function

DIVISIONS = {
    "floor_divide": (jnp.floor_divide, floor_divide),
    "remainder": (jnp.remainder, remainder),
}


def divided(operation: Any, inner: ClosedJaxpr, given: Sequence[Bound]) -> Bound:
    """Bounds of x // y or x % y for integers; None for other calls."""
    name = operation.params.get("name")
    if name not in DIVISIONS or any(span is None or span.base for span in given):
        return None
    kinds = tuple((x.aval.shape, x.aval.dtype, x.aval.weak_type) for x in operation.invars)
    if len({kind for _, kind, _ in kinds}) > 1 or not is_whole(kinds[0][1]):
        return None
    if str(inner) != division(name, kinds):
        return None
    whole, by = aligned([span for span in given if span], operation.outvars[0].aval)
    if whole.known and by.known and not is_true(by.lo > 0):
        return None
    return DIVISIONS[name][1](whole, by)


@functools.lru_cache(64)
def division(name: str, kinds: tuple[tuple[tuple[int, ...], DTypeLike, bool], ...]) -> str:
    """The text of the jaxpr of a division, by which a call is recognized, not by its name alone."""
    given = [jax.ShapeDtypeStruct(shape, kind, weak_type=weak) for shape, kind, weak in kinds]
    (operation,) = jax.make_jaxpr(DIVISIONS[name][0])(*given).eqns
    return str(called(operation))
