"""Consoles, options and refusals of unusable input, which all subcommands share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

__all__ = [
    "Json", "Out", "Seed", "Steps", "console", "escaped", "made", "refused", "say", "show",
    "stderr",
]  # fmt: skip

console = Console()
stderr = Console(stderr=True)

Seed = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Decides parameters, data and their order.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="How many batches to learn from.")]
Out = Annotated[
    Path | None, typer.Option(help="The folder of the run; runs/TASK, or the next free one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]


def say(fields: Mapping[str, Any]) -> None:
    """Print what a command found, for a machine."""
    typer.echo(json.dumps(fields, ensure_ascii=False))


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
        typer.echo(f"combinax: {escaped(reason(error))}", err=True)
        raise typer.Exit(2) from None


def reason(error: Exception) -> str:
    """An error in words: of one of the system, what is wrong with which file, without its number.

    >>> reason(FileNotFoundError(2, "No such file or directory", "a.json"))
    "'a.json': no such file or directory"
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        said = error.strerror[0].lower() + error.strerror[1:]
        return f"{str(error.filename)!r}: {said}"
    return str(error)


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
