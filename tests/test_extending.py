"""The page on words of one's own runs from top to bottom, and shows what it says."""

import re
from pathlib import Path

import pytest

import combinax.combinators

PAGE = Path(str(combinax.combinators.__file__)).parent / "EXTENDING.md"
BLOCKS = list(re.finditer(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def test_the_page_runs_from_top_to_bottom() -> None:
    text = PAGE.read_text()
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCKS:
        above = text.count("\n", 0, block.start(1))  # so that an error names the page's line
        exec(compile("\n" * above + block[1], str(PAGE), "exec"), namespace)


@pytest.mark.parametrize("block", BLOCKS[1:], ids=lambda block: block[1].splitlines()[0])
def test_every_recipe_asserts_what_it_shows(block: re.Match[str]) -> None:
    assert "assert " in block[1]


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", PAGE.read_text())
    assert links and [link for link in links if not (PAGE.parent / link).exists()] == []
