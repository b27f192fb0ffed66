"""A process that trains runs and is killed, asked line by line:

    FOLDER 3 0.05   a child goes on with a run, and is killed 0.05 s after its third report
    FOLDER 0 0      a child goes on with a run to its end

Each line is answered by one with the exit code. Children are forked before JAX has threads.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint  # noqa: F401  before the children, who would each take half a second

from combinax.combinators import dropout, linear
from combinax.train import run
from combinax.train.loop import Record
from combinax.train.tasks.task import Task, entropy

STEPS, EVERY = 120, 10


def tiny(steps: int = STEPS, poison: int = -1) -> Task:
    """Three classes of points, by a linear map with dropout: batches and noise go by the step."""
    term = linear(3) @ dropout(0.5)

    def batches(step: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng((7, step))
        x = rng.normal(size=(6, 4)).astype(np.float32)
        return (x if step < poison or poison < 0 else x * np.nan), x.argmax(1).astype(np.int32) % 3

    return Task(
        term=term,
        example=jax.ShapeDtypeStruct((1, 4), jnp.float32),
        batches=batches,
        loss=partial(entropy, term),
        optimizer=optax.adamw(optax.cosine_decay_schedule(0.05, steps)),
        steps=steps,
        unit="",
        score=lambda params: float(np.abs(np.asarray(params["linear"]["kernel"])).sum()),
    )


def begin(folder: Path, task: Task) -> Path:
    run.begin(folder, "tiny", dict(seed=0), {}, task, "0")
    return folder


def child(folder: Path, ready: int) -> None:
    def report(first: int, record: Record) -> None:
        os.write(ready, b"x")

    run.advance(folder, tiny(), report, every=EVERY)


def asked(folder: Path, reports: int, seconds: float) -> int:
    ready = os.pipe()
    process = os.fork()
    if not process:
        os.close(ready[0])
        try:
            child(folder, ready[1])
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    os.close(ready[1])
    while os.read(ready[0], 1):  # nothing once the child has ended
        reports -= 1
        if not reports:
            time.sleep(seconds)
            os.kill(process, signal.SIGKILL)
    os.close(ready[0])
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    for line in sys.stdin:
        folder, reports, seconds = line.split()
        print(asked(Path(folder), int(reports), float(seconds)), flush=True)
