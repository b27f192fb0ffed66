"""What the defaults of each task reach, measured once: score, unit, and seconds on two cores."""

from __future__ import annotations

from typing import Any

__all__ = ["MEASURED"]

MEASURED: dict[str, dict[str, Any]] = {}
