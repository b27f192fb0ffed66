"""Dictionaries: an MLP as attention to keys and values that are learned.

    dictionary = aggregate ∘ weights ∘ scores ∘ slots

Keys are the columns of the first matrix, values the rows of the second, and the activation is the
normalizer: it cuts useless hints, and without it the two matrices collapse into one (Geva et al.
2021).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jax import Array

from ..combinators import (
    CompositionError,
    Context,
    Entries,
    Leaf,
    Parameter,
    Term,
    aggregate,
    bias,
    compose,
    dot,
    gelu,
    identity,
    learned,
    multiply,
    named,
    normalize,
    score,
    silu,
    slots,
)

__all__ = ["biased_dictionary", "dictionary", "gated_dictionary", "keys"]


def dictionary(count: int, scores: Term = score(dot), weights: Term = normalize(gelu)) -> Term:
    """gelu(x Kᵀ) V with `count` learned keys and values: (T, d) -> (T, d) (Geva et al. 2021).

    `weights=normalize(softmax)` makes hints compete (Sukhbaatar et al. 2019); the first bias of an
    MLP is a bias of the scores, `scores=bias(learned((count,))) @ score(dot)`.

    Raises CompositionError for a count below 1.

    >>> dictionary(256)
    compose(aggregate(), normalize(gelu), score(dot), slots(256))
    """
    return compose(aggregate(), weights, scores, slots(count))


def biased_dictionary(count: int, width: int, weights: Term = normalize(gelu)) -> Term:
    """gelu(x Kᵀ + b) V + c: `dictionary` with the two biases of an MLP: (T, width) -> (T, width).

    Raises CompositionError for a count or a width below 1.

    >>> params = biased_dictionary(8, 4).init(jax.random.key(0), jnp.zeros((2, 4)))
    >>> params["bias"]["value"].shape, params["shift"]["learned"]["value"].shape
    ((8,), (4,))
    """
    zeros = jax.nn.initializers.zeros
    shift = identity + learned((width,), zeros)
    scores = bias(learned((count,), zeros)) @ score(dot)
    return named("shift", shift) @ dictionary(count, scores, weights)


def gated_dictionary(
    count: int, scores: Term = score(dot), weights: Term = normalize(silu)
) -> Term:
    """(silu(x Kᵀ) · x Gᵀ) V: a dictionary whose weights a second set of keys opens or closes:
    (T, d) -> (T, d) (Shazeer 2020).

    It is a product of Weights. GEGLU is `weights=normalize(gelu)`.

    Raises CompositionError for a count below 1.

    >>> params = gated_dictionary(8).init(jax.random.key(0), jnp.zeros((2, 4)))
    >>> jax.tree.map(jnp.shape, params)
    {'gate': {'keys': {'key': (8, 4)}}, 'slots': {'key': (8, 4), 'value': (8, 4)}}
    """
    gate = normalize(identity) @ scores @ keys()
    return compose(aggregate(), named("gate", multiply(weights @ scores, gate)), slots(count))


fan_out = jax.nn.initializers.variance_scaling(1.0, "fan_out", "normal")


@dataclasses.dataclass(frozen=True)
class keys(Leaf):
    """Learned keys in place of an entry's own, its query and values kept: Entries -> Entries.

    It asks the values of one dictionary by another set of keys.

    Raises CompositionError for anything but Entries.

    >>> params = (keys() @ slots(8)).init(jax.random.key(0), jnp.zeros((2, 4)))
    >>> params["keys"]["key"].shape
    (8, 4)
    """

    rowwise = True

    def flow(self, kind: Any) -> Any:
        if kind is not None and not isinstance(kind, Entries):
            raise CompositionError("keys takes entries, as project(…) or slots(…) give them")
        return kind

    def parameters(self, x: Any) -> dict[str, Parameter]:
        self.flow(x)
        shape = (x.value.shape[0], x.query.shape[-1])
        return {"key": Parameter(shape, fan_out, ("slots", "in"))}

    def apply(self, params: Mapping[str, Array], x: Entries, context: Context) -> Entries:
        return x.replace(key=params["key"])
