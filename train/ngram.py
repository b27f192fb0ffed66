"""An interpolated n-gram of characters: the honest baseline for a model of text.

It is trained on the same characters as the model and scored on the same held-out ones, in bits
per character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["NGram", "bits", "distribution", "kneser_ney"]


@dataclass(frozen=True, eq=False)
class Level:
    """What n-grams of one length know: p = found[context · class] + rest[context] · p_shorter.

    n-grams and contexts are numbers in base `classes`, sorted; a context that never occurred
    has rest 1.
    """

    grams: np.ndarray
    found: np.ndarray
    contexts: np.ndarray
    rest: np.ndarray

    def interpolate(self, context: np.ndarray, gram: np.ndarray, shorter: np.ndarray) -> np.ndarray:
        found = look_up(self.grams, self.found, gram, 0.0)
        return found + look_up(self.contexts, self.rest, context, 1.0) * shorter


@dataclass(frozen=True, eq=False)
class NGram:
    """A fitted model: one level for each length of n-gram, from 1 to the order.

    p(c) = 1 / classes at length 0
    """

    classes: int
    levels: tuple[Level, ...]


def kneser_ney(ids: np.ndarray, order: int, classes: int) -> NGram:
    """Fit an interpolated Kneser-Ney n-gram.

        pₙ(c | h) = max(#(hc) − D, 0) / #(h·) + D · kinds(h·) / #(h·) · pₙ₋₁(c | h′)

    where h′ is h without its first character, and p₀ = 1 / classes. At the longest length #
    counts occurrences; below it, #(g) is the number of different characters seen in front of g.
    D = n₁ / (n₁ + 2 n₂), from the n-grams of that length that have counts 1 and 2, or 1/2 where
    none has count 1. A context never seen says pₙ = pₙ₋₁, so no character has probability 0.
    Shapes: (N,) integers -> `NGram`. A few tenths of a second for 400,000 characters.
    Raises ValueError for an order below 1, a text shorter than the order, ids outside the
    classes, or more n-grams than 64 bits can number.
    Source: Kneser and Ney 1995; D of Ney, Essen and Kneser 1994; the interpolated form of Chen
    and Goodman 1999.

    >>> model = kneser_ney(np.array([0, 1, 0, 1, 0, 1, 2]), order=2, classes=4)
    >>> distribution(model, [0]).round(2)
    array([0.03, 0.92, 0.03, 0.03])
    """
    ids = valid(ids, classes)
    if order < 1 or len(ids) < order:
        raise ValueError(f"an n-gram needs 1 ≤ order ≤ characters; got {order}, {len(ids)}")
    if classes**order >= 2**63:
        raise ValueError(f"{classes} characters to the power {order} do not fit in 64 bits")
    grams, counts = np.unique(codes(ids, order, classes), return_counts=True)
    levels = [level(grams, counts, classes)]
    for length in range(order - 1, 0, -1):
        # Each longer n-gram, counted once, is one character in front of its own ending.
        grams, counts = np.unique(grams % classes**length, return_counts=True)
        levels.append(level(grams, counts, classes))
    return NGram(classes, tuple(reversed(levels)))


def bits(model: NGram, ids: np.ndarray, before: int) -> np.ndarray:
    """Score a text: the information in each character, of which the mean is bits per character.

        bits[i] = −log₂ p(ids[i] | before, ids[0], …, ids[i − 1])

    `before` is the character in front of the text, as in `cover`. Near the start, where the
    history is shorter than the order, the shorter n-grams are used alone.
    Shapes: (N,) -> (N,) float64. Raises ValueError for ids outside the classes.
    Source: Shannon 1948, A Mathematical Theory of Communication.

    >>> model = kneser_ney(np.array([0, 1, 2, 3]), order=1, classes=4)
    >>> bits(model, np.array([3, 0]), before=1)
    array([2., 2.])
    """
    stream = valid(np.concatenate([[before], ids]).astype(np.int64), model.classes)
    probability = np.full(len(stream), 1 / model.classes)
    for length, one in enumerate(model.levels[: len(stream)], start=1):
        gram = codes(stream, length, model.classes)
        reached = probability[length - 1 :]
        probability[length - 1 :] = one.interpolate(gram // model.classes, gram, reached)
    return -np.log2(probability[1:])


def distribution(model: NGram, history: Sequence[int] | np.ndarray) -> np.ndarray:
    """Give the probability of every character after a history.

        p(c | history) for c = 0 … classes − 1, Σ p = 1

    Shapes: (H,), any length, of which the last order − 1 matter -> (classes,) float64.
    Raises ValueError for ids outside the classes.
    Source: Chen and Goodman 1999, An Empirical Study of Smoothing Techniques.

    >>> model = kneser_ney(np.array([0, 1, 0, 1, 2]), order=2, classes=3)
    >>> round(float(distribution(model, [1]).sum()), 12)
    1.0
    """
    past = valid(np.asarray(history, dtype=np.int64).reshape(-1), model.classes)
    probability = np.full(model.classes, 1 / model.classes)
    for length, one in enumerate(model.levels[: len(past) + 1], start=1):
        context = codes(past[len(past) - length + 1 :], length - 1, model.classes)
        gram = context * model.classes + np.arange(model.classes)
        probability = one.interpolate(context, gram, probability)
    return probability


def valid(ids: np.ndarray, classes: int) -> np.ndarray:
    ids = np.asarray(ids)
    if not np.issubdtype(ids.dtype, np.integer) or ids.ndim != 1:
        raise ValueError(f"characters are a row of integers; got {ids.dtype} {ids.shape}")
    if ids.size and not 0 <= ids.min() <= ids.max() < classes:
        raise ValueError(f"characters are 0 to {classes - 1}; got {ids.min()} to {ids.max()}")
    return ids.astype(np.int64)


def codes(ids: np.ndarray, length: int, classes: int) -> np.ndarray:
    """Every n-gram of a text as a number in base `classes`; the one empty n-gram is 0."""
    if length == 0:
        return np.zeros(1, np.int64)
    rows = np.lib.stride_tricks.sliding_window_view(ids, length)
    return rows @ classes ** np.arange(length - 1, -1, -1, dtype=np.int64)


def level(grams: np.ndarray, counts: np.ndarray, classes: int) -> Level:
    once, twice = np.sum(counts == 1), np.sum(counts == 2)
    # Without n-grams seen once the estimate would leave nothing for the unseen.
    discount = once / (once + 2 * twice) if once else 0.5
    contexts, place, kinds = np.unique(grams // classes, return_inverse=True, return_counts=True)
    total = np.bincount(place, weights=counts)
    return Level(grams, (counts - discount) / total[place], contexts, discount * kinds / total)


def look_up(names: np.ndarray, values: np.ndarray, name: np.ndarray, default: float) -> np.ndarray:
    place = np.minimum(np.searchsorted(names, name), len(names) - 1)
    return np.where(names[place] == name, values[place], default)
