"""Transfer: intents from ten sentences of each, by an encoder that others trained."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from ...models.disk import replaced
from .. import plot
from .terminal import Json, Seed, console, made, refused, say, show, stderr

__all__ = ["add"]


def add(app: typer.Typer) -> None:
    app.command("transfer")(transfer)


def transfer(
    data: Annotated[Path, typer.Option(help="A JSON list of lists: split, intent, sentence.")],
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(min=1, help="How many batches to learn from.")] = 60,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the rows as JSON, and a picture.")
    ] = None,
    json: Json = False,
) -> None:
    """Ten sentences of each intent, by an encoder that others trained: minutes."""
    with refused(extra="pretrained"):
        from .. import transfer as ways

        folder = None if out is None else made(out)
        source = ways.intents(data, seed)
        learned, held_out = (len(texts) for texts, _ in (source.learned, source.held_out))
        screen = stderr if json else console
        screen.print(f"{len(source.names)} intents: {learned} sentences, {held_out} held out")
        rows = []
        for row in ways.transfer(source, seed, steps):
            rows.append(row._asdict())
            screen.print(
                f"{row.way:<28}{row.percent:6.1f} % right{row.weights:>14,} weights learned"
            )
    if json:
        say(dict(seed=seed, steps=steps, rows=rows))
    if folder is not None:
        with refused(), replaced(folder / "transfer.json") as file:
            file.write_text(dumps(rows, indent=2) + "\n")
        heights = {row["way"]: row["percent"] for row in rows}
        picture = plot.picture(folder / "transfer.png", plot.bars(heights, "% right"))
        if not json:
            show(picture)
