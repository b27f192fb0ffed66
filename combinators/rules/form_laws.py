"""Laws of the combining forms: maps, layers and heads, and what executions have in common."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ..compose import compose
from ..core.layers import common
from ..core.leaf import Leaf
from ..core.term import Term
from ..core.types import Params, Value
from ..heads import Copies, total
from ..primitives import identity
from ..project import linear
from ..repeat import Each, Repeat, keep
from ..stepping.stepwise import stepwise
from .law import Answer, Change, Line, Refusal, Stage, branches, ended, joined, line, reformed
from .linear_laws import SIDE_BY_SIDE

__all__ = [
    "before_all", "bracketed", "in_each", "in_layers", "in_maps", "in_one_map", "of_joined",
    "of_summed", "permuted", "stepped", "units", "written_out",
]  # fmt: skip


# each (f ∘ g) = each f ∘ each g


def in_one_map(f: Stage, g: Stage) -> Answer:
    if not (isinstance(f.term, Each) and isinstance(g.term, Each)):
        return None
    if f.term.axis != g.term.axis:
        return f"one maps axis {f.term.axis}, the other axis {g.term.axis}"
    fixed = f.term.fixed + tuple(n for n in g.term.fixed if n not in f.term.fixed)
    for one in (f.term, g.term):
        if {*fixed} & (one.known - {*one.fixed}):
            return "a name of the context is fixed for one and mapped for the other"
    inner = joined([*branches(*f), *branches(*g)])
    return lambda: [Stage(Each(inner.term, f.term.axis, fixed), inner.params)]


def in_maps(whole: Stage) -> Answer:
    if not isinstance(whole.term, Each):
        return None
    stages = line(*branches(*whole)[0])
    if len(stages) < 2:
        return None
    axis, fixed = whole.term.axis, whole.term.fixed
    if fixed:
        return "a name of the context is fixed, and not every stage may know it"
    return lambda: [Stage(Each(s.term, axis), s.params) for s in stages]


# fⁿ = f ∘ … ∘ f


def written_out(form: Stage) -> Answer:
    if not isinstance(form.term, Repeat):
        return None
    repeat, params = form
    parts = branches(repeat, params)
    if any(common(part.term, dict(part.params)) for part in parts):
        return "layers share parameters, and blocks written out would each have their own"

    def make() -> list[Stage]:
        blocks = [
            Stage(part.term, jax.tree.map(lambda leaf, period=period: leaf[period], part.params))
            for period in range(repeat.periods) for part in parts
        ]  # fmt: skip
        return [inner for block in blocks for inner in line(*block)]

    return make


def in_layers(stages: Line) -> Iterator[Change | Refusal]:
    """Equal stages one after another that keep the shape, as one `repeat`."""
    for start, first in enumerate(stages):
        count = 0
        while start + count < len(stages) and like(stages[start + count], first):
            count += 1
        if count > 1 and (not start or not like(stages[start - 1], first)) and keeps(first):
            run = stages[start : start + count]
            yield Change(start, start + count, lambda run=run: [stacked(run)])


def like(one: Stage, other: Stage) -> bool:
    """Whether two stages are equal terms with parameters of equal shapes."""
    shapes = [jax.tree.map(jnp.shape, stage.params) for stage in (one, other)]
    return one.term == other.term and shapes[0] == shapes[1]


def keeps(stage: Stage) -> bool:
    """Whether a stage that can follow itself keeps the shape: one with parameters does."""
    return bool(stage.params)


def stacked(run: Line) -> Stage:
    trees = [stage.params for stage in run]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    return reformed(Repeat(len(run), (run[0].term,), keep), [Stage(run[0].term, params)])


# linear ∘ heads = sum over heads


def of_joined(form: Stage, after: Stage) -> Answer:
    """A linear map of joined heads is the sum of one of each."""
    if not (isinstance(form.term, Copies) and form.term.joined and isinstance(after.term, linear)):
        return None
    if after.term.bias:
        return "its bias would be added once for each head"
    count, ((part, params),) = form.term.count, branches(*form)

    def make() -> list[Stage]:
        kernel = after.params["kernel"]
        rows = kernel.reshape(count, -1, kernel.shape[-1]).swapaxes(0, 1)
        inner = joined([Stage(part, params), Stage(after.term, {"kernel": rows})])
        sides = Copies(count, inner.term, form.term.given_values)
        return [reformed(sides, [inner]), Stage(total, {})]

    return make


def of_summed(form: Stage, plus: Stage) -> Answer:
    if not isinstance(form.term, Copies) or form.term.joined or plus.term != total:
        return None
    rest, last = ended(branches(*form)[0])
    if not isinstance(last.term, linear) or last.term.bias:
        return None

    def make() -> list[Stage]:
        rows = last.params["kernel"].swapaxes(0, 1)
        inner = joined(rest)
        whole = Copies(form.term.count, inner.term, form.term.given_values, True)
        kernel = {"kernel": rows.reshape(-1, rows.shape[-1])}
        return [reformed(whole, [inner]), Stage(last.term, kernel)]

    return make


# (f ± g) ∘ h = f ∘ h ± g ∘ h


def in_each(h: Stage, form: Stage) -> Answer:
    """A stage that learns nothing may run in each branch of what follows."""
    if not isinstance(form.term, SIDE_BY_SIDE) or not plain(h):
        return None
    return lambda: [pushed(h, form)]


def pushed(h: Stage, part: Stage) -> Stage:
    """The part after h, which goes as far in as branches stand side by side."""
    if part.term.constant:
        return part
    if not isinstance(part.term, SIDE_BY_SIDE):
        return joined([h, part])
    return reformed(part.term, [pushed(h, inner) for inner in branches(*part)])


def before_all(form: Stage) -> Answer:
    if not isinstance(form.term, SIDE_BY_SIDE):
        return None
    parts = branches(*form)
    lines = [line(*part) for part in parts if not part.term.constant]
    if len(lines) < 2 or not all(lines):
        return None
    h = lines[0][0]
    if not plain(h) or any(stages[0].term != h.term for stages in lines):
        return None
    rest = [p if p.term.constant else joined(line(*p)[1:]) for p in parts]
    return lambda: [h, reformed(form.term, rest)]


def plain(stage: Stage) -> bool:
    """Whether a stage is a primitive that learns nothing, draws nothing, and ends no lookup."""
    term = stage.term
    if not isinstance(term, Leaf) or term.role == "aggregates":
        return False
    return not (stage.params or term.random or term.constant)


# Executions


def units(term: Term, params: Params, x: Value, **context: Value) -> tuple[Any, Any]:
    """identity ∘ f ∘ identity, and f."""
    return compose(identity, term, identity)(params, x, **context), term(params, x, **context)


def bracketed(term: Term, params: Params, x: Value, **context: Value) -> tuple[Any, Any]:
    """The stages of a composition under one bracketing and under the other."""
    stages = [stage.term for stage in line(term, {})][::-1]
    left = functools.reduce(compose, stages)
    right = functools.reduce(lambda f, g: compose(g, f), stages[::-1])
    return left(params, x, **context), right(params, x, **context)


def permuted(term: Term, params: Params, x: Value, **context: Value) -> tuple[Any, Any]:
    """The term of rows that moved on by one, and the term's rows moved on by one."""
    moved = functools.partial(jnp.roll, shift=1, axis=0)
    return term(params, moved(x), **context), moved(term(params, x, **context))


def stepped(term: Term, params: Params, x: Value, **context: Value) -> tuple[Any, Any]:
    """The term in chunks of two rows with a cache, and the term of all rows."""
    start, step = stepwise(term)
    state, parts = start(params, x, max(len(x), 1), **context), []
    for at in range(0, len(x), 2):
        state, y = step(params, state, x[at : at + 2], **context)
        parts.append(y)
    return jnp.concatenate(parts), term(params, x, **context)
