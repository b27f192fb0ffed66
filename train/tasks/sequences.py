"""Tasks on sequences: look up, copy, reverse, sort, and go on as before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ...combinators import causal, embed, mask, rms_norm, scaled_dot, score, tied, window
from ...models import block, causal_scores, decoder, gpt, multi_head
from .. import data, sequences
from ..optimize import adamw, warmup
from .task import Task, answered, by_muon

__all__ = ["copy", "induction", "recall", "reverse", "sort"]


def recall(seed: int = 0, steps: int = 300, batch: int = 64, pairs: int = 8) -> Task:
    """A dictionary of key-value pairs is shown, then asked.

        term = tied(embed, rms_norm ∘ far ∘ near)

    `near` sees one token back, so a value learns whose it is; `far` looks a key up. There are twice
    as many keys and values as pairs, all of them asked.
    Raises ValueError for sizes below 1 (see `data.recall`).
    Source: Olsson et al. 2022, In-context Learning and Induction Heads (the two steps).

    >>> task = recall(pairs=2)
    >>> task.batches(0)[0].shape, task.example.shape
    ((64, 6), (6,))
    """
    kinds, width = 4 * pairs, 32
    draw = partial(data.recall, pairs=pairs, keys=2 * pairs, values=2 * pairs, questions=pairs)
    near = multi_head(width, 4, scores=mask(causal & window(2)) @ score(scaled_dot))
    far = multi_head(width, 1, scores=causal_scores)
    term = tied(embed(kinds, width), rms_norm() @ block(near=near, far=far))
    rate = warmup(5e-3, min(50, steps), steps)
    decayed = partial(adamw, rate=rate, decay=1e-3)
    return answered(term, draw, seed, batch, decayed, steps=steps, reference=99.0)


def written(
    answer: Callable[[np.ndarray], np.ndarray], seed: int, steps: int, batch: int, layers: int,
    width: int, heads: int, length: int, kinds: int, rate: float,
) -> Task:  # fmt: skip
    """A decoder reads a sequence over a vocabulary of `kinds` tokens, and writes the answer."""
    term = gpt(kinds + 1, width, 2 * length, decoder(layers, width, heads, 4 * width))
    draw = partial(sequences.rewritten, answer=answer, length=length, kinds=kinds)
    return answered(term, draw, seed, batch, by_muon(rate, steps), steps=steps, reference=99.0)


def copy(
    seed: int = 0, steps: int = 200, batch: int = 64, layers: int = 2, width: int = 64,
    heads: int = 4, length: int = 10, kinds: int = 16, rate: float = 1e-2,
) -> Task:  # fmt: skip
    """A sequence is shown, then written again.

    Raises ValueError for sizes below 1, CompositionError for heads that do not divide the width.
    Source: Graves et al. 2014, Neural Turing Machines.

    >>> inputs, targets = copy(length=3).batches(0)
    >>> bool((inputs[:, :3] == targets[:, 3:]).all())
    True
    """
    same = np.asarray
    return written(same, seed, steps, batch, layers, width, heads, length, kinds, rate)


def reverse(
    seed: int = 0, steps: int = 200, batch: int = 64, layers: int = 2, width: int = 64,
    heads: int = 4, length: int = 10, kinds: int = 16, rate: float = 1e-2,
) -> Task:  # fmt: skip
    """A sequence is shown, then written from its end.

    Raises what `copy` raises. Source: Sutskever et al. 2014 (on the order of words).

    >>> inputs, targets = reverse(length=3).batches(0)
    >>> bool((inputs[:, 2::-1] == targets[:, 3:]).all())
    True
    """
    return written(np.fliplr, seed, steps, batch, layers, width, heads, length, kinds, rate)


def sort(
    seed: int = 0, steps: int = 600, batch: int = 64, layers: int = 2, width: int = 64,
    heads: int = 4, length: int = 10, kinds: int = 16, rate: float = 1e-2,
) -> Task:  # fmt: skip
    """A sequence is shown, then written in order.

    Raises what `copy` raises. Source: Graves et al. 2014, Neural Turing Machines.

    >>> inputs, targets = sort(length=3).batches(0)
    >>> bool((np.diff(targets[:, 3:]) >= 0).all())
    True
    """
    return written(np.sort, seed, steps, batch, layers, width, heads, length, kinds, rate)


def induction(
    seed: int = 0, steps: int = 700, batch: int = 64, layers: int = 2, width: int = 64,
    heads: int = 4, length: int = 32, kinds: int = 32, rate: float = 1e-2,
) -> Task:  # fmt: skip
    """A random sequence is repeated: what followed last time?

    With two layers one finds the token before, and the other looks for where it stood; one layer
    alone cannot, see `claims`.
    Raises ValueError for sizes below 1 or fewer kinds than length / 2.
    Source: Olsson et al. 2022, In-context Learning and Induction Heads.

    >>> inputs, targets = induction().batches(0)
    >>> inputs.shape, bool(((targets == -100).sum(1) <= 16).all())
    ((64, 32), True)
    """
    term = gpt(kinds, width, length, decoder(layers, width, heads, 4 * width))
    draw = partial(sequences.repeated, length=length, kinds=kinds)
    return answered(term, draw, seed, batch, by_muon(rate, steps), steps=steps, reference=99.0)
