"""A process that saves and is killed, asked line by line:

    model FOLDER step 7       a child saves once, and dies before its seventh change of the disk
    model FOLDER after 0.01   a child saves without end, and is killed so many seconds later
    run FOLDER times 5        two children save five times each, at once
    run FOLDER limit 100      a child saves, and no file may have more bytes; it says what it raises

Each line is answered by one with exit codes. Children are forked before JAX has threads. Every save
writes the next version, a number from 1 to 3 that stands in all of its files.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import orbax.checkpoint  # noqa: F401  before the children, who would each take half a second
from files_oracle import CONFIG
from tokenizers import Tokenizer, models

from combinax.combinators.core.parameter import map_declared
from combinax.models import pretrained
from combinax.train import checkpoint


def save_model(folder: Path, version: int) -> None:
    config = {**CONFIG, "rms_norm_eps": 2.0**-version}
    shapes = pretrained.declared(pretrained.architecture(config))
    params = map_declared(shapes, lambda leaf: np.full(leaf.shape, version, np.float32))
    tokenizer = Tokenizer(models.WordLevel({str(version): 0}, str(version)))
    pretrained.save(folder, config, params, tokenizer)


def save_run(folder: Path, version: int) -> None:
    tree = {"a": np.full(3, version), "b": (np.full((2, 2), version, np.float32), None)}
    checkpoint.save(folder, tree, {"version": version})


VERSIONS = (1, 2, 3)
SAVES = {"model": save_model, "run": save_run}
CHANGES = ("mkdir", "open", "rename", "replace", "unlink", "rmdir", "fsync")


def dies_at(step: int) -> None:
    """End the process, as a kill does, before its `step`-th change of the disk."""
    left = [step]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return real(*arguments, **options)

        return change

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))


def forked(run: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        run()
    except OSError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


def asked(save: Callable[[int], None], version: int, command: str, value: float) -> str:
    def step() -> None:
        dies_at(int(value))
        save(version)

    def forever() -> NoReturn:
        os.write(ready[1], b"x")
        while True:
            for other in VERSIONS:
                save(other)

    def often() -> None:
        for more in range(int(value)):
            save((version + more) % 3 + 1)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), resource.RLIM_INFINITY))
        save(version)

    ready = os.pipe()
    children: list[int]
    if command == "after":
        child = forked(forever)
        os.read(ready[0], 1)
        time.sleep(value)
        os.kill(child, signal.SIGKILL)
        children = [child]
    else:
        run = {"step": step, "times": often, "limit": limited}[command]
        children = [forked(run) for _ in range(2 if command == "times" else 1)]
    return " ".join(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:  # what is traced once is known to all children
        for version in VERSIONS:
            save_model(Path(place), version)
    versions = itertools.cycle(VERSIONS)
    for line in sys.stdin:
        kind, folder, command, value = line.split()
        save = partial(SAVES[kind], Path(folder))
        print(asked(save, next(versions), command, float(value)), flush=True)
