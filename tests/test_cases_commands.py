"""The command under Ctrl-C, names that would act on a terminal, and what it does by itself."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from combinax.train import __main__ as command
from combinax.train import checkpoint, interrupt, tasks
from combinax.train.commands import prompt, terminal, writing

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")


def learned(folder: Path, vocabulary: str = "abc") -> Path:
    """A run of `text` that learned nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    term = tasks.language(len(vocabulary), 16)
    words = dict(vocabulary=vocabulary, width=16, layers=2, heads=4, length=8, term=repr(term))
    checkpoint.save(folder, term.init(jax.random.key(0), jnp.arange(3)), words)
    return folder


def invoke(*words: Any, **options: Any) -> Any:
    return CliRunner().invoke(command.app, [str(word) for word in words], **options)


# Ctrl-C


IMPORTING = """
import signal, sys

class Pressed:
    def find_spec(self, name, *anything):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Pressed())
sys.argv = ["combinax", "recall"]
"""
STARTS = {
    "combinax": "from combinax.train.launch import main; main()",
    "python -m": "import runpy; runpy.run_module('combinax.train', run_name='__main__')",
}


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300
    )


@posix
@pytest.mark.parametrize(
    "start, module",
    [
        ("combinax", "jax"), ("combinax", "optax"), ("combinax", "combinax.train.tasks"),
        ("python -m", "jax"),
    ],
)  # fmt: skip
def test_ctrl_c_during_imports_is_silent(start, module, tmp_path):
    done = run(IMPORTING.format(module=module) + STARTS[start], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


WRITING = """
import signal, sys
from combinax.train import interrupt
interrupt.quietly()
from combinax.train import __main__ as command
real, written = command.typer.echo, []

def echo(text="", **options):
    real(text, **options)
    written.append(text)
    if len(written) == 3:
        signal.raise_signal(signal.SIGINT)

command.typer.echo = echo
sys.argv = ["combinax", "sample", "run", "--prompt", "a", "--count", "1000000"]
command.main()
"""


@posix
def test_ctrl_c_while_a_sample_is_written(tmp_path):
    """The interpreter does not wind down under what XLA computes, and what was written stays."""
    learned(tmp_path / "run")
    done = run(WRITING, tmp_path)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert len(done.stdout) == 4 and set(done.stdout) <= set("abc")


@posix
@pytest.mark.parametrize("ignored", [False, True])
def test_a_signal_that_is_ignored_stays_ignored(ignored, monkeypatch):
    """As under nohup."""
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)
        interrupt.quietly()
        with interrupt.stopping() as pressed:
            signal.raise_signal(signal.SIGINT)
            assert pressed() is not ignored
        wanted = signal.SIG_IGN if ignored else interrupt.leave
        assert signal.getsignal(signal.SIGINT) is wanted
    finally:
        signal.signal(signal.SIGINT, before)


@posix
def test_training_pressed_twice_ends_at_once(tmp_path):
    code = (
        "import signal\nfrom combinax.train.interrupt import stopping\n"
        "with stopping() as pressed:\n"
        "    signal.raise_signal(signal.SIGINT)\n    print(pressed(), flush=True)\n"
        "    signal.raise_signal(signal.SIGINT)\n    print('never')\n"
    )
    done = run(code, tmp_path)
    assert done.returncode == -signal.SIGINT and done.stdout == "True\n"
    assert done.stderr.strip() == interrupt.STOPPING.decode().strip()


def test_ctrl_c_ends_a_conversation(monkeypatch, capsys):
    lines = iter(["", "Hello!", KeyboardInterrupt])

    def read(prompt):
        line: Any = next(lines)
        if line is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        return line

    monkeypatch.setattr("builtins.input", read)
    before = signal.getsignal(signal.SIGINT)
    assert list(writing.typed()) == ["Hello!"]
    assert capsys.readouterr().out == "\n" and signal.getsignal(signal.SIGINT) is before


# Names


ESCAPE = "a\x1b[31m\x9b\x7fb\u202e"
SHOWN = "a\\x1b[31m\\x9b\\x7fb\\u202e"


@pytest.mark.parametrize(
    "words",
    [
        ("text", "--file", ESCAPE),
        ("sample", ESCAPE),
        ("transfer", "--data", ESCAPE),
        ("chat", "--folder", ESCAPE),
        ("recall", "--out", f"/dev/null/{ESCAPE}"),
    ],
    ids=lambda words: words[0],
)
def test_control_characters_in_names_are_shown_escaped(words):
    done = invoke(*words)
    assert done.exit_code == 2 and SHOWN in done.output
    assert all(c.isprintable() for c in done.output.replace("\n", ""))


def test_names_as_they_are_shown():
    assert terminal.escaped("é ∘ \n 日本") == "é ∘ \n 日本"
    assert terminal.escaped("\t\r\x00\udc80\\") == r"\t\r\x00\udc80" + "\\"


def test_a_picture_is_named_as_it_can_be_shown(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "console", terminal.Console(file=screen, width=200))
    terminal.show(Path(ESCAPE, "x.png"))
    assert screen.getvalue() == f"picture: {SHOWN}/x.png\n"


# What it does by itself


@pytest.mark.parametrize(
    "vocabulary, opening", [("\n ab", "\n"), (" ab", " "), ("abc", "a"), ("\x00\n", "\n")]
)
def test_a_sample_begins_with_what_its_text_has(vocabulary, opening):
    assert prompt.opening(vocabulary) == opening


def test_a_sample_of_the_last_run_needs_no_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learned(tmp_path / "runs/text")
    for words in ((), ("text",), ("runs/text",), (tmp_path / "runs/text",)):
        done = invoke("sample", *words, "--count", 1)
        assert done.exit_code == 0 and done.output[0] == "a" and len(done.output) == 3
    done = invoke("sample", "runs/other")
    assert done.exit_code == 2 and "no run was saved in 'runs/other'" in done.output
