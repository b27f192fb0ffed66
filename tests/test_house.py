"""The house: which module may import which, read off the code."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("combinators", "models", "train")

FLOORS = (
    ("combinators.core", "combinators.intervals"),
    ("combinators.words",),
    ("combinators.streaming",),
    ("combinators.stepping", "combinators.operators", "combinators.describe", "combinators.flax"),
    ("combinators.algebra", "combinators.laws"),
    ("combinators",),
    ("models",),
    ("train",),
)
"""From the ground up: a module imports from its own floor and from those below. `words` are the
files that lie in combinators/ itself."""

COMMANDS = ("train.commands.", "train.launch")

ABOVE_WORDS = {"operators", "describe", "flax", "laws"}


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    module(path): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
}


def imports(name: str) -> set[str]:
    """The modules of this package that a module imports, at whatever place in it."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) + 1 - node.level]
            target = ".".join([*above, *([node.module] if node.module else [])])
            inner = {f"{target}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inner or ({target} & MODULES.keys())
    return found - {name}


def floor(name: str) -> int:
    folder, *rest = name.split(".")
    where = folder
    if folder == "combinators" and rest:
        (inner, *_) = rest
        flat = f"combinators.{inner}" if len(rest) > 1 or inner in ABOVE_WORDS else None
        where = flat or (
            f"combinators.{inner}" if MODULES[name].name == "__init__.py" else "combinators.words"
        )
    return next(i for i, places in enumerate(FLOORS) if where in places)


@pytest.mark.parametrize("name", MODULES)
def test_arrows_point_down(name):
    upward = [other for other in imports(name) if floor(other) > floor(name)]
    assert upward == []


def test_no_circle():
    TopologicalSorter({name: imports(name) for name in MODULES}).prepare()


def test_no_import_of_the_package_inside_a_function():
    """Such imports hide circles. A command may import its own module when it runs."""
    inside = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        for function in ast.walk(ast.parse(path.read_text()))
        if not name.startswith(COMMANDS) and isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert inside == []


def test_the_table_finds_what_it_forbids(monkeypatch, tmp_path):
    planted = tmp_path / "combinators" / "core" / "errors.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("def late():\n    from ..compose import compose\n")
    monkeypatch.setitem(MODULES, "combinators.core.errors", planted)
    assert imports("combinators.core.errors") == {"combinators.compose"}
    with pytest.raises(AssertionError):
        test_arrows_point_down("combinators.core.errors")
    with pytest.raises(ValueError, match="cycle"):
        test_no_circle()
    with pytest.raises(AssertionError):
        test_no_import_of_the_package_inside_a_function()
