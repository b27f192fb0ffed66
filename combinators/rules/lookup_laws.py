"""Laws of lookups: what slides through scores and weights, and when a dictionary is a matrix."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

from ..aggregate import aggregate
from ..arithmetic import Add, Multiply, Subtract
from ..bias import bias, temperature
from ..compose import Compose
from ..core.leaf import Stage as Scoring
from ..core.term import Term
from ..dropout import dropout
from ..logic import Both
from ..mask import mask
from ..normalize import normalize
from ..primitives import constant, learned, pointwise
from ..project import Project, linear, slots
from ..score import dot, scaled_dot, score
from ..softmax import softmax
from ..sparse import entmax15, hardmax, sparsemax
from ..union import Union
from .law import (
    Answer,
    Change,
    Line,
    Refusal,
    Stage,
    answered,
    branches,
    ended,
    joined,
    reformed,
    unnamed,
)
from .linear_laws import matrix, product

# Windows from where entries are made to where the values are mixed


def lookups(rule: Callable[..., Answer]) -> Callable[[Line], Iterator]:
    """A rule about a lookup: its entries, the list of stages between, its aggregate, and as many
    stages after it as the rule takes."""

    after = len(inspect.signature(rule).parameters) - 3

    def found(stages: Line) -> Iterator[Change | Refusal]:
        bare = [unnamed(stage) for stage in stages]
        for start, entries in enumerate(bare):
            stop = next((i for i in range(start, len(bare)) if mixes(bare[i].term)), len(bare))
            window = stages[start : stop + 1 + after]
            if isinstance(entries.term, (Project, slots)) and stop + after < len(bare):
                between = bare[start + 1 : stop]
                answer = rule(entries, between, *bare[stop : stop + 1 + after])
                yield from answered(answer, start, window)

    return found


def mixes(term: Term) -> bool:
    return term == aggregate()


def carries(stage: Stage) -> bool:
    """Whether a stage between entries and answer leaves the values alone."""
    return isinstance(stage.term, (score, mask, Scoring, pointwise, normalize, dropout))


# linear ∘ aggregate = aggregate ∘ linear on values


def into_values(entries: Stage, between: Line, mix: Stage, after: Stage) -> Answer:
    if not isinstance(after.term, linear) or not all(map(carries, between)):
        return None
    if after.term.bias:
        return "its bias is added once to an answer, and weights need not sum to 1"
    if isinstance(entries.term, slots):
        values, kernel = entries.params["value"], after.params["kernel"]
        if kernel.shape[0] != kernel.shape[1]:
            return f"the values of {entries.term!r} have the width of its input"
        table = lambda: {**entries.params, "value": product(values, kernel)}  # noqa: E731
        return lambda: [Stage(entries.term, table()), *between, mix]
    return lambda: [with_slot(entries, 2, lambda value: [value, after]), *between, mix]


def with_slot(entries: Stage, slot: int, change: Callable[[Stage], list[Stage]]) -> Stage:
    """The entries of a `project` with one slot changed."""
    parts = branches(*entries)
    parts[slot] = joined(change(parts[slot]))
    return reformed(entries.term, parts)


def out_of_values(entries: Stage, between: Line, mix: Stage) -> Answer:
    if not isinstance(entries.term, Project) or not all(map(carries, between)):
        return None
    rest, last = ended(branches(*entries)[2])
    if not isinstance(last.term, linear) or last.term.bias:
        return None
    return lambda: [with_slot(entries, 2, lambda _: rest), *between, mix, last]


# score ∘ linear on keys = score ∘ linear on queries


def scale_of(stage: Stage, width: int) -> float | None:
    """The factor of an inner product; None for another score."""
    match stage.term:
        case score(function=f, options=()) if f is dot:
            return 1.0
        case score(function=f, options=options) if f is scaled_dot:
            given = dict(options).get("scale")
            return width**-0.5 if given is None else given
    return None


def inner_product(scale: float, width: int) -> Stage:
    """The inner product with a factor, written as shortly as can be."""
    if scale == 1.0:
        return Stage(score(dot), {})
    default = scale == width**-0.5
    return Stage(score(scaled_dot) if default else score(scaled_dot, scale=scale), {})


def slide(source: int, target: int) -> Callable[..., Answer]:
    """The last linear map of one slot goes over, transposed, to the end of the other."""

    def rule(entries: Stage, between: Line, mix: Stage) -> Answer:
        if not isinstance(entries.term, Project) or not between:
            return None
        rest, last = ended(branches(*entries)[source])
        if not isinstance(last.term, linear):
            return None
        kernel = last.params["kernel"]
        at = next((i for i, s in enumerate(between) if isinstance(s.term, score)), 0)
        scale = scale_of(between[at], kernel.shape[1])
        if scale is None:
            return None
        if last.term.bias:
            label = entries.term.labels[source]
            return f"the {label} has a bias, whose product with the other side is not linear in it"

        def make() -> list[Stage]:
            moved = with_slot(entries, source, lambda _: rest)
            moved = with_slot(moved, target, lambda slot: [slot, matrix(kernel.T)])
            stages = [*between]
            stages[at] = inner_product(scale, kernel.shape[0])
            return [moved, *stages, mix]

        return make

    return rule


keys_to_queries, queries_to_keys = slide(1, 0), slide(0, 1)


# aggregate ∘ (f + g) = aggregate ∘ f + aggregate ∘ g


def weighs(term: Term) -> bool:
    """Whether a term gives weights over the values that it takes."""
    if isinstance(term, Compose):
        return weighs(term.parts[-1]) and not isinstance(term.parts[0], (Project, slots))
    if isinstance(term, Multiply):
        return any(map(weighs, term.parts))
    if isinstance(term, (Add, Subtract)):
        return all(map(weighs, term.parts))
    return isinstance(term, normalize) or (len(term.parts) == 1 and weighs(term.parts[0]))


def spread(form: Stage, mix: Stage) -> Answer:
    """The answer of a sum, difference or multiple of weights is that of the answers."""
    if not weighs(form.term) or not mixes(mix.term):
        return None
    if not isinstance(form.term, (Add, Subtract, Multiply)):
        return None
    if products(form.term):
        return "a product of weights is linear in neither"
    return lambda: [mixed(form, mix)]


def mixed(form: Stage, mix: Stage) -> Stage:
    """The answers in place of the weights."""
    if not isinstance(form.term, (Add, Subtract, Multiply)):
        return joined([form, mix])
    parts = branches(*form)
    return reformed(form.term, [mixed(p, mix) if weighs(p.term) else p for p in parts])


def products(term: Term) -> bool:
    """Whether somewhere in sums of weights, weights are multiplied."""
    if not isinstance(term, (Add, Subtract, Multiply)):
        return False
    parts = [Stage(part, {}) for part in term.parts]
    return (isinstance(term, Multiply) and not one_varies(parts)) or any(map(products, term.parts))


def one_varies(parts: list[Stage]) -> bool:
    """Whether all factors but one are numbers."""
    constants = [p.term for p in parts if isinstance(p.term, constant) or p.term == learned(())]
    return len(constants) == len(parts) - 1


def gather(form: Stage) -> Answer:
    """The inverse of `spread`, where all parts mix the values that they are given."""
    if not isinstance(form.term, (Add, Subtract, Multiply)):
        return None
    parts, made = branches(*form), []
    constants = any(part.term.constant for part in parts)
    if not one_varies(parts) if isinstance(form.term, Multiply) else constants:
        return None
    for part in parts:
        rest, last = ended(part)
        if not part.term.constant:
            if not mixes(last.term) or not weighs(joined(rest).term):
                return None
            part = joined(rest)
        made.append(part)
    return lambda: [reformed(form.term, made), Stage(aggregate(), {})]


# softmax ignores a shift of a row

SHIFT_FREE = softmax, sparsemax, entmax15, hardmax
"""Normalizers to which only the differences of a row's scores matter."""


