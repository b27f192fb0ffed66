"""A user's table: a CSV file whose rows have columns to learn from and a label."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .corpus import read_text
from .data import Pair, Seed, generator

__all__ = ["Table", "read_table"]

LEAST = 20
"""Rows without which nothing can be learned and held out."""


class Table(NamedTuple):
    """Rows as numbers: features (N, d) float32 and labels (N,) int32, to learn from and held out.

    `columns` names the features: a column of numbers is one, and of a column of words each word is
    one. `classes` names the labels.
    """

    columns: tuple[str, ...]
    classes: tuple[str, ...]
    learned: Pair
    held_out: Pair


def read_table(file: str | Path, label: str = "", seed: Seed = 0) -> Table:
    """Read a CSV file with a line of names and hold out a fifth of its rows.

    The column `label`, the last by default, is what is asked; of the others, numbers are shifted
    and scaled to mean 0 and deviation 1 on the rows to learn from, and words become 0 or 1 each.
    Raises FileNotFoundError where there is no such file, and ValueError, with the line at fault,
    for one that is empty or binary, rows of another length than the names, a field without value,
    a label that is no column, labels all alike or all different, or fewer than 20 rows.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "a.csv")
    >>> _ = file.write_text("size,color,kind\\n" + "1,red,cat\\n3,blue,dog\\n" * 10)
    >>> found = read_table(file)
    >>> found.columns, found.classes, found.learned[0].shape, found.held_out[0].shape
    (('size', 'color=blue', 'color=red'), ('cat', 'dog'), (16, 3), (4, 3))
    """
    names, rows = read_rows(file)
    label = label or names[-1]
    if label not in names:
        raise ValueError(f"{str(file)!r} has no column {label!r}; it has {', '.join(names)}")
    fields = dict(zip(names, zip(*rows, strict=True), strict=True))
    answers = fields.pop(label)
    classes = sorted(set(answers))
    if len(classes) < 2:
        raise ValueError(
            f"column {label!r} of {str(file)!r} is {classes[0]!r} in every row: there is nothing "
            "to tell apart; name another label"
        )
    if len(classes) > len(rows) // 2:
        raise ValueError(
            f"column {label!r} of {str(file)!r} has {len(classes)} values in {len(rows)} rows: "
            "a label names a few classes; name another one"
        )
    labels = np.array([classes.index(answer) for answer in answers], np.int32)
    order = generator(seed).permutation(len(rows))
    asked, shown = order[: len(rows) // 5], order[len(rows) // 5 :]
    columns, features = [], []
    for name, values in fields.items():
        for title, column in numbered(name, values):
            deviation = column[shown].std() if title == name else 1.0
            centre = column[shown].mean() if title == name else 0.0
            columns.append(title)
            features.append((column - centre) / (deviation or 1.0))
    if not features:
        raise ValueError(f"{str(file)!r} has no column but the label {label!r}")
    table = np.stack(features, axis=1).astype(np.float32)
    learned, held_out = ((table[part], labels[part]) for part in (shown, asked))
    return Table(tuple(columns), tuple(classes), learned, held_out)


def read_rows(file: str | Path) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the rows, each as long as the names."""
    lines = csv.reader(read_text(file).splitlines(), strict=True)
    rows: list[list[str]] = []
    names: list[str] = []
    try:
        for fields in lines:
            row = [field.strip() for field in fields]
            if not any(row):
                continue
            if not names:
                names = row
                if len(set(names)) < len(names) or not all(names):
                    raise ValueError(f"the first line names the columns, and it is {names}")
            elif len(row) != len(names):
                raise ValueError(f"it has {len(row)} fields, and there are {len(names)} columns")
            elif not all(row):
                raise ValueError(f"column {names[row.index('')]!r} has no value")
            else:
                rows.append(row)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"line {lines.line_num} of {str(file)!r}: {error}") from None
    if len(rows) < LEAST:
        raise ValueError(f"{str(file)!r} has {len(rows)} rows of data, and {LEAST} are the least")
    return names, rows


def numbered(name: str, values: Sequence[str]) -> list[tuple[str, np.ndarray]]:
    """A column as columns of numbers: itself, or one for each word in it."""
    try:
        column = np.array([float(value) for value in values])
    except ValueError:
        words = np.array(values)
        return [(f"{name}={word}", (words == word) * 1.0) for word in sorted(set(values))]
    if not math.isfinite(column.sum()):
        raise ValueError(f"column {name!r} holds numbers that are not finite")
    return [(name, column)]
