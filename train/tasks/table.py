"""A user's table: which class a row belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ...combinators import identity, linear, rms_norm
from ...models import dictionary
from .. import data
from ..loop import Params
from ..loss import accuracy
from ..optimize import adamw, warmup
from ..tables import read_table
from .task import Task, entropy

__all__ = ["table"]


def table(
    seed: int = 0, steps: int = 1000, batch: int = 64, width: int = 64, rate: float = 3e-3,
    file: str = "", label: str = "",
) -> Task:  # fmt: skip
    """The class of each row of a CSV file of yours; its rival always tells the most common one.

        term = linear ∘ rms_norm ∘ (identity + dictionary ∘ rms_norm) ∘ linear

    A batch of rows is a sequence of questions. Raises what `tables.read_table` raises of the file,
    and ValueError where none is named.
    Source: Gorishniy et al. 2021, Revisiting Deep Learning Models for Tabular Data.
    """
    if not file:
        raise ValueError("the task table reads a CSV file of yours: name it with --file")
    found = read_table(file, label, (seed, 1))
    asked, answers = found.held_out
    inside = identity + dictionary(4 * width) @ rms_norm()
    term = linear(len(found.classes)) @ rms_norm() @ inside @ linear(width, bias=True)
    example = jax.ShapeDtypeStruct((1, len(found.columns)), jnp.float32)
    rows = min(batch, len(found.learned[1]))

    def score(params: Params) -> float:
        right, count = accuracy(jax.jit(term)(params, asked), answers)
        return 100 * float(right / count)

    def rivals() -> Mapping[str, float]:
        common = np.bincount(found.learned[1]).argmax()
        return {"the most common": 100 * float(np.mean(answers == common))}

    return Task(
        term=term,
        example=example,
        batches=lambda step: data.minibatch((seed, 0, step), rows, *found.learned),
        loss=partial(entropy, term),
        optimizer=adamw(term, example, warmup(rate, min(100, steps // 10), steps), decay=1e-2),
        steps=steps,
        unit="% of held-out rows told right",
        score=score,
        rivals=rivals,
        words=dict(columns=found.columns, classes=found.classes),
    )
