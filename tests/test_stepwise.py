"""The law that steps are the whole: every term that looks only backwards, in chunks of any length.

What a term gives for chunks, one after the other, is what it gives for all rows at once.
"""
# ruff: noqa: F403, F405

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import NORMALIZERS
from catalogue import (
    CATALOGUE,
    MEMORY,
    MODELS,
    RNG,
    SEGMENTS,
    SEQUENCE,
    TOKENS,
    D,
    T,
    fresh,
    head,
    lookup_of,
    mirrored,
    nearer_than,
    nearness,
    same_kind_helps,
)  # fmt: skip

from combinax import models
from combinax.combinators import *

CHUNKS = ((5,), (2, 1, 2))
PER_ROW = frozenset({"positions", "segments", "kind", "table"})
ONCE = frozenset({"memory"})
"""Context that start is given, and no step."""


class Case(NamedTuple):
    """A term, what goes in, its context, how it is cut, and the axis of rows in x and y."""

    term: Term
    x: Any = SEQUENCE
    context: Mapping[str, Any] = MappingProxyType({})
    chunks: Sequence[tuple[int, ...]] = CHUNKS
    axis: int = 0
    out: int = 0


def turned(size: int, **how: Any) -> Term:
    return project(query=rotary(**how) @ linear(size), key=rotary(**how) @ linear(size), value=size)


def asked(entries: Term, *stages: Term) -> Term:
    return compose(aggregate(), normalize(softmax), *stages, score(scaled_dot), entries)


def cut(tree: Any, start: int, stop: int, axis: int) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.slice_in_dim(leaf, start, stop, axis=axis), tree)


back = mask(causal)
attention = head(back)
residual = identity + linear(D) @ attention @ rms_norm()
near = mask(causal & window(2)) @ score(dot)
far = softcap(2.0) @ mask(causal & ~window(2)) @ score(scaled_dot)

