"""A task: a small frozen record of data and pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ...combinators import Term, each, linear, project, rotary
from ..loop import Batch, History, Loss, Params, Record, fit, silent
from ..loss import accuracy, cross_entropy
from ..optimize import muon, warmup

__all__ = ["Task", "answered", "by_muon", "entropy", "totals", "train", "turned"]


@dataclass(frozen=True, eq=False)
class Task:
    """A term, a stream of data, a loss, and a score.

    `example` is one abstract input of the term; `batches(step)` gives (inputs, targets);
    `score(params)` measures held-out data in `unit`, and `best`, `max` or `min`, says which of two
    scores is better. The defaults reach `reference`, where there is one. `rivals()` gives what
    there is to compare with, and `words`, which are JSON, what a saved model needs to be used, such
    as its vocabulary.
    """

    term: Term
    example: Any
    batches: Callable[[int], Batch]
    loss: Loss
    optimizer: optax.GradientTransformation
    steps: int
    unit: str
    score: Callable[[Params], float]
    reference: float | None = None
    best: Callable[[Iterable[float]], float] = max
    rivals: Callable[[], Mapping[str, float]] = dict
    words: Mapping[str, Any] = field(default_factory=dict)

    def evaluate(self, params: Params) -> dict[str, float]:
        """The scores of rivals, and of a model with these parameters."""
        return {**self.rivals(), "this model": self.score(params)}

    def reached(self, score: float) -> bool:
        """Whether a score is as good as the reference, where there is one."""
        return self.reference is None or self.best((score, self.reference)) == score


def train(
    task: Task, seed: int = 0, report: Callable[[int, Record], None] = silent
) -> tuple[Params, History]:
    """Train a task from the parameters that its seed makes: see `fit`."""
    birth, rng = jax.random.split(jax.random.key(seed))
    params = task.term.init(birth, task.example)
    return fit(task.loss, task.optimizer, params, task.batches, task.steps, rng=rng, report=report)


def entropy(term: Term, params: Params, batch: Batch, rng: Array) -> tuple[Array, Array]:
    """The cross-entropy of the targets that are asked, and their number."""
    inputs, targets = batch
    return cross_entropy(term(params, inputs, rng=rng), targets)


def totals(
    measure: Callable[..., Any], term: Term, held_out: Batch, rows: int = 64
) -> Callable[[Params], float]:
    """A measure that is a sum and a count, as a function of parameters: its mean over the rows of
    held-out data, `rows` of them at a time."""

    @jax.jit
    def sums(params: Params, held_out: Batch) -> Any:
        one = lambda row: measure(term(params, row[0]), row[1])  # noqa: E731
        return jax.lax.map(one, held_out, batch_size=rows)

    def mean(params: Params) -> float:
        total, count = (np.sum(part, dtype=float) for part in sums(params, held_out))
        return float(total / count)

    return mean


def turned(width: int) -> Term:
    """Entries whose queries and keys know how far apart they stand (Su et al. 2021)."""
    return project(query=rotary() @ linear(width), key=rotary() @ linear(width), value=width)


def by_muon(
    rate: float, steps: int, decay: float = 0.1
) -> Callable[[Term, Any], optax.GradientTransformation]:
    """Muon for a term and its example, warmed up for a tenth of the steps, a hundred at most."""
    schedule = warmup(rate, min(100, steps // 10), steps)
    return lambda term, example: muon(term, example, schedule, decay)


def answered(
    term: Term,
    draw: Callable[[Any, int], Batch],
    seed: int,
    batch: int,
    optimizer: Callable[[Term, Any], optax.GradientTransformation],
    **fields: Any,
) -> Task:
    """A task whose sequences are drawn from a seed, without end, and scored by how many answers on
    1,000 held-out ones are right."""
    held_out = draw((seed, 1), 1000)
    example = jax.tree.map(
        lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], jnp.int32), held_out[0]
    )
    right = totals(accuracy, term, held_out)
    return Task(
        term=term,
        example=example,
        batches=lambda step: draw((seed, 0, step), batch),
        loss=partial(entropy, each(term)),
        optimizer=optimizer(term, example),
        score=lambda params: 100 * right(params),
        unit="% of held-out answers right",
        **fields,
    )
