"""What laws save: the time of the right side over that of the left, predicted and measured.

The prediction is that of the roofline of `cost`. A law that takes a quarter or more of FLOPs or
bytes away is to take at least half as much of the time; one that saves little is to cost nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from measure import interleaved

from combinax.combinators import (
    Derivation,
    Term,
    aggregate,
    causal,
    columns,
    compose,
    derive,
    dot,
    identity,
    linear,
    mask,
    materialized,
    named,
    normalize,
    project,
    rms_norm,
    scaled_dot,
    score,
    simplify,
    slots,
    softmax,
    streamed,
)  # fmt: skip
from combinax.combinators.algebra.verdict import apart
from combinax.models import pretrained

LOOKUP = aggregate() @ normalize(softmax) @ mask(causal) @ score(scaled_dot)
LATENT = compose(
    aggregate(), normalize(softmax), score(scaled_dot),
    project(query=64, key=linear(64) @ linear(16), value=linear(64) @ linear(16)),
)  # fmt: skip
ABSORBED = compose(
    linear(64), aggregate(), normalize(softmax), score(scaled_dot, scale=0.125),
    project(query=linear(16) @ linear(64), key=16, value=16),
)  # fmt: skip


SUM_OF_WEIGHTS = normalize(softmax) @ mask(causal) - 0.5 * normalize(softmax)
CUT = project(query=columns(0, 64), key=columns(64, 128), value=columns(128, 192))
LONG, SHORT = 4096, 512

# A term, what it becomes (None: what `simplify` makes of it), and the rows and width of its input.
CASES: dict[str, tuple[Term, Term | None, int, int]] = {
    "two maps in a row": (linear(512) @ linear(2048), None, SHORT, 512),
    "factors of a rank near the width": (linear(512) @ linear(480), None, SHORT, 512),
    "a dictionary without activation": (
        aggregate() @ normalize(identity) @ score(dot) @ slots(2048), None, SHORT, 512,
    ),
    "output-value product absorbed": (
        linear(32) @ LOOKUP @ project(query=32, key=32, value=512), None, SHORT, 512,
    ),
    "query-key product absorbed": (
        LOOKUP @ project(query=512, key=512, value=64), None, SHORT, 64,
    ),
    "latent attention absorbed": (LATENT, ABSORBED, SHORT, 64),
    "linear attention": (
        aggregate() @ normalize(identity) @ score(dot) @ project(64), None, LONG, 64,
    ),
    "differential attention streams": (
        aggregate() @ SUM_OF_WEIGHTS @ score(scaled_dot) @ project(64),
        (LOOKUP - 0.5 * (aggregate() @ normalize(softmax) @ score(scaled_dot))) @ project(64),
        LONG, 64,
    ),
    "attention streams": (
        materialized(LOOKUP @ project(64)), streamed(LOOKUP @ project(64)), LONG, 64,
    ),
    "tidy: an adapter of rank 16": (
        linear(576) + named("adapter", linear(576) @ linear(16)), None, SHORT, 576,
    ),
    "tidy: a gain": (linear(1536) @ rms_norm(), None, SHORT, 576),
    "tidy: three projections": (LOOKUP @ project(64), LOOKUP @ CUT @ linear(192), SHORT, 576),
}  # fmt: skip


def ratio(one: Derivation, term: Term, params: Any, x: Any, rounds: int, context: Any) -> None:
    """Print the predicted and the measured ratio of a derivation."""
    before = jax.jit(partial(term, **context)).lower(params, x).compile()
    after = jax.jit(partial(one.term, **context)).lower(one.params, x).compile()
    _, _, measured = interleaved(partial(after, one.params, x), partial(before, params, x), rounds)
    last = one.steps[-1].cost if one.steps else one.cost
    predicted = last.seconds / one.cost.seconds
    difference = apart(after(one.params, x), before(params, x))
    laws = ", ".join(dict.fromkeys(step.law for step in one.steps)) or "none"
    print(f"{predicted:8.3f} {measured:8.3f} {difference:10.1e}  {laws}", flush=True)


def small(rounds: int) -> None:
    for name, (term, target, rows, width) in CASES.items():
        x = jax.random.normal(jax.random.key(1), (rows, width))
        params = term.init(jax.random.key(0), x)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        one = derive(term, params, shape, to=target)
        print(f"{name:<38}", end="")
        ratio(one, term, params, x, rounds, {})


def models(rounds: int) -> None:
    """`simplify` of real models: never slower, and with their outputs."""
    encoder, weights, tokenizer = pretrained.load(pretrained.minilm())
    texts, context = pretrained.batch(tokenizer, ["A man is eating food. " * 20])
    one_context = {name: value[0] for name, value in context.items()}
    chain = simplify(encoder, weights, texts[0], **one_context)
    print(f"{'MiniLM':<38}", end="")
    ratio(chain, encoder, weights, texts[0], rounds, one_context)
    llama, weights, _ = pretrained.load(pretrained.smollm2())
    tokens = jnp.arange(512)
    print(f"{'SmolLM2':<38}", end="")
    ratio(simplify(llama, weights, tokens), llama, weights, tokens, rounds, {})


def main(rounds: int = 15) -> None:
    print(f"{'right side / left side':<37} predicted measured difference  laws")
    small(rounds)
    models(rounds)
