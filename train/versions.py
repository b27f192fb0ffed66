"""Versions of a run, by orbax's manager: the last two, and the one that scored best.

    checkpoints/300/model/       the parameters and the words that belong to them
    checkpoints/300/training/    all else that a step changes: optimizer, step number, key

A version is there whole or not at all; what a killed writer left is removed by the next. Each of
the two folders is one of `checkpoint`, whose checksums tell a damaged one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..models.disk import read_fields, writing
from . import checkpoint
from .step import State

__all__ = ["Versions", "best", "newest", "steps_of", "versions"]

FOLDER, MODEL, TRAINING = "checkpoints", "model", "training"
SCORE = "score"
LAST = 2
"""How many versions are kept besides the best: where the newest is damaged, there is another."""


@dataclass(frozen=True)
class Versions:
    """The versions of a run, open for writing. `sign` is +1 where a higher score is better, and −1
    where a lower one is."""

    folder: Path
    sign: int
    manager: Any

    def save(self, state: State, words: dict[str, Any], score: float = math.nan) -> None:
        """Save a state under its step number, once, and the score by which the best is kept.

        Raises OSError, which names the folder, where it cannot be written: the versions before are
        still whole.
        """
        step = int(state.step)
        if step in self.manager.all_steps():
            return
        # A score that is no number is worse than any that is.
        better = -math.inf if math.isnan(score) else self.sign * score
        parts = {MODEL: (state.params, words), TRAINING: (state._replace(params=None), {})}
        with writing(self.folder / str(step)):
            save(self.manager, step, parts, {SCORE: better})


@contextmanager
def versions(run: Path, sign: int, after: int) -> Iterator[Versions]:
    """The versions of a run, to write to. Those of steps past `after`, which a resumed run takes
    again, are removed."""
    with closing(opened(run / FOLDER)) as manager:
        for step in manager.all_steps():
            if step > after:
                manager.delete(step)
        yield Versions(run / FOLDER, sign, manager)


def newest(
    run: Path, like: State, check: Callable[[dict[str, Any]], None], told: Callable[[str], None]
) -> State | None:
    """The newest state that is whole; None where none was saved.

    Of each version that is damaged `told` hears, and the one before it is read. `check` may refuse
    the words of a whole one. Raises ValueError where all are damaged, and Mismatch for a state that
    is not like `like`.
    """
    steps = steps_of(run)
    for step in reversed(steps):
        folder = run / FOLDER / str(step)
        try:
            params, words = checkpoint.load(folder / MODEL, like.params)
            rest, _ = checkpoint.load(folder / TRAINING, like._replace(params=None))
        except checkpoint.Mismatch:
            raise
        except (OSError, ValueError) as error:
            told(f"version {step} is left out: {error}")
            continue
        check(words)
        return rest._replace(params=params)
    if steps:
        raise ValueError(f"no version in {str(run / FOLDER)!r} is whole")
    return None


def best(run: Path) -> Path:
    """The folder of the model that scored best, to be read by `checkpoint.load`.

    A folder that holds a model itself is its own. Raises FileNotFoundError for a run without any.
    """
    if not (run / FOLDER).is_dir():
        return run
    steps = steps_of(run)
    if not steps:
        raise FileNotFoundError(f"the run in {str(run)!r} has no version yet")
    step = max(steps, key=lambda step: (score_of(run, step), step))
    return run / FOLDER / str(step) / MODEL


def score_of(run: Path, step: int) -> float:
    return float(read_fields(run / FOLDER / str(step) / "metrics" / "metrics")[SCORE])


def steps_of(run: Path) -> list[int]:
    """The steps that there are versions of, the oldest first."""
    from orbax.checkpoint.utils import checkpoint_steps

    folder = run / FOLDER
    return sorted(checkpoint_steps(folder)) if folder.is_dir() else []


# Orbax, which takes half a second to import, so where it is used


def opened(folder: Path) -> Any:
    """The manager of a folder of versions, which writes to it."""
    import orbax.checkpoint as orbax

    policies, (handler, _) = orbax.checkpoint_managers, kinds()
    scored = itemgetter(SCORE)
    settings = orbax.CheckpointManagerOptions(
        enable_async_checkpointing=False,
        best_fn=scored,
        save_decision_policy=policies.FixedIntervalPolicy(1),
        preservation_policy=policies.AnyPreservationPolicy(
            [policies.LatestN(LAST), policies.BestN(get_metric_fn=scored, n=1)]
        ),
        cleanup_tmp_directories=True,
    )
    handlers = {name: handler() for name in (MODEL, TRAINING)}
    return orbax.CheckpointManager(folder.absolute(), options=settings, item_handlers=handlers)


def save(
    manager: Any, step: int, parts: Mapping[str, tuple[Any, dict[str, Any]]], metrics: Any
) -> None:
    import orbax.checkpoint as orbax

    _, argument = kinds()
    items = {name: argument(*part) for name, part in parts.items()}
    manager.save(step, args=orbax.args.Composite(**items), metrics=metrics)


@cache
def kinds() -> tuple[Any, Any]:
    """A handler by which the manager writes folders of `checkpoint`, and its argument."""
    import orbax.checkpoint as orbax

    class Handler(orbax.CheckpointHandler):
        def save(self, directory: Any, args: Any) -> None:
            checkpoint.save(Path(directory), args.tree, args.words)

        def restore(self, directory: Any, args: Any = None) -> Any:
            return checkpoint.load(Path(directory))

    @orbax.args.register_with_handler(Handler, for_save=True, for_restore=True)
    @dataclass
    class Part(orbax.args.CheckpointArgs):
        tree: Any
        words: dict[str, Any]

    return Handler, Part
