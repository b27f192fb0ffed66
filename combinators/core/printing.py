"""Printing: a term as Python, and as an unambiguous equation that fits a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

__all__ = ["COMPOSITION", "POWER", "PRODUCT", "SUM", "Write", "bracketed", "equation", "laid_out"]

Write = Callable[[Any], str]
"""The function that writes a part of a term: `repr` as Python, `equation` as mathematics."""

SUM, PRODUCT, COMPOSITION, POWER, ATOM = range(5)
"""The precedence of an equation's outermost operator, from f + g to a word with arguments."""

WIDTH = 80
"""Columns of a terminal."""


class Written(Protocol):
    """A term, of which printing needs the text and its precedence."""

    @property
    def binding(self) -> int: ...
    def text(self, write: Write) -> str: ...


def equation(term: Written) -> str:
    """The equation of a term on one line: `identity + linear(4) ∘ silu`."""
    return term.text(equation)


def bracketed(term: Written, binding: int) -> str:
    """The equation of a part, in brackets unless its precedence is above that of its form."""
    return equation(term) if term.binding > binding else f"({equation(term)})"


SEPARATORS = (" + ", " - "), (" · ",), (" ∘ ",), (" ; ",)
"""The operators of an equation, those of lowest precedence first."""


def laid_out(text: str, room: int = WIDTH) -> str:
    """The text of an equation on lines of at most `room` columns; a single word may be longer.

    A line breaks before an operator, or inside the brackets of a word, with arguments indented.

    >>> print(laid_out("tied(embed(256, 64), rms_norm() ∘ block)", 24))
    tied(
      embed(256, 64),
      rms_norm() ∘ block,
    )
    """
    if len(text) <= room:
        return text
    for separators in SEPARATORS:
        (_, first), *rest = split(text, separators)
        if rest:
            lines = [laid_out(first, room)]
            lines += [f"{mark} {indented(laid_out(part, room - 2), 2)}" for mark, part in rest]
            return "\n".join(filled(lines, room) if " ∘ " in separators else lines)
    opening = next((at for at, depth in depths(text) if depth == 1), None)
    if opening is None or text[opening] not in "([":
        return text
    closing = max(at for at, depth in depths(text) if depth == 1)
    inside = [part for _, part in split(text[opening + 1 : closing], (", ",))]
    comma = "," if len(inside) > 1 else ""
    lines = [f"  {indented(laid_out(part, room - 3), 2)}{comma}" for part in inside]
    return "\n".join([text[: opening + 1], *lines, text[closing:]])


def filled(lines: list[str], room: int) -> Iterator[str]:
    """The lines, each joined to the one before it if both fit in `room` columns."""
    line, *rest = lines
    for following in rest:
        joined = f"{line} {following}"
        if len(joined) > room or "\n" in joined:
            yield line
            joined = following
        line = joined
    yield line


def split(text: str, separators: tuple[str, ...]) -> list[tuple[str, str]]:
    """The parts of a text between separators outside brackets, each with the operator before it."""
    parts, start, mark = [], 0, ""
    for at, depth in depths(text):
        separator = next((s for s in separators if text.startswith(s, at)), None)
        if not depth and separator:
            parts.append((mark, text[start:at]))
            start, mark = at + len(separator), separator.strip()
    return [*parts, (mark, text[start:])]


def depths(text: str) -> Iterator[tuple[int, int]]:
    """Each index of a text, with the number of brackets and quotes around its character; a bracket
    or quote counts itself."""
    depth, quote = 0, ""
    for at, mark in enumerate(text):
        if quote:
            yield at, depth + 1
            quote = "" if mark == quote else quote
            continue
        quote = mark if mark in "'\"" else ""
        depth += mark in "([{<"
        yield at, depth + bool(quote)
        depth -= mark in ")]}>"


def indented(text: str, columns: int) -> str:
    """The text with all lines but the first indented."""
    return text.replace("\n", "\n" + " " * columns)
