"""Executions: what it means to run a term. Here is what all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from .context import Context, Head
from .mesh import divided_alike

if TYPE_CHECKING:
    from .lookup import Lookup
    from .term import Leaf, Term

__all__ = ["Context", "Name", "Run", "put", "select"]

Name = str | Mapping[str, str]
"""Where a part's parameters lie in its form's: under a name, under several names of the form
(a composition inside another form gives its stages' parameters to that form), or, for "", all."""


class Run:
    """An execution: what it means to run a term's parts. Here is what all executions share.

    `outputs` is what an execution leaves behind beside the value, named like the parameters:
    declarations, observed values, new state.
    """

    def __init__(self, root: Any, path: tuple[str, ...] = (), aliases: Any = None):
        self.root, self.path, self.aliases = root, path, aliases or {}
        self.outputs: dict[str, Any] = {}

    def leaf(self, term: Leaf, x: Any, context: Context) -> Any:
        """Run a primitive."""
        raise NotImplementedError

    def enter(self, name: Name) -> Run:
        """This execution, for what lies under `name`."""
        raise NotImplementedError

    def place(self, name: Name) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """The path and the aliases of what lies under `name`."""
        if not isinstance(name, str):
            return self.path, {k: self.aliases.get(v, v) for k, v in name.items()}
        if not name:
            return self.path, self.aliases
        return (*self.path, self.aliases.get(name, name)), {}

    def part(self, form: Term, index: int, x: Any, context: Context) -> Any:
        """Run one part of a form."""
        name, part = form.names[index], form.parts[index]
        inner = self.enter(name)
        if isinstance(name, str) and name:
            with jax.named_scope(name):
                y = part.wire(inner, x, context)
        else:
            y = part.wire(inner, x, context)
        self.outputs = put(self.outputs, name, inner.outputs)
        return y

    def mapped(
        self, form: Term, x: Any, context: Context, size: int, axis: int | None,
        given: Mapping[str, Any], copies: str | None,
    ) -> Any:  # fmt: skip
        """Run a form's one part `size` times side by side; results are stacked on axis 0.

        x is mapped over `axis` (None: every copy gets it whole), the context in `given` over axis
        0. `copies` names the axis of parameters that each copy has to itself.
        """
        inner = self.enter(form.names[0])
        arguments, axes, resume = inner.copies(copies)
        head = Head.of(size, context.scope.head) if copies else context.scope.head

        def one(arguments, x, given, head):
            run = resume(arguments)
            y = form.parts[0].wire(run, x, (context | given).within(head=head))
            return y, run.kept()

        mapped = (axes, axis, 0, 0 if copies else None)
        values = divided_alike((arguments, x, given, head), mapped)
        if copies:
            inner.look(one, values, mapped)
        y, kept = jax.vmap(one, mapped, axis_size=size)(*values)
        self.outputs = put(self.outputs, form.names[0], inner.regain(kept, copies, size))
        return y

    def look(self, one: Callable, arguments: tuple, axes: tuple) -> None:
        """See the function of one copy, `one(*arguments)`, before it is mapped over the axes."""

    def copies(self, name: str | None) -> tuple[Any, Any, Callable[[Any], Run]]:
        """What vmap maps for each copy: arrays, their axes, and the execution they resume."""
        raise NotImplementedError

    def lookup(
        self, form: Term, lookup: Lookup, x: Any, context: Context, step: Callable[[int, Any], Any]
    ) -> Any:
        """Ask a dictionary: here stage by stage, on one table of all queries and keys.

        This is the reference meaning. `step(place, value)` runs the stage at a place of the form.
        """
        for place in lookup.order:
            x = step(place, x)
        return x

    def repeated(self, form: Any, x: Any, context: Context) -> Any:
        """Run the parts of a repeat one after the other, again and again."""
        raise NotImplementedError

    def shared(self, form: Any, x: Any, context: Context) -> Any:
        """Run a part whose parameters all copies, or all layers, share."""
        return self.part(form, 0, x, context)

    def everywhere(self, form: Any, x: Any, context: Context) -> Any:
        """Run a part whose parameters stand at the top of the tree, under `form.label`."""
        raise NotImplementedError

    def kept(self) -> Any:
        """What of the outputs leaves a mapped function: arrays."""
        return self.outputs

    def regain(self, kept: Any, name: str | None, size: int) -> dict[str, Any]:
        """The outputs of a mapped function, from what left it."""
        return kept


def select(tree: Mapping[str, Any], name: Name) -> Mapping[str, Any]:
    """The part of a tree that lies under a name."""
    if not isinstance(name, str):
        return {local: tree[place] for local, place in name.items() if place in tree}
    return tree.get(name, {}) if name else tree


def put(tree: dict[str, Any], name: Name, inner: dict[str, Any]) -> dict[str, Any]:
    """The tree with `inner` under a name, merged with what is there; empty dicts are dropped."""
    if not inner:
        return tree
    if isinstance(name, str) and name:
        inner = {name: inner}
    elif not isinstance(name, str):
        inner = {name[local]: value for local, value in inner.items()}
    merged = dict(tree)
    for key, value in inner.items():
        old = merged.get(key)
        merged[key] = put(old, "", value) if isinstance(old, dict) else value
    return merged
