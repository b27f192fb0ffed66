"""Laws of whole lookups: dictionaries as matrices and networks, linear attention, streams."""

from __future__ import annotations

import jax.numpy as jnp

from ..aggregate import aggregate
from ..bias import bias
from ..core.lookup import Lookup
from ..mask import mask
from ..normalize import normalize
from ..primitives import identity, learned, pointwise
from ..project import linear, slots
from ..score import dot, features, score
from ..streaming.pins import Materialized, Stream, streamed
from ..streaming.recognize import streamed_form
from .law import Answer, Line, Stage, branches, joined, line
from .linear_laws import matrix, product
from .lookup_laws import scale_of

__all__ = [
    "as_dictionary", "as_mlp", "collapse", "in_a_table", "in_blocks", "in_one_table",
    "reassociate",
]  # fmt: skip

# A dictionary without an activation is a matrix; with one it is an MLP


def collapse(entries: Stage, between: Line, mix: Stage) -> Answer:
    if not isinstance(entries.term, slots) or len(between) not in (2, 3):
        return None
    asked, *shift, how = between
    scale = scale_of(asked, entries.params["key"].shape[-1])
    if scale is None or not isinstance(how.term, normalize):
        return None
    if how.term.how != identity:
        return f"{how.term!r} stands between keys and values"
    if shift and not (isinstance(shift[0].term, bias) and isinstance(shift[0].term.what, learned)):
        return f"{shift[0].term!r} stands between keys and values"

    def make() -> list[Stage]:
        key, value = entries.params["key"], entries.params["value"]
        kernel = product(key.T, value) if scale == 1.0 else scale * product(key.T, value)
        each = [jnp.broadcast_to(s.params["value"], key.shape[:1]) for s in shift]
        return [matrix(kernel, *(product(b, value) for b in each))]

    return make


def as_mlp(entries: Stage, between: Line, mix: Stage) -> Answer:
    if not isinstance(entries.term, slots) or len(between) != 2:
        return None
    asked, how = between
    if scale_of(asked, 0) != 1.0 or not isinstance(how.term, normalize):
        return None
    act = how.term.how
    if not isinstance(act, pointwise):
        return f"{act!r} needs whole rows"
    key, value = entries.params["key"], entries.params["value"]
    return lambda: [matrix(key.T), Stage(act, {}), matrix(value)]


def as_dictionary(first: Stage, act: Stage, second: Stage) -> Answer:
    if not all(isinstance(s.term, linear) for s in (first, second)):
        return None
    if not isinstance(act.term, pointwise):
        return None
    if first.term.bias or second.term.bias:
        return "a dictionary has no biases"
    one, two = (stage.params["kernel"] for stage in (first, second))
    if one.shape[0] != two.shape[1]:
        return f"the values of a dictionary have the width of its input, {one.shape[0]}"

    def make() -> list[Stage]:
        table = {"key": one.T, "value": two}
        stages = slots(first.term.width), score(dot), normalize(act.term), aggregate()
        return [Stage(term, table if term == stages[0] else {}) for term in stages]

    return make


# Linear attention and streams


def reassociate(entries: Stage, between: Line, mix: Stage) -> Answer:
    """Products of queries and keys that are the weights can be bracketed the other way."""
    match [stage.term for stage in between]:
        case [score(function=f, options=()), *rest, normalize(how=how)] if f is dot:
            if how != identity:
                return f"{how!r} stands between the products"
            if not all(isinstance(term, mask) for term in rest):
                return f"{rest[0]!r} stands between the products"
            summed = Stage(score(features(identity)), {})
            return lambda: [entries, summed, *between[1:], mix]
    return None


def in_one_table(entries: Stage, between: Line, mix: Stage) -> Answer:
    match [stage.term for stage in between]:
        case [score(function=features(map=phi)), *_] if phi == identity:
            return lambda: [entries, Stage(score(dot), {}), *between[1:], mix]
    return None


def in_blocks(entries: Stage, between: Line, mix: Stage) -> Answer:
    """All keys are block ⊕ block ⊕ …: what streams."""
    whole = joined([entries, *between, mix])
    for lookup in whole.term.segments:
        if isinstance(lookup, Lookup):
            form = streamed_form(whole.term, lookup)
            if isinstance(form, str):
                return form
            return lambda: [Stage(streamed(whole.term), whole.params)]
    return None


def in_a_table(pinned: Stage) -> Answer:
    if not isinstance(pinned.term, (Stream, Materialized)):
        return None
    return lambda: line(*branches(*pinned)[0])
