"""Executions: what it means to run a term. `Run` is the base of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import jax
from jax import Array
from jaxtyping import PyTree

from .context import Context, Head
from .mesh import divided_alike
from .types import Axes, Outputs, Value

__all__ = [
    "Form", "Labelled", "Mappable", "Name", "Repeated", "Run", "SharedPart", "Step", "put",
    "select",
]  # fmt: skip

Name = str | Mapping[str, str]
"""Where a part's parameters lie in those of its form: under one name; "" if they are the same; or
{stage's name: form's name}, for a composition whose stages the form lists as its own."""


Step = Callable[[int, Value], Value]
"""Runs the stage at a place of a composition on a value."""


class Form(Protocol):
    """A term as an execution sees it: parts, where their parameters lie, and their wiring."""

    @property
    def parts(self) -> tuple[Form, ...]: ...
    @property
    def names(self) -> tuple[Name, ...]: ...
    def wire(self, run: Run, x: Value, context: Context) -> Value: ...


class Repeated(Form, Protocol):
    """A form that runs its parts in turn, `repeats` blocks in `periods` rounds."""

    @property
    def repeats(self) -> int: ...
    @property
    def periods(self) -> int: ...
    @property
    def remat(self) -> Callable[[Callable], Callable]: ...


class Labelled(Form, Protocol):
    """A form whose one part has its parameters at the top of the tree, under `label`."""

    @property
    def label(self) -> str: ...


class SharedPart(Form, Protocol):
    """A form whose one part has the same parameters for all "heads", or for all "layers"."""

    @property
    def across(self) -> str: ...


class Run:
    """An execution: what it means to run a term. A subclass overrides some of these hooks.

    A term's `wire` calls:

        leaf        compute a primitive
        part        run one part of a form, with the parameters under its name
        lookup      run the stages of a lookup, from entries to the answer
        mapped      run the part of `heads` or `each` under vmap, once per head or batch element
        repeated    run the blocks of a `repeat`, one after the other
        shared      run a part whose parameters all heads, or all layers, share
        everywhere  run a part whose parameters stand at the top of the tree

    `part` and `mapped` call:

        enter                make the execution of what lies under a name
        place                give the path and the aliases of what lies under a name
        for_vmap             give the arrays that vmap maps, their axes, and the execution inside
        inspect_mapped       see the function that vmap is about to map
        outputs_as_arrays    give the outputs that leave vmap, as arrays
        outputs_from_arrays  turn these arrays back into outputs

    `outputs` is what an execution gives beside the value, in a tree named like the parameters:
    declarations, observed values, or new state. `path` and `aliases` name the place in that tree;
    all executions of one call share `root`.
    """

    def __init__(
        self, root: Any, path: tuple[str, ...] = (), aliases: Mapping[str, str] | None = None
    ):
        self.root, self.path, self.aliases = root, path, aliases or {}
        self.outputs: Outputs = {}

    def leaf(self, term: Any, x: Value, context: Context) -> Value:
        """Compute a primitive."""
        raise NotImplementedError

    def enter(self, name: Name) -> Run:
        """The execution of a part whose parameters lie under `name`."""
        raise NotImplementedError

    def place(self, name: Name) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """The path and the aliases of a part whose parameters lie under `name`."""
        if not isinstance(name, str):
            return self.path, {k: self.aliases.get(v, v) for k, v in name.items()}
        if not name:
            return self.path, self.aliases
        return (*self.path, self.aliases.get(name, name)), {}

    def part(self, form: Form, index: int, x: Value, context: Context) -> Value:
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
        self, form: Form, x: Value, context: Context, size: int, axis: int | None,
        given: Mapping[str, Value], copies: str | None,
    ) -> Value:  # fmt: skip
        """Run a form's one part under vmap, `size` times; results are stacked on axis 0.

        x is mapped over `axis`, or passed whole if `axis` is None; the context in `given` is mapped
        over axis 0. `copies` names the axis of parameters to map, "heads", or is None if every
        batch element uses the same parameters.
        """
        inner = self.enter(form.names[0])
        arguments, axes, resume = inner.for_vmap(copies)
        head = Head.of(size, context.scope.head) if copies else context.scope.head

        def one(arguments, x, given, head):
            run = resume(arguments)
            y = form.parts[0].wire(run, x, (context | given).within(head=head))
            return y, run.outputs_as_arrays()

        mapped = (axes, axis, 0, 0 if copies else None)
        values = divided_alike((arguments, x, given, head), mapped)
        if copies:
            inner.inspect_mapped(one, values, mapped)
        y, kept = jax.vmap(one, mapped, axis_size=size)(*values)
        outputs = inner.outputs_from_arrays(kept, copies, size)
        self.outputs = put(self.outputs, form.names[0], outputs)
        return y

    def inspect_mapped(self, one: Callable, arguments: tuple, axes: tuple[Axes, ...]) -> None:
        """Inspect `one`, the function of a single head, before vmap maps it over `axes`."""

    def for_vmap(self, name: str | None) -> Mappable:
        """Arrays for vmap to map, their axes, and a function from one slice to its execution."""
        raise NotImplementedError

    def lookup(self, form: Form, lookup: Any, x: Value, context: Context, step: Step) -> Value:
        """Run a lookup, here stage by stage on one (T, S) table: the reference meaning.

        `step(place, value)` runs the stage at a place of the form.
        """
        for place in lookup.order:
            x = step(place, x)
        return x

    def repeated(self, form: Repeated, x: Value, context: Context) -> Value:
        """Run the parts of a repeat in turn, `form.repeats` blocks in all."""
        raise NotImplementedError

    def shared(self, form: SharedPart, x: Value, context: Context) -> Value:
        """Run a part whose parameters all heads, or all layers, share."""
        return self.part(form, 0, x, context)

    def everywhere(self, form: Labelled, x: Value, context: Context) -> Value:
        """Run a part whose parameters stand at the top of the tree, under `form.label`."""
        raise NotImplementedError

    def outputs_as_arrays(self) -> PyTree[Array]:
        """The outputs that leave a function under vmap: a tree of arrays."""
        return self.outputs

    def outputs_from_arrays(self, kept: PyTree[Array], name: str | None, size: int) -> Outputs:
        """The outputs of `mapped`, from the arrays of `outputs_as_arrays`, stacked by vmap."""
        return kept


Mappable: TypeAlias = tuple[PyTree[Array], Axes, Callable[[PyTree[Array]], Run]]
"""Arrays for `jax.vmap` to map, their axes, and the execution of one slice of them."""


def select(tree: Mapping[str, PyTree], name: Name) -> Mapping[str, PyTree]:
    """The subtree under a name."""
    if not isinstance(name, str):
        return {local: tree[place] for local, place in name.items() if place in tree}
    return tree.get(name, {}) if name else tree


def put(tree: dict[str, PyTree], name: Name, inner: dict[str, PyTree]) -> dict[str, PyTree]:
    """The tree with `inner` merged into the subtree under a name; an empty `inner` adds nothing."""
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
