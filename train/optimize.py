"""Optimizers for terms, and their schedule: `axes` says which parameters are matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from optax.contrib import MuonDimensionNumbers

from ..combinators import Term, axes

__all__ = ["adamw", "by_axes", "cosine", "hold", "line", "muon", "warmup"]


def cosine(t: Array) -> Array:
    """From 1 at t = 0 to 0 at t = 1, along a cosine (Loshchilov and Hutter 2017)."""
    return (1 + jnp.cos(jnp.pi * t)) / 2


def line(t: Array) -> Array:
    """From 1 at t = 0 to 0 at t = 1, in a straight line."""
    return 1 - t


def hold(t: Array) -> Array:
    """1 up to t = 0.8, then in a straight line to 0 at t = 1 (Hu et al. 2024, MiniCPM)."""
    return jnp.minimum(1.0, (1 - t) / 0.2)


def warmup(
    peak: float,
    rising: int,
    steps: int,
    end: float = 0.0,
    fall: Callable[[Array], Array] = cosine,
) -> optax.Schedule:
    """A learning rate that rises in a straight line, then falls as a function says.

        rate(s) = peak · (s + 1) / rising                              s ≤ w, w = rising − 1
        rate(s) = end + (peak − end) · fall((s − w) / (steps − 1 − w))              s > w

    So rate(0) = peak / rising, rate(rising − 1) = peak, and rate(steps − 1) = end. A warm-up of
    all steps only rises; one of 0 or 1 steps starts at the peak. After its steps it stays at end.
    `fall` maps 0 to 1 and 1 to 0: `cosine`, `line`, `hold`, or one of yours.
    Shapes: () -> (). Raises ValueError unless 0 ≤ rising ≤ steps and steps ≥ 1.
    Source: Goyal et al. 2017, Accurate, Large Minibatch SGD (warm-up).

    >>> rate = warmup(1.0, 2, 5)
    >>> [round(float(rate(s)), 2) for s in range(6)]
    [0.5, 1.0, 0.75, 0.25, 0.0, 0.0]
    """
    if not 0 <= rising <= steps or steps < 1:
        raise ValueError(f"a schedule needs 0 ≤ warm-up ≤ steps; got {rising} of {steps} steps")
    top = max(rising, 1) - 1

    def rate(s: Any) -> Array:
        fallen = jnp.clip((s - top) / max(steps - 1 - top, 1), 0, 1)
        falling = end + (peak - end) * fall(fallen)
        return jnp.where(s <= top, peak * (s + 1) / (top + 1), falling)

    return rate


Names = tuple[str, ...]


def by_axes(function: Callable[[Names, Names], Any], term: Term, example: Any) -> Any:
    """A function of the path and the axis names of every parameter, in the tree of the parameters.

    >>> from combinax.combinators import linear
    >>> by_axes(lambda path, names: (path, names), linear(2, bias=True), jnp.ones((1, 3)))
    {'bias': (('bias',), ('out',)), 'kernel': (('kernel',), ('in', 'out'))}
    """

    def of(path: Any, names: Names) -> Any:
        return function(tuple(str(key.key) for key in path), names)

    return jax.tree_util.tree_map_with_path(
        of, axes(term, example), is_leaf=lambda names: isinstance(names, tuple)
    )


def matrix(path: Names, names: Names) -> MuonDimensionNumbers | None:
    """The axis that a parameter sums over and the one it yields; None where it is no matrix.

    Layers and heads are matrices side by side. Tables of tokens and positions are none: one row
    is read at a time.

    >>> matrix((), ("layers", "in", "heads", "out"))
    MuonDimensionNumbers(reduction_axis=1, output_axis=3)
    """
    match {name: axis for axis, name in enumerate(names)}:
        case {"in": sums, "out": yields} | {"in": sums, "slots": yields}:
            return MuonDimensionNumbers(sums, yields)
        case {"slots": sums, "out": yields}:
            return MuonDimensionNumbers(sums, yields)
    return None


def is_matrix(path: Names, names: Names) -> bool:
    return matrix(path, names) is not None


def adamw(
    term: Term,
    example: Any,
    rate: optax.Schedule,
    decay: float,
    decays: Callable[[Names, Names], bool] = is_matrix,
    clip: float = 1.0,
) -> optax.GradientTransformation:
    """Adam on gradients clipped to a norm, with a weight decay of some parameters.

        params′ = params − rate(s) · (Adam(∇ · min(1, clip / ‖∇‖)) + decay · params)

    `decays(path, axis names)` says which parameters decay: by default matrices, not scales and
    tables. `lambda path, names: "embed" not in path` goes by where they stand.

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
    return optax.chain(
        optax.clip_by_global_norm(clip),
        optax.adamw(rate, b2=0.99, weight_decay=decay, mask=by_axes(decays, term, example)),
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
