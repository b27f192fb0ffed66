"""Apply a term to its parameters: the reference meaning, which other executions derive from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import PyTree

from .arguments import NOTHING
from .check import entering, fit
from .context import Context
from .declare import Declare, declare, placing
from .errors import ParameterError
from .execution import Labelled, Mappable, Name, Repeated, Run, put, select
from .kinds import show
from .leaf import Leaf, compute
from .mesh import on_mesh
from .parameter import Declarations, Parameter, is_parameter, map_declared, plain
from .term import Term
from .types import Outputs, Params, Value

__all__ = ["Apply", "call", "from_numpy"]


def call(
    term: Term, params: Params, x: Value, names: Mapping[str, Value],
    execution: Callable[[Params, Declarations], Run], declaring: type[Declare] = Declare,
) -> tuple[Value, Outputs]:  # fmt: skip
    """Check that parameters, x and context fit the term, then run it: the value, the outputs."""
    if not isinstance(params, Mapping) or x is NOTHING:
        got = "nothing" if params is NOTHING else "None" if params is None else show(params)
        raise ParameterError(
            f"a term takes its parameters first and then its input, term(params, x), with "
            f"params a dict as term.init(rng, x) makes it; {term.name} got {got} first"
        )
    names = {name: value for name, value in names.items() if value is not None}
    params = plain(params)
    with placing(term, x):
        x, names = entering(term, x, names)
        given, mesh = on_mesh(jax.tree.map(from_numpy, (params, x, names)))
        params, x, names = given
        declared, _ = declare(term, x, names, declaring)
    with placing(term, x), mesh:
        run = execution(params, fit(term, declared, params))
        return term.wire(run, x, Context(dict(names))), run.outputs


def from_numpy(value: object) -> object:
    """A NumPy array as a JAX array, so float64 only where it is enabled; else the value."""
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


class Apply(Run):
    """Run a term with its parameters: the reference meaning.

    Subclasses that carry more than parameters extend `at`, which makes the execution of a part,
    and `layer` and `scan`, which do the same for the blocks of a repeat.
    """

    def __init__(self, params, declared, root=None, path=(), aliases=None):
        super().__init__(root or (params, declared), path, aliases)
        self.params, self.declared = params, declared

    def leaf(self, term: Leaf, x: Value, context: Context) -> Value:
        return compute(term, self.params, x, context, self.path)

    def at(self, params: Params, declared: Declarations, place: tuple | None = None) -> Self:
        """This execution with other parameters, by default at the same path and aliases."""
        return type(self)(params, declared, self.root, *(place or (self.path, self.aliases)))

    def enter(self, name: Name) -> Self:
        return self.at(select(self.params, name), select(self.declared, name), self.place(name))

    def for_vmap(self, name: str | None) -> Mappable:
        if name is None:
            return (), None, lambda _: self.at(self.params, self.declared)
        inner = map_declared(self.declared, Parameter.inner)
        axes = map_declared(self.declared, lambda p: p.copies[-1] and p.copies[-1][0])
        return self.params, axes, lambda params: self.at(params, inner)

    def everywhere(self, form: Labelled, x: Value, context: Context) -> Value:
        params, declared = (tree[form.label] for tree in self.root)
        inner = self.at(params, declared, ((form.label,), {}))
        y = form.parts[0].wire(inner, x, context)
        self.outputs = inner.outputs
        return y

    def repeated(self, form: Repeated, x: Value, context: Context) -> Value:
        return (
            self.unrolled(form, x, context)
            if "0" in self.declared
            else self.scanned(form, x, context)
        )

    def unrolled(self, form: Repeated, x: Value, context: Context) -> Value:
        """Run block after block, each with its own entry in the parameters: {"0": …, "1": …}."""
        for layer in range(form.repeats):
            x, made = form.remat(partial(self.block, form, layer, context))(x)
            self.outputs = put(self.outputs, str(layer), made)
        return x

    def block(
        self, form: Repeated, layer: int, context: Context, x: Value
    ) -> tuple[Value, Outputs]:
        """Run one block: its value and its outputs."""
        index = layer % len(form.parts)
        inner = self.layer(form.names[index], str(layer))
        y = form.parts[index].wire(inner, x, layer_context(context, layer))
        return y, inner.outputs

    def layer(self, name: Name, key: str) -> Self:
        """The execution of one block: its own parameters, merged with those that blocks share."""
        return self.at(
            put(dict(select(self.params, name)), "", self.params.get(key, {})),
            put(dict(select(self.declared, name)), "", self.declared.get(key, {})),
            self.place(name),
        )

    def scanned(self, form: Repeated, x: Value, context: Context) -> Value:
        """Run all blocks as one `lax.scan` over stacked parameters: compiled once for all."""
        params, tree = jax.tree.flatten(self.params)
        per_layer = [
            p.copies[-1] is not None for p in jax.tree.leaves(self.declared, is_leaf=is_parameter)
        ]
        inner = map_declared(self.declared, Parameter.inner)

        def period(x, step, stacked, take):
            stacked = iter(stacked)
            own = [next(stacked) if each else p for each, p in zip(per_layer, params, strict=True)]
            run = take(self.at(jax.tree.unflatten(tree, own), inner))
            for index in range(len(form.parts)):
                layer = layer_context(context, step * len(form.parts) + index)
                x = run.part(form, index, x, layer)
            return x, run.outputs

        stacked = [p for each, p in zip(per_layer, params, strict=True) if each]
        x, self.outputs = self.scan(form, period, x, (jnp.arange(form.periods), stacked))
        return x

    def scan(
        self, form: Repeated, period: Callable, x: Value, layers: PyTree[Array]
    ) -> tuple[Value, Outputs]:
        """Run `period(x, step, stacked, take)` for each period; `take` prepares its execution."""

        def one(x, layer):
            return period(x, *layer, lambda run: run)

        return jax.lax.scan(form.remat(one), x, layers, length=form.periods)


def layer_context(context: Context, layer: ArrayLike) -> Context:
    """The context of one layer, with a random key of its own."""
    if "rng" not in context:
        return context
    return context | {"rng": jax.random.fold_in(context["rng"], layer)}
