"""Errors: inner code gives the reason; a composition adds the stage, its line and the shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["CompositionError", "ContextError", "ParameterError", "TermError"]


class Line(NamedTuple):
    """One stage of a pipeline as an error shows it: the stage, and the shapes in and out."""

    stage: str
    flow: str


def brief(stage: str, width: int = 64) -> str:
    """The text of a stage, cut to `width` characters."""
    return stage if len(stage) <= width else stage[: width - 1] + "…"


class TermError(ValueError):
    """Base of every error that a term raises.

    `reason` says what is wrong and what would fix it. `placed` adds the stage at fault and the
    pipeline up to it. The innermost composition places an error, and outer terms pass it on
    unchanged.
    """

    def __init__(self, reason: str, headline: str = "", pipeline: Sequence[Line] = ()):
        self.reason, self.headline, self.pipeline = reason, headline, tuple(pipeline)
        super().__init__(self.text())

    def placed(self, headline: str, pipeline: Sequence[Line]) -> TermError:
        return self if self.headline else type(self)(self.reason, headline, pipeline)

    def text(self) -> str:
        if not self.headline:
            return self.reason
        stages = [brief(line.stage) for line in self.pipeline]
        width = max(map(len, stages), default=0)
        lines = [
            f"    {stage:<{width}}  {line.flow}"
            for stage, line in zip(stages, self.pipeline, strict=True)
        ]
        lines[-1:] = [line.replace("    ", "  > ", 1).rstrip() for line in lines[-1:]]
        return "\n".join([self.headline + ":", "  " + self.reason, *lines])


class CompositionError(TermError):
    """Two stages do not fit each other, or a value does not fit its stage."""


class ContextError(TermError):
    """A keyword is missing, is one that no stage reads, or has a value that cannot be used."""


class ParameterError(TermError):
    """Parameters do not fit the term: some are missing, unknown, or of another shape."""
