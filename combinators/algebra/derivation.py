"""A derivation: a chain of equations, and its text in the terminal, Markdown, HTML and LaTeX."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.printing import equation, indented
from ..core.term import Term
from ..core.types import Value
from ..description import rounded
from .cost import Cost, time

__all__ = ["Derivation", "Step"]


@dataclasses.dataclass(frozen=True)
class Step:
    """One equation of a chain: by `law`, at `path`, `before` = `after`, in the whole `term`.

    `cost` is that of the whole term; `error` the largest difference from the first term's output
    on the sample, None without a sample.
    """

    law: str
    statement: str
    path: str
    before: Term
    after: Term
    term: Term
    cost: Cost
    error: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Derivation:
    """A chain of equations: it unpacks as (term, params), and prints every step.

    `markdown()`, `latex()` and, in a notebook, its display show the chain too. `refused` are the
    places where a law almost applied, with the condition that failed.
    """

    first: Term
    cost: Cost
    steps: tuple[Step, ...]
    term: Term
    params: Mapping[str, Value]
    refused: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.term, self.params))

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def markdown(self) -> str:
        """The chain as a table in Markdown."""
        return markdown(self)

    def latex(self) -> str:
        """The chain as aligned equations in LaTeX."""
        return latex(self)

    def _repr_html_(self) -> str:
        return html_table(self)


MEASURES = ("FLOPs", "bytes", "products", "time")


def cells(cost: Cost) -> tuple[str, ...]:
    flops, moved = (rounded(number) or "0" for number in (cost.flops, cost.bytes))
    return flops, moved, str(cost.products), time(cost.seconds)


def changes(derivation: Derivation) -> Iterator[tuple[Step, list[str]]]:
    """Each step with its change of every measure."""
    before = cells(derivation.cost)
    for step in derivation.steps:
        after = cells(step.cost)
        yield step, [a if a == b else f"{a} → {b}" for a, b in zip(before, after, strict=True)]
        before = after


def place(step: Step) -> str:
    return f" at {step.path}" if step.path else ""


def error(step: Step) -> str:
    return "" if step.error is None else f"{step.error:.1e}"


LONG = 240
"""Characters of an equation from which only what a step changed is written, not the whole term."""


def text(derivation: Derivation) -> str:
    """The chain as equations, each with the law that it follows from."""
    whole = len(equation(derivation.first)) <= LONG
    lines = [f"  {indented(str(derivation.first), 2)}" if whole else f"  {derivation.first.name}"]
    for step, changed in changes(derivation):
        if whole:
            lines.append(f"= {indented(str(step.term), 2)}")
        else:
            before, after = (indented(str(term), 2) for term in (step.before, step.after))
            lines += ["", f"at {step.path}:", f"  {before}", f"= {after}"]
        lines.append(f"    {step.law}: {step.statement}" + (place(step) if whole else ""))
        pairs = zip(MEASURES, changed, strict=True)
        lines.append("    " + ", ".join(f"{name} {value}" for name, value in pairs))
        lines += [f"    largest difference {error(step)}"] if error(step) else []
    if not derivation.steps:
        lines.append("  stays: no law makes it cheaper")
    return "\n".join(lines)


HEADER = ("law", "at", "before", "after", *MEASURES, "largest difference")


def table(derivation: Derivation) -> list[tuple[str, ...]]:
    return [
        (step.law, step.path, equation(step.before), equation(step.after), *changed, error(step))
        for step, changed in changes(derivation)
    ]


def markdown(derivation: Derivation) -> str:
    """The steps as a table; it begins with the first equation and ends with the last."""
    code = lambda term: f"`{equation(term)}`"  # noqa: E731
    rows = [[*row[:2], *(f"`{cell}`" for cell in row[2:4]), *row[4:]] for row in table(derivation)]
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines]
    return "\n".join([code(derivation.first), "", *body, "", code(derivation.term)])


def html_table(derivation: Derivation) -> str:
    """The same as HTML, as a notebook shows it."""

    def line(row: Sequence[str], tag: str) -> str:
        inner = (f'<{tag} style="text-align:left">{html.escape(cell)}</{tag}>' for cell in row)
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(line(row, "td") for row in table(derivation))
    ends = [f"<pre>{html.escape(str(t))}</pre>" for t in (derivation.first, derivation.term)]
    return f"{ends[0]}<table>{line(HEADER, 'th')}{body}</table>{ends[1]}"


def latex(derivation: Derivation) -> str:
    """Aligned equations, each with its law."""
    lines = [rf"& {symbols(equation(derivation.first))}"]
    lines += [
        rf"={{}} & {symbols(equation(step.term))} && \text{{{step.law}}}"
        for step in derivation.steps
    ]
    body = " \\\\\n".join(lines)
    return f"\\begin{{align*}}\n{body}\n\\end{{align*}}"


SYMBOLS = {"∘": r"\circ", "·": r"\cdot", "−": "-", "_": r"\_", "&": r"\&", "'": "'"}


def symbols(equation: str) -> str:
    """An equation in LaTeX: words upright, operators as symbols."""
    words = re.sub(r"[A-Za-z_][\w.]*", lambda m: rf"\mathrm{{{m[0]}}}", equation)
    return "".join(SYMBOLS.get(mark, mark) for mark in words)
