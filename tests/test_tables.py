"""The table of tests names every file of the code, and only tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
TEXT = (TESTS / "README.md").read_text()


def rows() -> dict[str, list[str]]:
    """The files of code in the table, each with the test files in its row."""
    found: dict[str, list[str]] = {}
    folder = ""
    for line in TEXT.splitlines():
        if line.startswith("## "):
            folder = line.removeprefix("## ")
        elif row := re.match(r"\| `(.+?)` \|", line):
            assert folder + row[1] not in found, f"{folder}{row[1]} has two rows"
            found[folder + row[1]] = re.findall(r"\]\((test_\w+\.py)\)", line)
    return found


def test_every_file_of_code_has_its_row() -> None:
    """A package's `__init__.py` gives names alone: doctests and golden names cover it."""
    modules = {
        path.relative_to(ROOT).as_posix()
        for folder in ("combinators", "models", "train")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert rows().keys() == modules
    assert [module for module, tests in rows().items() if not tests] == []


def test_the_table_and_the_folder_name_the_same_tests() -> None:
    named = set(re.findall(r"\]\((test_\w+\.py)\)", TEXT))
    assert named == {path.name for path in TESTS.glob("test_*.py")} - {Path(__file__).name}


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", TEXT)
    assert [link for link in links if not (TESTS / link).exists()] == []
