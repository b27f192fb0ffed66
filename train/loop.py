"""The training loop: steps dispatched several at a time, measured, kept, and ended for a reason.

    stateₛ₊₁, recordₛ = step(loss, optimizer, stateₛ, batches(s)),  s = 0 … steps − 1

It knows nothing about tasks: what is minimised, how, and on what are functions passed in. A batch
is a function of its step number and so is the randomness, so a run is decided by its seed, however
many steps go into one dispatch and wherever it is stopped and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..combinators.core.check import check_key
from ..combinators.core.errors import brief
from ..combinators.core.source import reference
from .feed import groups
from .interrupt import deferred
from .step import Batch, Loss, Params, Record, State, accumulated, start, step

__all__ = [
    "Batch", "History", "Loss", "Params", "Record", "State", "accumulated", "fit", "patience",
    "proceed", "start", "step",
]  # fmt: skip

Stop = Callable[[Sequence[float]], bool]
"""Held-out scores, one after the other -> whether the run ends."""

BY_HAND, NO_MORE = "by hand", "for want of batches"
SETTLED = "since held-out data got no better"


class History(NamedTuple):
    """The course of a run.

    `loss` has the loss of every step, `skipped` the numbers of those skipped, `held_out` pairs of
    a number of steps and the score after them. `reason` says in words why the run ended before its
    last step, and is "" where it did not. `offending` is the batch of the last step where a run
    ended because its steps were skipped.
    """

    loss: np.ndarray
    skipped: tuple[int, ...] = ()
    held_out: tuple[tuple[int, float], ...] = ()
    reason: str = ""
    offending: Batch = None

    @property
    def stopped(self) -> bool:
        return bool(self.reason)


def patience(evaluations: int, best: Callable[[Sequence[float]], float] = min) -> Stop:
    """End a run after `evaluations` in a row that did not improve on the best.

    `best` is `min` for losses and `max` for accuracies; a NaN is no better than anything.
    Raises ValueError for fewer than one evaluation.
    Source: Prechelt 1998, Early Stopping, but When?

    >>> [patience(2)(scores) for scores in ([3.0, 2.0, 2.5], [3.0, 2.0, 2.5, 2.0])]
    [False, True]
    """
    if evaluations < 1:
        raise ValueError(f"patience is 1 evaluation or more; got {evaluations!r}")

    def stop(scores: Sequence[float]) -> bool:
        known = [score for score in scores if score == score]
        top = scores.index(best(known)) if known else -1
        return len(scores) - 1 - top >= evaluations

    return stop


def never(scores: Sequence[float]) -> bool:
    return False


def silent(first: int, record: Record) -> None:
    pass


def unkept(state: State, held_out: Sequence[tuple[int, float]]) -> None:
    pass


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def dispatch(
    loss: Loss, optimizer: optax.GradientTransformation, skips: int, state: State, taken: Array,
    rows: Batch,
) -> tuple[State, Record]:  # fmt: skip
    """One step for each of the stacked batches that is to be taken."""

    def idle(state: State, batch: Batch) -> tuple[State, Record]:
        zero = jnp.zeros((), jnp.float32)
        return state, Record(zero, zero, jnp.zeros((), bool))

    def one(state: State, row: tuple[Array, Batch]) -> tuple[State, Record]:
        # As a branch, a step is compiled by itself, so that its rounding does not depend on how
        # many stand around it; and a last, shorter dispatch needs no program of its own.
        due = row[0] & (state.skips < skips)
        return jax.lax.cond(due, partial(step, loss, optimizer), idle, state, row[1])

    return jax.lax.scan(one, state, (taken, rows))


def fit(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    params: Params,
    batches: Callable[[int], Batch],
    steps: int,
    *,
    rng: Array,
    **options: Any,
) -> tuple[Params, History]:
    """Train: params and a source of batches -> trained params and the history.

    The `options` are those of `proceed`, and so are the errors. The parameters handed in stay as
    they are.
    Source: Bottou 1998, Online Learning and Stochastic Approximations.

    >>> square = lambda params, batch, rng: (jnp.sum((params - batch) ** 2), 1)
    >>> params, history = fit(
    ...     square, optax.sgd(0.25), jnp.zeros(()), lambda s: np.float32(4), 3,
    ...     rng=jax.random.key(0), evaluate=lambda params: abs(params - 4), every=2,
    ... )
    >>> float(params), history.loss.tolist(), history.skipped, history.held_out
    (3.5, [16.0, 4.0, 1.0], (), ((2, 1.0), (3, 0.5)))
    """
    check_functions(loss, optimizer, params, batches)
    check_key(rng)
    state, history = proceed(
        loss, optimizer, start(optimizer, params, rng), batches, steps, **options
    )
    return state.params, history


def proceed(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    state: State,
    batches: Callable[[int], Batch],
    steps: int,
    *,
    steps_per_dispatch: int = 20,
    report: Callable[[int, Record], None] = silent,
    evaluate: Callable[[Params], float] | None = None,
    every: int = 100,
    stop: Stop = never,
    skips: int = 20,
    keep: Callable[[State, Sequence[tuple[int, float]]], None] = unkept,
    held_out: Sequence[tuple[int, float]] = (),
) -> tuple[State, History]:
    """Train on from a state until `steps` steps are done: -> the last state and the history.

    `steps_per_dispatch` steps run as one compiled `lax.scan`, while the host draws the batches of
    the next; the result is bit for bit the same for any number of them. After each dispatch
    `report(first, record)` gets the number of its first step and its stacked records.
    After each `every` steps, and after the last, `evaluate(params)` scores held-out data,
    `keep(state, held_out)` may save the state and must not hold on to it, and `stop(scores)` may
    end the run; `held_out` begins with the scores of the run that is resumed.
    The run also ends early, with all that was trained, on Ctrl-C, on a StopIteration of `batches`,
    as `lambda step: next(iterator)` raises it, and after `skips` skipped steps in a row:
    `history.reason` says which.
    Shapes: every batch has the tree, the shapes and the types of the first. The state that is
    handed in is donated: its arrays are gone afterwards. Raises ValueError for counts that are no
    integers or too small, for batches that differ, for a loss that gives no sum and count, and for
    arguments that are of another kind; and what `loss`, `batches` and `evaluate` raise.
    Source: Robbins and Monro 1951; Prechelt 1998 (early stop).
    """
    check_functions(loss, optimizer, state.params, batches)
    for name, value in dict(report=report, stop=stop, keep=keep).items():
        check_function(name, value)
    if evaluate is not None:
        check_function("evaluate", evaluate)
    check_counts(steps, steps_per_dispatch, every, skips)

    first, scores, offending = int(state.step), list(held_out), None
    # A run that has ended ends again at once, whoever resumes it.
    reason = SETTLED if scores and stop([score for _, score in scores]) else spent(state, skips)
    ran: list[tuple[int, Record]] = []
    feed = groups(batches, first, steps, min(max(steps, 1), steps_per_dispatch), every)
    try:
        group = next(feed, None)
        while group is not None and not reason:
            # In here an interrupt waits: the state before is gone, and the one after not yet there.
            with deferred():
                state, record = dispatch(loss, optimizer, skips, state, group.taken, group.rows)
                ran.append((group.steps, record))
            following = next(feed, None)
            done = int(state.step)
            report(group.first, front(record, done - group.first))
            if reason := spent(state, skips):
                offending = jax.tree.map(lambda rows, i=done - 1 - group.first: rows[i], group.rows)
            elif done % every == 0 or done == steps:
                scores += [] if evaluate is None else [(done, float(evaluate(state.params)))]
                keep(state, scores)
                reason = SETTLED if stop([score for _, score in scores]) else ""
            group = following
    except KeyboardInterrupt:
        reason = BY_HAND
    done = int(state.step)
    if done == steps and reason in (BY_HAND, SETTLED):
        reason = ""
    elif done < steps:
        reason = reason or NO_MORE
    nothing = Record(np.zeros(0, np.float32), np.zeros(0, np.float32), np.zeros(0, bool))
    parts = zip(nothing, *(front(record, count) for count, record in ran), strict=True)
    losses, _, skipped = (np.concatenate(part)[: done - first] for part in parts)
    numbers = tuple((first + np.flatnonzero(skipped)).tolist())
    return state, History(losses, numbers, tuple(scores), reason, offending)


def spent(state: State, skips: int) -> str:
    """Why a state takes no more steps; "" where it does."""
    if int(state.skips) < skips:
        return ""
    return f"since {skips} steps in a row were skipped, the last of them step {int(state.step) - 1}"


def front(record: Record, count: int) -> Record:
    """The first `count` rows of a stacked record, on the host."""
    return Record(*(part[:count] for part in jax.device_get(record)))


# What is handed in


def check_counts(steps: Any, steps_per_dispatch: Any, every: Any, skips: Any) -> None:
    asked = (steps, steps_per_dispatch, every, skips)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in asked)
    if not whole or steps < 0 or min(asked[1:]) < 1:
        raise ValueError(
            f"a run has 0 steps or more, and 1 or more to a dispatch, from one evaluation to the "
            f"next, and skipped before it ends; got {steps!r} steps, {steps_per_dispatch!r} to a "
            f"dispatch, every={every!r}, skips={skips!r}"
        )


def check_functions(loss: Any, optimizer: Any, params: Any, batches: Any) -> None:
    if is_optimizer(params) and not is_optimizer(optimizer):
        raise ValueError(
            "optimizer and params are swapped: write fit(loss, optimizer, params, batches, steps)"
        )
    if not is_optimizer(optimizer):
        raise ValueError(
            "an optimizer is a transformation of optax such as optax.adam(1e-3), not "
            f"{brief(reference(optimizer))}"
        )
    check_function("loss", loss)
    if not callable(batches):
        each = "batches[step % len(batches)]" if hasattr(batches, "__len__") else "next(batches)"
        raise ValueError(
            f"batches is a function of the step number, and gets a {type(batches).__name__}: write "
            f"lambda step: {each}"
        )


def is_optimizer(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("init", "update"))


def check_function(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(f"{name} is a function, not {brief(reference(value))}")
