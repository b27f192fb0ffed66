"""Train, resume, eval: runs and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from ... import __version__
from ...combinators import describe
from .. import plot, run
from ..checkpoint import load
from ..interrupt import stopping
from ..loop import History, Params, Record, never, patience
from ..progress import bar
from ..tasks import Task, sample
from ..versions import best
from .prompt import written
from .settings import checked, maker, settings_of
from .terminal import Json, Out, Seed, Steps, console, made, refused, say, show, stderr

__all__ = ["add", "model_of", "place", "task_of"]

RUNS = Path("runs")


def add(app: typer.Typer) -> None:
    app.command("train")(train)
    app.command("resume")(resume)
    app.command("eval")(evaluate)
    app.command("recall")(recall)
    app.command("digits")(digits)
    app.command("text")(text)


At = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/recall.")
]
Whole = Annotated[int | None, typer.Option(min=1)]


def train(
    task: Annotated[str, typer.Argument(metavar="TASK", help="`combinax tasks` lists them.")],
    steps: Steps = None,
    batch: Annotated[int | None, typer.Option(help="Sequences, or rows, in a batch.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks, one after the other.")] = None,
    width: Annotated[int | None, typer.Option(help="The width of the residual stream.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of each attention.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens that a model sees.")] = None,
    rate: Annotated[float | None, typer.Option(help="The highest learning rate.")] = None,
    file: Annotated[Path | None, typer.Option(help="A text, or a CSV table, of yours.")] = None,
    others: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="Any other setting.")
    ] = [],  # noqa: B006  typer copies it
    seed: Seed = 0,
    every: Annotated[
        int, typer.Option(min=0, help="Steps between two evaluations; 0: a tenth of all.")
    ] = 0,
    patience: Annotated[
        int, typer.Option(min=0, help="Evaluations without a better one until the end; 0: all.")
    ] = 0,
    skips: Annotated[int, typer.Option(min=1, help="Skipped steps in a row until the end.")] = 20,
    out: Out = None,
    json: Json = False,
) -> None:
    """Train a task from its beginning, into a folder of its own."""
    options = dict(
        steps=steps, batch=batch, layers=layers, width=width, heads=heads, length=length, rate=rate,
        file=None if file is None else str(file), seed=seed,
    )  # fmt: skip
    begun(task, options, others, dict(every=every, patience=patience, skips=skips), out, json)


def recall(seed: Seed = 0, steps: Steps = None, out: Out = None) -> None:
    """A dictionary of key-value pairs is shown, then asked: seconds."""
    begun("recall", dict(seed=seed, steps=steps), out=out)


def digits(seed: Seed = 0, steps: Steps = None, out: Out = None) -> None:
    """784 pixels ask a dictionary of pictures which digit they are: half a minute."""
    begun("digits", dict(seed=seed, steps=steps), out=out)


def text(
    seed: Seed = 0,
    steps: Steps = None,
    out: Out = None,
    file: Annotated[
        Path | None,
        typer.Option(help="UTF-8 text to learn from, in place of Python's own reference."),
    ] = None,
) -> None:
    """The next character of English, against n-grams of the same text: minutes."""
    given = None if file is None else str(file)
    begun("text", dict(seed=seed, steps=steps, file=given), out=out)


def resume(at: At, json: Json = False) -> None:
    """Go on with a run that was stopped or killed, from its newest version."""
    with refused():
        folder = place(at)
        task = task_of(folder)
    ended(folder, task, json)


def evaluate(at: At, json: Json = False) -> None:
    """Measure the best version of a run on held-out data."""
    with refused():
        folder = place(at)
        task, params = model_of(folder)
        measured = task.evaluate(params)
    if json:
        say(dict(run=str(folder), version=version(folder), unit=task.unit, scores=measured))
    else:
        report(task, measured)


# Steps of these commands


def begun(
    name: str,
    options: dict[str, Any],
    others: list[str] | tuple[str, ...] = (),
    ends: dict[str, int] | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    with refused(extra="pretrained" if name == "byte_pairs" else ""):
        settings = settings_of(name, options, others)
        task = checked(name, settings)
        folder = made(free(name) if out is None else out)
        ends = ends or dict(every=0, patience=0, skips=20)
        run.begin(folder, name, settings, ends, task, __version__)
    ended(folder, task, json)


def free(name: str) -> Path:
    """The first folder of this name, or this name and a number, that holds no run."""
    names = (RUNS / (name if n == 1 else f"{name}-{n}") for n in numbers(1))
    return next(folder for folder in names if not (folder / run.RUN).exists())


def ended(folder: Path, task: Task, json: bool) -> None:
    """Train a run to its end, and tell what it reached."""
    fields = run.described(folder)
    ends = fields["options"]
    screen = stderr if json else console
    screen.print(str(task.term), highlight=False)
    screen.print(describe(task.term, task.example))
    with refused():
        params, history = advanced(folder, task, ends, screen)
        measured = task.evaluate(params)
        panels = plot.panels(fields["task"], task, params, history, measured)
        file = plot.picture(folder / f"{fields['task']}.png", *panels)
    if history.reason:
        screen.print(
            f"stopped {history.reason} after {len(history.loss)} of {task.steps} steps; what was "
            f"learned until then is kept, and measured here: `combinax resume {folder}` goes on",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    if json:
        say(
            dict(
                run=str(folder), task=fields["task"], steps=len(history.loss), of=task.steps,
                reason=history.reason, unit=task.unit, scores=measured,
                reached=task.reached(measured["this model"]), skipped=history.skipped,
                held_out=history.held_out, picture=str(file),
            )
        )  # fmt: skip
        return
    report(task, measured)
    if "length" in task.words:
        write(task, params)
    show(file)


def write(task: Task, params: Params) -> None:
    """A sample of a model of text, from a beginning in its vocabulary."""
    text, prompt = written(task.words, None)
    length = task.words["length"]
    drawn = sample(task.term, params, text.encode(prompt), length, jax.random.key(0))
    console.rule("a sample")
    console.print(text.decode(list(islice(drawn, 400))), markup=False, highlight=False)
    console.rule()


def advanced(folder: Path, task: Task, ends: dict[str, int], screen: Any) -> tuple[Params, History]:
    done = len(run.history(folder).loss)
    with bar(task.steps, screen, done) as progress, stopping() as pressed:

        def told(first: int, record: Record) -> None:
            progress(first, record)
            if pressed():
                raise KeyboardInterrupt

        scored = replace(task, score=lambda params: progress.score(task.score(params)))
        return run.advance(
            folder, scored, told, every=ends["every"], skips=ends["skips"],
            stop=patience(ends["patience"], task.best) if ends["patience"] else never,
            told=lambda said: screen.print(said, highlight=False, soft_wrap=True, markup=False),
        )  # fmt: skip


def report(task: Task, measured: dict[str, float]) -> None:
    for name, value in measured.items():
        console.print(f"{name:<16}{value:8.3f} {task.unit}", highlight=False)


# Runs that are there


def place(named: Path) -> Path:
    """The folder of a run: as it is named, or in runs/."""
    there = named.is_dir() or named.parts[:1] == (RUNS.name,)
    return named if there else RUNS / named


def task_of(folder: Path) -> Task:
    """The task of a run, made again from what its folder says."""
    fields = run.described(folder)
    return maker(fields["task"])(**fields["settings"])


def version(folder: Path) -> int:
    return int(best(folder).parent.name)


def model_of(folder: Path) -> tuple[Task, Params]:
    """The task of a run and the parameters of its best version."""
    task = task_of(folder)
    like: Callable[..., Any] = task.term.init
    params, words = load(best(folder), jax.eval_shape(like, jax.random.key(0), task.example))
    run.check_equation(folder, task, words)
    return task, params
