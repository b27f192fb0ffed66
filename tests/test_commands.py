"""The commands from train to show, for people and for machines; each refusal names its option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from combinax.train import __main__ as command
from combinax.train import run as runs
from combinax.train.commands import looking, terminal, training
from combinax.train.commands.settings import settings_of
from combinax.train.tasks import TASKS

SMALL = ("recall", "--steps", 4, "--batch", 4, "--set", "pairs=2", "--every", 2)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*words: Any) -> tuple[int, str]:
        result = CliRunner().invoke(command.app, [str(word) for word in words])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result.exit_code, result.output

    return invoke


def said(run: Any, *words: Any) -> dict[str, Any]:
    """What a command says to a machine: one line on its output, the rest goes elsewhere."""
    code, shown = run(*words, "--json")
    assert code == 0, shown
    return json.loads(shown.splitlines()[-1])


def test_a_run_from_its_beginning_to_its_end(run, tmp_path):
    told = said(run, "train", *SMALL)
    assert told["run"] == "runs/recall" and (told["steps"], told["of"]) == (4, 4)
    assert [step for step, _ in told["held_out"]] == [2, 4] and told["reached"] is False
    assert (tmp_path / told["picture"]).read_bytes()[:4] == b"\x89PNG"
    held = {file.name for file in (tmp_path / "runs/recall").iterdir()}
    assert held == {"run.json", "metrics.jsonl", "checkpoints", "lock", "recall.png"}

    best = max(score for _, score in told["held_out"])
    measured = said(run, "eval", "recall")
    assert measured["scores"]["this model"] == best and measured["version"] in (2, 4)
    assert f"{best:.3f} % of held-out answers right" in run("eval", "runs/recall")[1]

    again = said(run, "resume", "recall")  # nothing is left to do
    assert {**again, "picture": ""} == {**told, "picture": ""}

    (row,) = said(run, "runs")["runs"]
    assert (row["run"], row["task"], row["steps"], row["score"]) == (
        "runs/recall",
        "recall",
        4,
        best,
    )
    assert "4 of 4" in run("runs")[1]

    equation = repr(TASKS["recall"](pairs=2).term)
    assert said(run, "show", "recall")["equation"] == equation
    code, shown = run("show", "runs/recall")
    assert code == 0 and "pairs=2" in shown and "rms_norm" in shown and "all" in shown

    code, shown = run("sample", "recall")
    assert code == 2 and "needs a field 'width'" in shown
    assert training.free("recall") == Path("runs/recall-2")
    code, shown = run("train", *SMALL, "--out", "runs/recall")
    assert code == 2 and "'runs/recall' holds a run already: `combinax resume runs/recall`" in shown

    file = tmp_path / "runs/recall/run.json"
    file.write_text(file.read_text().replace('"pairs": 2', '"pairs": 3'))
    for name in ("resume", "eval"):
        code, shown = run(name, "recall")
        assert (code == 2 and "has another equation" in shown) or "has another tree" in shown


def test_a_run_that_is_stopped_is_resumed(run, monkeypatch):
    real: Any = runs.proceed
    with monkeypatch.context() as patch:
        patch.setattr(runs, "proceed", lambda *a, **o: real(*a[:4], 2, **o))
        first = said(run, "train", *SMALL)
    assert first["steps"] == 2
    told = said(run, "resume", first["run"])
    assert told["steps"] == 4 and [step for step, _ in told["held_out"]] == [2, 4]


def test_early_stop_is_an_option(run):
    small = ("recall", "--steps", 40, "--batch", 4, "--set", "pairs=2", "--every", 1, "--rate")
    code, shown = run("train", *small, 0.1)
    assert code == 2 and "--rate: the task recall has no rate" in shown
    told = said(run, "train", *small[:-1], "--patience", 2)
    assert told["reason"] == "since held-out data got no better" and told["steps"] < 40


def test_tasks_are_listed(run):
    rows = said(run, "tasks")["tasks"]
    assert [row["task"] for row in rows] == [*TASKS]
    assert rows[0]["settings"] == dict(seed=0, steps=300, batch=64, pairs=8)
    code, shown = run("tasks")
    assert code == 0 and all(name in shown for name in TASKS)


def test_what_the_defaults_reach_is_measured():
    for name, row in looking.MEASURED.items():
        assert name in TASKS and row.keys() == {"reached", "unit", "seconds"}


def test_no_runs(run):
    code, shown = run("runs")
    assert code == 0 and "no run in runs; `combinax train recall` begins one" in shown


# Refusals

REFUSED = {
    "no task": (
        ("recal",),
        "there is no task 'recal'; did you mean recall? there are recall, copy",
    ),
    "far from any": (("xyz",), "there is no task 'xyz'; there are recall"),
    "no such option": (
        ("recall", "--layers", 2),
        "--layers: the task recall has no layers; it has ",
    ),
    "which there are": (("recall", "--heads", 2), "it has --seed, --steps, --batch, --set pairs"),
    "no such setting": (
        ("sort", "--set", "kind=3"),
        "--set kind: the task sort has no kind; it has",
    ),
    "half a setting": (("sort", "--set", "kinds"), "--set kinds: write --set name=value, such as"),
    "no number": (("sort", "--set", "kinds=x"), "kinds is a whole number, such as 16"),
    "no whole number": (("sort", "--set", "kinds=2.5"), "--set kinds=2.5: kinds is a whole number"),
    "no fraction": (("sort", "--set", "rate=x"), "--set rate=x: rate is a number, such as 0.01"),
    "below one": (("sort", "--batch", 0), "--batch 0: batch is at least 1"),
    "a setting below one": (("sort", "--set", "kinds=0"), "--set kinds=0: kinds is at least 1"),
    "a negative rate": (("sort", "--rate", -1), "--rate -1.0: rate is a number from 0 on"),
    "no rate": (("sort", "--rate", "nan"), "--rate nan: rate is a number from 0 on"),
    "a width for no heads": (
        ("sort", "--width", 66),
        "--width 66: 4 heads share it in equal, even ",
    ),
    "which width": (("sort", "--width", 66), "--width 64 fits"),
    "a small width": (("sort", "--width", 2), "--width 8 fits"),
    "no file": (("text", "--file", "gone.txt"), "there is no text file 'gone.txt'"),
    "no table": (("table",), "the task table reads a CSV file of yours: name it with --file"),
    "a short text": (("text", "--file", "short.txt"), "'short.txt' has 9 characters"),
    "a long window": (
        ("text", "--length", 99999),
        "--length 99999: a window of 99999 tokens does not fit into the",
    ),
    "a batch larger than the data": (
        ("digits", "--batch", 5000),
        "--batch 5000: cannot draw 5000 common rows from arrays of le",
    ),
    "clauses": (("translation", "--length", 10), "--length 10: clauses have 3 words, and 5 divide"),
    "a folder that is a file": (("recall", "--out", "short.txt"), "'short.txt': file exists"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name, run, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "advance", None)  # nothing is trained
    (tmp_path / "short.txt").write_text("too short")
    words, text = REFUSED[name]
    code, shown = run("train", *words)
    assert code == 2 and text in shown and "Traceback" not in shown and "Errno" not in shown


@pytest.mark.parametrize("name", ["resume", "eval", "show"])
def test_a_run_that_is_not_there(name, run, tmp_path):
    code, shown = run(name, "gone")
    assert code == 2 and "there is no run in 'runs/gone': run.json is missing" in shown
    (tmp_path / "runs/gone").mkdir(parents=True)
    (tmp_path / "runs/gone/run.json").write_text("[]")
    code, shown = run(name, "gone")
    assert code == 2 and "run.json' needs an object of fields" in shown


def test_settings_change_the_defaults():
    given = settings_of("sort", dict(rate=0.5, batch=3, width=None), ["kinds=4", "length=7"])
    changed = dict(rate=0.5, batch=3, kinds=4, length=7)
    assert given == settings_of("sort", {}) | changed


def test_errors_of_the_system_are_in_words(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        (tmp_path / "a").read_text()
    assert terminal.reason(caught.value) == f"{str(tmp_path / 'a')!r}: no such file or directory"
    assert terminal.reason(ValueError("as it is")) == "as it is"
