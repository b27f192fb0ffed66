"""Source text: the fields of a term as arguments, functions by name, and the line of a word."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from types import CodeType
from typing import Any, NamedTuple, TypeVar

from .printing import Write

__all__ = ["arguments", "documented", "file_line", "reference", "written"]

PACKAGE = __name__.split(".")[0] + "."

Value = TypeVar("Value")


def reference(value: object, write: Write = repr) -> str:
    """A field as Python that evaluates to it; a function without a name by its file and line."""
    if hasattr(value, "wire") or not callable(value):
        return write(value) if hasattr(value, "wire") else repr(value)
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    home = public_home(value, name)
    if home is not None:
        return name if home == "__main__" or home.startswith(PACKAGE) else f"{home}.{name}"
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        line = file_line(located(code.co_filename), code.co_firstlineno)
        return f"<{code.co_name.strip('<>')} {line}>"
    return repr(value)


def public_home(value: object, name: str) -> str | None:
    """The module to import a function from: the shortest public one, else its own; None for a
    function that its own module does not hold under its name."""
    home = getattr(value, "__module__", None) or ""
    if not name.isidentifier() or getattr(sys.modules.get(home), name, None) is not value:
        return None
    if home.startswith(PACKAGE):
        return home
    top = home.split(".")[0]
    homes = [
        module
        for module in list(sys.modules)
        if module.split(".")[0] == top
        and "._" not in module
        and getattr(sys.modules[module], "__dict__", {}).get(name) is value
    ]
    return min(homes, key=lambda module: (module.count("."), module), default=home)


class Import(NamedTuple):
    """An importable function in a pickle: its module and name, as a jitted one does not pickle."""

    home: str
    name: str


def portable(value: object) -> object:
    """A field of a term as it is pickled: an importable function becomes an Import."""
    if hasattr(value, "wire") or not callable(value):
        return value
    name = getattr(value, "__qualname__", "")
    home = public_home(value, name)
    return Import(home, name) if home else value


def imported(value: object) -> object:
    """A field of a term from its pickled form: the inverse of `portable`."""
    if not isinstance(value, Import):
        return value
    return getattr(importlib.import_module(value.home), value.name)


def arguments(term: Any, write: Write = repr) -> str:
    """A term's fields as the arguments of its word, without those equal to their default."""
    shown, positional = [], True
    for field in dataclasses.fields(term):
        value = getattr(term, field.name)
        if field.default is not dataclasses.MISSING and field.default == value:
            positional = False
            continue
        positional = positional and not field.kw_only and not isinstance(value, bool)
        text = reference(value, write)
        shown.append(text if positional else f"{field.name}={text}")
    return ", ".join(shown)


def written() -> tuple[str, int] | None:
    """The file and line that called a word: those of the first frame outside this package.

    None for terms that this package makes as it is imported, such as softmax.
    """
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith((PACKAGE, "dataclasses")):
        frame = frame.f_back
    filename = frame.f_code.co_filename
    if "importlib" in filename:
        return None
    return located(filename), frame.f_lineno


def located(filename: str) -> str:
    """A file by the name that its author knows; a notebook cell by its number."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    label = shell and shell.compile.format_code_name(filename)  # ("Cell", "In[4]"), of any cell run
    if not label:
        return filename
    return f"{'notebook' if hasattr(shell, 'kernel') else 'IPython'} cell {label[1].strip('In[]')}"


def file_line(filename: str, line: int) -> str:
    """A line of the user's code as errors show it: "model.py, line 3"."""
    return f"{filename.rsplit('/', 1)[-1]}, line {line}"


def documented(text: str, value: Value) -> Value:
    """The value with its own docstring, which `help` shows in place of the class's."""
    object.__setattr__(value, "__doc__", text)
    return value