def shifts_only(stage: Stage) -> bool:
    """Whether a stage of scores turns a shift of a row into a shift of that row."""
    divides = isinstance(stage.term, temperature) and isinstance(stage.term.inner, float)
    return divides or isinstance(stage.term, (mask, bias, score))


def no_shift(entries: Stage, between: Line, mix: Stage) -> Answer:
    """The bias of keys adds to all scores of a query the same number, q · b."""
    how = next((i for i, s in enumerate(between) if isinstance(s.term, normalize)), None)
    if how is None or not isinstance(entries.term, Project):
        return None
    _, key = ended(branches(*entries)[1])
    biased = isinstance(key.term, linear) and key.term.bias
    if not biased or not any(scale_of(s, 1) is not None for s in between[:how]):
        return None
    if between[how].term.how not in SHIFT_FREE:
        return f"{between[how].term!r} tells a row of scores from the same row shifted"
    unlike = [s.term for s in between[:how] if not shifts_only(s)]
    if unlike:
        return f"{unlike[0]!r} does not turn a shift of a row into a shift"

    def plain(slot: Stage) -> list[Stage]:
        rest, last = ended(slot)
        return [*rest, matrix(last.params["kernel"])]

    return lambda: [with_slot(entries, 1, plain), *between, mix]


# Masks, unions


def one_mask(first: Stage, second: Stage) -> Answer:
    if not (isinstance(first.term, mask) and isinstance(second.term, mask)):
        return None
    return lambda: [Stage(mask(first.term.predicate & second.term.predicate), {})]


def two_masks(both: Stage) -> Answer:
    match both.term:
        case mask(predicate=Both(first=first, second=second)):
            return lambda: [Stage(mask(first), {}), Stage(mask(second), {})]
    return None


def one_union(outer: Stage) -> Answer:
    """A union in a union is one union."""
    if not isinstance(outer.term, Union):
        return None
    parts = branches(*outer)
    if not any(isinstance(part.term, Union) for part in parts):
        return None
    flat = [q for p in parts for q in (branches(*p) if isinstance(p.term, Union) else [p])]
    return lambda: [reformed(Union(tuple(part.term for part in flat)), flat)]
