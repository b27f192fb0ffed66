"""Pictures of a run: matplotlib without a screen, imported only when a picture is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..combinators import observe
from .loop import History, Params
from .tasks import Task

__all__ = [
    "Reading",
    "bars",
    "curve",
    "lines",
    "lookup",
    "mosaic",
    "panels",
    "picture",
    "reading",
    "scores",
]

Panel = Callable[[Any], None]
"""A function that draws on the axes it is given."""


def picture(file: Path, *panels: Panel) -> Path:
    """Draw panels side by side into a file, and give the file back.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "empty.png")
    >>> picture(file, lambda axes: None).is_file()
    True
    """
    # A Figure of its own draws without a screen and leaves no state behind, as pyplot would.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(panels), 5), layout="constrained")
    for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(axes)
    figure.savefig(file, dpi=120)
    return file


def curve(
    history: History, unit: str, size: float = 1.0, levels: Mapping[str, float] | None = None
) -> Panel:
    """The loss of every step and its running mean, in units of a size; levels to compare with."""

    def draw(axes: Any) -> None:
        loss = np.where(np.isfinite(history.loss), history.loss / size, math.nan)
        span = max(1, len(loss) // 50)
        axes.plot(loss, color="tab:blue", alpha=0.3, linewidth=0.8)
        if len(loss):
            running = np.convolve(loss, np.full(span, 1 / span), "valid")
            axes.plot(np.arange(span - 1, len(loss)), running, color="tab:blue")
        at_the_right_edge = dict(transform=axes.get_yaxis_transform(), ha="right", va="bottom")
        for name, level in (levels or {}).items():
            axes.axhline(level, color="grey", linestyle="--", linewidth=1)
            axes.text(1, level, f"{name}, held out ", **at_the_right_edge)
        axes.set(xlabel="step", ylabel=f"training loss, {unit}", ylim=(0, None))

    return draw


def scores(history: History, unit: str, reference: float | None) -> Panel:
    """The score of every evaluation, and what the defaults of the task reach."""

    def draw(axes: Any) -> None:
        axes.plot(*zip(*history.held_out, strict=True), color="tab:green", marker=".")
        if reference is not None:
            axes.axhline(reference, color="grey", linestyle="--", linewidth=1)
        axes.set(xlabel="step", ylabel=unit)

    return draw


def bars(heights: Mapping[str, float], unit: str) -> Panel:
    """A bar for each name."""

    def draw(axes: Any) -> None:
        axes.barh([*heights], [*heights.values()], color="tab:blue")
        axes.invert_yaxis()
        axes.set(xlabel=unit)

    return draw


def lines(rows: Sequence[Mapping[str, Any]], x: str, y: str, by: str, unit: str) -> Panel:
    """One line for each value of `by`: y over x."""

    def draw(axes: Any) -> None:
        for value in dict.fromkeys(row[by] for row in rows):
            points = [(row[x], row[y]) for row in rows if row[by] == value]
            axes.plot(*zip(*points, strict=True), marker=".", label=f"{by} {value}")
        axes.legend()
        axes.set(xlabel=x, ylabel=unit)

    return draw


def panels(
    name: str, task: Task, params: Params, history: History, measured: Mapping[str, float]
) -> list[Panel]:
    """The contents of a run's picture: its loss, its scores, and a view of the task."""
    bits = task.unit.startswith("bits")
    rivals = {name: value for name, value in measured.items() if name != "this model"}
    size, unit, levels = (math.log(2), "bits", rivals) if bits else (1.0, "nats", {})
    drawn = [curve(history, unit, size, levels)]
    if history.held_out:
        drawn.append(scores(history, task.unit, task.reference))
    if name == "recall":
        drawn.append(lookup(reading(task, params, task.batches(task.steps)[0][0])))
    if name == "digits":
        drawn.append(mosaic(params["slots"]["key"], "keys learned"))
    return drawn


class Reading(NamedTuple):
    """An attention map read as a dictionary: which pair each question looked at, and the answer."""

    weights: np.ndarray
    pairs: list[tuple[int, int]]
    asked: list[int]
    answers: list[int]


def reading(task: Task, params: Params, tokens: np.ndarray) -> Reading:
    """Look into `recall` at work on one sequence: weights (questions, pairs), key and value added.

    >>> from combinax.train.tasks import recall
    >>> task = recall(pairs=2)
    >>> tokens = task.batches(0)[0][0]
    >>> reading(task, task.term.init(jax.random.key(0), tokens), tokens).weights.shape
    (2, 2)
    """
    logits, seen = observe(task.term)(params, tokens)
    shown = 2 * (len(tokens) // 3)
    weights = np.asarray(seen["far/heads/normalize"].weight)[0, shown:, :shown]
    ids = np.asarray(tokens).tolist()
    return Reading(
        weights=weights.reshape(len(weights), -1, 2).sum(2),
        pairs=list(zip(ids[:shown:2], ids[1:shown:2], strict=True)),
        asked=ids[shown:],
        answers=np.argmax(logits, -1)[shown:].tolist(),
    )


def lookup(reading: Reading) -> Panel:
    """An attention map read as a dictionary: a row for each question, a column for each pair.

    The pair whose key was asked is boxed, and the value that was answered stands in it: green
    where it is the value shown, red where it is not.
    """

    def draw(axes: Any) -> None:
        from matplotlib.patches import Rectangle

        image = axes.imshow(reading.weights, cmap="Blues", vmin=0, vmax=1)
        axes.figure.colorbar(image, ax=axes, label="attention weight", shrink=0.8)
        columns = [f"{letter(key)} → {value}" for key, value in reading.pairs]
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(reading.asked)), [f"{letter(key)} ?" for key in reading.asked])
        keys = [key for key, _ in reading.pairs]
        for row, (key, answer) in enumerate(zip(reading.asked, reading.answers, strict=True)):
            column = keys.index(key)
            color = "tab:green" if reading.pairs[column][1] == answer else "tab:red"
            corner = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=color, linewidth=3))
            ink = "white" if reading.weights[row, column] > 0.5 else "black"
            axes.text(column, row, str(answer), ha="center", va="center", color=ink)
        axes.set(xlabel="pair shown: key → value", ylabel="key asked")
        axes.set_title("a held-out sequence: what was looked up, and the answer")

    return draw


def letter(token: int) -> str:
    return chr(ord("a") + token) if token < 26 else str(token)


def mosaic(rows: np.ndarray, title: str) -> Panel:
    """The first 64 rows, each as a square picture: negative blue, positive red."""
    rows = np.asarray(rows)[:64]
    side, across = math.isqrt(rows.shape[1]), 8

    def draw(axes: Any) -> None:
        scaled = rows / np.maximum(np.abs(rows).max(1, keepdims=True), 1e-30)
        tiles = np.zeros((across * across, side + 1, side + 1), rows.dtype)
        tiles[: len(rows), :side, :side] = scaled.reshape(-1, side, side)
        whole = tiles.reshape(across, across, side + 1, side + 1).transpose(0, 2, 1, 3)
        axes.imshow(whole.reshape(across * (side + 1), -1), cmap="seismic", vmin=-1, vmax=1)
        axes.set_title(title)
        axes.set_axis_off()

    return draw
