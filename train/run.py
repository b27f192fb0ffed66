"""A run is a folder, and the folder is all that there is to know of it.

    run.json         the task, its settings and seed, the equation, the versions of all libraries
    metrics.jsonl    a line for each step and each evaluation
    checkpoints/     the last versions and the best one (see `versions`)
    skipped-42.npz   the batch at fault, where skipped steps ended the run
    NAME.png         pictures

    advance(folder, task) trains from the newest version on, or from the start where there is none

Killed at any moment and advanced again, a run ends with the parameters, and the metrics, that it
would have had otherwise, bit for bit.
"""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.tree_util import keystr

from ..combinators.core.errors import brief
from ..models.disk import flush, legible, read_fields, read_text, replaced, writing
from .interrupt import deferred
from .loop import History, Params, Record, State, Stop, never, proceed, silent, start
from .tasks.task import Task
from .versions import newest, versions

__all__ = ["advance", "begin", "described", "history", "owned"]

RUN, METRICS, LOCK = "run.json", "metrics.jsonl", "lock"
LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "flax", "orbax-checkpoint")


def begin(
    folder: Path, name: str, settings: dict[str, Any], options: dict[str, int], task: Task,
    combinax: str,
) -> None:  # fmt: skip
    """Write down what a run is: its settings make the task, its options say when it ends.

    Raises ValueError for a folder that holds a run already, OSError for one that cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / RUN).exists():
        raise ValueError(
            f"{str(folder)!r} holds a run already: `combinax resume {folder}` goes on with it; "
            "--out names another folder"
        )
    libraries = {library: version(library) for library in LIBRARIES}
    fields = dict(
        task=name,
        settings=settings,
        options=options,
        unit=task.unit,
        better=task.best.__name__,
        equation=repr(task.term),
        versions=dict(python=platform.python_version(), combinax=combinax, **libraries),
    )
    with replaced(folder / RUN) as file:
        file.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", "utf-8")


def described(folder: Path) -> dict[str, Any]:
    """What `begin` wrote. Raises FileNotFoundError for a folder without a run, and ValueError, by
    its name, for a file that is not what it wrote."""
    if not (folder / RUN).is_file():
        raise FileNotFoundError(
            f"there is no run in {str(folder)!r}: {RUN} is missing; `combinax runs` lists those "
            "there are"
        )
    return read_fields(
        folder / RUN, task=str, settings=dict, options=dict, better=str, equation=str, versions=dict
    )


def advance(
    folder: Path,
    task: Task,
    report: Callable[[int, Record], None] = silent,
    *,
    stop: Stop = never,
    every: int = 0,
    told: Callable[[str], None] = print,
    **options: Any,
) -> tuple[Params, History]:
    """Train a run to its last step: -> the parameters it ends with and its history from step 0.

    After each `every` steps (a tenth of all by default) and at its end, whatever the reason,
    the state is scored and saved; so it is after Ctrl-C. `told` hears, in words, of what went
    wrong. Other `options` are those of `proceed`.
    Raises BlockingIOError where another process trains in the folder, ValueError for a task whose
    equation is another than the run's, and what `proceed` raises, OSError on a full disk among it.
    """
    fields = described(folder)
    check_equation(folder, task, {"term": fields["equation"]})
    keys = jax.random.split(jax.random.key(fields["settings"]["seed"]))

    def fresh(keys: Array) -> State:
        return start(task.optimizer, task.term.init(keys[0], task.example), keys[1])

    words = {**task.words, "term": repr(task.term)}
    with owned(folder):
        like = jax.eval_shape(fresh, keys)
        state = newest(folder, like, lambda words: check_equation(folder, task, words), told)
        state = fresh(keys) if state is None else state
        begun = int(state.step)
        with replaced(folder / METRICS) as file:
            file.write_text("".join(f"{json.dumps(line)}\n" for line in rows(folder, begun)))
        before = history(folder)
        sign = 1 if task.best((0, 1)) else -1
        written = begun

        def tell(first: int, record: Record) -> None:
            nonlocal written
            with deferred():
                append(folder, losses(first, record.loss, record.skipped))
                written = first + len(record.loss)
            report(first, record)

        def keep(state: State, held_out: Sequence[tuple[int, float]]) -> None:
            step, score = held_out[-1]
            with deferred():
                append(folder, [dict(step=step, held_out=number(score))])
                flush(folder / METRICS)  # before the version, which stands for all before it
                kept.save(state, words, score)

        with versions(folder, sign, begun) as kept:
            state, ended = proceed(
                task.loss, task.optimizer, state, task.batches, task.steps, report=tell,
                evaluate=task.score, every=every or max(1, task.steps // 10), stop=stop, keep=keep,
                held_out=before.held_out, **options,
            )  # fmt: skip
            untold = range(written, int(state.step))  # where Ctrl-C came before the report
            skipped = [step in ended.skipped for step in untold]
            append(folder, losses(written, ended.loss[written - begun :], skipped))
            kept.save(state, words)
        if ended.offending is not None:
            told(offended(folder, int(state.step) - 1, ended.offending))
    loss = np.concatenate([before.loss, ended.loss])
    return state.params, ended._replace(loss=loss, skipped=(*before.skipped, *ended.skipped))


def check_equation(folder: Path, task: Task, words: dict[str, Any]) -> None:
    if words.get("term") != repr(task.term):
        raise ValueError(
            f"the run in {str(folder)!r} has another equation than this version of the task: "
            f"{brief(str(words.get('term')), 200)}"
        )


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """This process alone trains in a folder; the system frees the folder of one that dies.

    Raises BlockingIOError where another process does. On Windows nothing is locked.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl  # is there on every other system

    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"another process trains in {str(folder)!r}; wait for it, or name another folder "
                "with --out"
            ) from None
        yield


