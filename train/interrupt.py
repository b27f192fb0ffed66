"""Ctrl-C: what a command, and the training in it, answer.

Python answers Ctrl-C with an exception wherever it stands. In an import that prints pages; while
XLA computes in other threads, the interpreter winds down under them, and they crash. A command ends
by the signal itself instead, as shells expect. Training ends after the dispatch that runs, and
keeps what was trained.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["answered", "deferred", "quietly", "stopping"]

SHOW_CURSOR = b"\x1b[?25h"

STOPPING = (
    b"\nCtrl-C: training finishes the steps that run and saves them; once more ends the command "
    b"at once\n"
)


def quietly() -> None:
    """From here on, Ctrl-C ends the process, unless it is to be ignored, as under nohup."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave)


def leave(number: int, frame: Any) -> None:
    """End by the signal, after the text that was printed so far is written and, where a terminal
    shows progress, its cursor is shown again."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(RuntimeError, OSError, ValueError):  # in the middle of a write, or closed
            stream.flush()
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, SHOW_CURSOR)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


@contextmanager
def answered(handler: Any) -> Iterator[None]:
    """Another answer to Ctrl-C for a while; only the main thread can give one."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class Noted:
    """An answer to Ctrl-C that raises nothing: it says so and remembers; the second ends all."""

    pressed: bool = False

    def __call__(self, number: int, frame: Any) -> None:
        if self.pressed:
            leave(number, frame)
        self.pressed = True
        with suppress(OSError):
            os.write(2, STOPPING)


@contextmanager
def deferred() -> Iterator[None]:
    """Ctrl-C in here is answered at the end, once what must not be torn is whole."""
    if isinstance(signal.getsignal(signal.SIGINT), Noted):  # answers at once, and tears nothing
        yield
        return
    pressed: list[int] = []
    with answered(lambda number, frame: pressed.append(number)):
        yield
    if pressed:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: the first time it is only noted, the second time it ends all."""
    noted = Noted()
    with answered(noted):
        yield lambda: noted.pressed
