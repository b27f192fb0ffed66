"""A description: the table of a term's stages, with their costs and a total."""

from __future__ import annotations

import dataclasses
import html
import io
import math
from collections.abc import Iterator
from typing import Any

__all__ = ["Description", "Row", "rounded"]

HEADER = ("stage", "gives", "learned", "FLOPs", "bytes", "runs")


@dataclasses.dataclass(frozen=True)
class Row:
    """One stage: where its parameters lie, what it gives, what it costs, and how it runs.

    `under` is how much deeper a stage stands than its parameters, which may lie at the top. `moved`
    are the bytes that it reads and writes, `products` its matrix products.
    """

    path: tuple[str, ...]
    stage: str
    gives: str
    parameters: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    runs: str = ""
    under: int = 0
    moved: float = 0.0
    products: int = 0

    @property
    def depth(self) -> int:
        return self.under + len(self.path)

    def cells(self, top: int = 0) -> tuple[str, ...]:
        stage = "  " * (self.depth - top) + self.stage
        learned = f"{self.parameters:,}" if self.parameters else ""
        return stage, self.gives, learned, rounded(self.flops), rounded(self.bytes), self.runs


def rounded(number: float) -> str:
    """Three digits and a unit: 61.2M."""
    power = min(5, int(math.log10(number) // 3)) if number >= 1 else 0
    return f"{number / 1000**power:.3g}{' kMGTP'[power].strip()}" if number else ""


@dataclasses.dataclass(frozen=True)
class Description:
    """The result of `describe`: rows of stages and their total. Prints as a table."""

    rows: tuple[Row, ...]

    @property
    def top(self) -> int:
        """The depth at which the table begins."""
        return min((row.depth for row in self.rows), default=0)

    @property
    def total(self) -> Row:
        """The sum over all stages."""
        names = "parameters", "flops", "bytes", "moved", "products"
        sums: dict[str, Any] = {n: sum(getattr(row, n) for row in self.rows) for n in names}
        return Row((), "total", "", **sums)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """The table; where it is too wide, what runs is told below it."""
        lines = [HEADER, *(row.cells(self.top) for row in self.rows), self.total.cells()]
        width = sum(max(map(len, column)) + 1 for column in zip(*lines, strict=True))
        if width <= options.max_width + 1:
            yield self.table(len(HEADER))
            return
        yield self.table(len(HEADER) - 1)
        yield from (f"{'/'.join(row.path)}: {row.runs}" for row in self.rows if row.runs)

    def table(self, columns: int) -> Any:
        """The first columns of the table."""
        from rich.table import Table
        from rich.text import Text

        table = Table(show_footer=True, header_style="bold", footer_style="bold", box=None)
        table.padding, table.pad_edge = (0, 1, 0, 0), False
        for index, (title, sum_) in enumerate(zip(HEADER, self.total.cells(), strict=True)):
            if index < columns:
                justify = "right" if index in (2, 3, 4) else "left"
                table.add_column(title, sum_, justify=justify, no_wrap=bool(index))
        for row in self.rows:
            cells = row.cells(self.top)[:columns]
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=1000, color_system=None, force_jupyter=False).print(self)
        lines = text.getvalue().splitlines()
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            inner = "".join(
                f'<{tag} style="text-align:{"right" if 2 <= i <= 4 else "left"};white-space:pre">'
                f"{html.escape(cell)}</{tag}>"
                for i, cell in enumerate(cells)
            )
            return f"<tr>{inner}</tr>"

        body = "".join(line(row.cells(self.top), "td") for row in self.rows)
        total = line(self.total.cells(), "th")
        return f"<table>{line(HEADER, 'th')}{body}{total}</table>"
