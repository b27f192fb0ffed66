"""Progress on a terminal: loss, score, tokens a second, and the time that is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from .step import Record

__all__ = ["bar"]


class Speed(ProgressColumn):
    """Targets a second since the first dispatch, whose time is that of compiling."""

    def render(self, task: Task) -> Text:
        started, targets = task.fields["started"], task.fields["targets"]
        if task.finished and not targets:
            return Text("")
        if started is None:
            return Text("compiling")
        return Text(f"{targets / max(task.get_time() - started, 1e-9):,.0f} tokens/s")


@dataclass(frozen=True)
class Shown:
    """A bar that is shown: as a function the `report` of `fit`."""

    progress: Progress
    task: TaskID

    def __call__(self, first: int, record: Record) -> None:
        for i in np.flatnonzero(record.skipped):
            self.progress.console.print(
                f"step {first + i} skipped, its loss {record.loss[i]:.4g} or gradient is not "
                "finite; the parameters stay as they were",
                highlight=False,
                soft_wrap=True,
            )
        fields = self.progress.tasks[self.task].fields
        if fields["started"] is None:
            new: dict[str, Any] = dict(started=self.progress.get_time())
        else:
            new = dict(targets=fields["targets"] + float(np.sum(record.targets)))
        self.progress.update(
            self.task, advance=len(record.loss), loss=f"loss {record.loss[-1]:.4f}", **new
        )

    def score(self, value: float) -> float:
        """Show a score on held-out data, and give it back."""
        self.progress.update(self.task, score=f"held out {value:.4g}")
        return value


@contextmanager
def bar(steps: int, console: Console | None = None, done: int = 0) -> Iterator[Shown]:
    """A progress bar: loss, score, speed, time left, and a line for every skipped step."""
    columns = (
        BarColumn(),
        TextColumn("step {task.completed} of {task.total}"),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[score]}"),
        Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        fields: Any = dict(loss="", score="", targets=0.0, started=None)
        yield Shown(progress, progress.add_task("training", total=steps, completed=done, **fields))
