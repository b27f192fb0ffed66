"""What streaming costs: causal attention against other implementations, in time and in memory.

Peers that are not installed are left out: tokamax, memory-efficient-attention, attnax, torch.
"""

from __future__ import annotations

import importlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from combinax.combinators import (
    Term,
    aggregate,
    causal,
    each,
    features,
    identity,
    mask,
    materialized,
    normalize,
    pointwise,
    project,
    read,
    row_sum,
    same,
    scaled_dot,
    score,
    softmax,
    streamed,
    window,
)

# Threads of torch that wait in a loop for more work would take the cores from whoever is next.
os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}

HEADS, WIDTH = 8, 64
PINS = (materialized, streamed)
GIVEN = project(query=identity, key=read("key"), value=read("value"))


class Candidate(NamedTuple):
    """A way to attend: a function that runs it, and MiB of temporaries where they are known."""

    run: Callable[[], Any]
    mebibytes: float | None = None


def attention(seen: Any, function: Any = scaled_dot, how: Any = softmax) -> Term:
    scores = score(function) @ GIVEN
    return aggregate() @ normalize(how) @ (scores if seen is None else mask(seen) @ scores)


def tensors(length: int, heads: int = HEADS) -> tuple[jax.Array, ...]:
    return tuple(jax.random.normal(jax.random.key(0), (3, heads, length, WIDTH)))


def compiled(function: Callable, operands: Any, back: bool) -> Candidate:
    """A JAX function of query, key and value (H, T, d), or its gradient, compiled."""
    if back:
        inner = function
        function = jax.grad(lambda *x: jnp.square(inner(*x)).sum(), (0, 1, 2))
    ready = jax.jit(function).lower(*operands).compile()
    memory = ready.memory_analysis()
    size = memory.temp_size_in_bytes / 2**20 if memory else None
    return Candidate(lambda: jax.block_until_ready(ready(*operands)), size)


def ours(term: Term, **context: Any) -> Callable:
    """Attention of every head, with the same context for all."""
    mapped = each(term, fixed=tuple(context))
    return lambda q, k, v: mapped({}, q, key=k, value=v, **context)


def rows_first(function: Callable) -> Callable:
    """A function of (1, T, H, d) as one of (H, T, d)."""
    return lambda *x: jnp.swapaxes(function(*(jnp.swapaxes(a, 0, 1)[None] for a in x))[0], 0, 1)


def peers(length: int, back: bool) -> Iterator[tuple[str, Callable[[], Candidate]]]:
    """Every implementation, causal, by name; made when asked for."""
    x = tensors(length)
    yield "combinax", lambda: compiled(ours(attention(causal)), x, back)
    yield "combinax, one table", lambda: compiled(ours(materialized(attention(causal))), x, back)
    dense = rows_first(lambda *x: jax.nn.dot_product_attention(*x, is_causal=True))
    yield "jax.nn", lambda: compiled(dense, x, back)
    if tokamax := optional("tokamax"):
        chunked = rows_first(
            lambda *x: tokamax.dot_product_attention(
                *x, is_causal=True, implementation="xla_chunked"
            )
        )
        yield "tokamax xla_chunked", lambda: compiled(chunked, x, back)
    below = jnp.tril(jnp.ones((1, 1, length, length), bool))
    if efficient := optional("memory_efficient_attention"):
        function = efficient.efficient_dot_product_attention_jax
        none = jnp.zeros((1, 1, length, length))  # it cannot do without a bias
        chunks = rows_first(lambda *x: function(*x, mask=below, bias=none))
        yield "memory-efficient-attention", lambda: compiled(chunks, x, back)
    if attnax := optional("attnax.kernels"):
        heads_first = lambda *x: attnax.flash_attention(*(a[None] for a in x), mask=below)[0]  # noqa: E731
        yield "attnax flash", lambda: compiled(heads_first, x, back)
    if torch := optional("torch"):
        yield "torch SDPA", lambda: of_torch(sdpa(torch), torch, x, back)
        if not back:  # on a CPU it has no gradient
            yield "torch FlexAttention", lambda: of_torch(flex(torch, length), torch, x, back)


def sdpa(torch: Any) -> Callable:
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda q, k, v: attend(q, k, v, is_causal=True)


def flex(torch: Any, length: int) -> Callable:
    module = importlib.import_module("torch.nn.attention.flex_attention")
    below = module.create_block_mask(
        lambda b, h, query, key: query >= key, None, None, length, length, device="cpu"
    )
    attend = torch.compile(module.flex_attention)
    return lambda q, k, v: attend(q, k, v, block_mask=below)


