"""Optimizers for terms, and their schedule: `axes` says which parameters are matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers

from ..combinators import Term, axes

__all__ = ["adamw", "muon", "warmup_cosine"]


def warmup_cosine(peak: float, warmup: int, steps: int, end: float = 0.0) -> optax.Schedule:
    """A learning rate that rises in a straight line, then falls along a cosine.

        rate(s) = peak · (s + 1) / warmup                              s ≤ w, w = warmup − 1
        rate(s) = end + (peak − end) · (1 + cos π (s − w) / (steps − 1 − w)) / 2    s > w

    So rate(0) = peak / warmup, rate(warmup − 1) = peak, and rate(steps − 1) = end. A warm-up of
    all steps only rises; one of 0 or 1 steps starts at the peak. After its steps it stays at end.
    Shapes: () -> (). Raises ValueError unless 0 ≤ warmup ≤ steps and steps ≥ 1.
    Source: Goyal et al. 2017 (warm-up); Loshchilov and Hutter 2017 (cosine).

    >>> rate = warmup_cosine(1.0, warmup=2, steps=5)
    >>> [round(float(rate(s)), 2) for s in range(6)]
    [0.5, 1.0, 0.75, 0.25, 0.0, 0.0]
    """
    if not 0 <= warmup <= steps or steps < 1:
        raise ValueError(f"a schedule needs 0 ≤ warm-up ≤ steps; got {warmup} of {steps} steps")
    top = max(warmup, 1) - 1

    def rate(s):
        rising = peak * (s + 1) / (top + 1)
        fallen = jnp.clip((s - top) / max(steps - 1 - top, 1), 0, 1)
        falling = end + (peak - end) * (1 + jnp.cos(jnp.pi * fallen)) / 2
        return jnp.where(s <= top, rising, falling)

    return rate


def by_axes(function: Callable[[tuple[str, ...]], Any], term: Term, example: Any) -> Any:
    """A function of the axis names of every parameter, in the tree of the parameters."""
    return jax.tree.map(
        function, axes(term, example), is_leaf=lambda names: isinstance(names, tuple)
    )


def matrix(names: tuple[str, ...]) -> MuonDimensionNumbers | None:
    """The axis that a parameter sums over and the one it yields; None where it is no matrix.

    Layers and heads are matrices side by side. Tables of tokens and positions are none: one row
    is read at a time.

    >>> matrix(("layers", "in", "heads", "out"))
    MuonDimensionNumbers(reduction_axis=1, output_axis=3)
    """
    match {name: axis for axis, name in enumerate(names)}:
        case {"in": sums, "out": yields} | {"in": sums, "slots": yields}:
            return MuonDimensionNumbers(sums, yields)
        case {"slots": sums, "out": yields}:
            return MuonDimensionNumbers(sums, yields)
    return None


def adamw(
    term: Term, example: Any, rate: optax.Schedule, decay: float
) -> optax.GradientTransformation:
    """Adam on gradients clipped to norm 1, with a decay of matrices: not of scales and tables.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization.

    >>> from combinax.combinators import linear
    >>> term, x = linear(2), jnp.ones((1, 3))
    >>> optimizer = adamw(term, x, optax.constant_schedule(0.1), decay=0.5)
    >>> params = term.init(jax.random.key(0), x)
    >>> zeros = jax.tree.map(jnp.zeros_like, params)
    >>> updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    >>> bool(jnp.allclose(updates["kernel"], -0.1 * 0.5 * params["kernel"]))
    True
    """
    matrices = by_axes(lambda names: matrix(names) is not None, term, example)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(rate, b2=0.99, weight_decay=decay, mask=matrices),
    )


def muon(
    term: Term, example: Any, rate: optax.Schedule, decay: float
) -> optax.GradientTransformation:
    """Orthogonal steps for every matrix, of the size of Adam's, and Adam for all else.

    It costs five products of each matrix with its own transpose a step, and learns more from
    every batch: worth it where a batch is many tokens to each row of a matrix.
    Source: Jordan et al. 2024, Muon; Liu et al. 2025, Muon is Scalable for LLM Training.

    >>> from combinax.combinators import linear
    >>> term, x = linear(3), jnp.ones((1, 3))
    >>> optimizer = muon(term, x, optax.constant_schedule(0.1), decay=0.0)
    >>> params = term.init(jax.random.key(0), x)
    >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
    >>> turned = updates["kernel"] / jnp.linalg.norm(updates["kernel"], 2)
    >>> bool(jnp.linalg.cond(turned) < 2)
    True
    """
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.contrib.muon(
            rate,
            weight_decay=decay,
            consistent_rms=0.2,
            adam_b2=0.95,
            muon_weight_dimension_numbers=by_axes(matrix, term, example),
        ),
    )