def offended(folder: Path, step: int, batch: Any) -> str:
    """Keep a batch for a look at it: -> how to take one."""
    file = folder / f"skipped-{step}.npz"
    arrays = {keystr(path) or "batch": leaf for path, leaf in jax.tree.flatten_with_path(batch)[0]}
    with replaced(file) as new, new.open("wb") as opened:
        np.savez(opened, **arrays)
    return (
        f"the batch of step {step} is kept: numpy.load({str(file)!r}) holds it, as "
        f"{', '.join(sorted(arrays))}"
    )


# Metrics


def append(folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    file = folder / METRICS
    with writing(file), file.open("a") as opened:
        opened.writelines(f"{json.dumps(line)}\n" for line in lines)


def losses(first: int, loss: Iterable[Any], skipped: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """A line for each step from `first` on."""
    for step, (value, skip) in enumerate(zip(loss, skipped, strict=True), start=first):
        yield dict(step=step, loss=number(value), **({"skipped": True} if skip else {}))


def history(folder: Path) -> History:
    """The metrics of a run: each step's loss, the skipped steps, and the scores."""
    held = rows(folder)
    steps = [line for line in held if "loss" in line]
    return History(
        loss=np.array([value(line["loss"]) for line in steps], np.float32),
        skipped=tuple(line["step"] for line in steps if "skipped" in line),
        held_out=tuple(
            (line["step"], value(line["held_out"])) for line in held if "held_out" in line
        ),
    )


def rows(folder: Path, steps: float = math.inf) -> list[dict[str, Any]]:
    """The lines of the metrics on the first `steps` steps.

    A killed writer may have left half a line at the end, and it is left out. Raises ValueError for
    a file of something else.
    """
    file = folder / METRICS
    if not file.exists():
        return []
    found = []
    with legible(file, "metrics", ValueError, KeyError, TypeError):
        for line in read_text(file, limit=2**34).splitlines(keepends=True):
            if line.endswith("\n"):
                held = json.loads(line)
                if held["step"] < steps + ("held_out" in held):
                    found.append(held)
    return found


def number(value: Any) -> float | None:
    """A number as JSON has it, to the last bit; null for what is none."""
    return float(value) if math.isfinite(value) else None


def value(held: float | None) -> float:
    return math.nan if held is None else held
