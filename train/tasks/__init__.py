"""Tasks: each a function of a seed and its settings to a term, a stream of data, a loss, a score.

    make = TASKS["recall"]
    task = make(seed=0, steps=300)

What their defaults reach, and in how long, is measured on two cores; `combinax tasks` shows it.
"""

from collections.abc import Callable

from .arithmetic import addition, brackets, parity
from .pictures import digits, vision
from .sequences import copy, induction, recall, reverse, sort
from .table import table
from .task import Task, train
from .text import byte_pairs, language, masked, sample, text
from .translation import translation

__all__ = [
    "Task", "train", "TASKS",
    "recall", "copy", "reverse", "sort", "induction", "addition", "parity", "brackets",
    "digits", "vision", "text", "byte_pairs", "masked", "translation", "table",
    "language", "sample",
]  # fmt: skip

TASKS: dict[str, Callable[..., Task]] = {
    make.__name__: make
    for make in (
        recall, copy, reverse, sort, induction, addition, parity, brackets, digits, vision, text,
        byte_pairs, masked, translation, table,
    )
}  # fmt: skip
"""All tasks by their names."""
