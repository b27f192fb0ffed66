"""Progress on a terminal: loss, score, tokens a second, and the time that is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from .step import Record

__all__ = ["bar"]


class Speed(ProgressColumn):
    """Targets a second since the first dispatch, whose time is that of compiling."""

    def render(self, task: Task) -> Text:
        started, targets = task.fields["started"], task.fields["targets"]
        if started is None:
            return Text("compiling")
        return Text(f"{targets / max(task.get_time() - started, 1e-9):,.0f} tokens/s")


@contextmanager
def bar(
    steps: int, console: Console | None = None, done: int = 0
) -> Iterator[Callable[[int, Record], None]]:
    """A progress bar as the `report` of `fit`: loss, speed, time left, and a line for every skipped
    step."""
    columns = (
        BarColumn(),
        TextColumn("step {task.completed} of {task.total}"),
        TextColumn("loss {task.fields[loss]:.4f}"),
        Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(
            "training", total=steps, completed=done, loss=math.nan, targets=0.0, started=None
        )

        def report(first: int, record: Record) -> None:
            for i in np.flatnonzero(record.skipped):
                progress.console.print(
                    f"step {first + i} skipped, its loss {record.loss[i]:.4g} or gradient is not "
                    "finite; the parameters stay as they were",
                    highlight=False,
                    soft_wrap=True,
                )
            fields = progress.tasks[task].fields
            if fields["started"] is None:
                progress.update(task, started=progress.get_time())
            else:
                progress.update(task, targets=fields["targets"] + float(np.sum(record.targets)))
            progress.update(task, advance=len(record.loss), loss=record.loss[-1])

        yield report