LOOKUPS: dict[str, Case] = {
    # positions
    "causal": Case(attention),
    "rotary": Case(asked(turned(4), back)),
    "rotary, in pairs, in part": Case(asked(turned(4, pairs=interleaved, width=2), back)),
    "learned positions": Case(attention @ position_embed(9)),
    "sinusoidal": Case(attention @ sinusoidal()),
    "alibi": Case(heads(2, head(back, bias(alibi)))),
    "alibi, grouped": Case(
        heads(2, asked(models.one_memory(project(3)), back, bias(alibi)) @ rms_norm())
    ),
    "t5 buckets": Case(head(back, bias(t5_buckets(4, 8, bidirectional=False)))),
    "relative": Case(head(back, bias(relative(2)))),
    "a bias of one's own": Case(head(back, bias(nearness))),
    # predicates
    "window": Case(head(mask(causal & window(2)))),
    "a window as wide as the sequence": Case(head(mask(causal & window(5)))),
    "a window of one's own": Case(head(mask(nearer_than(2) & causal))),
    "two masks": Case(head(mask(window(3)), back)),
    "dilated": Case(head(mask(causal & dilated(2)))),
    "before": Case(head(mask(causal & ~window(1)))),
    "even keys": Case(head(mask(causal & predicate(lambda query, key: key.position % 2 == 0)))),
    "prefix": Case(head(mask(prefix(2))), chunks=((5,), (3, 1, 1))),
    "blocks": Case(head(mask(block_causal(2))), chunks=((5,), (2, 2, 1), (4, 1))),
    "segments": Case(head(mask(causal & same("segments"))), context={"segments": SEGMENTS}),
    "segments in a window": Case(
        head(mask(causal & window(2) & same("segments"))), context={"segments": SEGMENTS}
    ),
    "lengths": Case(head(mask(causal & valid("lengths"))), context={"lengths": np.int32(3)}),
    "facts": Case(head(back, bias(same_kind_helps, ("kind",))), context={"kind": SEGMENTS}),
    # several dictionaries
    "sink": Case(lookup_of(union(back @ score(dot), sink())) @ project(3)),
    "slots beside": Case(
        lookup_of(union(back @ score(dot), score(cosine) @ slots(2))) @ project(3)
    ),
    "near and far": Case(lookup_of(union(near, far)) @ project(3)),
    "near and a sink": Case(lookup_of(union(near, sink(0.0))) @ project(3)),
    # scores and weights that are put together
    "differential": Case(
        aggregate()
        @ (normalize(softmax) - 0.5 * (normalize(softmax) @ softcap(1.0)))
        @ back
        @ score(dot)
        @ project(3)
    ),
    "a product of scores": Case(
        lookup_of(multiply(score(dot), back @ score(cosine))) @ project(3)
    ),
    "bilinear": Case(head(back, function=bilinear())),
    "additive": Case(head(back, function=additive(2))),
    "features": Case(head(back, how=row_sum, function=features(jax.nn.softplus))),
    "largest": Case(aggregate(largest) @ normalize(relu) @ back @ score(dot) @ project(3)),
    "log_sum_exp": Case(log_sum_exp @ back @ score(dot) @ project(3)),
    "a learned temperature": Case(head(temperature(learned(())), back)),
    "weights dropped": Case(
        aggregate() @ dropout(0.4) @ normalize(softmax) @ back @ score(dot) @ project(3),
        context={"rng": RNG},
    ),
    "a window's weights dropped": Case(
        heads(2, aggregate() @ dropout(0.4) @ normalize(softmax) @ near @ project(3)),
        context={"rng": RNG},
    ),
    # combining forms
    "heads": Case(linear(D) @ heads(2, attention)),
    "one memory": Case(models.grouped_heads(4, 4, 1, scores=models.causal_scores)),
    "two memories": Case(models.grouped_heads(8, 4, 2, turned, models.causal_scores)),
    "copies": Case(copies(2, attention), out=1),
    "heads of one lookup": Case(heads(2, lookup_of(temperature(learned(())) @ back @ score(dot)))
                                @ project(3)),
    "layers": Case((dropout(0.2) @ residual) ** 3, context={"rng": RNG}),
    "a pattern of layers": Case(
        repeat(4, residual, identity + linear(D) @ head(mask(causal & window(2))))
    ),
    "layers of layers": Case((linear(D) @ residual**2) ** 2),
    "layers with one attention": Case(
        repeat(2, rms_norm() @ (identity + linear(D) @ shared(attention, across="layers")))
    ),
    "heads of layers": Case(heads(2, residual**2)),
    "one name in two places": Case(
        shared(linear(D) @ attention, name="a") @ shared(linear(D) @ attention, name="a")
    ),
    "side by side": Case(join(attention, named("other", head(mask(causal & window(3)))))),
    "fanout": Case(fanout(attention, linear(3))),
    "parallel": Case(parallel(attention, rms_norm()), (SEQUENCE, SEQUENCE[::-1].copy())),
    "tied": Case(tied(embed(7, D), residual**2 @ position_embed(9)), TOKENS),
    "given": Case(given(linear(D) @ attention + read("memory"), memory=silu)),
    "each": Case(each(residual), fresh(2, T, D), axis=1, out=1),
    "each on another axis": Case(each(residual, axis=1), fresh(T, 2, D)),
    "precision": Case(precision(residual, sums="float32")),
    "a memory": Case(
        models.reading_decoder(2, D, 2, 3), context={"memory": MEMORY}
    ),
    "memories of a batch": Case(
        each(models.cross_attention(4, 2)), fresh(2, T, D), {"memory": fresh(2, 3, D)},
        axis=1, out=1,
    ),
}  # fmt: skip
NORMALIZED = {
    f"normalized by {name}": Case(head(back, how=how)) for name, how in NORMALIZERS.items()
}
ROWS_OF = {"each": (1, 1), "each: fixed": (1, 1), "copies": (0, 1)}
SEQUENCES = {
    name: Case(entry.term, entry.x, entry.context, CHUNKS, *ROWS_OF.get(name, (0, 0)))
    for name, entry in {**CATALOGUE, **{f"models.{n}": e for n, e in MODELS.items()}}.items()
    if not entry.term.constant and not isinstance(entry.x, (Entries, Scores, Weights))
}
"""The entries of the catalogue that take rows of a sequence."""
REFUSED = {
    "score", "join: rows", "each: axis", "lift", "models.multi_head", "models.one_memory",
    "models.encoder", "models.encoder_decoder", "models.bert", "models.sentence", "models.first",
    "models.mean_pool",
}  # fmt: skip
ASKING = {"project", "project: parts", "project: cross", "project: learned queries",
          "copies: grouped", "models.from_context"}  # fmt: skip
