"""The weights of attention while a model learns: far from the identity, and sharp."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from ...combinators import observe
from ..loop import Params, State, proceed, start
from ..plot import lines
from ..tasks import induction
from .finding import Finding, Rows

__all__ = ["departure", "entropy", "identity", "spread"]


def departure(weights: Array) -> Array:
    """How far maps of weights are from the identity: 0 for the identity, at most √2.

        ‖W − I‖ / √T, the norm over all pairs of rows        (…, T, T) -> (…)

    >>> departure(jnp.eye(3)), round(float(departure(jnp.ones((3, 3)) / 3)), 3)
    (Array(0., dtype=float32), 0.816)
    """
    rows = weights.shape[-1]
    squares = (weights - jnp.eye(rows)) ** 2
    return jnp.sqrt(squares.sum((-2, -1)) / rows)


def spread(weights: Array) -> Array:
    """The entropy of each row in nats, averaged over the rows: 0 where one key has all the weight.

        −Σ w log w        (…, T, T) -> (…)

    >>> round(float(spread(jnp.ones((4, 4)) / 4)), 4)
    1.3863
    """
    return -jax.scipy.special.xlogy(weights, weights).sum(-1).mean(-1)


def watched(
    measure: Callable[[Array], Array], name: str, seed: int, steps: int, looks: int
) -> Finding:
    """A measure of each layer's weights, (layers, heads, T, T), at `looks` steps of a run."""
    task = induction(seed, steps)
    birth, rng = jax.random.split(jax.random.key(seed))
    tokens = task.batches(steps)[0][:64]

    @jax.jit
    def look(params: Params) -> Array:
        def one(row: Array) -> Array:
            _, seen = observe(task.term)(params, row)
            return measure(seen["blocks/attention/heads/normalize"].weight)

        return jax.vmap(one)(tokens).mean((0, 2))  # over sequences and heads

    rows: Rows = []

    def keep(state: State, held_out: Sequence[tuple[int, float]]) -> None:
        for layer, value in enumerate(look(state.params), start=1):
            rows.append({"layer": layer, "step": int(state.step), name: round(float(value), 4)})

    state = start(task.optimizer, task.term.init(birth, task.example), rng)
    keep(state, ())
    proceed(
        task.loss, task.optimizer, state, task.batches, steps, every=max(1, steps // looks),
        keep=keep,
    )  # fmt: skip
    rows.sort(key=lambda row: row["layer"])
    return Finding(rows, lines(rows, "step", name, "layer", name))


def identity(seed: int = 0, steps: int = 700, looks: int = 10) -> Finding:
    """How far each layer's map is from the identity while a model learns induction.

    An attention map mixes rows as much as it departs from the identity.
    Source: Dong et al. 2021, Attention is Not All You Need (maps that mix to rank one).
    """
    return watched(departure, "distance", seed, steps, looks)


def entropy(seed: int = 0, steps: int = 700, looks: int = 10) -> Finding:
    """The entropy of each layer's weights while a model learns induction.

    Source: Clark et al. 2019, What Does BERT Look At?; Zhai et al. 2023, Attention Entropy.
    """
    return watched(spread, "entropy", seed, steps, looks)
