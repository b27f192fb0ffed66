"""Declare and make parameters: run a term on abstract values, and draw what it declares."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import PyTree

from .arguments import NOTHING
from .check import check_context, check_input, check_key, check_rows, entering, is_key
from .context import Context, OwnNames
from .errors import CompositionError, Line, ParameterError, TermError, brief
from .execution import Form, Labelled, Mappable, Name, Repeated, Run, SharedPart, put
from .guards import check_hashable
from .kinds import show, spec
from .leaf import Leaf, blaming, compute, parameters_of
from .parameter import Declarations, Parameter, copied, map_declared
from .source import file_line
from .term import Term
from .types import Outputs, Value

__all__ = ["Declare", "axes", "declare"]


class Declare(Run):
    """Run a term on abstract values; the outputs are the declarations of its leaves."""

    def leaf(self, term: Leaf, x: Value, context: Context) -> Value:
        float_type = context.scope.precision.params or jnp.result_type(float)
        with blaming(term):
            declared = parameters_of(term, x)
        self.outputs = map_declared(
            declared, lambda p: dataclasses.replace(p, dtype=p.dtype or float_type)
        )
        zeros = map_declared(self.outputs, lambda p: jnp.zeros(p.shape, p.dtype))
        return compute(term, zeros, x, context, self.path)

    def enter(self, name: Name) -> Declare:
        return self.at(*self.place(name))

    def at(self, path: tuple[str, ...], aliases: Mapping[str, str] | None = None) -> Declare:
        """This execution, at another place."""
        return type(self)(self.root, path, aliases)

    def for_vmap(self, name: str | None) -> Mappable:
        return (), None, lambda _: self

    def outputs_as_arrays(self) -> PyTree[Array]:
        return ()

    def outputs_from_arrays(self, kept: PyTree[Array], name: str | None, size: int) -> Outputs:
        return copied(self.outputs, name, size) if name else self.outputs

    def repeated(self, form: Repeated, x: Value, context: Context) -> Value:
        y = x
        for index in range(len(form.parts)):
            y = self.part(form, index, y, context)
        same_shape(form, x, y)
        self.outputs = copied(self.outputs, "layers", form.periods)
        return y

    def shared(self, form: SharedPart, x: Value, context: Context) -> Value:
        y = self.part(form, 0, x, context)
        self.outputs = map_declared(
            self.outputs, lambda p: dataclasses.replace(p, shared=p.shared | {form.across})
        )
        return y

    def everywhere(self, form: Labelled, x: Value, context: Context) -> Value:
        inner, (term,) = self.at((form.label,)), form.parts
        y = term.wire(inner, x, context)
        first, before = self.root.setdefault(form.label, (term, inner.outputs))
        one, other = (dict(walk(declared)) for declared in (before, inner.outputs))
        # Two terms may each have made the same initializer: unequal functions, equal draws.
        fits = one == other if first != term else likeness(one) == likeness(other)
        if not fits:
            raise CompositionError(
                f"shared(…, name={form.label!r}) stands in two places that need different "
                f"parameters: {listed(one)} in one and {listed(other)} in the other"
                + ("; their initializers differ" if listed(one) == listed(other) else "")
            )
        return y


Listing = dict[tuple[str, ...], Parameter]
"""Each declaration under its path."""


def likeness(declared: Listing) -> dict[tuple[str, ...], tuple]:
    """Declarations without their initializers, to compare."""
    return {path: (p.shape, p.axes, p.dtype, p.copies, p.shared) for path, p in declared.items()}


def listed(declared: Listing) -> str:
    """Declarations as an error lists them: name, then shape."""
    return ", ".join(
        f"{'.'.join(path)} {show(jax.ShapeDtypeStruct(p.shape, p.dtype))}"
        for path, p in declared.items()
    )


def same_shape(form: Form, x: Value, y: Value) -> None:
    """Raise CompositionError unless a repeated block keeps shape and type."""
    if spec(x) != spec(y):
        raise CompositionError(
            f"a repeated block gives back the shape and type it takes; this one turns "
            f"{show(spec(x))} into {show(spec(y))}"
        )


@lru_cache(maxsize=512)
def declare_cached(
    term: Term, leaves: tuple, tree: Hashable, float_type: DTypeLike, declaring: type[Declare]
) -> tuple[Outputs, Value]:
    # `float_type` is read by `Declare.leaf` through JAX's configuration: here it is a cache key.
    run = declaring({})
    x, context = jax.tree.unflatten(tree, leaves)
    y = jax.eval_shape(lambda x, context: term.wire(run, x, context), x, context)
    for name in run.root.keys() & run.outputs.keys():
        raise CompositionError(
            f"shared(…, name={name!r}) takes the name of a stage: choose another"
        )
    return {**run.outputs, **{label: declared for label, (_, declared) in run.root.items()}}, y


def declare(
    term: Term, x: Value, names: Mapping[str, Value], declaring: type[Declare] = Declare
) -> tuple[Outputs, Value]:
    """The declarations of a term's parameters for an input x, and its abstract output."""
    check_input(x)
    check_hashable(term)
    with placing(term, x):
        check_context(term, Context(dict(names)))
        x, names = entering(term, x, names)
        abstract, context = spec((x, Context(names)))
        check_rows(term, abstract, Context(names))
        leaves, tree = jax.tree.flatten((abstract, context))
        return declare_cached(term, tuple(leaves), tree, jnp.result_type(float), declaring)


