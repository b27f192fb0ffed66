"""What a training step costs: a composed GPT against the same mathematics by hand in JAX.

Both take the same AdamW step on the same weights and batch, blocks scanned and written out: seconds
of a step, their ratio, seconds of compiling, and the bytes that XLA sets aside.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import handwritten
import jax
import numpy as np
import optax
from language import VOCABULARY, gpt
from measure import interleaved

from combinax.combinators import each, unstack
from combinax.train.loss import cross_entropy, next_token
from combinax.train.step import start, step

SIZES = ((4, 128, 4, 128, 32), (6, 384, 6, 256, 16))
"""Layers, width, heads, length and batch of a GPT of characters."""
ROUNDS = 7


def composed(term: Any, params: Any, batch: Any, rng: Any) -> Any:
    return cross_entropy(each(term)(params, batch[0]), batch[1])


def by_hand(heads: int, params: Any, batch: Any, rng: Any) -> Any:
    return cross_entropy(handwritten.gpt(params, batch[0], heads), batch[1])


def compiled(loss: Any, params: Any, batch: Any) -> tuple[Any, float, int]:
    """A step to be run again and again, the seconds to compile it, and its temporary bytes."""
    optimizer = optax.adamw(1e-3)
    state = start(optimizer, params, jax.random.key(0))
    began = time.perf_counter()
    made = jax.jit(partial(step, loss, optimizer)).lower(state, batch).compile()
    seconds = time.perf_counter() - began
    memory = made.memory_analysis()
    assert memory is not None
    return lambda: made(state, batch), seconds, memory.temp_size_in_bytes


def compare(layers: int, width: int, heads: int, length: int, rows: int, rounds: int) -> None:
    term = gpt(width, heads, layers, length)
    draw = np.random.default_rng(0)
    batch = next_token(draw.integers(VOCABULARY, size=(rows, length + 1)).astype(np.int32))
    scanned = term.init(jax.random.key(0), batch[0][0])
    for way, params in (("scanned", scanned), ("written out", unstack(term, scanned))):
        ours, mine, held = compiled(partial(composed, term), params, batch)
        peer, theirs, other = compiled(
            partial(by_hand, heads), handwritten.parameters(params), batch
        )
        first, second, ratio = interleaved(ours, peer, rounds)
        print(
            f"{layers} × {width}, {way:<12}{1e3 * first:9.1f} ms, by hand {1e3 * second:9.1f} ms, "
            f"ratio {ratio:.2f}; compiling {mine:.1f} s, {theirs:.1f} s; "
            f"{held / 2**20:.0f} MiB, {other / 2**20:.0f} MiB",
            flush=True,
        )


def main() -> None:
    for size in SIZES:
        compare(*size, ROUNDS)
