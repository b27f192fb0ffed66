"""The command line: `combinax recall`, or `python -m combinax.train recall`."""

from __future__ import annotations

from .interrupt import answered, quietly, stopping

if __name__ == "__main__":
    quietly()  # before the imports that take seconds

import io
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console

from .. import __version__
from ..combinators import describe
from ..combinators import temperature as scaled
from . import checkpoint, corpus, plot, tasks
from .loop import History, Params, Record
from .progress import bar
from .tasks import Task, train

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train a first model: a network written as an equation between pure functions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
stderr = Console(stderr=True)

Seed = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Decides parameters, data and their order.")
]
Steps = Annotated[int, typer.Option(min=1, help="How many batches to learn from.")]
Out = Annotated[Path, typer.Option(help="The folder that the picture is written to.")]


def version(asked: bool) -> None:
    if asked:
        typer.echo(f"combinax {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def recall(seed: Seed = 0, steps: Steps = 300, out: Out = Path("runs/recall")) -> None:
    """A dictionary of key-value pairs is shown, then asked: seconds."""
    with refused():
        task, folder = tasks.recall(seed, steps), made(out)
    params, history = run(task, seed)
    report(task, task.evaluate(params))
    asked = task.batches(steps)[0][0]  # the first batch that was not trained on
    panels = plot.curve(history, "nats"), plot.lookup(plot.reading(task, params, asked))
    show(plot.picture(folder / "recall.png", *panels))


@app.command()
def digits(seed: Seed = 0, steps: Steps = 1000, out: Out = Path("runs/digits")) -> None:
    """784 pixels ask a dictionary of pictures which digit they are: half a minute."""
    with refused():
        task, folder = tasks.digits(seed, steps), made(out)
    params, history = run(task, seed)
    report(task, task.evaluate(params))
    panels = plot.curve(history, "nats"), plot.mosaic(params["slots"]["key"], "keys learned")
    show(plot.picture(folder / "digits.png", *panels))


@app.command()
def text(
    seed: Seed = 0,
    steps: Steps = 1500,
    out: Out = Path("runs/text"),
    file: Annotated[
        Path | None,
        typer.Option(help="UTF-8 text to learn from, in place of Python's own reference."),
    ] = None,
) -> None:
    """The next character of English, against n-grams of the same text: minutes."""
    with refused():
        source, folder = corpus.text(file), made(out)
        task = tasks.text(source, seed, steps)
    params, history = run(task, seed)
    (length,) = task.example.shape
    width = params["embed"]["table"].shape[1]
    words = dict(vocabulary=source.vocabulary, width=width, length=length, term=repr(task.term))
    checkpoint.save(folder, params, words)
    measured = task.evaluate(params)
    report(task, measured)
    drawn = tasks.sample(task.term, params, source.held_out, length, jax.random.key(seed))
    console.rule("a sample, after held-out text")
    console.print(source.decode(list(islice(drawn, 400))), markup=False, highlight=False)
    console.rule()
    levels = {name: bits for name, bits in measured.items() if name != "this model"}
    panel = plot.curve(history, "bits per character", math.log(2), levels)
    show(plot.picture(folder / "text.png", panel))


@app.command()
def transfer(
    data: Annotated[Path, typer.Option(help="A JSON list of lists: split, intent, sentence.")],
    seed: Seed = 0,
    steps: Steps = 60,
) -> None:
    """Ten sentences of each intent, by an encoder that others trained: minutes."""
    with refused(extra="pretrained"):
        from . import transfer as ways

        source = ways.intents(data, seed)
        learned, held_out = (len(texts) for texts, _ in (source.learned, source.held_out))
        console.print(f"{len(source.names)} intents: {learned} sentences, {held_out} held out")
        for row in ways.transfer(source, seed, steps):
            console.print(
                f"{row.way:<28}{row.percent:6.1f} % right{row.weights:>14,} weights learned"
            )


@app.command()
def sample(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run of `text`.")
    ] = Path("runs/text"),
    prompt: Annotated[
        str | None, typer.Option(help="What the text begins with; a line break, if not given.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many characters to write.")] = 400,
    temperature: Annotated[
        float, typer.Option(min=0.01, help="Below 1 the likely is likelier still.")
    ] = 0.8,
    seed: Seed = 0,
) -> None:
    """Write on in the manner of the text that a run has learned: as it comes."""
    with refused():
        named = folder.is_dir() or folder.parts[:1] == ("runs",)
        place = folder if named else Path("runs") / folder
        kinds = dict(vocabulary=str, width=int, length=int, term=str)
        params, words = checkpoint.load(place, partial(learned, folder), **kinds)
        vocabulary = words["vocabulary"]
        term = tasks.language(len(vocabulary), words["width"])
        text = corpus.Text(vocabulary, *2 * (np.zeros(0, np.int32),), before=0)
        prompt = opening(vocabulary) if prompt is None else prompt
        begun = text.encode(prompt)
        drawn = tasks.sample(
            term, params, begun, words["length"], jax.random.key(seed), scaled(temperature)
        )
        first = next(drawn)  # compiling, which comes first, does not count
    typer.echo(prompt + text.decode([first]), nl=False)
    began = time.perf_counter()
    for character in islice(drawn, count - 1):
        typer.echo(text.decode([character]), nl=False)
    typer.echo()
    if count > 1:
        speed = (count - 1) / (time.perf_counter() - began)
        typer.echo(f"{speed:,.0f} characters a second")