"""Questions, which a lookup turns into rows."""
CASES = {
    **LOOKUPS,
    **NORMALIZED,
    **{name: case for name, case in SEQUENCES.items() if name not in REFUSED | ASKING},
}


def cast(tree: Any, dtype: Any) -> Any:
    def one(leaf):
        leaf = jnp.asarray(leaf)
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree)


def both(case: Case, params: Any, x: Any, context: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The whole, and for each way of cutting it what the steps give."""
    facts = {name: value for name, value in context.items() if name != "rng"}
    start, step = stepwise(case.term)
    length = sum(case.chunks[0])
    stepped = []
    for sizes in case.chunks:
        first = cut(x, 0, sizes[0], case.axis)
        rows = {k: v[: sizes[0]] if k in PER_ROW else v for k, v in facts.items()}
        state = start(params, first, length, **rows)
        parts, at = [], 0
        for size in sizes:
            given = {
                k: v[at : at + size] if k in PER_ROW else v
                for k, v in context.items()
                if k not in ONCE
            }
            state, y = step(params, state, cut(x, at, at + size, case.axis), **given)
            parts.append(y)
            at += size
        stepped.append(jax.tree.map(lambda *a: jnp.concatenate(a, case.out), *parts))
    return case.term(params, x, **context), stepped


@pytest.mark.parametrize("name", CASES)
def test_steps_are_the_whole(name):
    case = CASES[name]
    for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.float64, 1e-12)):
        with jax.enable_x64(dtype == jnp.float64):
            x, context = cast((case.x, dict(case.context)), dtype)
            facts = {name: value for name, value in context.items() if name != "rng"}
            draw = np.random.default_rng(0)
            params = jax.tree.map(
                lambda leaf, draw=draw: jnp.asarray(draw.standard_normal(leaf.shape), leaf.dtype),
                jax.eval_shape(case.term.init, jax.random.key(0), x, **facts),
            )
            whole, stepped = jax.jit(functools.partial(both, case))(params, x, context)
        for y in stepped:
            chex.assert_trees_all_close(y, whole, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", SEQUENCES)
def test_what_looks_ahead_is_refused_at_the_start(name):
    case = SEQUENCES[name]
    context = dict(cast(dict(case.context), jnp.float32))
    context.pop("rng", None)
    x = cast(case.x, jnp.float32)
    params = jax.eval_shape(case.term.init, jax.random.key(0), x, **context)

    def begin(params):
        return stepwise(case.term).start(params, x, T, **context)

    if name in REFUSED:
        with pytest.raises(CompositionError):
            jax.eval_shape(begin, params)
    else:
        jax.eval_shape(begin, params)


AHEAD = {
    "no mask": (head(), "after score(scaled_dot) a query sees keys that come later"),
    "a window both ways": (head(mask(window(2))), "mask(window(2) & causal) hides them"),
    "a parity": (head(mask(predicate(lambda q, k: k.position % 2 == 0))), "see"),
    "segments alone": (head(mask(same("segments"))), "after mask(same('segments'))"),
    "not before": (head(mask(~causal)), "after mask(~causal)"),
    "a sum of masks": (head(mask(causal | window(2))), "after mask(causal | window(2))"),
    "in one branch": (
        lookup_of(union(near, score(dot))) @ project(3), "mask(causal & window(2))"
    ),
    "in one part": (
        aggregate() @ (normalize(softmax) @ back - normalize(softmax)) @ score(dot) @ project(3),
        "sees keys that come later",
    ),
    "in the middle of layers": (
        (identity + linear(D) @ heads(2, head()) @ rms_norm()) ** 2, "after score(scaled_dot)"
    ),
    "a lift": (attention @ lift(mirrored), "lift(catalogue.mirrored) may look at all rows at once"),
    "a lift of scores": (
        aggregate() @ lift(lambda weights: weights) @ normalize(softmax) @ back @ score(dot)
        @ project(3),
        "may look at all rows at once",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AHEAD)
def test_the_stage_that_looks_ahead_is_named(name):
    term, text = AHEAD[name]
    facts: dict[str, Any] = {"segments": SEGMENTS} if "segments" in term.reads else {}
    params = term.init(jax.random.key(0), SEQUENCE, **facts)
    with pytest.raises(CompositionError) as caught:
        stepwise(term).start(params, SEQUENCE, 8, **facts)
    assert text in str(caught.value)
