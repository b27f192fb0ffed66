"""The command line: `combinax train recall`, or `python -m combinax.train train recall`."""

from __future__ import annotations

from .interrupt import quietly

if __name__ == "__main__":
    quietly()  # before the imports that take seconds

import io
import sys
from typing import Annotated

import typer

from .. import __version__
from .commands import claiming, looking, training, transferring, writing

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train a first model: a network written as an equation between pure functions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


for family in (training, looking, writing, transferring, claiming):
    family.add(app)


def main() -> None:
    # A sample holds any characters, and no terminal that lacks some shall lose it.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app(prog_name="combinax")


if __name__ == "__main__":
    main()