def opening(vocabulary: str) -> str:
    """What a text begins after: a line break, or a space, or the first character that it has."""
    return next(c for c in ("\n", " ", vocabulary[0]) if c in vocabulary)


def learned(folder: Path, words: dict[str, Any]) -> Any:
    """The parameters, abstract, of the model that a run's words describe."""
    term = tasks.language(len(words["vocabulary"]), words["width"])
    if repr(term) != words["term"]:
        raise ValueError(f"{str(folder)!r} was learned by another model than this version has")
    return jax.eval_shape(term.init, jax.random.key(0), jax.ShapeDtypeStruct((1,), np.int32))


@app.command()
def chat(
    message: Annotated[
        str | None, typer.Option(help="A single message, in place of a conversation.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="The instruction, in place of the model's own.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="A folder of Hugging Face's layout or a GGUF file, not SmolLM2."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1 the likely is likelier still; 0: greedy.")
    ] = 0.2,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likely tokens that reach this probability.")
    ] = 0.9,
    capacity: Annotated[
        int, typer.Option(min=1, help="How many tokens the conversation may have.")
    ] = 2048,
    seed: Seed = 0,
) -> None:
    """Talk with SmolLM2, or a model of yours, until Ctrl-D."""
    from ..models import greedy, keep_top_p

    with refused(extra="pretrained"):
        from ..models import chat as talk
        from ..models.files import smollm2

        choose = keep_top_p(top_p) @ scaled(temperature) if temperature else greedy
        with stderr.status("reading the weights"):
            model = talk.load_chat(folder or smollm2(), system)
            conversation = talk.begin(model, capacity)
        for asked in typed() if message is None else [message]:
            answer = talk.reply(model, conversation, asked, choose, jax.random.key(seed))
            conversation = say(answer)


def typed() -> Iterator[str]:
    """Line after line of what is typed, as far as anything is in it."""
    while True:
        try:
            # As an exception: a line editor puts the terminal back before it passes it on.
            with answered(signal.default_int_handler):
                line = input("> ")
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return
        if line.strip():
            yield line


def say(answer: Iterator[tuple[str, Any]]) -> Any:
    """Print an answer as it comes and then its speed; give what comes with its last piece."""
    said, times = None, []
    try:
        with stderr.status("reading the message; the first one waits for the model to be compiled"):
            begun = next(answer)
        for piece, so_far in chain([begun], answer):
            typer.echo(piece, nl=False)
            said = so_far
            times.append(time.perf_counter())
    finally:
        typer.echo()
    # Compiling, which comes before the first token, does not count.
    if len(times) > 1:
        speed = (len(times) - 1) / (time.perf_counter() - times[0])
        typer.echo(f"{speed:,.1f} tokens a second", err=True)
    return said


def run(task: Task, seed: int) -> tuple[Params, History]:
    """Print the equation and the table, and train with a bar."""
    console.print(str(task.term), highlight=False)
    console.print(describe(task.term, task.example))
    with bar(task.steps) as progress, stopping() as pressed:

        def told(first: int, record: Record) -> None:
            progress(first, record)
            if pressed():
                raise KeyboardInterrupt

        params, history = train(task, seed, told)
    if history.stopped:
        console.print(
            f"stopped by hand after {len(history.loss)} of {task.steps} steps; what was learned "
            "until then is kept, and measured here"
        )
    return params, history


def report(task: Task, measured: Mapping[str, float]) -> None:
    for name, value in measured.items():
        console.print(f"{name:<12}{value:8.3f} {task.unit}")


def show(file: Path) -> None:
    console.print(f"picture: {escaped(str(file))}", soft_wrap=True, markup=False, highlight=False)


@contextmanager
def refused(extra: str = "") -> Iterator[None]:
    """Input that cannot be used ends the command with the reason, before anything is trained; a
    package that is missing, with the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not extra:
            raise
        typer.echo(f"combinax: {escaped(str(error))}: pip install 'combinax[{extra}]'", err=True)
        raise typer.Exit(2) from None
    except (OSError, ValueError) as error:
        typer.echo(f"combinax: {escaped(str(error))}", err=True)
        raise typer.Exit(2) from None


def escaped(text: str) -> str:
    """The text with each character that would act on a terminal as its escape sequence: a name of a
    file can hold any."""
    shown = (c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    return "".join(shown)


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"nothing can be written to the folder {str(folder)!r}")
    return folder


def main() -> None:
    # A sample holds any characters, and no terminal that lacks some shall lose it.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app(prog_name="combinax")


if __name__ == "__main__":
    main()
