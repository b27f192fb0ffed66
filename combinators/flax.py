"""Flax both ways: a module of flax as a term, and a term as a module of flax.

    term   = from_linen(linen.Dense(8)) @ from_nnx(nnx.LayerNorm, 4)
    module = Network(term, x, rngs=nnx.Rngs(0))

It is imported by its own name, `combinax.combinators.flax`, because flax.nnx is slow to import.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import PyTree

from .core.arguments import as_term
from .core.context import Context
from .core.errors import CompositionError
from .core.kinds import Kind, spec
from .core.leaf import Leaf
from .core.parameter import Parameter
from .core.printing import Write
from .core.source import reference
from .core.term import Term, form
from .core.types import Params, Value

__all__ = ["Network", "from_linen", "from_nnx"]


# A module as a term


class Module(Leaf):
    """A leaf whose parameters are those of a module of flax, in the module's own tree."""

    random = True

    def drawn(self, key: Array, x: Value) -> dict[str, PyTree[Array]]:
        """What the module learns, drawn from a key, for an abstract input."""
        raise NotImplementedError(f"{type(self).__name__} does not define drawn")

    def flow(self, kind: Kind) -> Kind:
        return None

    def parameters(self, x: Value) -> dict[str, PyTree[Parameter]]:
        x = spec(x)

        def one(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Parameter:
            axes = ("in",) * (leaf.ndim - 1) + ("out",) * min(leaf.ndim, 1)
            names = tuple(step.key for step in path)
            return Parameter(leaf.shape, Drawn(self, x, names), axes, leaf.dtype)

        learned = jax.eval_shape(lambda key: self.drawn(key, x), jax.random.key(0))
        return jax.tree_util.tree_map_with_path(one, learned)

    def only(self, other: Collection[str]) -> None:
        """Terms have no state."""
        if other:
            kinds = ", ".join(sorted(other))
            raise CompositionError(f"{self!r} keeps {kinds} beside its parameters: it has state")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """An initializer: one of the arrays that a module draws, the others unused."""

    module: Module
    x: Value
    path: tuple[str, ...]

    def __call__(self, key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        drawn: Any = flatten_dict(self.module.drawn(key, self.x))
        return drawn[self.path].astype(dtype)


@form
class from_linen(Module):
    """A linen module as a term, its parameters under the module's own names.

    The module is called on x alone, with `rng` for dropout where the context has it.

    Raises CompositionError for a module that keeps more than parameters, such as batch norm, and
    for what is no module, such as its class.

    >>> params = from_linen(linen.Dense(3)).init(jax.random.key(0), jnp.ones((2, 4)))
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (3,), 'kernel': (4, 3)}
    """

    module: linen.Module

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.module, linen.Module):
            raise CompositionError(
                "from_linen takes a module with its arguments, from_linen(linen.Dense(8)), not "
                f"{reference(self.module)}"
            )

    @property
    def name(self) -> str:
        return type(self.module).__name__

    def text(self, write: Write) -> str:
        shown = [
            f"{field.name}={reference(value, write)}"
            for field in dataclasses.fields(self.module)
            if field.init
            and field.name not in ("parent", "name")
            and (value := getattr(self.module, field.name)) is not field.default
        ]
        return f"from_linen({reference(type(self.module))}({', '.join(shown)}))"

    def drawn(self, key: Array, x: Value) -> dict[str, PyTree[Array]]:
        keys = {"params": key, "dropout": key}
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), x)
        kept = dict(self.module.init(keys, zeros))
        params = kept.pop("params", {})
        self.only(kept)
        return params

    def apply(self, params: Params, x: Value, context: Context) -> Value:
        rngs = {"dropout": context["rng"]} if "rng" in context else None
        return self.module.apply({"params": params}, x, rngs=rngs)


