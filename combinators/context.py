"""Context: what travels beside the main value.

Two things that never meet: the names that a user passes, `term(params, x, memory=m)`, and the
`Scope`, in which forms such as `precision` and `heads` tell the stages inside them how to run.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:
    from .wrap import precision

__all__ = ["Context", "Execution", "Head", "OwnNames", "Scope"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Head:
    """The number of a copy, `index` of `count`, counted through all the copies around it."""

    index: Array
    count: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, count: int, around: Head | None) -> Head:
        """The heads that are copies of one, and that may itself be a copy: `index` is (count,)."""
        index = jnp.arange(count, dtype=jnp.int32)
        if around is None:
            return cls(index, count)
        return cls(around.index * count + index, around.count * count)


@dataclasses.dataclass(frozen=True)
class Execution:
    """How the forms around a lookup want it to run.

    `pin` is "materialized", "streamed" or "" for no wish, `block` the pinned numbers of queries
    and keys in a tile; `copies` counts the lookups that run side by side under heads and each.
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

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is None:  # a class has the signature by which it is made
            raise AttributeError("__signature__")
        return self.shown


def static(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scope:
    """What forms tell the stages inside them: number types, the head, the execution, and the names
    in the context that `given` made inside the term of rows of the sequence."""

    head: Head | None = None
    precision: precision | None = static(None)
    execution: Execution = static(Execution())
    made_inside: frozenset[str] = static(frozenset())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Context(Mapping[str, Any]):
    """The user's context as an immutable mapping from names to values, and its scope.

    >>> context = Context({"lengths": 3}) | {"rng": 0}
    >>> sorted(context), context["lengths"], sorted(context.without("rng"))
    (['lengths', 'rng'], 3, ['lengths'])
    """

    names: dict[str, Any] = dataclasses.field(default_factory=dict)
    scope: Scope = dataclasses.field(default_factory=Scope)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __or__(self, names: Mapping[str, Any]) -> Context:
        """This context with more names, or other values under names that it has."""
        return dataclasses.replace(self, names={**self.names, **names})

    def without(self, *names: str) -> Context:
        return self.only(self.names.keys() - {*names})

    def only(self, names: Collection[str]) -> Context:
        """This context with those names alone that are in `names`."""
        kept = {name: value for name, value in self.names.items() if name in names}
        return dataclasses.replace(self, names=kept)

    def within(self, **changes: Any) -> Context:
        """This context with changes to its scope."""
        return dataclasses.replace(self, scope=dataclasses.replace(self.scope, **changes))
