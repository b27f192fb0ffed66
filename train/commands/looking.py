"""Tasks, runs, show: what there is to train, and what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ...combinators import describe
from .. import run
from ..measured import MEASURED
from ..tasks import TASKS
from .settings import defaults, settings_of
from .terminal import Json, console, refused, say
from .training import RUNS, place, task_of

__all__ = ["add"]


def add(app: typer.Typer) -> None:
    app.command("tasks")(tasks)
    app.command("runs")(runs)
    app.command("show")(show)


def tasks(json: Json = False) -> None:
    """List the tasks, what their defaults reach, and in how long."""
    rows = [
        dict(task=name, about=first_line(make), settings=defaults(name), **MEASURED.get(name, {}))
        for name, make in TASKS.items()
    ]
    if json:
        return say(dict(tasks=rows))
    table = Table("task", "what", "reached", "", "CPU seconds", box=None)
    for row in rows:
        told = (str(row.get(name, "")) for name in ("reached", "unit", "seconds"))
        table.add_row(str(row["task"]), str(row["about"]), *told)
    console.print(table)
    return None


def first_line(make: Any) -> str:
    return (make.__doc__ or "").partition("\n")[0].rstrip(".")


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = RUNS, json: Json = False
) -> None:
    """List the runs in a folder: what they train, how far they are, and their best score."""
    with refused():
        files = sorted(folder.glob(f"**/{run.RUN}")) if folder.is_dir() else []
        rows = [row(file.parent) for file in files]
    if json:
        return say(dict(runs=rows))
    if not rows:
        console.print(f"no run in {folder}; `combinax train recall` begins one", highlight=False)
        return None
    table = Table("run", "task", "steps", "best score", box=None)
    for held in rows:
        score = "" if held["score"] is None else f"{held['score']:.4g} {held['unit']}"
        table.add_row(str(held["run"]), held["task"], f"{held['steps']} of {held['of']}", score)
    console.print(table)
    return None


def row(folder: Path) -> dict[str, Any]:
    fields, history = run.described(folder), run.history(folder)
    best = min if fields["better"] == "min" else max
    return dict(
        run=str(folder),
        task=fields["task"],
        steps=len(history.loss),
        of=fields["settings"]["steps"],
        score=best((score for _, score in history.held_out), default=None),
        unit=fields.get("unit"),
    )


def show(
    what: Annotated[str, typer.Argument(metavar="RUN|TASK", help="A folder, or a task's name.")],
    json: Json = False,
) -> None:
    """Show the equation of a run or a task, and the table of its stages with the plan of each."""
    with refused():
        if what in TASKS and not (place(Path(what)) / run.RUN).exists():
            settings = settings_of(what, {})
            fields: dict[str, Any] = dict(task=what, settings=settings)
            task = TASKS[what](**settings)
        else:
            folder = place(Path(what))
            fields, task = run.described(folder), task_of(folder)
    if json:
        return say({**fields, "equation": repr(task.term)})
    console.print(str(task.term), highlight=False)
    console.print(describe(task.term, task.example))
    settings = ", ".join(f"{name}={value}" for name, value in fields["settings"].items())
    console.print(f"{fields['task']}: {settings}", highlight=False, markup=False)
    return None
