"""What is saved is old or new, never both: writers are killed, meet each other, run out of disk."""

from __future__ import annotations

import random
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import numpy as np
import pytest
from files_oracle import CONFIG, WEIGHTS, folder
from killing import SAVES
from safetensors import SafetensorError
from safetensors.numpy import load_file

from combinax.models import disk, pretrained
from combinax.models.pretrained import configuration, load, save
from combinax.train import checkpoint

KILLS = 20
SETTLED = {"model": {"config.json", "model.safetensors", "tokenizer.json"}, "run": {"model.json"}}


def version_of_model(path: Path) -> int:
    """The number that stands in all parts of a model."""
    term, params, tokenizer = load(path)
    (found,) = {int(number) for leaf in jax.tree.leaves(params) for number in np.ravel(leaf)}
    assert f"rms_norm({2.0**-found})" in repr(term)
    assert tokenizer.get_vocab() == {str(found): 0}
    return found


def version_of_run(path: Path) -> int:
    params, words = checkpoint.load(path, version=int)
    assert {int(number) for leaf in jax.tree.leaves(params) for number in np.ravel(leaf)} == {
        words["version"]
    }
    return words["version"]


VERSIONS = {"model": version_of_model, "run": version_of_run}


@pytest.fixture(scope="module")
def process():
    """That of killing.py, one for all tests."""
    made = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("killing.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield made
    made.kill()
    made.communicate()


class Writer(NamedTuple):
    """A process that saves a kind of thing into a folder."""

    process: subprocess.Popen
    kind: str
    path: Path

    def ask(self, command: str, value: float) -> str:
        self.begin(command, value)
        return self.answer()

    def begin(self, command: str, value: float) -> None:
        print(self.kind, self.path, command, value, file=self.process.stdin, flush=True)

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def version(self) -> int:
        return VERSIONS[self.kind](self.path)

    def check_settled(self) -> None:
        """A save leaves no other files than its own."""
        left = {file.name for file in self.path.iterdir()}
        arrays = {name for name in left if re.fullmatch("parameters-[0-9a-f]{8}", name)}
        assert left - arrays == SETTLED[self.kind] and len(arrays) == (self.kind == "run")


@pytest.fixture(params=["model", "run"])
def writer(request, process, tmp_path):
    SAVES[request.param](tmp_path / "saved", 1)
    return Writer(process, request.param, tmp_path / "saved")


def test_a_killed_writer_leaves_the_old_or_the_new(writer):
    """Before every change of the disk, of which orbax makes many, then at random moments."""
    before, step, states = 1, 0, []
    while True:
        status = writer.ask("step", step)
        found = writer.version()
        states.append(found != before)
        before, step = found, step + (1 if writer.kind == "model" else 5)
        if status == "0":
            break
        assert status == "9" and step < 400
    assert states[0] is False and states[-1] is True and len(states) > 8
    assert writer.kind == "run" or sum(states) > 1  # a death after the commit
    writer.check_settled()
    draw = random.Random(0)
    for _ in range(KILLS):
        assert writer.ask("after", draw.uniform(0, 0.1)) == "-9"
        writer.version()
    assert writer.ask("times", 1) == "0 0"
    writer.check_settled()


# Where arrays vanish while orbax reads them, it raises, as it should, and drops its open futures.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_two_writers_and_a_reader(writer):
    writer.begin("times", 6)
    assert writer.process.stdout
    seen = {writer.version()}
    while not select.select([writer.process.stdout], [], [], 0)[0]:
        seen.add(writer.version())
    assert writer.answer() == "0 0"
    writer.check_settled()
    assert writer.version() and len(seen) > 1


def test_a_full_disk_names_the_file(writer):
    if writer.kind == "model":
        sizes = {"config.json": 100, "model.safetensors": 1000}
    else:
        sizes = {"parameters-[0-9a-f]{8}": 50}
    for name, size in sizes.items():
        said = writer.ask("limit", size)
        assert re.search(rf"OSError: .*File too large.*saved/{name}'$", said), said
        assert writer.answer() == "1"
        assert writer.version() == 1
        writer.check_settled()


def test_an_error_of_the_library_names_the_file(tmp_path, monkeypatch):
    def full(arrays, file, metadata):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    place = folder(tmp_path / "model")
    params = load(place).params
    monkeypatch.setattr(pretrained, "save_file", full)
    with pytest.raises(OSError, match=r"No space left .*model/model\.safetensors'$") as raised:
        save(place, CONFIG, params)
    assert raised.value.errno == 28
    assert {file.name for file in place.iterdir()} == {"config.json", "model.safetensors"}


def test_a_tokenizer_goes_with_its_model(tmp_path):
    SAVES["model"](tmp_path, 3)
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    params = load(folder(tmp_path / "other")).params
    save(tmp_path, CONFIG, params)
    assert load(tmp_path).tokenizer is None
    assert (tmp_path / "README.md").exists() and (tmp_path / "tokenizer_config.json").exists()


def test_a_committed_save_is_read_before_its_files_have_moved(tmp_path, monkeypatch):
    """As another process sees it: the folder of a writer that stopped at its commit."""
    place = folder(tmp_path / "model")
    params = jax.tree.map(lambda leaf: leaf + 1, load(place).params)
    monkeypatch.setattr(disk, "settle", lambda folder: None)
    save(place, {**CONFIG, "rms_norm_eps": 0.5}, params)
    assert configuration(place)["rms_norm_eps"] == 0.5
    chex.assert_trees_all_equal(load(place).params, params)
    old = load_file(place / "model.safetensors")
    np.testing.assert_array_equal(old["lm_head.weight"], WEIGHTS["lm_head.weight"])


def test_a_folder_that_changes_all_the_time(tmp_path):
    file = tmp_path / "a"
    file.write_text("")

    def read():
        file.write_text(file.read_text() + "x")

    with pytest.raises(ValueError, match="is saved to all the time, and cannot be read meanwhile"):
        disk.steady(tmp_path, ("a",), read)
