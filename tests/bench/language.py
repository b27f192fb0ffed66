"""What composing costs: a composed GPT against the same mathematics written by hand in JAX."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import handwritten
import jax
import jax.numpy as jnp
from measure import best_of, interleaved

from combinax.combinators import (
    Term,
    aggregate,
    causal,
    compose,
    describe,
    dot,
    each,
    embed,
    gelu,
    heads,
    identity,
    linear,
    mask,
    materialized,
    normalize,
    position_embed,
    project,
    rms_norm,
    scaled_dot,
    score,
    slots,
    softmax,
    tied,
    unstack,
)  # fmt: skip

VOCABULARY = 256


def block(width: int, count: int) -> Term:
    """The block of the README at any width and number of heads."""
    attention = compose(
        aggregate(), normalize(softmax), mask(causal), score(scaled_dot), project(width // count)
    )
    dictionary = compose(aggregate(), normalize(gelu), score(dot), slots(4 * width))
    first = identity + linear(width) @ heads(count, attention) @ rms_norm()
    return (identity + dictionary @ rms_norm()) @ first


def gpt(width: int, count: int, layers: int, length: int) -> Term:
    body = rms_norm() @ block(width, count) ** layers @ position_embed(length)
    return tied(embed(VOCABULARY, width), body)


def loss(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    logs = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.take_along_axis(logs, tokens[:, 1:, None], -1).mean()


def against_handwritten(rounds: int) -> None:
    """FLOPs and time of the composed term over those of its peer."""
    print("composed / hand-written            FLOPs   time   seconds   largest difference")
    for width, count, layers, length, batch in ((64, 4, 4, 128, 8), (512, 8, 6, 512, 1)):
        term = materialized(gpt(width, count, layers, length))  # as the peer, which is no stream
        tokens = jax.random.randint(jax.random.key(1), (batch, length), 0, VOCABULARY)
        stacked = term.init(jax.random.key(0), tokens[0])
        for form, ours in (("scanned", stacked), ("unrolled", unstack(term, stacked))):
            peers = handwritten.parameters(ours)
            run: Callable[..., Any] = each(term)
            peer = partial(handwritten.gpt, heads=count)
            apart = float(jnp.abs(jax.jit(run)(ours, tokens) - jax.jit(peer)(peers, tokens)).max())
            for what, wrap in (("forward", lambda f: f), ("gradient", gradient)):
                a = jax.jit(wrap(run)).lower(ours, tokens).compile()
                b = jax.jit(wrap(peer)).lower(peers, tokens).compile()
                work = flops(a) / flops(b)
                seconds, _, ratio = interleaved(
                    partial(a, ours, tokens), partial(b, peers, tokens), rounds
                )
                name = f"{width} x {layers}, T {length}, {form} {what}"
                print(
                    f"{name:<34} {work:.3f}  {ratio:.3f}  {seconds:8.4f}  {apart:.1e}", flush=True
                )


def flops(compiled: Any) -> float:
    return compiled.cost_analysis()["flops"]


def gradient(run: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda params, tokens: loss(run(params, tokens), tokens))


def compile_time() -> None:
    """Compiling the gradient of 24 blocks against that of 2."""
    x = jnp.zeros((128, 64))
    seconds = {}
    for layers in (2, 24):
        term = block(64, 4) ** layers
        params = term.init(jax.random.key(0), x)
        samples = []
        for _ in range(5):
            jax.clear_caches()
            term(params, x)
            start = time.perf_counter()
            jax.jit(jax.grad(lambda p: term(p, x).sum())).lower(params).compile()  # noqa: B023
            samples.append(time.perf_counter() - start)
        seconds[layers] = statistics.median(samples)
    print(
        f"\ncompiling the gradient of block ** 24 / block ** 2: {seconds[24] / seconds[2]:.2f} "
        f"({seconds[24]:.2f} s / {seconds[2]:.2f} s)"
    )


def in_a_new_process(code: str) -> float:
    """The number that a program prints, the least of five runs."""
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(5)
    ]
    return min(float(run.stdout) for run in runs)


def startup() -> None:
    """Building, printing, describing and initialising the GPT; importing the package."""
    tokens = jnp.arange(100)
    build = partial(gpt, 64, 4, 4, 128)
    term = build()
    start = time.perf_counter()
    jax.block_until_ready(term.init(jax.random.key(0), tokens))
    first = time.perf_counter() - start
    print(f"init of the GPT: first call {first:.2f} s, then ", end="")
    print(f"{1e3 * best_of(lambda: term.init(jax.random.key(1), tokens)):.1f} ms")
    print(f"building it {1e3 * best_of(build):.2f} ms, printing it ", end="")
    print(f"{1e3 * best_of(lambda: repr(build())):.2f} ms, describing it ", end="")
    print(f"{best_of(lambda: describe(term, tokens)):.2f} s")
    code = "import time, jax, optax, chex; t = time.perf_counter(); import combinax.combinators; "
    added = in_a_new_process(code + "print(time.perf_counter() - t)")
    print(f"import combinax.combinators adds {added:.2f} s to jax, optax and chex")


def main(rounds: int = 15) -> None:
    startup()
    compile_time()
    print()
    against_handwritten(rounds)
