"""The result of a claim: a table, and a picture of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..plot import Panel

__all__ = ["Finding", "Rows"]

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Finding:
    """A table, with a row for each model or moment, and a picture of it."""

    rows: Rows
    panel: Panel
