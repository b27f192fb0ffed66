"""Files on the disk: what is wrong with one is said with its name; none is left half written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["legible", "read_fields", "read_text", "replaced"]


@contextmanager
def legible(file: Path, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """What a reader raises about the bytes of a file becomes a ValueError that names the file.

    >>> with legible(Path("a.json"), "JSON", ValueError):
    ...     json.loads("{")
    Traceback (most recent call last):
    ValueError: 'a.json' is no JSON file, or a damaged one, to be written or fetched again: ...
    """
    try:
        yield
    except errors as error:
        raise ValueError(
            f"{str(file)!r} is no {kind} file, or a damaged one, to be written or fetched again: "
            f"{error}"
        ) from error


def read_text(file: Path, kind: str = "UTF-8") -> str:
    """The text of a file. Raises ValueError for bytes that are not UTF-8."""
    with legible(file, kind, UnicodeDecodeError):
        return file.read_text("utf-8")


def read_fields(file: Path, **kinds: type) -> dict[str, Any]:
    """The fields of a file that holds a JSON object; those named are there, and of their type.

    Raises ValueError for another file.
    """
    text = read_text(file, "JSON")
    with legible(file, "JSON", json.JSONDecodeError):
        fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(
            f"{str(file)!r} needs an object of fields, and holds a {type(fields).__name__}"
        )
    for name, kind in kinds.items():
        if type(fields.get(name)) is not kind:
            raise ValueError(
                f"{str(file)!r} needs a field {name!r} of type {kind.__name__}, and has "
                f"{fields.get(name)!r}"
            )
    return fields


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """Where to write what takes a file's place once it is complete; until then the old one stays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replaced(Path(folder) / "a.txt") as new:
    ...         _ = new.write_text("b")
    ...     (Path(folder) / "a.txt").read_text()
    'b'
    """
    new = file.with_name(f"new-{file.name}")
    try:
        yield new
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