def of_torch(attend: Callable, torch: Any, x: Any, back: bool) -> Candidate:
    q, k, v = (torch.tensor(np.asarray(a))[None].requires_grad_(back) for a in x)

    def run() -> None:
        y = attend(q, k, v)
        if back:
            y.square().sum().backward()

    return Candidate(run)


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def seconds(candidates: dict[Any, Candidate], rounds: int) -> dict[Any, float]:
    """Median seconds; all run in every round, so that a drift of the machine hits all. Each runs
    once before it is measured, so that none pays for what the one before it left behind."""
    measured: dict[Any, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            candidate.run()
            start = time.perf_counter()
            candidate.run()
            measured[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in measured.items()}


def against_peers(lengths: tuple[int, ...], rounds: int) -> dict[bool, dict[str, dict[int, tuple]]]:
    """Time over the time of combinax, for every length: above 1, the peer is slower."""
    found: dict[bool, dict[str, dict[int, tuple]]] = {False: {}, True: {}}
    for back in (False, True):
        print(f"\ncausal, {HEADS} heads × {WIDTH}, {'forward and backward' if back else 'forward'}")
        print(f"{'':28}{'T':>6}{'ms':>9}{'× ours':>8}{'MiB':>8}")
        for length in lengths:
            candidates = {name: make() for name, make in peers(length, back)}
            times = seconds(candidates, rounds)
            for name, median in times.items():
                size = candidates[name].mebibytes
                found[back].setdefault(name, {})[length] = (median, size)
                shown = "" if size is None else f"{size:8.0f}"
                ratio = median / times["combinax"]
                print(f"{name:28}{length:6}{median * 1e3:9.1f}{ratio:8.2f}{shown:>8}", flush=True)
    return found


def skipping(rounds: int) -> None:
    """What is hidden costs nothing: a window and packed documents against the causal table."""
    x = tensors(16384, 1)
    near = streamed(attention(causal & window(256)))
    pair = {
        "causal": compiled(ours(streamed(attention(causal))), x, False),
        "window": compiled(ours(near), x, False),
    }
    times = seconds(pair, rounds)
    print(f"\nT 16384: window(256) is {times['causal'] / times['window']:.1f} × faster than causal")
    x = tensors(4096)
    segments = jnp.repeat(jnp.arange(2), 2048)
    packed = ours(streamed(attention(causal & same("segments"))), segments=segments)
    pair = {
        "one": compiled(ours(streamed(attention(causal))), x, False),
        "two": compiled(packed, x, False),
    }
    times = seconds(pair, rounds)
    print(f"T 4096: two packed documents take {times['two'] / times['one']:.2f} of one's time")


def raised(x: jax.Array) -> jax.Array:
    return jax.nn.elu(x) + 1


def reassociated(rounds: int) -> None:
    """Linear attention: time grows as the length does."""
    linear = ours(streamed(attention(causal, features(pointwise(raised)), row_sum)))
    lengths = (8192, 16384, 32768)
    candidates = {str(n): compiled(linear, tensors(n, 4), False) for n in lengths}
    shown = ", ".join(f"{n} {s * 1e3:.0f}" for n, s in seconds(candidates, rounds).items())
    print(f"linear attention, 4 heads, causal, T and ms: {shown}")


def compiling() -> None:
    """Seconds to compile forward and backward, at any length."""
    took = []
    for length in (1000, 4096, 65536, 1_000_000):
        term = ours(streamed(attention(causal & window(512) if length > 10**5 else causal)))
        gradient = jax.grad(lambda *x, term=term: jnp.square(term(*x)).sum(), (0, 1, 2))
        shape = jax.ShapeDtypeStruct((1, length, WIDTH), jnp.float32)
        start = time.perf_counter()
        jax.jit(gradient).lower(shape, shape, shape).compile()
        took.append(f"{length:,} {time.perf_counter() - start:.1f}")
    print(f"compiling forward and backward, T and s: {', '.join(took)}")


def choosing(rounds: int) -> None:
    """The choice made when traced, which is the program of one pin, over the better of the two."""
    print(f"\nautomatic choice over the better of both ways{'forward':>12}{'gradient':>10}")
    for heads in (1, 4, 32):
        for seen in (causal, None):
            for length in (64, 128, 256, 512, 1024, 2048) + ((4096, 8192) if heads < 32 else ()):
                x, term, ratios = tensors(length, heads), attention(seen), []
                for back in (False, True):
                    ways = {pin: compiled(ours(pin(term)), x, back) for pin in PINS}
                    chosen = next(pin for pin in PINS if program(pin(term), x) == program(term, x))
                    times = seconds(ways, rounds if length > 1024 else 5 * rounds)
                    ratios.append(times[chosen] / min(times.values()))
                what = "causal" if seen is causal else "all"
                line = f"{heads:3} heads, T {length:5}, {what:6}{'':21}"
                print(f"{line}{ratios[0]:12.2f}{ratios[1]:10.2f}", flush=True)


def program(term: Term, x: Any) -> str:
    return jax.jit(ours(term)).lower(*x).as_text()


def picture(found: dict[bool, dict[str, dict[int, tuple]]], path: Path) -> None:
    """Time and memory against length."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    titles = "forward, ms", "forward and backward, ms", "temporaries, forward and backward, MiB"
    for panel, (back, column, title) in zip(
        panels, ((False, 0, titles[0]), (True, 0, titles[1]), (True, 1, titles[2])), strict=True
    ):
        for name, rows in found[back].items():
            points = [(t, row[column]) for t, row in rows.items() if row[column] is not None]
            if points:
                scale = 1 if column else 1e3
                panel.loglog(
                    *zip(*((t, scale * y) for t, y in points), strict=True), "o-", label=name
                )
        panel.set(title=title, xlabel="T")
    panels[0].legend(fontsize=7)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main(lengths: tuple[int, ...] = (512, 1024, 2048, 4096), rounds: int = 5) -> None:
    picture(against_peers(lengths, rounds), Path("attention.png"))
    skipping(rounds)
    reassociated(rounds)
    compiling()
    choosing(rounds)
