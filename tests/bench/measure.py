"""Measuring in one process: candidates in turn, medians, and ratios against a peer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def interleaved(
    ours: Callable[[], Any], peer: Callable[[], Any], rounds: int
) -> tuple[float, float, float]:
    """Median seconds of both, and the median of the ratios ours / peer, one per round.

    Both run in every round, in alternating order, so that a drift of the machine hits both.
    """
    jax.block_until_ready((ours(), peer()))
    seconds: list[tuple[float, float]] = []
    for number in range(rounds):
        pair = {}
        for run in (ours, peer) if number % 2 else (peer, ours):
            start = time.perf_counter()
            jax.block_until_ready(run())
            pair[run] = time.perf_counter() - start
        seconds.append((pair[ours], pair[peer]))
    first, second = (statistics.median(column) for column in zip(*seconds, strict=True))
    return first, second, statistics.median(a / b for a, b in seconds)


def best_of(run: Callable[[], Any], rounds: int = 5) -> float:
    """The least seconds of several runs."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    return min(seconds)
