"""From options of a command to the settings of a task, and what is wrong with them in words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import jax

from ..tasks import TASKS, Task

__all__ = ["OPTIONS", "checked", "defaults", "maker", "nearest", "settings_of"]

T = TypeVar("T")

OPTIONS = ("steps", "batch", "layers", "width", "heads", "length", "rate", "file")
"""Settings that have an option of their own; others are set by `--set name=value`."""


def maker(name: str) -> Callable[..., Task]:
    """The function that makes a task. Raises ValueError, with a name like it, for no task."""
    return nearest("task", name, TASKS)


def nearest(what: str, name: str, table: Mapping[str, T]) -> T:
    """An entry of a table. Raises ValueError, with a name like it and all there are, for none."""
    if name in table:
        return table[name]
    near = get_close_matches(name, table, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"there is no {what} {name!r}; {hint}there are {', '.join(table)}")


def defaults(name: str) -> dict[str, Any]:
    """The settings of a task and their defaults.

    >>> defaults("recall")
    {'seed': 0, 'steps': 300, 'batch': 64, 'pairs': 8}
    """
    return {p.name: p.default for p in inspect.signature(maker(name)).parameters.values()}


def option(name: str) -> str:
    return f"--{name}" if name in (*OPTIONS, "seed") else f"--set {name}="


def checked(name: str, settings: Mapping[str, Any]) -> Task:
    """The task of these settings, once its parameters and its first batch can be made.

    Raises ValueError, which names the options that are not the defaults, for what does not fit.
    """
    usual = defaults(name)
    changed = [shown(each, value) for each, value in settings.items() if value != usual[each]]
    try:
        task = maker(name)(**settings)
        jax.eval_shape(task.term.init, jax.random.key(0), task.example)
        task.batches(0)
    except ValueError as error:
        raise ValueError(f"{' '.join(changed) or name}: {error}") from error
    return task


def settings_of(task: str, options: Mapping[str, Any], pairs: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a task: its defaults, changed by options that are not None and by pairs
    "name=value". Raises ValueError, which names the option and what would fit.

    >>> settings_of("recall", dict(steps=5, batch=None), ["pairs=4"])
    {'seed': 0, 'steps': 5, 'batch': 64, 'pairs': 4}
    """
    settings = defaults(task)
    given = {name: value for name, value in options.items() if value is not None}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair}: write --set name=value, such as {example(settings)}")
        check_known(task, name, settings)
        given[name] = parsed(name, value, settings[name])
    for name, value in given.items():
        check_known(task, name, settings)
        settings[name] = value
    check_sizes(settings)
    return settings


def example(settings: Mapping[str, Any]) -> str:
    name = next((name for name in settings if name not in OPTIONS), "steps")
    return f"--set {name}={settings[name]}"


def check_known(task: str, name: str, settings: Mapping[str, Any]) -> None:
    if name not in settings:
        there = ", ".join(f"{option(name).rstrip('=')}" for name in settings)
        raise ValueError(
            f"{option(name).rstrip('=')}: the task {task} has no {name}; it has {there}"
        )


def parsed(name: str, value: str, default: Any) -> Any:
    kind = type(default)
    try:
        return kind(value)
    except ValueError:
        what = {int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"--set {name}={value}: {name} is {what}, such as {default}") from None


def check_sizes(settings: Mapping[str, Any]) -> None:
    """Whole numbers are at least 1, and the width is shared evenly by the heads."""
    for name, value in settings.items():
        if name != "seed" and isinstance(value, int) and value < 1:
            raise ValueError(f"{shown(name, value)}: {name} is at least 1")
        if isinstance(value, float) and not 0 <= value < float("inf"):
            raise ValueError(f"{shown(name, value)}: {name} is a number from 0 on")
    width, heads = settings.get("width", 0), settings.get("heads", 1)
    if width % (2 * heads):
        fits = max(1, round(width / (2 * heads))) * 2 * heads
        raise ValueError(
            f"--width {width}: {heads} heads share it in equal, even parts; --width {fits} fits"
        )


def shown(name: str, value: Any) -> str:
    return f"{option(name)}{'' if option(name).endswith('=') else ' '}{value}"
