"""Surgery: what matches in a term, a term with parts exchanged, and two terms side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..compose import Compose, compose
from ..core.arguments import as_term
from ..core.errors import CompositionError
from ..core.execution import Run
from ..core.kinds import told
from ..core.parameter import plain
from ..core.printing import equation
from ..core.source import PACKAGE
from ..core.term import Term
from ..core.types import Value
from ..rules.law import Stage, branches, joined, line, reformed, with_parts
from ..wrappers import Everywhere
from .rewrite import labels, places

__all__ = ["Difference", "Match", "carry", "diff", "replace", "select"]

Pattern = Any
"""A term, a word, a path with `*` for any names, or a function of a term that says whether."""


class Match(NamedTuple):
    """A part of a term, with the path at which its parameters lie."""

    path: str
    term: Term


def fits(pattern: Pattern) -> Callable[[str, Term], bool]:
    """The test of a pattern on a path and its part, for one walk from the outermost inwards."""
    if isinstance(pattern, Term):
        return lambda path, term: term == pattern
    if isinstance(pattern, str):
        seen: set[str] = set()

        def outermost(path: str, term: Term) -> bool:
            """Whether it is the first part that lies there; those inside it lie there, too."""
            first = path not in seen
            seen.add(path)
            return first and fnmatchcase(path, pattern)

        return outermost
    if isinstance(pattern, type) and issubclass(pattern, Term):
        return lambda path, term: isinstance(term, pattern)
    if str(getattr(pattern, "__module__", "")).startswith(PACKAGE):
        return lambda path, term: term.word == pattern.__name__  # heads, repeat, project, …
    if callable(pattern):
        return lambda path, term: bool(pattern(term))
    raise CompositionError(
        f"a pattern is a term, a word such as linear, a path such as 'blocks/*', or a function of "
        f"a term, not {told(pattern)}"
    )


def select(term: Term, pattern: Pattern) -> tuple[Match, ...]:
    """The parts of a term that match: a word, a term, a path with `*`, or a function of a term.

    Raises CompositionError for a pattern of another kind.

    >>> from combinax.combinators import linear, rms_norm
    >>> select(linear(3) @ rms_norm() @ linear(4), linear)
    (Match(path='linear', term=linear(4)), Match(path='linear_2', term=linear(3)))
    """
    wanted = fits(pattern)
    found = places(as_term(term, "select"))
    return tuple(Match(path, part) for path, part in found if wanted(path, part))


def replace(term: Term, pattern: Pattern, new: Term | Callable[[Term], Term]) -> Term:
    """The term with another one, or `new(part)`, for every part that matches.

    `carry` brings the parameters along. The outermost match counts: what is put in is not searched.

    Raises CompositionError where nothing matches, or what is put in does not fit.

    >>> from combinax.combinators import layer_norm, linear, rms_norm
    >>> replace(linear(3) @ rms_norm(), rms_norm, layer_norm())
    compose(linear(3), layer_norm())
    >>> replace(linear(3), linear, lambda old: old + linear(old.width) @ linear(1))
    add(linear(3), compose(linear(3), linear(1)))
    """
    wanted = fits(pattern)
    make = (lambda _: new) if isinstance(new, Term) else new
    if not select(term, pattern):
        raise CompositionError(f"nothing in {equation(term)} matches {told(pattern)}")

    def changed(term: Term, path: tuple[str, ...], aliases: Mapping[str, str] | None) -> Term:
        if wanted("/".join(path), term):
            return as_term(make(term), "replace")
        at = Run(None, path, aliases)
        inside = [
            ((term.label,), {}) if isinstance(term, Everywhere) else at.place(name)
            for name in term.names
        ]
        parts = [changed(p, *place) for p, place in zip(term.parts, inside, strict=True)]
        if parts == [*term.parts]:
            return term
        return compose(*parts[::-1]) if isinstance(term, Compose) else with_parts(term, parts)

    return changed(term, (), None)


def carry(
    before: Term, after: Term, params: Mapping[str, Value], fresh: Mapping[str, Value]
) -> dict[str, Any]:
    """Parameters for `after`: what stands in both terms keeps those of `before`, `params`, and the
    rest takes those of `fresh`, which `after.init` made.

    >>> from combinax.combinators import linear, rms_norm
    >>> x, before, after = jnp.ones((2, 4)), linear(3), linear(3) @ rms_norm()
    >>> params, fresh = (t.init(jax.random.key(i), x) for i, t in enumerate((before, after)))
    >>> carry(before, after, params, fresh)["linear"] is params["kernel"]
    False
    >>> carry(before, after, params, fresh)["linear"]["kernel"] is params["kernel"]
    True
    """
    old, new = plain(params), plain(fresh)
    made = dict(carried(Stage(before, old), Stage(after, new)).params)
    top = labels(before) & labels(after)
    return made | {k: new[k] for k in labels(after)} | {k: old[k] for k in top}


def carried(old: Stage, new: Stage) -> Stage:
    """The new stage with the parameters of the old one wherever they are of equal terms."""
    shapes = [jax.tree.map(jnp.shape, stage.params) for stage in (old, new)]
    if old.term == new.term:
        return Stage(new.term, old.params) if shapes[0] == shapes[1] else new
    if isinstance(old.term, Compose) or isinstance(new.term, Compose):
        pairs = paired(line(*old), line(*new))
        return joined(carried(a, b) if a else b for a, b in pairs if b)
    parts = branches(*new)
    if similar(old.term, new.term):
        return reformed(new.term, [*map(carried, branches(*old), parts)])
    for at, part in enumerate(parts):
        if any(inner == old.term for _, inner in places(part.term)):
            parts[at] = carried(old, part)
            return reformed(new.term, parts)
    return new


def similar(one: Term, other: Term) -> bool:
    """Whether two forms differ in their parts alone."""
    same = type(one) is type(other) and len(one.parts) == len(other.parts)
    return bool(same and one.parts) and with_parts(one, other.parts) == other


def paired(old: Sequence[Any], new: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The stages of two lines that correspond; None in place of the one that is missing."""
    texts = [[repr(stage.term) for stage in stages] for stages in (old, new)]
    for _, a, b, c, d in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        yield from zip_longest(old[a:b], new[c:d])


