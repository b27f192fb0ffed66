"""The declaration of one learned array, and the axes that forms around its leaf add."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import PyTree

from .errors import CompositionError
from .kinds import told
from .source import reference
from .types import Outputs

__all__ = ["Initializer", "Parameter"]

Initializer = Callable[[Array, tuple[int, ...], Any], Array]
"""A function of (key, shape, dtype), such as `jax.nn.initializers.ones`."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Parameter:
    """The declaration of one learned array: shape, initializer, and a logical name for each axis.

    `copies` lists the axes that forms around the leaf added, innermost first: (axis, size) each, or
    None for a form whose heads or layers share the array. `shared` holds "heads" or "layers" until
    the next such form around the leaf adds that None.
    """

    shape: tuple[int, ...]
    init: Initializer
    axes: tuple[str, ...]
    dtype: DTypeLike | None = None
    copies: tuple[tuple[int, int] | None, ...] = ()
    shared: frozenset[str] = frozenset()

    def __post_init__(self):
        for what in ("shape", "axes"):
            if not isinstance(getattr(self, what), tuple):
                raise CompositionError(
                    f"{what} of a parameter is a tuple, and here it is {getattr(self, what)!r}"
                )
        if not all(hasattr(size, "__index__") for size in self.shape):
            raise CompositionError(f"a shape is a tuple of integers, not {self.shape}")
        if len(self.axes) != len(self.shape):
            raise CompositionError(f"a parameter of shape {self.shape} has axes {self.axes}")
        if not callable(self.init):
            raise CompositionError(
                "a parameter takes an initializer, a function of (key, shape, dtype) such as "
                f"jax.nn.initializers.ones, not {told(self.init)}"
            )

    def copied(self, name: str, size: int, axis: Callable[[Parameter], int]) -> Parameter:
        """This parameter with a new axis `name` of length `size`, or with None if it is shared."""
        if name in self.shared:
            return dataclasses.replace(
                self, copies=(*self.copies, None), shared=self.shared - {name}
            )
        at = axis(self)
        return dataclasses.replace(
            self,
            shape=(*self.shape[:at], size, *self.shape[at:]),
            axes=(*self.axes[:at], name, *self.axes[at:]),
            copies=(*self.copies, (at, size)),
        )

    def inner(self) -> Parameter:
        """The parameter as one head or layer of the outermost form sees it."""
        last = self.copies[-1]
        rest = dataclasses.replace(self, copies=self.copies[:-1])
        if last is None:
            return rest
        at = last[0]
        drop = lambda items: items[:at] + items[at + 1 :]  # noqa: E731
        return dataclasses.replace(rest, shape=drop(self.shape), axes=drop(self.axes))

    def make(self, key: Array) -> Array:
        """The initial array; every head and layer is drawn with a key of its own."""
        if not self.copies:
            value = jnp.asarray(self.init(key, self.shape, self.dtype), self.dtype)
            if value.shape != self.shape:
                raise CompositionError(
                    f"an initializer gives the shape that it is asked for, {self.shape}; "
                    f"{reference(self.init)} gives {value.shape}"
                )
            return value
        inner, last = self.inner(), self.copies[-1]
        if last is None:
            return inner.make(key)
        return jax.vmap(inner.make, out_axes=last[0])(jax.random.split(key, last[1]))


Declarations: TypeAlias = Mapping[str, PyTree[Parameter]]
"""Under each name the declaration of one array, or the declarations of a part."""


def is_parameter(value: object) -> TypeGuard[Parameter]:
    return isinstance(value, Parameter)


def map_declared(declared: Declarations, function: Callable[[Parameter], object]) -> PyTree:
    """A function of each declaration in a tree."""
    return jax.tree.map(function, declared, is_leaf=is_parameter)


def copy_axis(parameter: Parameter) -> int:
    """The axis of heads: before the last, outer before inner, so that a reshape joins heads."""
    return max(0, len(parameter.shape) - 1 - parameter.axes.count("heads"))


COPIES: dict[str, Callable[[Parameter], int]] = {"heads": copy_axis, "layers": lambda _: 0}


def copied(declared: Declarations, name: str, size: int) -> Outputs:
    """Declarations with a new axis "heads" or "layers" of length `size`."""
    return map_declared(declared, lambda p: p.copied(name, size, COPIES[name]))


def plain(params: PyTree) -> PyTree:
    """Parameters as dicts of arrays, from the mappings and boxes of a library, such as flax's
    FrozenDict, State and Partitioned."""
    if isinstance(params, Mapping):
        return {name: plain(value) for name, value in params.items()}
    leaves = jax.tree.leaves(params)
    return leaves[0] if len(leaves) == 1 else params
