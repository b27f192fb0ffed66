"""The training loop: one pure step, several of them in one dispatch, and a record of each.

    state, record = step(loss, optimizer, state, batch)

It knows nothing about tasks: what is minimised, how, and on what are functions passed in. A batch
is a function of its step number and so is the randomness, so a run is decided by its seed, however
many steps go into one dispatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from ..combinators.core.check import check_key
from ..combinators.core.source import reference
from .loss import mean

__all__ = ["History", "Record", "State", "bar", "fit", "start", "step"]

Batch = Any
Params = Any
Loss = Callable[[Params, Batch, Array], tuple[ArrayLike, ArrayLike]]
"""(params, batch, rng) -> the loss of a batch as a sum and a count; see `loss.cross_entropy`."""

NUMBERS = (Array, np.ndarray, np.generic, int, float)


class State(NamedTuple):
    """All that a step changes: a pytree."""

    params: Params
    optimizer: optax.OptState
    step: Array
    rng: Array


class Record(NamedTuple):
    """What a step reports: its mean loss, and whether it was skipped. Stacked: one of each."""

    loss: Array | np.ndarray
    skipped: Array | np.ndarray


class History(NamedTuple):
    """A finished run: the loss of every step, the numbers of those that were skipped, and whether
    the run was stopped before its last step: by hand, or where there were no more batches."""

    loss: np.ndarray
    skipped: tuple[int, ...]
    stopped: bool


def start(optimizer: optax.GradientTransformation, params: Params, rng: Array) -> State:
    """The state before step 0. Raises ValueError for parameters that are no floats.

    >>> int(start(optax.sgd(0.1), {}, jax.random.key(0)).step)
    0
    """
    params = jax.tree_util.tree_map_with_path(parameter, params)
    return State(params, optimizer.init(params), jnp.zeros((), jnp.int32), rng)


def parameter(path: Any, value: Any) -> Array:
    """A leaf of the parameters as an array whose type no step changes."""
    if not isinstance(value, NUMBERS) or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise ValueError(
            f"parameters are arrays of floats, and params{jax.tree_util.keystr(path)} is "
            f"{shown(value)}"
        )
    return jnp.asarray(value, jnp.result_type(value))


def shown(value: Any) -> str:
    """A leaf in the words of an error: its type and shape, or what else it is."""
    if not isinstance(value, NUMBERS):
        return f"{value!r:.60}"
    return f"{jnp.result_type(value)}{list(np.shape(value))}"


def step(
    loss: Loss, optimizer: optax.GradientTransformation, state: State, batch: Batch
) -> tuple[State, Record]:
    """Take one step down the gradient of the mean loss; a pure function.

        params′ = params + update(∇ mean(loss(params, batch, rngₛ))),  rngₛ = fold_in(rng, s)

    Where the loss, the gradient or the new parameters are not finite (or too large to square in
    their type), the step is skipped: parameters and optimizer stay bit for bit as they were, and
    only the step number counts on. Shapes: the tree of the state stays what it is, and the record
    is a float32 and a boolean. Raises what the loss raises.
    Source: Robbins and Monro 1951; skipping as in Micikevicius et al. 2018.

    >>> square = lambda params, batch, rng: (jnp.sum((params - batch) ** 2), 1)
    >>> state = start(optax.sgd(0.25), jnp.zeros(()), jax.random.key(0))
    >>> state, record = step(square, optax.sgd(0.25), state, 4.0)
    >>> float(state.params), float(record.loss), bool(record.skipped)
    (2.0, 16.0, False)
    """
    rng = jax.random.fold_in(state.rng, state.step)

    def objective(params: Params) -> Array:
        return mean(*counted(loss(params, batch, rng)))

    value, gradient = jax.value_and_grad(objective)(state.params)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    # Squares, because they are what overflows first: in the moments of Adam, and for good.
    squares = optax.tree.norm(gradient, squared=True) + optax.tree.norm(params, squared=True)
    sound = jnp.isfinite(value + squares)
    after = State(params, optimizer_state, state.step, state.rng)
    kept = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, state)
    return kept._replace(step=state.step + 1), Record(value.astype(jnp.float32), ~sound)


def counted(given: Any) -> tuple[ArrayLike, ArrayLike]:
    """What a loss gives, once it is sure that it is a sum and a count."""

    def number(part: Any) -> bool:
        return isinstance(part, NUMBERS) and not np.shape(part) and not jnp.iscomplexobj(part)

    if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(map(number, given)):
        raise ValueError(
            "a loss gives a sum and how many it is the sum of, (total, count), two real numbers, "
            f"and this one gives {jax.tree.map(shown, given)}; of a mean write (mean, 1)"
        )
    return given[0], given[1]


@partial(jax.jit, static_argnums=(0, 1))
def dispatch(
    loss: Loss, optimizer: optax.GradientTransformation, state: State, taken: Array, batches: Batch
) -> tuple[State, Record]:
    """One step for each of the stacked batches that is to be taken."""

    def idle(state: State, batch: Batch) -> tuple[State, Record]:
        return state, Record(jnp.zeros((), jnp.float32), jnp.zeros((), bool))

    def one(state: State, row: tuple[Array, Batch]) -> tuple[State, Record]:
        # As a branch, a step is compiled by itself, so that its rounding does not depend on how
        # many stand around it; and a last, shorter dispatch needs no program of its own.
        return jax.lax.cond(row[0], partial(step, loss, optimizer), idle, state, row[1])

    return jax.lax.scan(one, state, (taken, batches))


def fit(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    params: Params,
    batches: Callable[[int], Batch],
    steps: int,
    *,
    rng: Array,
    steps_per_dispatch: int = 20,
    report: Callable[[int, Record], None] = lambda first, record: None,
) -> tuple[Params, History]:
    """Train: params and a source of batches -> trained params and the history.

        stateₛ₊₁, recordₛ = step(loss, optimizer, stateₛ, batches(s)),  s = 0 … steps − 1

    `steps_per_dispatch` steps run as one compiled `lax.scan`, while the host draws the batches of
    the next; the result is bit for bit the same for any number of them. After each dispatch
    `report(first, record)` gets the number of its first step and its stacked records. Ctrl-C ends
    the run early and keeps all that was trained until then, and so does a StopIteration of
    `batches`, as `lambda step: next(iterator)` raises it: `history.stopped` says so.
    Shapes: every batch has the tree, the shapes and the types of the first. Raises ValueError for
    steps below 0 or fewer than one step to a dispatch, for batches that differ, for a loss that
    gives no sum and count, and for arguments that are of another kind; and what `loss` and
    `batches` raise.
    Source: Bottou 1998, Online Learning and Stochastic Approximations.

    >>> square = lambda params, batch, rng: (jnp.sum((params - batch) ** 2), 1)
    >>> params, history = fit(
    ...     square, optax.sgd(0.25), jnp.zeros(()), lambda s: np.float32(4), 3,
    ...     rng=jax.random.key(0),
    ... )
    >>> float(params), history.loss.tolist(), history.skipped
    (3.5, [16.0, 4.0, 1.0], ())
    """
    check_functions(loss, optimizer, batches, report)
    check_key(rng)
    asked = (steps, steps_per_dispatch)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in asked)
    if not whole or steps < 0 or steps_per_dispatch < 1:
        raise ValueError(
            f"a run has 0 steps or more, and a dispatch 1 or more; got {steps!r} steps, "
            f"{steps_per_dispatch!r} to a dispatch"
        )
    state, records = start(optimizer, params, rng), []
    feed = dispatches(batches, steps, min(steps, steps_per_dispatch))
    with suppress(KeyboardInterrupt):
        ready = next(feed, None)
        while ready is not None:
            first, count, taken, rows = ready
            # The state is not donated: an interrupt in here would leave nothing to keep.
            after, record = dispatch(loss, optimizer, state, taken, rows)
            records.append(record)
            state = after
            ready = next(feed, None)
            report(first, Record(*(part[:count] for part in jax.device_get(record))))
    nothing = Record(np.zeros(0, np.float32), np.zeros(0, bool))
    every = jax.tree.map(lambda *parts: np.concatenate(parts), nothing, *records)
    done = int(state.step)
    losses, skipped = (part[:done] for part in every)
    return state.params, History(
        losses, tuple(np.flatnonzero(skipped).tolist()), bool(done < steps)
    )


def check_functions(loss: Any, optimizer: Any, batches: Any, report: Any) -> None:
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        raise ValueError(
            "an optimizer is a transformation of optax such as optax.adam(1e-3), not "
            f"{reference(optimizer)}"
        )
    for name, value in dict(loss=loss, report=report).items():
        if not callable(value):
            raise ValueError(f"{name} is a function, not {reference(value)}")
    if not callable(batches):
        each = "batches[step % len(batches)]" if hasattr(batches, "__len__") else "next(batches)"
        raise ValueError(
            f"batches is a function of the step number, and gets a {type(batches).__name__}: write "
            f"lambda step: {each}"
        )


def dispatches(
    batches: Callable[[int], Batch], steps: int, size: int
) -> Iterator[tuple[int, int, np.ndarray, Batch]]:
    """Batches on a new first axis, `size` at a time: the number of the first, how many there are,
    which of the rows these are, and the rows. The last batch fills the rows up."""
    source, first = drawn(batches, steps), 0
    while group := [*islice(source, size)]:
        count = len(group)
        rows = jax.tree.map(lambda *rows: np.stack(rows), *group, *group[-1:] * (size - count))
        yield first, count, np.arange(size) < count, rows
        first += count


def drawn(batches: Callable[[int], Batch], steps: int) -> Iterator[Batch]:
    """The batch of every step, as long as there are any and all of them are like the first."""
    like: Any = None
    for step in range(steps):
        try:
            batch = batches(step)
        except StopIteration:
            return
        if isinstance(batch, Iterator):
            raise ValueError(
                f"batches(step) is one batch, and batches({step}) is a {type(batch).__name__} of "
                "several: write lambda step: next(iterator)"
            )
        if strange := [leaf for leaf in jax.tree.leaves(batch) if not isinstance(leaf, NUMBERS)]:
            raise ValueError(f"batches are arrays, and batch {step} holds {strange[0]!r:.60}")
        held = jax.tree.map(shown, batch)
        like = held if like is None else like
        if held != like:
            raise ValueError(
                f"batch {step} is {held}, and the first was {like}: every batch has the tree, the "
                "shapes and the types of the first; leave a shorter one out, or fill it up with "
                "rows that are not counted"
            )
        yield batch


class Speed(ProgressColumn):
    """Steps per second; compiling, which comes first, does not count."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} steps/s" if task.speed else "compiling")


@contextmanager
def bar(steps: int) -> Iterator[Callable[[int, Record], None]]:
    """A progress bar as the `report` of `fit`: loss, speed, and a line for every skipped step."""
    columns = (
        BarColumn(),
        TextColumn("step {task.completed} of {task.total}"),
        TextColumn("loss {task.fields[loss]:.4f}"),
        Speed(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=steps, loss=math.nan)

        def report(first: int, record: Record) -> None:
            for i in np.flatnonzero(record.skipped):
                progress.console.print(
                    f"step {first + i} skipped, its loss {record.loss[i]:.4g} or gradient is not "
                    "finite; the parameters stay as they were",
                    highlight=False,
                    soft_wrap=True,
                )
            progress.update(task, advance=len(record.loss), loss=record.loss[-1])

        yield report
