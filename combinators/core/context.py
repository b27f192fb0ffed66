"""Context: the values that every stage of a term may read, beside its input.

It has two parts that never mix. The user passes `names`, as in `term(params, x, memory=m)`. Forms
such as `precision` and `heads` set the `Scope`, which tells the stages inside them how to run.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from .types import Value

__all__ = ["Context", "Execution", "Head", "OwnNames", "Precision", "Scope"]

Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class Precision:
    """The dtypes of activations, new parameters and sums, by name; "" keeps a type."""

    compute: str = ""
    params: str = ""
    sums: str = ""

    def cast(self, tree: Tree) -> Tree:
        """The tree with its float arrays in the type of activations."""

        def one(leaf: Value) -> Value:
            floats = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
            return leaf.astype(self.compute) if floats else leaf

        return jax.tree.map(one, tree) if self.compute else tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Head:
    """The number of a head, `index` of `count`; nested heads are counted through."""

    index: Int[Array, "*count"]
    count: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, count: int, around: Head | None) -> Head:
        """`count` heads, inside the head `around` if there is one: `index` is (count,)."""
        index = jnp.arange(count, dtype=jnp.int32)
        if around is None:
            return cls(index, count)
        return cls(around.index * count + index, around.count * count)


@dataclasses.dataclass(frozen=True)
class Execution:
    """The execution that the forms around a lookup ask for.

    `pin` is "materialized", "streamed", or "" to choose by shape. `block` is the number of queries
    and keys per tile, if pinned. `copies` is the number of lookups that run at once under `heads`
    and `each`.
    """

    pin: str = ""
    block: tuple[int, int] | None = None
    copies: int = 1


class OwnNames:
    """The `__signature__` of what is called with keywords that are a user's own names.

    JAX names what it traces by the signature, and there takes a keyword for the parameter of its
    name, even one before the slash. So it is shown `*arguments_` in place of those.
    """

    shown = inspect.Signature(
        [
            inspect.Parameter("arguments_", inspect.Parameter.VAR_POSITIONAL),
            inspect.Parameter("context", inspect.Parameter.VAR_KEYWORD),
        ]
    )

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is None:  # a class has the signature by which it is made
            raise AttributeError("__signature__")
        return self.shown


def static(default: Any) -> Any:
    """A static field of a pytree: jit compares it, and never traces it."""
    return dataclasses.field(default=default, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scope:
    """What forms tell the stages inside them: the head, dtypes, and the execution to use.

    `made_inside` holds the names that `given` computes inside the term from rows of the sequence.
    """

    head: Head | None = None
    precision: Precision = static(Precision())
    execution: Execution = static(Execution())
    made_inside: frozenset[str] = static(frozenset())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Context(Mapping[str, Value]):
    """The user's context as an immutable mapping from names to values, and its scope.

    >>> context = Context({"lengths": 3}) | {"rng": 0}
    >>> sorted(context), context["lengths"], sorted(context.without("rng"))
    (['lengths', 'rng'], 3, ['lengths'])
    """

    names: dict[str, Value] = dataclasses.field(default_factory=dict)
    scope: Scope = dataclasses.field(default_factory=Scope)

    def __getitem__(self, name: str) -> Value:
        return self.names[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __or__(self, names: Mapping[str, Value]) -> Context:
        """This context with more names, or other values under names that it has."""
        return dataclasses.replace(self, names={**self.names, **names})

    def without(self, *names: str) -> Context:
        return self.only(self.names.keys() - {*names})

    def only(self, names: Collection[str]) -> Context:
        """This context with no other names than `names`."""
        kept = {name: value for name, value in self.names.items() if name in names}
        return dataclasses.replace(self, names=kept)

    def within(self, **changes: Any) -> Context:
        """This context with changes to its scope."""
        return dataclasses.replace(self, scope=dataclasses.replace(self.scope, **changes))
