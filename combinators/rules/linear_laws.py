"""Laws of linear maps: they multiply, add, scale, stand side by side, and take in a norm's gain."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..arithmetic import Add, Multiply, Subtract
from ..branches import Fanout, Join, columns
from ..core.dtypes import wide
from ..core.term import Term
from ..norm import Norm
from ..primitives import constant, learned, pointwise, read
from ..project import Project, linear
from ..wrappers import Given, Shared, named
from .law import Answer, Stage, branches, joined, line, reformed, renamed, unnamed

__all__ = [
    "apart", "composed", "fold_factor", "fold_gain", "matrix", "merge", "merge_sum", "own_source",
    "product", "put_factor", "same_source", "straight", "together",
]  # fmt: skip


def product(a: Array, b: Array) -> Array:
    """a b, summed in at least float32 and rounded once."""
    kind = jnp.result_type(a, b)
    return jnp.matmul(a, b, preferred_element_type=wide(a, b)).astype(kind)


def matrix(kernel: Array, *biases: Array) -> Stage:
    """The linear map of a kernel, with the sum of biases if there are any."""
    params = {"kernel": kernel} | ({"bias": functools.reduce(jnp.add, biases)} if biases else {})
    return Stage(linear(kernel.shape[-1], bias=bool(biases)), params)


def biases(*maps: Stage) -> list[Array]:
    """The biases of those linear maps that have one."""
    return [stage.params["bias"] for stage in maps if "bias" in stage.params]


def after(f: Stage, g: Stage) -> Stage:
    """The linear map g ∘ f: kernel A B, bias a B + b."""
    kernel = g.params["kernel"]
    moved = [product(bias, kernel) for bias in biases(f)]
    return matrix(product(f.params["kernel"], kernel), *moved, *biases(g))


def straight(stage: Stage) -> list[Stage]:
    """The linear maps that a term is a composition of; none if it is not one.

    Maps that heads or layers share count: each head has the product of its own and theirs.
    """
    while isinstance(stage.term, (named, Shared)):
        (stage,) = branches(*stage)
    parts = line(*stage)
    if len(parts) < 2:
        return [stage] if isinstance(stage.term, linear) else []
    inner = [straight(part) for part in parts]
    return [*itertools.chain(*inner)] if all(inner) else []


def composed(stage: Stage) -> Stage:
    """The one linear map that a composition of linear maps is."""
    return functools.reduce(after, straight(stage))


# linear ∘ linear


def merge(f: Stage, g: Stage) -> Answer:
    if not isinstance(g.term, linear):
        return None
    if isinstance(f.term, linear):
        return lambda: [after(f, g)]
    if straight(f):
        return f"{f.term!r} shares its parameters, and a product of them would not"
    return f"{f.term!r} stands between" if isinstance(f.term, pointwise) else None


# linear + linear


def merge_sum(form: Stage) -> Answer:
    """The linear parts of a sum or a difference become one; the others stay."""
    if not isinstance(form.term, (Add, Subtract)):
        return None
    parts = branches(*form)
    first, *rest = [i for i, part in enumerate(parts) if straight(part)] or [0]
    if not rest:
        return None
    for part in (unnamed(parts[i]).term for i in (first, *rest)):
        if isinstance(part, Shared):
            return f"{part!r} shares its parameters, and a sum with others would not"

    def make() -> list[Stage]:
        sign = -1 if isinstance(form.term, Subtract) else 1
        one, *others = (composed(parts[i]) for i in (first, *rest))
        signed = [jax.tree.map(lambda leaf: sign * leaf, other.params) for other in others]
        kernels = [one.params["kernel"], *(params["kernel"] for params in signed)]
        shifts = biases(one, *(Stage(None, params) for params in signed))
        whole = matrix(functools.reduce(jnp.add, kernels), *shifts)
        made = {first: renamed(parts[first].term, whole)}
        kept = [made.get(i, part) for i, part in enumerate(parts) if i not in rest]
        return kept if len(kept) < 2 else [reformed(Add(tuple(p.term for p in kept)), kept)]

    return make


# c · linear, and linear ∘ (c · f)


def factor(stage: Stage) -> Any:
    """The number or vector that a constant stands for; None for anything else."""
    term, params = unnamed(stage)
    if isinstance(term, constant):
        return term.value
    return params["value"] if isinstance(term, learned) and len(term.shape) < 2 else None


def factored(form: Stage) -> tuple[Any, Stage] | None:
    """A product of two as its constant and its other factor."""
    if not isinstance(form.term, Multiply) or len(form.term.parts) != 2:
        return None
    one, two = branches(*form)
    if factor(one) is None:
        one, two = two, one
    return None if factor(one) is None or factor(two) is not None else (factor(one), two)


def rows(c: Any) -> Any:
    """A factor of each number of a vector as one of each row of a kernel; a number stays."""
    return c[:, None] if jnp.ndim(c) else c


def put_factor(form: Stage) -> Answer:
    """A constant times a linear map is a linear map."""
    match factored(form):
        case c, Stage(term=linear()) as inner:
            kernel = inner.params["kernel"]
            return lambda: [matrix(c * kernel, *(c * bias for bias in biases(inner)))]
    return None


def fold_factor(form: Stage, reader: Stage) -> Answer:
    """A constant factor goes into the linear map that follows."""
    match factored(form):
        case c, inner if isinstance(reader.term, linear):
            kernel = reader.params["kernel"]
            return lambda: [inner, matrix(rows(c) * kernel, *biases(reader))]
        case _, _:
            return several(reader.term)
    return None


# linear ∘ norm

SIDE_BY_SIDE = Project, Fanout, Join, Add, Subtract, Multiply


def readers(term: Term) -> int:
    """The number of parts that read the input of a term."""
    if isinstance(term, SIDE_BY_SIDE):
        return sum(not part.constant for part in term.parts)
    return readers(term.parts[0]) if len(term.parts) == 1 else 1


def several(term: Term) -> str | None:
    """Why a factor cannot go into what reads it, if that is more than one part."""
    count = readers(term)
    if count < 2:
        return None
    return f"{count} parts of {term.name} read it, and a factor goes into a single linear map"


def fold_gain(norm: Stage, reader: Stage) -> Answer:
    """The gain and the bias of a norm go into the linear map that follows."""
    if not isinstance(norm.term, Norm) or not norm.term.gain:
        return None
    if not isinstance(reader.term, linear):
        return several(reader.term)

    def make() -> list[Stage]:
        kernel = reader.params["kernel"]
        moved = [product(bias, kernel) for bias in biases(norm)]
        whole = matrix(norm.params["scale"][:, None] * kernel, *moved, *biases(reader))
        return [Stage(dataclasses.replace(norm.term, gain=False), {}), whole]

    return make


# [linear, linear] = [columns, columns] ∘ linear


def lines(form: Stage) -> list[list[Stage]]:
    """The stages of each branch of a form."""
    return [line(*part) for part in branches(*form)]


def begun(form: Stage, first: Iterable[Stage]) -> Stage:
    """The form, each of its branches beginning with another stage."""
    pairs = zip(first, lines(form), strict=True)
    return reformed(form.term, [joined([stage, *rest[1:]]) for stage, rest in pairs])


def together(form: Stage) -> Answer:
    """Branches that each begin with a linear map of the same input share one product."""
    if not isinstance(form.term, SIDE_BY_SIDE):
        return None
    first = [stages[0] for stages in lines(form) if stages]
    maps = [stage for stage in first if isinstance(stage.term, linear)]
    if len(maps) < len(form.term.parts):
        apart = any(isinstance(stage.term, Shared) for stage in first)
        return "heads or layers share some of the maps" if apart and maps else None
    if len({"bias" in stage.params for stage in maps}) > 1:
        return "some of the maps have a bias and some do not"

    def make() -> list[Stage]:
        ends = [*itertools.accumulate((stage.term.width for stage in maps), initial=0)]
        cuts = [Stage(columns(*pair), {}) for pair in itertools.pairwise(ends)]
        return [side_by_side(maps), begun(form, cuts)]

    return make


def side_by_side(maps: Sequence[Stage]) -> Stage:
    """The linear map to the columns of several."""
    kernels = [stage.params["kernel"] for stage in maps]
    bias = biases(*maps)
    return matrix(jnp.concatenate(kernels, -1), *([jnp.concatenate(bias)] if bias else []))


def cut(whole: Stage, at: columns) -> Stage:
    """The linear map to some columns of another."""
    part = slice(at.start, at.stop)
    return matrix(whole.params["kernel"][:, part], *(b[part] for b in biases(whole)))


def apart(whole: Stage, form: Stage) -> Answer:
    """A product of which each branch reads columns of its own, as a product for each."""
    if not isinstance(whole.term, linear) or not isinstance(form.term, SIDE_BY_SIDE):
        return None
    cuts = [stages[0].term for stages in lines(form) if stages]
    if not all(isinstance(term, columns) for term in cuts) or len(cuts) < len(form.term.parts):
        return None
    ends = [0, *(term.stop for term in cuts)]
    if [term.start for term in cuts] != ends[:-1] or ends[-1] != whole.term.width:
        return "the branches do not read all columns, each once and in order"
    return lambda: [begun(form, [cut(whole, term) for term in cuts])]


# Keys and values of another sequence


def same_source(form: Stage) -> Answer:
    """Keys and values that are linear maps of the same piece of context share one product."""
    if not isinstance(form.term, Project):
        return None
    query, *others = lines(form)
    starts = [tuple(type(stage.term) for stage in stages[:2]) for stages in others]
    sources = {stages[0].term for stages in others if stages}
    if starts != [(read, linear)] * 2 or len(sources) > 1:
        return None
    maps = [stages[1] for stages in others]
    if len({"bias" in stage.params for stage in maps}) > 1:
        return "one of the maps has a bias and one has not"
    source = others[0][0]
    label = mapped_name(source.term)

    def make() -> list[Stage]:
        ends = [*itertools.accumulate((stage.term.width for stage in maps), initial=0)]
        slots = [joined(query)] + [
            joined([Stage(read(label), {}), Stage(columns(*pair), {}), *stages[2:]])
            for pair, stages in zip(itertools.pairwise(ends), others, strict=True)
        ]
        inner, outer = reformed(form.term, slots), joined([source, side_by_side(maps)])
        return [reformed(Given(inner.term, ((label, outer.term),)), [inner, outer])]

    return None if label in form.term.reads else make


def mapped_name(source: Any) -> str:
    return f"{source.label}_mapped"


def own_source(form: Stage) -> Answer:
    """The inverse of `same_source`."""
    if not isinstance(form.term, Given) or len(form.term.sources) != 1:
        return None
    inner, outer = branches(*form)
    ((label, _),) = form.term.sources
    pair = line(*outer)
    if not isinstance(inner.term, Project) or [type(s.term) for s in pair] != [read, linear]:
        return None
    query, *others = lines(inner)
    starts = [[type(stage.term) for stage in stages[:2]] for stages in others]
    if label != mapped_name(pair[0].term) or starts != [[read, columns]] * 2:
        return None

    def make() -> list[Stage]:
        slots = [joined([pair[0], cut(pair[1], stages[1].term), *stages[2:]]) for stages in others]
        return [reformed(inner.term, [joined(query), *slots])]

    return make
