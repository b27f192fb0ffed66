"""Runs: killed, stopped, damaged, out of disk, met by another process; nothing is lost."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import EVERY, STEPS, begin, tiny

from combinax.combinators import rms_norm
from combinax.train import checkpoint, loop, run, versions

KILLS = 20


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run that nothing happened to: its folder, its parameters and its history."""
    folder = begin(tmp_path_factory.mktemp("unbroken"), tiny())
    return folder, *run.advance(folder, tiny(), every=EVERY)


def state_of(folder: Path) -> dict[str, Any]:
    """The last version of a run, and the best one, to the last bit."""
    last = folder / versions.FOLDER / str(versions.steps_of(folder)[-1])
    like = jax.eval_shape(
        lambda key: loop.start(tiny().optimizer, tiny().term.init(key, jnp.ones((1, 4))), key),
        jax.random.key(0),
    )
    rest, _ = checkpoint.load(last / versions.TRAINING, like._replace(params=None))
    models = [checkpoint.load(place) for place in (last / versions.MODEL, versions.best(folder))]
    return dict(rest=rest._replace(rng=jax.random.key_data(rest.rng)), models=models)


def test_a_killed_run_ends_as_one_that_was_not(unbroken, tmp_path):
    """SIGKILL at random moments, in steps and in saves; each time the run is taken up again."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("running.py"), tmp_path / "compiled"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def ask(reports: int, seconds: float) -> int:
        print(folder, reports, seconds, file=process.stdin, flush=True)
        assert process.stdout
        return int(process.stdout.readline())

    draw, kills, folder = random.Random(0), 0, begin(tmp_path / "0", tiny())
    resumed = set()
    try:
        while kills < KILLS:
            status = ask(draw.randint(1, 4), draw.uniform(0, 0.1))
            assert status in (-signal.SIGKILL, 0)
            kills += status == -signal.SIGKILL
            resumed |= set(versions.steps_of(folder))
            if status == 0:
                check_same(folder, unbroken)
                folder = begin(tmp_path / str(kills), tiny())
        assert ask(0, 0) == 0
    finally:
        process.kill()
        process.communicate()
    check_same(folder, unbroken)
    assert len(resumed) > 5  # killed in between, not before all or after all


def check_same(folder: Path, unbroken: Any) -> None:
    assert (folder / run.METRICS).read_bytes() == (unbroken[0] / run.METRICS).read_bytes()
    assert versions.steps_of(folder) == versions.steps_of(unbroken[0])
    chex.assert_trees_all_equal(state_of(folder)["rest"], state_of(unbroken[0])["rest"])
    for mine, theirs in zip(
        state_of(folder)["models"], state_of(unbroken[0])["models"], strict=True
    ):
        chex.assert_trees_all_equal(mine[0], theirs[0])
        assert mine[1] == theirs[1]


def test_what_a_run_holds(unbroken):
    folder, params, history = unbroken
    fields = json.loads((folder / "run.json").read_text())
    assert fields["equation"] == "compose(linear(3), dropout(0.5))" and fields["settings"] == {
        "seed": 0
    }
    assert fields["versions"]["jax"] == jax.__version__ and {"python", "optax"} < set(
        fields["versions"]
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(STEPS))
    scored = [line["step"] for line in lines if "held_out" in line]
    assert scored == list(range(EVERY, STEPS + 1, EVERY))
    kept = set(versions.steps_of(folder))
    best = max(history.held_out, key=lambda pair: pair[1])[0]
    assert kept == {STEPS - EVERY, STEPS, best}
    assert versions.best(folder) == folder / "checkpoints" / str(best) / "model"
    chex.assert_trees_all_equal(run.history(folder).loss, history.loss)
    assert run.history(folder).held_out == history.held_out
    # The loop by itself comes to the same end.
    keys = jax.random.split(jax.random.key(0))
    alone, _ = loop.fit(
        tiny().loss, tiny().optimizer, tiny().term.init(keys[0], jnp.ones((1, 4))), tiny().batches,
        STEPS, rng=keys[1],
    )  # fmt: skip
    chex.assert_trees_all_equal(alone, params)


def copied(unbroken: Any, place: Path) -> Path:
    shutil.copytree(unbroken[0], place / "run")
    return place / "run"


def test_a_finished_run_is_left_as_it_is(unbroken, tmp_path):
    folder = copied(unbroken, tmp_path)
    params, history = run.advance(folder, tiny(), every=EVERY)
    chex.assert_trees_all_equal(params, unbroken[1])
    chex.assert_trees_all_equal(history.loss, unbroken[2].loss)
    check_same(folder, unbroken)


def test_a_damaged_version_is_told_of_and_the_one_before_is_used(unbroken, tmp_path):
    folder, told = copied(unbroken, tmp_path), []
    for part in ("model", "training"):
        files = sorted((folder / "checkpoints" / str(STEPS) / part).rglob("d/*"))
        whole = files[0].read_bytes()
        files[0].write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        run.advance(folder, tiny(), every=EVERY, told=told.append)
        assert f"version {STEPS} is left out: {str(files[0])!r} is no longer what was" in told[-1]
        check_same(folder, unbroken)  # the last steps were taken again
    assert len(told) == 2
    for step in versions.steps_of(folder):
        (folder / "checkpoints" / str(step) / "model" / "model.json").write_text("{")
    with pytest.raises(ValueError, match=r"no version in '.*checkpoints' is whole"):
        run.advance(folder, tiny(), told=told.append)


def test_half_a_line_of_metrics_is_left_out(unbroken, tmp_path):
    folder = copied(unbroken, tmp_path)
    file = folder / "metrics.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"step": 2')
    assert run.history(folder).held_out == unbroken[2].held_out
    file.write_text("[]\n" + whole)
    with pytest.raises(ValueError, match=r"metrics\.jsonl' is no metrics file, or a damaged one"):
        run.history(folder)


# What ends a run early


def test_ctrl_c_saves_and_the_run_goes_on_later(unbroken, tmp_path):
    folder, pressed = begin(tmp_path / "run", tiny()), []

    def press(first: int, record: Any) -> None:
        if first >= 25 and not pressed:
            pressed.append(first)
            signal.raise_signal(signal.SIGINT)

    _, history = run.advance(folder, tiny(), press, every=EVERY, steps_per_dispatch=3)
    assert history.reason == loop.BY_HAND and len(history.loss) == versions.steps_of(folder)[-1]
    assert len(history.loss) % EVERY  # between two evaluations
    run.advance(folder, tiny(), every=EVERY)
    check_same(folder, unbroken)


def test_ctrl_c_between_a_dispatch_and_its_report_leaves_no_gap(unbroken, tmp_path):
    folder, task = begin(tmp_path / "run", tiny()), tiny()

    def press(step: int) -> Any:
        if step == 15:
            raise KeyboardInterrupt
        return tiny().batches(step)

    object.__setattr__(task, "batches", press)
    _, history = run.advance(folder, task, every=EVERY, steps_per_dispatch=3)
    assert history.reason == loop.BY_HAND and len(history.loss) == 13 == len(
        run.history(folder).loss
    )
    run.advance(folder, tiny(), every=EVERY)
    check_same(folder, unbroken)


def test_ctrl_c_in_a_save_tears_nothing(unbroken, tmp_path, monkeypatch):
    folder, real, pressed = begin(tmp_path / "run", tiny()), checkpoint.save, []

    def press(*arguments: Any) -> Path:
        pressed.append(arguments)
        if len(pressed) == 4:  # the second half of the second version
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "save", press)
    _, history = run.advance(folder, tiny(), every=EVERY)
    assert history.reason == loop.BY_HAND
    assert versions.steps_of(folder) == [EVERY, 2 * EVERY] and len(history.loss) == 2 * EVERY
    run.advance(folder, tiny(), every=EVERY)
    check_same(folder, unbroken)


def test_early_stop_is_the_end_also_of_a_resumed_run(tmp_path):
    folder = begin(tmp_path / "run", tiny())
    for _ in range(2):
        _, history = run.advance(folder, tiny(), every=EVERY, stop=lambda scores: len(scores) == 3)
        assert history.reason == loop.SETTLED and len(history.loss) == 3 * EVERY
    assert [step for step, _ in run.history(folder).held_out] == [10, 20, 30]


def test_skipped_steps_end_the_run_and_keep_the_batch(tmp_path):
    folder, told = begin(tmp_path / "run", tiny(poison=33)), []
    for _ in range(2):
        _, history = run.advance(folder, tiny(poison=33), every=EVERY, skips=4, told=told.append)
        assert history.reason == "since 4 steps in a row were skipped, the last of them step 36"
        assert history.skipped == (33, 34, 35, 36) == run.history(folder).skipped
    (said,) = told
    file = folder / "skipped-36.npz"
    assert said == f"the batch of step 36 is kept: numpy.load({str(file)!r}) holds it, as [0], [1]"
    with np.load(file) as held:
        chex.assert_trees_all_equal([held["[0]"], held["[1]"]], list(tiny(poison=33).batches(36)))


# What is refused


def test_two_processes_in_one_folder(tmp_path):
    folder = begin(tmp_path / "run", tiny())
    with (
        run.owned(folder),
        pytest.raises(BlockingIOError, match=r"another process trains in .*/run'; wait for it, or"),
    ):
        run.advance(folder, tiny())
    run.advance(folder, tiny(2))  # free again


def test_a_folder_that_holds_a_run_already(unbroken):
    with pytest.raises(ValueError, match=r"holds a run already: `combinax resume .*` goes on with"):
        begin(unbroken[0], tiny())


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no run in .*: run\.json is missing; `combinax ru"
    ):
        run.advance(tmp_path, tiny())
    with pytest.raises(FileNotFoundError, match="has no version yet"):
        (tmp_path / "checkpoints").mkdir()
        versions.best(tmp_path)


def test_another_equation_or_another_shape(unbroken, tmp_path):
    folder = copied(unbroken, tmp_path)
    other = tiny()
    object.__setattr__(other, "term", other.term @ rms_norm())
    with pytest.raises(ValueError, match="has another equation than this version of the task: com"):
        run.advance(folder, other)
    wider = tiny()
    object.__setattr__(wider, "example", jax.ShapeDtypeStruct((1, 5), jnp.float32))
    text = r"kernel'\] is float32 \(4, 3\), and should be float32 \(5, 3\)"
    with pytest.raises(checkpoint.Mismatch, match=text):
        run.advance(folder, wider)


def test_a_full_disk_names_the_version(unbroken, tmp_path):
    """And the one before stays whole: the limit counts for a child alone."""
    folder = begin(tmp_path / "run", tiny())
    code = (
        "import resource, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from running import tiny\nfrom combinax.train import run\nfrom pathlib import Path\n"
        "def full(first, record):\n"
        "    if first >= 20: resource.setrlimit(resource.RLIMIT_FSIZE, (50, -1))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"run.advance(Path({str(folder)!r}), tiny(), full, every=10, steps_per_dispatch=10)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search("OSError: .*File too large", done.stderr.splitlines()[-1]), done.stderr
    assert str(folder) in done.stderr.splitlines()[-1]
    assert 20 <= versions.steps_of(folder)[-1] < STEPS
    run.advance(folder, tiny(), every=EVERY)
    check_same(folder, unbroken)