@form
class from_nnx(Module):
    """An nnx module as a term: `from_nnx(nnx.Linear, 4, 8)` is `nnx.Linear(4, 8, rngs=…)`.

    Its parameters are those of nnx under the same names, and a module of yours gives them as
    `nnx.to_pure_dict(nnx.state(module, nnx.Param))`. The module is called on x alone; it drops
    numbers where the context has `rng`, and else runs as after `module.eval()`.

    Raises CompositionError for a module that keeps more than parameters, such as batch norm, and
    for one that is already made.

    >>> params = from_nnx(nnx.Linear, 4, 3).init(jax.random.key(0), jnp.ones((2, 4)))
    >>> jax.tree.map(jnp.shape, params)
    {'bias': (3,), 'kernel': (4, 3)}
    """

    module: Callable[..., nnx.Module]
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def __init__(self, module: Callable[..., nnx.Module], *arguments: Any, **options: Any):
        if isinstance(module, nnx.Module) or not callable(module):
            raise CompositionError(
                "from_nnx makes its module, from_nnx(nnx.Linear, 4, 8), and takes no "
                f"{type(module).__name__} that is made"
            )
        object.__setattr__(self, "module", module)
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "options", tuple(sorted(options.items())))
        self.__post_init__()

    @property
    def name(self) -> str:
        return self.module.__name__

    def text(self, write: Write) -> str:
        shown = [reference(value, write) for value in (self.module, *self.arguments)]
        shown += [f"{name}={reference(value, write)}" for name, value in self.options]
        return f"from_nnx({', '.join(shown)})"

    def made(self, key: Array) -> nnx.Module:
        return self.module(*self.arguments, rngs=nnx.Rngs(key), **dict(self.options))

    def drawn(self, key: Array, x: Value) -> dict[str, PyTree[Array]]:
        _, learned, _, other = nnx.split(self.made(key), nnx.Param, nnx.RngState, ...)
        self.only({type(variable).__name__ for _, variable in nnx.to_flat_state(other)})
        return unflatten_dict(
            {names(path): variable[...] for path, variable in nnx.to_flat_state(learned)}
        )

    def apply(self, params: Params, x: Value, context: Context) -> Value:
        module = nnx.eval_shape(self.made, jax.random.key(0))
        if "rng" not in context:
            module.eval()
        graph, learned, random = nnx.split(module, nnx.Param, ...)
        rng, given = context.get("rng", jax.random.key(0)), flatten_dict(dict(params))
        filled = [
            (path, variable.replace(given[names(path)]))
            for path, variable in nnx.to_flat_state(learned)
        ]
        for number, (path, variable) in enumerate(nnx.to_flat_state(random)):
            key = isinstance(variable, nnx.RngKey)
            value = jax.random.fold_in(rng, number) if key else jnp.zeros((), jnp.uint32)
            filled.append((path, variable.replace(value)))
        return nnx.merge(graph, nnx.from_flat_state(filled))(x)


def names(path: tuple[object, ...]) -> tuple[str, ...]:
    """A path of nnx, which numbers the modules of a list, in names."""
    return tuple(map(str, path))


# A term as a module


class Network(nnx.Module):
    """A term as an nnx module: `Network(term, x, rngs=…)(x)` is `term(params, x)`.

    Its parameters are nnx.Param under `params`, in the tree and under the names of `term.init`, so
    that it trains inside any flax model with flax's own tools; `x`, for which they are made, may be
    abstract. Context goes by keyword, to both.

    Raises what `term.init` and the term raise.

    >>> from combinax.combinators import linear
    >>> module = Network(linear(3), jnp.ones((2, 4)), rngs=nnx.Rngs(0))
    >>> module(jnp.ones((2, 4))).shape, module.params["kernel"].shape
    ((2, 3), (4, 3))
    """

    def __init__(self, term: Term, x: Value, /, *, rngs: nnx.Rngs, **context: Value):
        self.term = as_term(term, "Network")
        self.params = nnx.data(jax.tree.map(nnx.Param, term.init(rngs.params(), x, **context)))

    def __call__(self, x: Value, /, **context: Value) -> Value:
        params = nnx.to_pure_dict(nnx.state(self, nnx.Param)).get("params", {})
        return self.term(params, x, **context)
