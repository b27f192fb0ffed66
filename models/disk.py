"""Files on the disk: read within bounds, refused by name, replaced all at once.

A folder of several files is saved in one step that cannot be seen half done:

    .combinax-saving-3f2a/   a save writes its files here; the next one removes a killed one's
    .combinax-committed/     the same folder renamed: from this rename on, the save has happened
    config.json …            its files then move to their places, one after the other

`placed` finds a file in `.combinax-committed` before its place, so a reader here sees the old files
up to the rename and the new ones after it; a save that was killed while its files moved is finished
by the next. Readers that know nothing of this, such as transformers, find an ordinary folder: the
names that they look for are fixed, so no single rename could replace several files for them, and a
folder cannot be exchanged as a whole without moving what others keep in it.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..combinators.core.errors import TermError, brief

__all__ = [
    "FIELDS_LIMIT", "attributed", "flush", "legible", "locked", "placed", "read_bytes",
    "read_fields", "read_text", "regular", "replaced", "shown", "steady", "transaction", "writing",
]  # fmt: skip

T = TypeVar("T")

FIELDS_LIMIT = 2**24
"""Bytes of a JSON file of fields. The index of a model of a trillion weights has about 2²³."""
TEXT_LIMIT = 2**28
"""Bytes of any text: the largest tokenizers known have about 2²⁵."""
TRIES = 100
"""How often a folder is read again because a save moved its files meanwhile."""


# What is wrong with a file


def shown(name: str) -> str:
    """A name from a file as an error shows it: control characters escaped.

    >>> shown("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return repr(name)[1:-1]


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
            f"{brief(shown(str(error)), 300)}"
        ) from error


@contextmanager
def attributed(file: Path) -> Iterator[None]:
    """What does not fit a term names the file that it came from.

    >>> with attributed(Path("config.json")):
    ...     raise TermError("hidden_size is missing")
    Traceback (most recent call last):
    combinax.combinators.core.errors.TermError: 'config.json': hidden_size is missing
    """
    try:
        yield
    except TermError as error:
        raise type(error)(f"{str(file)!r}: {error}") from None


def regular(file: Path) -> Path:
    """The file itself. Raises ValueError for a folder, a pipe or a device, which may never end."""
    if not stat.S_ISREG(file.stat().st_mode):
        what = "a folder" if file.is_dir() else "a pipe or a device"
        raise ValueError(f"{str(file)!r} is {what}, and a file is needed")
    return file


def read_bytes(file: Path, limit: int = TEXT_LIMIT) -> bytes:
    """The bytes of a file. Raises ValueError for more than `limit` of them, or no regular file."""
    if (size := regular(file).stat().st_size) > limit:
        raise ValueError(f"{str(file)!r} has {size:,} bytes, and at most {limit:,} are read")
    return file.read_bytes()


def read_text(file: Path, kind: str = "UTF-8", limit: int = TEXT_LIMIT) -> str:
    """The text of a file. Raises ValueError for bytes that are not UTF-8, or too many."""
    with legible(file, kind, UnicodeDecodeError):
        return read_bytes(file, limit).decode("utf-8")


def read_fields(file: Path, **kinds: type) -> dict[str, Any]:
    """The fields of a file that holds a JSON object; those named are there, and of their type.

    Raises ValueError for another file.
    """
    text = read_text(file, "JSON", FIELDS_LIMIT)
    with legible(file, "JSON", ValueError, RecursionError):
        fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(
            f"{str(file)!r} needs an object of fields, and holds a {type(fields).__name__}"
        )
    for name, kind in kinds.items():
        if type(fields.get(name)) is not kind:
            raise ValueError(
                f"{str(file)!r} needs a field {name!r} of type {kind.__name__}, and has "
                f"{brief(repr(fields.get(name)))}"
            )
    return fields


# Writing


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """An error of the system, such as a full disk, names the file that was to be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.EIO, reason, str(file)) from error


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """Where to write what takes a file's place once it is complete; until then the old one stays.

    Raises OSError, which names the file, where it cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replaced(Path(folder) / "a.txt") as new:
    ...         _ = new.write_text("b")
    ...     (Path(folder) / "a.txt").read_text()
    'b'
    """
    new = file.with_name(f"new-{file.name}")
    try:
        with writing(file):
            yield new
            flush(new)
            new.replace(file)
            flush(file.parent)
    finally:
        new.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until the disk has what was written, so that a power cut cannot reorder it."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One writer of a folder at a time; the system frees the lock of a writer that dies.

    Windows locks no folders: there, the second of two writers fails when it renames.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl  # is there on every other system

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# Several files at once

SAVING, COMMITTED = ".combinax-saving-", ".combinax-committed"


@contextmanager
def transaction(folder: Path) -> Iterator[Path]:
    """Where to write files that take their places in a folder all at once, or not at all.

    A file that is written empty removes the one of its name. Another writer waits. Raises OSError,
    which names the file or folder, where nothing can be written; nothing is changed then.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path:
    ...     folder = Path(path)
    ...     _ = (folder / "old").write_text("b")
    ...     with transaction(folder) as new:
    ...         _ = (new / "a").write_text("b"), (new / "old").write_text("")
    ...     sorted(os.listdir(folder))
    ['a']
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        settle(folder)
        for stale in folder.glob(f"{SAVING}*"):
            shutil.rmtree(stale)
        new = folder / f"{SAVING}{secrets.token_hex(4)}"
        try:
            new.mkdir()
            yield new
            for file in new.iterdir():
                with writing(folder / file.name):
                    flush(file)
            with writing(folder):
                flush(new)
                new.rename(folder / COMMITTED)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        settle(folder)


def settle(folder: Path) -> None:
    """Move the files of a committed save to their places, then remove those written empty."""
    committed = folder / COMMITTED
    if not committed.is_dir():
        return
    with writing(folder):
        flush(folder)
        files = sorted(committed.iterdir(), key=lambda file: (not file.stat().st_size, file.name))
        for file in files:
            if file.stat().st_size:
                file.replace(folder / file.name)
            else:
                (folder / file.name).unlink(missing_ok=True)
                file.unlink()
        committed.rmdir()
        flush(folder)


def placed(folder: Path, name: str) -> Path | None:
    """Where a file of a folder lies, committed or in its place; None where there is none."""
    file = folder / COMMITTED / name
    if file.exists():
        return file if file.stat().st_size else None
    file = folder / name
    return file if file.exists() else None


def steady(folder: Path, names: Sequence[str], read: Callable[[], T]) -> T:
    """What `read` makes of the files of a folder, read again while a save moves them.

    Raises what `read` raises of files that stay as they are, and ValueError for those that never
    do.
    """

    files = [place / name for place in (folder / COMMITTED, folder) for name in names]
    for _ in range(TRIES):
        before = list(map(mark, files))
        try:
            found = read()
        except (OSError, ValueError):
            if list(map(mark, files)) == before:
                raise
        else:
            if list(map(mark, files)) == before:
                return found
    raise ValueError(f"{str(folder)!r} is saved to all the time, and cannot be read meanwhile")


def mark(file: Path) -> tuple[int, int, int] | None:
    """What changes when another file takes a file's place."""
    try:
        seen = file.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size