@contextmanager
def placing(term: Term, x: Value) -> Iterator[None]:
    """Add the whole term and its input to an error that no composition inside has placed."""
    try:
        yield
    except TermError as error:
        where = f"written at {file_line(*term.written)}" if term.written else ""
        headline = f"{brief(repr(term))} cannot run on {show(spec(x))}"
        raise error.placed(headline, [Line(repr(term), where)]) from error.__cause__


def axes(term: Term, x: Value, /, **context: Value) -> dict[str, PyTree[tuple[str, ...]]]:
    """The logical names of every parameter's axes, in the tree of `term.init`.

    The names are layers, heads, in, out, slots, vocabulary and positions. Sharding rules,
    weight-decay masks and per-layer optimisers can all be derived from them.

    >>> from combinax.combinators import heads, linear
    >>> axes(heads(2, linear(3)), jnp.zeros((5, 4)))
    {'linear': {'kernel': ('in', 'heads', 'out')}}
    """
    return map_declared(declare(term, x, context)[0], lambda p: p.axes)


@dataclasses.dataclass(frozen=True)
class Init:
    """`term.init`: a pure function that equals, and hashes like, that of an equal term."""

    term: Term
    __signature__ = OwnNames()

    def __call__(self, rng: Array, x: Value = NOTHING, /, **context: Value) -> dict[str, PyTree]:
        leaves = jax.tree.leaves(x)
        if not is_key(rng) or x is NOTHING or all(isinstance(leaf, int) for leaf in leaves):
            raise ParameterError(
                "init takes a key and an input, term.init(jax.random.key(0), x), with x an array "
                "or abstract: jax.ShapeDtypeStruct((5, 4), float)"
            )
        check_key(rng)
        declared, _ = declare(self.term, x, context)
        inside = isinstance(rng, Tracer) or isinstance(jnp.zeros(()), Tracer)  # another trace
        make = made if inside else made_quickly
        return make(rng, tuple(walk(declared)))


def walk(
    declared: Declarations, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Parameter]]:
    """Each declaration of a tree with its path."""
    for name, value in declared.items():
        if isinstance(value, Parameter):
            yield (*path, name), value
        else:
            yield from walk(value, (*path, name))


def made(rng: Array, declared: tuple[tuple[tuple[str, ...], Parameter], ...]) -> dict[str, PyTree]:
    """The parameters, each drawn with its own key: rng folded with its path."""
    tree: dict[str, PyTree] = {}
    for path, parameter in declared:
        *branch, leaf = path
        key = jax.random.fold_in(rng, zlib.crc32("/".join(path).encode()))
        value: dict[str, PyTree] = {leaf: parameter.make(key)}
        for name in reversed(branch):
            value = {name: value}
        tree = put(tree, "", value)
    return tree


# `init` runs once, so its program is compiled quickly rather than well: the wait is six times less.
made_quickly = jax.jit(
    made,
    static_argnums=1,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)
