"""Claim: what papers say, run here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from .. import plot
from ..claims import CLAIMS
from .settings import nearest
from .terminal import Json, Seed, console, made, refused, say, show

__all__ = ["add"]


def add(app: typer.Typer) -> None:
    app.command("claim")(claim)


def claim(
    name: Annotated[str, typer.Argument(metavar="CLAIM", help=f"One of {', '.join(CLAIMS)}.")],
    seed: Seed = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to train each model.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the picture.")] = Path("runs/claims"),
    json: Json = False,
) -> None:
    """Train what a paper makes a claim about; print a table and draw a picture: minutes."""
    with refused():
        check = nearest("claim", name, CLAIMS)
        folder = made(out)
        finding = check(seed) if steps is None else check(seed, steps)
        file = plot.picture(folder / f"{name}.png", finding.panel)
    if json:
        say(dict(claim=name, rows=finding.rows, picture=str(file)))
        return
    table = Table(*finding.rows[0], box=None)
    for row in finding.rows:
        table.add_row(*map(str, row.values()))
    console.print(table)
    show(file)
