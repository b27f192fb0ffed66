"""The house: which module may import which, read off the code."""

from __future__ import annotations

import ast
import importlib
import inspect
import typing
from collections.abc import Iterator
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
    ("combinators.rules",),
    ("combinators.laws",),
    ("combinators.algebra",),
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


def signatures(namespace: dict[str, object], home: str) -> Iterator[object]:
    """The functions and classes that a module defines, and the methods of its classes."""
    for value in namespace.values():
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if getattr(value, "__module__", None) != home:
            continue
        if inspect.isfunction(value) or inspect.isclass(value):
            yield value
        if inspect.isclass(value):
            yield from signatures(dict(vars(value)), home)


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("combinators")])
def test_types_and_shapes_can_be_read(name):
    """No type checker reads the shapes, "T d", and the linter lets names that do not exist pass."""
    module = importlib.import_module(f"combinax.{name}")
    for signature in signatures(vars(module), module.__name__):
        typing.get_type_hints(signature)


@pytest.mark.parametrize("wrong", ['Float[Aray, "T e"]', 'Float[Array, "*T *e"]'])
def test_types_and_shapes_that_cannot_be_read_are_found(wrong, monkeypatch):
    module = importlib.import_module("combinax.combinators.aggregate")
    monkeypatch.setattr(module.largest, "__annotations__", {"return": wrong})
    with pytest.raises((NameError, ValueError)):
        test_types_and_shapes_can_be_read("combinators.aggregate")
