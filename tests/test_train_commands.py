"""The commands of the three first tasks, what is refused, and damaged runs."""

import io
import json
import os
import signal
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import combinax
from combinax.train import __main__ as command
from combinax.train import checkpoint, data, tasks
from combinax.train import run as runs


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        result = CliRunner().invoke(command.app, [str(word) for word in words])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result.exit_code, " ".join(result.output.split())

    return invoke


def test_help_and_version(run):
    code, shown = run("--help")
    assert code == 0 and all(name in shown for name in ("recall", "digits", "text"))
    assert run("--version") == (0, f"combinax {combinax.__version__}")


def test_the_recall_command(run, tmp_path):
    code, shown = run("recall", "--steps", 2, "--seed", 1)
    assert code == 0
    assert str(tasks.recall().term).split("\n")[0] in shown  # the equation
    assert "9,312" in shown  # the table: all parameters
    assert "step 2 of 2" in shown and "this model" in shown
    assert "picture: runs/recall/recall.png" in shown
    assert (tmp_path / "runs/recall/recall.png").is_file()


def test_the_digits_command(run, tmp_path):
    code, shown = run("digits", "--steps", 2, "--out", "elsewhere")
    assert code == 0 and "% of 1,000 held-out digits" in shown
    assert (tmp_path / "elsewhere/digits.png").is_file()


def test_the_text_command(run, tmp_path, prose):
    small = ("--batch", 4, "--length", 16, "--width", 16, "--steps", 2, "--file", prose)
    code, shown = run("train", "text", *small)
    assert code == 0
    assert all(name in shown for name in ("3-gram", "5-gram", "this model", "a sample"))
    assert (tmp_path / "runs/text/text.png").is_file()
    code, shown = run("sample", "runs/text", "--prompt", "the mat", "--count", 20)
    assert code == 0 and shown.startswith("the mat") and "characters a second" in shown
    code, shown = run("sample", "runs/text", "--prompt", "Q")
    assert code == 2 and "characters that are not in the vocabulary: ['Q']" in shown
    code, shown = run("sample", "elsewhere")
    assert code == 2 and "no run was saved in 'runs/elsewhere': model.json is missing" in shown
    model = tmp_path / "runs/text/checkpoints/2/model"
    words = model / "model.json"
    words.write_text(words.read_text().replace("rotary()", "rotary(9.0)"))
    code, shown = run("sample", "runs/text")
    assert code == 2 and "'runs/text' was learned by another model" in shown
    (arrays,) = model.glob("parameters-*")
    (arrays / "manifest.ocdbt").unlink()
    words.write_text(words.read_text().replace("rotary(9.0)", "rotary()"))
    code, shown = run("sample", "runs/text")
    assert code == 2 and "manifest.ocdbt' is missing: the run is damaged" in shown


@pytest.fixture
def learned(tmp_path):
    """A run of `text` that learned nothing: its folder holds what `sample` reads."""
    term = tasks.language(3, 16)
    words = dict(vocabulary="abc", width=16, layers=2, heads=4, length=8, term=repr(term))
    checkpoint.save(tmp_path, term.init(jax.random.key(0), jnp.arange(3)), words)
    return tmp_path


def test_a_damaged_run_is_named(run, learned):
    file = learned / "model.json"
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    for held in (b"", b"text", whole[:middle], flipped):
        file.write_bytes(held)
        code, shown = run("sample", learned)
        assert code == 2 and "model.json' is no" in shown and "or a damaged one" in shown


def test_a_run_of_other_widths_is_refused_by_path(run, learned):
    term = tasks.language(3, 32)
    words = dict(
        vocabulary="abc", width=16, layers=2, heads=4, length=8, term=repr(tasks.language(3, 16))
    )
    checkpoint.save(learned, term.init(jax.random.key(0), jnp.arange(3)), words)
    code, shown = run("sample", learned)
    assert code == 2 and "['rms_norm']['scale'] is float32 (32,), and should be" in shown


@pytest.mark.parametrize(
    "held, reason",
    [
        ([], "needs an object of fields, and holds a list"),
        ({}, "needs a field 'width' of type int, and has None"),
        (
            dict(vocabulary="abc", width="x", layers=2, heads=4, length=8, term=""),
            "needs a field 'width' of type int, and has 'x'",
        ),
    ],
)
def test_fields_of_a_run_are_named(held, reason, run, learned):
    (learned / "model.json").write_text(json.dumps(held))
    code, shown = run("sample", learned)
    assert code == 2 and f"model.json' {reason}" in shown


def test_a_run_that_cannot_be_saved_leaves_the_one_before(learned):
    before = checkpoint.load(learned)
    with pytest.raises(TypeError):
        checkpoint.save(learned, {"a": np.ones(2)}, {"width": {1, 2}})
    chex.assert_trees_all_equal(checkpoint.load(learned)[0], before[0])
    names = sorted(file.name for file in learned.iterdir())
    assert names[0] == "model.json" and len(names) == 2


def test_samples_of_the_least(run, learned):
    code, shown = run("sample", learned, "--prompt", "a", "--count", 1)
    assert code == 0 and len(shown) == 2 and "second" not in shown
    text = "combinax: a prompt has a character at least, such as a line break"
    assert run("sample", learned, "--prompt", "") == (2, text)


def test_input_that_cannot_be_used(run, tmp_path, monkeypatch):
    def never(*anything):
        raise AssertionError("trained all the same")

    monkeypatch.setattr(runs, "advance", never)
    assert run("text", "--file", "gone.txt") == (
        2, "combinax: there is no text file 'gone.txt'",
    )  # fmt: skip
    (tmp_path / "short.txt").write_text("too short")
    code, shown = run("text", "--file", "short.txt")
    assert code == 2 and "'short.txt' has 9 characters" in shown and "give a longer text" in shown
    (tmp_path / "bytes.txt").write_bytes(b"\xff" * 20_000)
    code, shown = run("text", "--file", "bytes.txt")
    assert code == 2 and "'bytes.txt' is not UTF-8 text" in shown
    code, shown = run("recall", "--out", "short.txt")
    assert code == 2 and "short.txt" in shown
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, shown = run("recall")
    assert code == 2 and "nothing can be written to the folder 'runs/recall'" in shown
    for words in (["recall", "--steps", 0], ["recall", "--seed", -1], ["remember"]):
        assert run(*words)[0] == 2


def test_a_terminal_that_lacks_characters(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(command, "app", lambda prog_name: print("f ∘ g"))
    command.main()
    terminal.seek(0)
    assert terminal.read() == "f ? g\n"


def test_ctrl_c_keeps_what_was_trained(run, tmp_path, monkeypatch):
    real, drawn = data.recall, []

    def interrupted(seed, batch, **sizes):
        drawn.append(seed)
        if seed == (0, 0, 45):
            signal.raise_signal(signal.SIGINT)
        return real(seed, batch, **sizes)

    monkeypatch.setattr(data, "recall", interrupted)
    code, shown = run("recall", "--steps", 60)
    assert code == 0
    assert "stopped by hand after 42 of 60 steps" in shown and "is kept" in shown
    assert (tmp_path / "runs/recall/recall.png").is_file()
