"""Tasks with a rule: sums modulo a prime, parity, and brackets."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from ...combinators import Term, each
from ...models import decoder, gpt
from .. import data, sequences
from ..loss import accuracy
from ..optimize import adamw, warmup
from .task import Task, answered, by_muon, entropy, totals

__all__ = ["addition", "brackets", "parity"]


def reader(kinds: int, length: int, layers: int, width: int, heads: int) -> Term:
    return gpt(kinds, width, length, decoder(layers, width, heads, 4 * width))


def addition(
    seed: int = 0, steps: int = 5000, batch: int = 512, layers: int = 1, width: int = 128,
    heads: int = 4, modulus: int = 59, rate: float = 1e-3, decay: float = 1.0,
) -> Task:  # fmt: skip
    """a + b modulo a prime, from half of all pairs: learned by heart first, understood later.

    Weight decay is what makes the second happen: with `decay=0.0` it does not for long.
    Raises ValueError for a batch larger than half of the pairs, or a modulus below 2.
    Source: Power et al. 2022, Grokking; Nanda et al. 2023, Progress Measures for Grokking.

    >>> inputs, targets = addition(modulus=7, batch=5).batches(0)
    >>> bool(((inputs[:, 0] + inputs[:, 1]) % 7 == targets[:, 2]).all())
    True
    """
    inputs, targets = sequences.sums(modulus)
    order = data.generator((seed, 1)).permutation(len(inputs))
    learned, held_out = order[: len(order) // 2], order[len(order) // 2 :]
    term = reader(modulus + 1, 3, layers, width, heads)
    example = jax.ShapeDtypeStruct((3,), jnp.int32)
    right = totals(accuracy, term, (inputs[held_out], targets[held_out]))
    return Task(
        term=term,
        example=example,
        batches=lambda step: data.minibatch(
            (seed, 0, step), batch, inputs[learned], targets[learned]
        ),
        loss=partial(entropy, each(term)),
        optimizer=adamw(term, example, warmup(rate, min(100, steps // 10), steps), decay),
        steps=steps,
        unit="% of held-out sums right",
        score=lambda params: 100 * right(params),
        reference=99.0,
    )


def parity(
    seed: int = 0, steps: int = 400, batch: int = 64, layers: int = 2, width: int = 64,
    heads: int = 4, length: int = 16, rate: float = 1e-2,
) -> Task:  # fmt: skip
    """Is the number of ones so far odd? Each answer is shown before the next bit.

    Raises ValueError for sizes below 1.
    Source: Minsky and Papert 1969, Perceptrons; Wies et al. 2023, Sub-Task Decomposition.

    >>> parity(length=4).batches(0)[1].shape
    (64, 8)
    """
    draw = partial(sequences.parities, length=length)
    term = reader(4, 2 * length, layers, width, heads)
    return answered(term, draw, seed, batch, by_muon(rate, steps), steps=steps, reference=99.0)


def brackets(
    seed: int = 0, steps: int = 1000, batch: int = 64, layers: int = 2, width: int = 64,
    heads: int = 4, length: int = 32, kinds: int = 2, depth: int = 3, rate: float = 1e-2,
) -> Task:  # fmt: skip
    """Which bracket is the innermost that is still open? Asked at each bracket.

    Raises ValueError for sizes below 1.
    Source: Yao et al. 2021, Self-Attention Networks Can Process Bounded Hierarchical Languages.

    >>> brackets(length=8).batches(0)[0].max()
    np.int32(3)
    """
    draw = partial(sequences.brackets, length=length, kinds=kinds, depth=depth)
    term = reader(2 * kinds, length, layers, width, heads)
    return answered(term, draw, seed, batch, by_muon(rate, steps), steps=steps, reference=99.0)