@dataclasses.dataclass(frozen=True)
class Difference:
    """One place at which two terms differ: a part of the first, of the second, or one of each."""

    path: str
    before: Term | None
    after: Term | None

    def __str__(self) -> str:
        sides = [("-", self.before), ("+", self.after)]
        lines = [f"  {mark} {equation(part)}" for mark, part in sides if part is not None]
        return "\n".join([self.path or "(the term)", *lines])


@dataclasses.dataclass(frozen=True)
class Differences:
    """All places at which two terms differ; prints them, and is true if there are any."""

    places: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return bool(self.places)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __str__(self) -> str:
        return "\n".join(map(str, self.places)) or "no difference"

    __repr__ = __str__


def diff(f: Term, g: Term) -> Differences:
    """The places at which two terms differ, each with the part of one and of the other.

    >>> from combinax.combinators import gelu, linear, silu
    >>> diff(linear(3) @ silu @ linear(8), linear(3) @ gelu @ linear(8))
    silu
      - silu
      + gelu
    """
    places = (Placed(as_term(term, "diff"), (), None) for term in (f, g))
    return Differences(tuple(differences(*places)))


class Placed(NamedTuple):
    """A part of a term with its place, as an execution knows it."""

    term: Any
    path: tuple[str, ...]
    aliases: Mapping[str, str] | None

    @property
    def parts(self) -> list[Placed]:
        at = Run(None, self.path, self.aliases)
        pairs = zip(self.term.parts, self.term.names, strict=True)
        return [Placed(part, *at.place(name)) for part, name in pairs]

    @property
    def line(self) -> list[Placed]:
        return self.parts if isinstance(self.term, Compose) else [self]


def differences(one: Placed, other: Placed) -> Iterator[Difference]:
    if one.term == other.term:
        return
    if isinstance(one.term, Compose) or isinstance(other.term, Compose):
        for before, after in paired(one.line, other.line):
            if before and after:
                yield from differences(before, after)
            elif alone := before or after:
                terms = (side and side.term for side in (before, after))
                yield Difference("/".join(alone.path), *terms)
    elif similar(one.term, other.term):
        for before, after in zip(one.parts, other.parts, strict=True):
            yield from differences(before, after)
    else:
        yield Difference("/".join(one.path), one.term, other.term)
