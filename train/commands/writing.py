"""Sample and chat: what a model writes, as it comes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

from ...combinators import temperature as scaled
from ..checkpoint import load
from ..corpus import Text
from ..interrupt import answered
from ..tasks import sample as continued
from ..versions import best
from .prompt import term_of, written
from .terminal import Seed, refused, stderr
from .training import RUNS, place

__all__ = ["add", "typed"]


def add(app: typer.Typer) -> None:
    app.command("sample")(sample)
    app.command("chat")(chat)


def sample(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run of `text` or `byte_pairs`; the last of `text`."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="What the text begins with; a line break, if not given.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many tokens to write.")] = 400,
    temperature: Annotated[
        float, typer.Option(min=0.01, help="Below 1 the likely is likelier still.")
    ] = 0.8,
    seed: Seed = 0,
) -> None:
    """Write on in the manner of the text that a run has learned: as it comes."""
    with refused(extra="pretrained"):
        at = latest("text") if folder is None else place(folder)
        kinds = dict(width=int, layers=int, heads=int, length=int, term=str)
        params, words = load(best(at), lambda words: learned(at, words), **kinds)
        text, prompt = written(words, prompt)
        begun = text.encode(prompt)
        term = term_of(words)
        drawn = continued(
            term, params, begun, words["length"], jax.random.key(seed), scaled(temperature)
        )
        first = next(drawn)  # compiling, which comes first, does not count
    typer.echo(prompt + text.decode([first]), nl=False)
    began = time.perf_counter()
    for token in islice(drawn, count - 1):
        typer.echo(text.decode([token]), nl=False)
    typer.echo()
    if count > 1:
        speed = (count - 1) / (time.perf_counter() - began)
        typer.echo(f"{speed:,.0f} {'characters' if isinstance(text, Text) else 'tokens'} a second")


def latest(name: str) -> Path:
    """The folder of the run of a task that was written to last."""
    places = [*RUNS.glob(f"{name}*")]
    return max(places, key=lambda place: place.stat().st_mtime, default=RUNS / name)


def learned(folder: Path, words: dict[str, Any]) -> Any:
    """The parameters, abstract, of the model that a run's words describe."""
    if not isinstance(words.get("vocabulary"), (str, int)):
        raise ValueError(f"the run in {str(folder)!r} learned no text to go on with")
    term = term_of(words)
    if repr(term) != words["term"]:
        raise ValueError(f"{str(folder)!r} was learned by another model than this version has")
    return jax.eval_shape(term.init, jax.random.key(0), jax.ShapeDtypeStruct((1,), np.int32))


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
    from ...models import greedy, keep_top_p

    with refused(extra="pretrained"):
        from ...models import chat as talk
        from ...models.files import smollm2

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
