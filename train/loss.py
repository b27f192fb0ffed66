"""Losses over tokens: every result is a sum and a count, so that micro-batches add up exactly.

    mean loss = Σ sums / Σ counts        4.0 = (10 + 30) / (2 + 8), not (10/2 + 30/8) / 2

A target equal to `IGNORE` asks for nothing: no loss, no gradient, not counted. Any other target
outside the classes is an error wherever its value is known. Inside `jax.jit` it is not known, and
nothing can be raised there; the loss is then +inf, which is what −log of the probability of an
impossible class is: never NaN, never the loss of some neighbouring class. Call `check_targets`
once on the data before a compiled loop, and the case does not arise.
"""

from __future__ import annotations

from typing import TypeVar

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

__all__ = ["IGNORE", "accuracy", "check_targets", "cross_entropy", "mean", "next_token"]

IGNORE = -100
"""The target that asks for nothing (the value that most data sets and libraries use)."""

Tokens = TypeVar("Tokens", Array, np.ndarray)


def next_token(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Split sequences into what a model reads and what it shall say: the one shift there is.

        inputs[t] = tokens[t],  targets[t] = tokens[t + 1]

    Shapes: (..., T) -> (..., T − 1), (..., T − 1). `cross_entropy` shifts nothing.
    Raises ValueError for fewer than two tokens.
    Source: Bengio et al. 2003, A Neural Probabilistic Language Model.

    >>> next_token(np.array([7, 8, 9]))
    (array([7, 8]), array([8, 9]))
    """
    if tokens.ndim == 0 or tokens.shape[-1] < 2:
        raise ValueError(
            f"next-token targets need at least two tokens on the last axis; got {tokens.shape}"
        )
    return tokens[..., :-1], tokens[..., 1:]


def check_targets(targets: ArrayLike, classes: int, ignore: int = IGNORE) -> None:
    """Check on the host that every target is a class or the ignored one.

        targets ∈ {0, …, classes − 1} ∪ {ignore}

    Shapes: (...), any. Raises TypeError for targets that are not integers, and ValueError that
    names the first target outside, and where it stands.
    Source: Bradbury et al. 2018, JAX (compiled code cannot raise on an index out of range).

    >>> check_targets(np.array([0, 9, IGNORE]), 10)
    >>> check_targets(np.array([[0, 10]]), 10)
    Traceback (most recent call last):
    ValueError: target 10 at (0, 1) is none of the 10 classes 0 to 9, and not the ignored -100
    """
    values = np.asarray(targets)
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"targets are class numbers, so integers; got {values.dtype}")
    outside = (values != ignore) & ((values < 0) | (values >= classes))
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        place = f" at {where}" if where else ""
        raise ValueError(
            f"target {values[where]}{place} is none of the {classes} classes "
            f"0 to {classes - 1}, and not the ignored {ignore}"
        )


def counted(logits: ArrayLike, targets: ArrayLike, ignore: int) -> tuple[Array, Array, Array]:
    """Logits and targets as arrays that fit each other, and which targets count."""
    if jnp.ndim(logits) == 0 or jnp.shape(logits)[:-1] != jnp.shape(targets):
        raise ValueError(
            "logits need the shape of the targets and one last axis of classes; "
            f"got logits {jnp.shape(logits)}, targets {jnp.shape(targets)}"
        )
    logits = jnp.asarray(logits)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"logits are floating-point numbers; got {logits.dtype}")
    if isinstance(targets, Tracer):
        if not jnp.issubdtype(targets.dtype, jnp.integer):
            raise TypeError(f"targets are class numbers, so integers; got {targets.dtype}")
    else:
        check_targets(targets, logits.shape[-1], ignore)
    targets = jnp.asarray(targets)
    # Unsigned and narrow types cannot hold -100: compare where both numbers exist.
    targets = targets.astype(jnp.promote_types(targets.dtype, jnp.int32))
    return logits, targets, targets != ignore


def cross_entropy(
    logits: ArrayLike, targets: ArrayLike, ignore: int = IGNORE
) -> tuple[Array, Array]:
    """Add up −log softmax(logits)[target] over the targets that count, and count them.

        sum = Σ (log Σ exp(logits) − logits[target]),  count = number of targets ≠ ignore

    Shapes: (..., classes), (...) -> (), (); the sum in nats, in at least float32, the count an
    integer. Where a target is ignored its logits do not matter, even if they are NaN.
    Raises ValueError for shapes that differ and for a target outside the classes (inside
    `jax.jit`: a loss of +inf, see above), TypeError for logits or targets of the wrong kind.
    Source: Bridle 1990; Shannon 1948.

    >>> total, count = cross_entropy(np.zeros((3, 2)), np.array([0, 1, IGNORE]))
    >>> f"{total:.4f}", int(count)
    ('1.3863', 2)
    """
    logits, targets, counts = counted(logits, targets, ignore)
    inside = (targets >= 0) & (targets < logits.shape[-1])
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # The row is replaced, not only its loss: 0 times a NaN would still be a NaN gradient.
    row = jnp.where((counts & inside)[..., None], wide, 0.0)
    loss = optax.softmax_cross_entropy_with_integer_labels(row, jnp.where(inside, targets, 0))
    loss = jnp.where(inside, loss, jnp.inf)
    return jnp.sum(jnp.where(counts, loss, 0.0)), jnp.sum(counts)


def accuracy(logits: ArrayLike, targets: ArrayLike, ignore: int = IGNORE) -> tuple[Array, Array]:
    """Count the targets that have the largest logit, and the targets that count.

        correct = Σ [argmax logits = target],  count = number of targets ≠ ignore

    Shapes: (..., classes), (...) -> (), (), both integers; of equal logits the first class wins,
    and a row with a NaN is wrong. Raises what `cross_entropy` raises.
    Source: the zero-one loss of Wald 1950.

    >>> correct, count = accuracy(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([1, 1]))
    >>> int(correct), int(count)
    (1, 2)
    """
    logits, targets, counts = counted(logits, targets, ignore)
    right = (jnp.argmax(logits, axis=-1) == targets) & ~jnp.isnan(logits).any(axis=-1)
    return jnp.sum(right & counts), jnp.sum(counts)


def mean(total: ArrayLike, count: ArrayLike) -> Array:
    """Divide a sum, or several added up, by its count.

        mean = sum / count, and 0 where nothing was counted

    Shapes: any two that broadcast. Raises nothing: a count of 0 divides nothing.
    Source: the accumulation of Ott et al. 2018, Scaling Neural Machine Translation.

    >>> float(mean(10.0 + 30.0, 2 + 8))
    4.0
    """
    return jnp.asarray(total) / jnp.maximum(jnp.asarray(count), 1)
