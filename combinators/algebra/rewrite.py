"""Rewriting: every place of a term at which a law applies, and parameters moved along.

What a law does to the parameters of one head and one layer is mapped here over all of them, along
the axes that the declarations of the old and the new term name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

import jax

from ..compose import Compose
from ..core.declare import declare
from ..core.errors import TermError
from ..core.execution import Name, Run, put, select
from ..core.layers import stack, unstack
from ..core.leaf import Leaf
from ..core.parameter import Declarations, Parameter, is_parameter, map_declared, plain
from ..core.term import Term
from ..core.types import Value
from ..heads import Copies
from ..rules.law import Change, Law, Refusal, Rule, Stage, branches, joined, line, with_parts
from ..wrappers import Everywhere

__all__ = [
    "Direction", "Program", "Refused", "Rewrite", "applied", "directions", "places", "rewrites",
]  # fmt: skip

Tree = Mapping[str, Value]


class Direction(NamedTuple):
    """A law, read from left to right or `backwards`."""

    law: Law
    backwards: bool = False

    @property
    def rule(self) -> Rule | None:
        return self.law.back if self.backwards else self.law.rule

    def __str__(self) -> str:
        return f"{self.law.name}{', backwards' if self.backwards else ''}"


def directions(laws: Iterable[Law]) -> list[Direction]:
    """Both directions of laws that rewrite, each in which it has a rule."""
    both = [Direction(law, backwards) for law in laws for backwards in (False, True)]
    return [direction for direction in both if direction.rule]


Move = Callable[[Tree, Declarations, Declarations], Tree]
"""From the parameters of a term, and the declarations before and after, to new parameters."""


class Rewrite(NamedTuple):
    """One step: the term after a law was applied at a place.

    `move(params, old, new)` takes the parameters of the old term and the declarations of both.
    """

    direction: Direction
    path: tuple[str, ...]
    before: Term
    after: Term
    term: Term
    move: Move


class Refused(NamedTuple):
    """A place at which a law almost applies, and the side condition that fails."""

    direction: Direction
    path: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        where = f" at {'/'.join(self.path)!r}" if self.path else ""
        return f"{self.direction.law.statement} is refused{where}: {self.reason}"


class Program(NamedTuple):
    """A term with parameters, and the input and context that its shapes come from."""

    term: Term
    params: Tree
    x: Value
    context: Mapping[str, Value]

    @property
    def declared(self) -> dict[str, Any]:
        """The declarations of the parameters, with all layers stacked."""
        return declare(self.term, self.x, self.context)[0]


def rewrites(term: Term, declared: Tree, laws: Iterable[Direction]) -> Iterator[Rewrite | Refused]:
    """Every way to apply one law once, at any depth, and every place where one is refused."""
    for found in inside(term, declared, [*laws]):
        reason = moves_dropout(term, found.term) if isinstance(found, Rewrite) else ""
        yield Refused(found.direction, found.path, reason) if reason else found


def inside(
    term: Term, declared: Tree, laws: list[Direction], path: tuple[str, ...] = (),
    aliases: Mapping[str, str] | None = None,
) -> Iterator[Rewrite | Refused]:  # fmt: skip
    """`rewrites` of a part that stands at a place, as an execution knows it."""
    stages, here = line(term, declared), Run(None, path, aliases)
    alone = len(stages) < 2
    at_stage = [(path, aliases) if alone else here.place(name) for name in names(term)]
    shapes = [Stage(part, map_declared(tree, abstract)) for part, tree in stages]
    for direction in laws:
        for number, found in enumerate(direction.rule(shapes) if direction.rule else ()):
            place, _ = at_stage[found.start]
            if isinstance(found, Refusal):
                yield Refused(direction, place, found.reason)
                continue
            try:
                yield rewritten(term, shapes, direction, number, place)
            except TermError as error:  # names that a user gave would stand twice
                yield Refused(direction, place, error.reason)
    for at, stage in enumerate(stages):
        form = Run(None, *at_stage[at])
        for index, part in enumerate(inner_declared(stage)):
            place = form.place(stage.term.names[index])
            for found in inside(*part, laws, *place):
                yield found if isinstance(found, Refused) else lifted(stages, at, index, found)


def names(term: Term) -> Sequence[Name]:
    """The names of the stages of a composition; "" for a term that is the only stage."""
    return term.names if isinstance(term, Compose) else ("",)


def abstract(parameter: Parameter) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(parameter.shape, parameter.dtype)


def rewritten(
    term: Term, shapes: list[Stage], direction: Direction, number: int, path: tuple[str, ...]
) -> Rewrite:
    """The rewrite of a line by the change of a law's rule that has this number."""

    def change(stages: list[Stage]) -> tuple[list[Stage], list[Stage], list[Stage]]:
        found = next(islice(cast(Rule, direction.rule)(stages), number, None))
        start, stop, make = cast(Change, found)
        new = [*make()]
        return stages[start:stop], new, [*stages[:start], *new, *stages[stop:]]

    seen: list[Term] = []

    def look(trees: list[Any]) -> None:
        stages = [Stage(part, tree) for (part, _), tree in zip(shapes, trees, strict=True)]
        seen.extend(joined(part).term for part in change(stages))

    def move(params: Tree, _old: Any, _new: Any) -> Tree:
        return joined(change(line(term, params))[2]).params

    jax.eval_shape(look, [stage.params for stage in shapes])
    before, after, whole = seen
    return Rewrite(direction, path, before, after, whole, move)


