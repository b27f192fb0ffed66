"""Sequences with a right answer: pure functions from a seed to inputs and targets.

Where nothing is asked the target is `IGNORE`. Shapes: two int32 arrays (batch, T) each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .data import Pair, Seed, generator
from .loss import IGNORE, next_token

__all__ = ["brackets", "parities", "repeated", "rewritten", "sums", "translated"]


def rewritten(
    seed: Seed, batch: int, answer: Callable[[np.ndarray], np.ndarray], length: int, kinds: int
) -> Pair:
    """Show a sequence and a separator, then ask for the answer, each token from those before it.

        tokens = x₁ … xₙ | y₁ … yₙ,  y = answer(x),  x uniform in 0 … kinds − 1,  | = kinds

    Shapes: two arrays (batch, 2 · length). `answer` maps (batch, length) to the same shape.
    Raises ValueError for a size below 1.
    Source: Graves et al. 2014, Neural Turing Machines (copy and sort).

    >>> inputs, targets = rewritten(0, 1, np.sort, length=3, kinds=9)
    >>> inputs.tolist(), targets.tolist()
    ([[7, 5, 4, 9, 4, 5]], [[-100, -100, -100, 4, 5, 7]])
    """
    check_sizes(batch=batch, length=length, kinds=kinds)
    shown = generator(seed).integers(kinds, size=(batch, length))
    inputs, targets = next_token(
        np.concatenate([shown, np.full((batch, 1), kinds), answer(shown)], axis=1)
    )
    return asked(inputs, targets, np.arange(2 * length) >= length)


def repeated(seed: Seed, batch: int, length: int, kinds: int) -> Pair:
    """Repeat a sequence of distinct tokens; ask for every token that was seen before.

        tokens[t] = x[t mod p],  p uniform in length / 4 … length / 2

    The period differs from row to row, so no position tells where to look: the token before has
    to be found again. Shapes: two arrays (batch, length).
    Raises ValueError for a size below 1, or fewer kinds than length / 2.
    Source: Olsson et al. 2022, In-context Learning and Induction Heads.

    >>> inputs, targets = repeated(1, 1, length=8, kinds=4)
    >>> inputs.tolist(), targets.tolist()
    ([[0, 1, 2, 0, 1, 2, 0, 1]], [[-100, -100, -100, 1, 2, 0, 1, 2]])
    """
    check_sizes(batch=batch, length=length // 4, kinds=kinds)
    if kinds < length // 2:
        raise ValueError(f"a period of {length // 2} needs as many kinds; there are {kinds}")
    rng = generator(seed)
    period = rng.integers(length // 4, length // 2 + 1, size=(batch, 1))
    distinct = rng.permuted(np.tile(np.arange(kinds), (batch, 1)), axis=1)
    tokens = np.take_along_axis(distinct, np.arange(length + 1) % period, axis=1)
    inputs, targets = next_token(tokens)
    return asked(inputs, targets, np.arange(length) >= period)


def sums(modulus: int) -> Pair:
    """Every sum of two numbers: a b = is followed by a + b mod `modulus`.

    Shapes: two arrays (modulus², 3), of which only the last column is asked; = is the token
    `modulus`. Raises ValueError for a modulus below 1.
    Source: Power et al. 2022, Grokking.

    >>> inputs, targets = sums(3)
    >>> inputs[5].tolist(), targets[5].tolist()
    ([1, 2, 3], [-100, -100, 0])
    """
    check_sizes(modulus=modulus)
    a, b = (part.ravel() for part in np.indices((modulus, modulus)))
    inputs = np.stack([a, b, np.full_like(a, modulus)], axis=1)
    targets = np.repeat(((a + b) % modulus)[:, None], 3, axis=1)
    return asked(inputs, targets, np.arange(3) == 2)


def parities(seed: Seed, batch: int, length: int) -> Pair:
    """Show random bits, and after each whether the number of ones so far is odd; ask for that.

        tokens = x₁ y₁ x₂ y₂ …,  yₜ = 2 + (x₁ + … + xₜ mod 2)

    So each answer needs the last one and one bit. Asked of all bits at once, parity is beyond what
    gradients find. Shapes: two arrays (batch, 2 · length). Raises ValueError for a size below 1.
    Source: Minsky and Papert 1969, Perceptrons; Wies et al. 2023, Sub-Task Decomposition.

    >>> parities(0, 1, 2)
    (array([[1, 3, 1, 2]], dtype=int32), array([[   3, -100,    2, -100]], dtype=int32))
    """
    check_sizes(batch=batch, length=length)
    bits = generator(seed).integers(2, size=(batch, length))
    odd = 2 + bits.cumsum(axis=1) % 2
    tokens = np.stack([bits, odd], axis=2).reshape(batch, 2 * length)
    following = np.roll(tokens, -1, axis=1)
    return asked(tokens, following, np.arange(2 * length) % 2 == 0)


def brackets(seed: Seed, batch: int, length: int, kinds: int, depth: int) -> Pair:
    """Open and close brackets of several kinds; ask which one is the innermost still open.

    Token k opens and token kinds + k closes the kind k; the target is k, or `kinds` where none is
    open. Brackets are well nested and at most `depth` deep (the language Dyck-(kinds, depth)); with
    equal chances the next one opens or closes, where both may be.
    Shapes: two arrays (batch, length). Raises ValueError for a size below 1.
    Source: Hewitt et al. 2020; Yao et al. 2021, Self-Attention Networks Can Process Bounded
    Hierarchical Languages.

    >>> brackets(3, 1, length=6, kinds=2, depth=2)
    (array([[1, 3, 0, 2, 0, 0]], dtype=int32), array([[1, 2, 0, 2, 0, 0]], dtype=int32))
    """
    check_sizes(batch=batch, length=length, kinds=kinds, depth=depth)
    rng = generator(seed)
    opens = rng.integers(2, size=(length, batch)).astype(bool)
    kind = rng.integers(kinds, size=(length, batch))
    stack = np.full((batch, depth + 1), kinds)  # its first entry stands for "none is open"
    height, rows = np.zeros(batch, int), np.arange(batch)
    tokens, targets = np.empty((2, length, batch), int)
    for t in range(length):
        open_one = (height == 0) | (opens[t] & (height < depth))
        tokens[t] = np.where(open_one, kind[t], kinds + stack[rows, height])
        height = height + np.where(open_one, 1, -1)
        stack[rows[open_one], height[open_one]] = kind[t][open_one]
        targets[t] = stack[rows, height]
    return asked(tokens.T, targets.T, np.full(length, True))


def translated(
    seed: Seed, batch: int, length: int, kinds: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Pairs of sentences in two toy languages: (source, target so far), and what comes next.

        source = s₁ v₁ o₁  s₂ v₂ o₂ …        subject, verb, object, clause after clause
        target = | s′₁ o′₁ v′₁  s′₂ o′₂ v′₂ …   the verb last, each word by a fixed dictionary

    Word w of the source is word (5 w + 3) mod `kinds` of the target; 5 does not divide `kinds`.
    Shapes: sources and targets so far (batch, length) each, and what comes next (batch, length);
    the token | is `kinds`. Raises ValueError for a length that is no multiple of 3, or kinds of 5.
    Source: Sutskever et al. 2014, Sequence to Sequence Learning; the order is Greenberg's 1963.

    >>> (source, shown), following = translated(0, 1, length=3, kinds=9)
    >>> source.tolist(), shown.tolist(), following.tolist()
    ([[7, 5, 4]], [[9, 2, 5]], [[2, 5, 1]])
    """
    check_sizes(batch=batch, length=length, kinds=kinds)
    if length % 3 or kinds % 5 == 0:
        raise ValueError(
            f"clauses have 3 words, and 5 divides no number of kinds; got {length} words of "
            f"{kinds} kinds"
        )
    source = generator(seed).integers(kinds, size=(batch, length))
    moved = source.reshape(batch, -1, 3)[:, :, [0, 2, 1]].reshape(batch, length)
    words = (5 * moved + 3) % kinds
    shown, following = next_token(np.concatenate([np.full((batch, 1), kinds), words], axis=1))
    return (source.astype(np.int32), shown.astype(np.int32)), following.astype(np.int32)


def asked(inputs: np.ndarray, targets: np.ndarray, where: np.ndarray) -> Pair:
    """Inputs and targets as int32, and `IGNORE` where nothing is asked."""
    return inputs.astype(np.int32), np.where(where, targets, IGNORE).astype(np.int32)


def check_sizes(**sizes: int) -> None:
    if small := [f"{name}={size}" for name, size in sizes.items() if size < 1]:
        raise ValueError(f"sizes are at least 1; got {', '.join(small)}")
