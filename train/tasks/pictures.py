"""Handwritten digits: by dictionaries alone, and by a small vision transformer."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from ...combinators import (
    aggregate,
    dropout,
    each,
    gelu,
    identity,
    lift,
    linear,
    normalize,
    position_embed,
    project,
    rms_norm,
    scaled_dot,
    score,
    softmax,
)
from ...models import dictionary, encoder, first
from .. import data
from ..loop import Batch, Params
from ..loss import accuracy, check_targets
from ..optimize import adamw, warmup
from .task import Task, by_muon, entropy, totals

__all__ = ["digits", "patches", "vision"]


def digits(seed: int = 0, steps: int = 1000, batch: int = 128, slots: int = 256) -> Task:
    """Handwritten digits, by one dictionary whose keys and values are pictures.

        term = linear(10) ∘ rms_norm ∘ dictionary(slots) ∘ rms_norm

    A batch of pictures is a sequence of questions. Every picture is moved by up to a pixel each
    time it is drawn. Raises FileNotFoundError where the data is missing, ValueError for a batch
    that is not 1 to 4,000.
    Source: LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition.

    >>> digits(slots=16).term
    compose(linear(10), rms_norm(), aggregate(), dropout(0.2), normalize(gelu), score(dot), \
slots(16), rms_norm())
    """
    (images, labels), held_out = data.digits(seed)
    check_targets(labels, 10)
    pictures = dictionary(slots, weights=dropout(0.2) @ normalize(gelu))
    term = linear(10) @ rms_norm() @ pictures @ rms_norm()
    example = jax.ShapeDtypeStruct((1, images.shape[1]), jnp.float32)

    def batches(step: int) -> Batch:
        rng = data.generator((seed, 0, step))
        picture, label = data.minibatch(rng, batch, images, labels)
        return data.moved(rng, picture), label

    def score(params: Params) -> float:
        right, count = accuracy(jax.jit(term)(params, held_out[0]), held_out[1])
        return 100 * float(right / count)

    return Task(
        term=term,
        example=example,
        batches=batches,
        loss=partial(entropy, term),
        optimizer=adamw(term, example, warmup(3e-3, min(100, steps), steps), decay=1e-2),
        steps=steps,
        unit="% of 1,000 held-out digits told right",
        score=score,
        reference=95.0,
    )


def patches(picture: Array) -> Array:
    """Cut a picture of 28 × 28 pixels into 16 squares of 7 × 7, row by row: (784,) -> (16, 49).

    >>> patches(jnp.arange(784))[1, :2]
    Array([7, 8], dtype=int32)
    """
    return picture.reshape(4, 7, 4, 7).swapaxes(1, 2).reshape(16, 49)


pooled = (
    aggregate()
    @ normalize(softmax)
    @ score(scaled_dot, scale=0.0)
    @ project(query=lift(first), key=identity, value=identity)
)
"""The mean of all rows, (T, d) -> (1, d): a question that all keys answer alike."""


def vision(
    seed: int = 0, steps: int = 1000, batch: int = 64, layers: int = 2, width: int = 64,
    heads: int = 4, rate: float = 5e-3,
) -> Task:  # fmt: skip
    """Handwritten digits, by an encoder that reads 16 patches of each.

        term = linear(10) ∘ mean ∘ encoder ∘ position_embed ∘ linear ∘ patches

    Raises FileNotFoundError where the data is missing, ValueError for a batch that is not 1 to
    4,000, CompositionError for heads that do not divide the width.
    Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words.

    >>> vision().example
    ShapeDtypeStruct(shape=(784,), dtype=float32)
    """
    (images, labels), (asked, answers) = data.digits(seed)
    reads = encoder(layers, width, heads, 4 * width)
    term = linear(10) @ pooled @ reads @ position_embed(16) @ linear(width) @ lift(patches)
    example = jax.ShapeDtypeStruct(images.shape[1:], jnp.float32)
    right = totals(accuracy, term, (asked, answers[:, None]), rows=100)

    def batches(step: int) -> Batch:
        rng = data.generator((seed, 0, step))
        picture, label = data.minibatch(rng, batch, images, labels)
        return data.moved(rng, picture), label[:, None]

    return Task(
        term=term,
        example=example,
        batches=batches,
        loss=partial(entropy, each(term)),
        optimizer=by_muon(rate, steps)(term, example),
        steps=steps,
        unit="% of 1,000 held-out digits told right",
        score=lambda params: 100 * right(params),
        reference=95.0,
    )