def inner_declared(stage: Stage) -> list[Stage]:
    """The parts of a form, declared as one head or layer has them. A term shared by name has none,
    for its parameters stand elsewhere."""
    form, declared = stage
    if isinstance(form, Everywhere):
        return []
    return branches(form, one_copy(declared) if copying(form) else declared)


def copying(form: Term) -> bool:
    """Whether a form gives the parameters of its parts an axis of heads or layers."""
    return isinstance(form, Copies) or bool(form.repeats)


def one_copy(declared: Any) -> Any:
    return map_declared(declared, Parameter.inner)


def lifted(stages: list[Stage], at: int, index: int, found: Rewrite) -> Rewrite:
    """A rewrite of a part as one of the line that its form stands in."""
    form = stages[at].term
    parts = [found.term if i == index else part for i, part in enumerate(form.parts)]
    changed = with_parts(form, parts)
    terms = [changed if i == at else stage.term for i, stage in enumerate(stages)]
    before = joined(stages).term
    after = joined(Stage(term, {}) for term in terms).term

    def move(params, old, new):
        lines = line(before, params), line(before, old), line(after, new)
        inner = mapped if copying(form) else within
        moved = inner(form, changed, index, found.move, *(stages[at].params for stages in lines))
        return joined(
            Stage(term, moved if i == at else stage.params)
            for i, (term, stage) in enumerate(zip(terms, lines[0], strict=True))
        ).params

    return found._replace(term=after, move=move)


def within(
    form: Term,
    changed: Term,
    index: int,
    move: Move,
    params: Tree,
    old: Declarations,
    new: Declarations,
):
    """The parameters of a form with those of one part moved, under the names of the new form."""
    tree: dict[str, Any] = {}
    for at, (name, name_after) in enumerate(zip(form.names, changed.names, strict=True)):
        inner = select(params, name)
        if at == index:
            inner = move(inner, select(old, name), select(new, name_after))
        tree = put(tree, name_after, dict(inner))
    return tree


def mapped(
    form: Term,
    changed: Term,
    index: int,
    move: Move,
    params: Tree,
    old: Declarations,
    new: Declarations,
):
    """`within`, mapped over the heads or layers of the form."""

    def one(params):
        return within(form, changed, index, move, params, one_copy(old), one_copy(new))

    if not any(p.copies[-1] for p in jax.tree.leaves(old, is_leaf=is_parameter)):
        return one(params)
    return jax.vmap(one, (copy_axes(old),), copy_axes(new))(params)


def copy_axes(declared: Any) -> Any:
    """For each parameter the axis of the outermost heads or layers, None where they share it."""
    return map_declared(declared, lambda p: p.copies[-1] and p.copies[-1][0])


def applied(found: Rewrite, program: Program) -> Program:
    """The program after a rewrite. Layers stay as they were, stacked or as one dict each."""
    target = Program(found.term, {}, program.x, program.context)
    stacked = stack(program.term, program.params)
    moved = dict(found.move(stacked, program.declared, target.declared))
    moved |= {label: stacked[label] for label in labels(found.term)}
    if jax.tree.structure(stacked) != jax.tree.structure(plain(program.params)):
        moved = unstack(found.term, moved)
    return target._replace(params=moved)


def moves_dropout(before: Term, after: Term) -> str:
    """Why a term may not become another: its dropouts would draw other numbers. Else empty."""
    old, new = addresses(before), addresses(after)
    if old == new:
        return ""
    moved = next(iter({*old} - {*new}), "its place")
    return (
        f"the dropout at {moved!r} would draw other numbers, as they come from its place; give the "
        "stages around it names of their own with named(…)"
    )


def labels(term: Term) -> set[str]:
    """The names under which parameters stand at the top of the tree."""
    return {part.label for _, part in places(term) if isinstance(part, Everywhere)}


def addresses(term: Term) -> list[str]:
    """The places from which random stages take their numbers."""
    return sorted(path for path, part in places(term) if isinstance(part, Leaf) and part.random)


def places(
    term: Term, path: tuple[str, ...] = (), aliases: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Term]]:
    """A term and all its parts, each with the path at which its parameters lie; a composition has
    the path of the form around it."""
    yield "/".join(path), term
    at = Run(None, path, aliases)
    for name, part in zip(term.names, term.parts, strict=True):
        inside = ((term.label,), {}) if isinstance(term, Everywhere) else at.place(name)
        yield from places(part, *inside)
