"""The three tasks at a tiny size, their pictures, and the command line."""

import io
import json
import math
import os
import signal
import sys
from functools import partial
from itertools import islice

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from typer.testing import CliRunner

import combinax
from combinax.combinators import (
    each,
    embed,
    identity,
    pointwise,
    position_embed,
    temperature,
    tied,
)
from combinax.train import __main__ as command
from combinax.train import checkpoint, corpus, data, plot, tasks
from combinax.train import run as runs
from combinax.train.loop import History, fit
from combinax.train.plot import Reading
from combinax.train.tasks import Task, sample, train

PROSE = "".join(
    f"the {a} {b} sat on the {c} mat.\n" for a in range(9) for b in "xyz" for c in range(20)
)


def differ(a, b):
    return any(not np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "prose.txt"
    file.write_text(PROSE)
    return file


def zeros(task: Task):
    """Parameters that know nothing."""
    declared = jax.eval_shape(task.term.init, jax.random.key(0), task.example)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), declared)


def tiny_recall(seed=0, steps=80):
    return tasks.recall(seed, steps, batch=32, pairs=2)


def tiny_digits():
    return tasks.digits(steps=40, batch=64, slots=16)


def tiny_text(prose):
    return tasks.text(steps=40, batch=8, length=16, width=16, file=str(prose))


# recall


@pytest.fixture(scope="module")
def trained():
    return train(tiny_recall())


def test_recall_learns(trained):
    params, history = trained
    assert history.loss.shape == (80,) and history.skipped == ()
    # Before anything is learned, each of 8 tokens is as likely as another.
    assert history.loss[0] == pytest.approx(math.log(8), rel=0.05)
    assert history.loss[-10:].mean() < 0.7 * history.loss[0]
    ((name, percent),) = tiny_recall().evaluate(params).items()
    assert name == "this model" and 25 < percent <= 100  # one of the two values shown: about 50


def test_recall_is_decided_by_its_seed(trained):
    chex.assert_trees_all_equal(train(tiny_recall()), trained)
    assert differ(train(tiny_recall(1), 1)[0], trained[0])


def test_recall_is_the_same_whatever_a_dispatch_holds():
    task = tiny_recall(steps=6)
    params = jax.jit(task.term.init)(jax.random.key(0), jnp.zeros(6, jnp.int32))
    run = partial(fit, task.loss, task.optimizer, params, task.batches, 6, rng=jax.random.key(1))
    chex.assert_trees_all_equal(run(steps_per_dispatch=1), run(steps_per_dispatch=4))


def test_recall_measures_what_it_was_not_trained_on(monkeypatch):
    asked = []
    real = data.recall

    def noted(seed, batch, **sizes):
        asked.append(seed)
        return real(seed, batch, **sizes)

    monkeypatch.setattr(data, "recall", noted)
    task = tasks.recall(5, 3, pairs=2)
    trained_on = [task.batches(step)[0] for step in range(3)]
    assert asked == [(5, 1), (5, 0, 0), (5, 0, 1), (5, 0, 2)]
    assert not np.array_equal(trained_on[0], trained_on[1])


def test_a_reading_is_the_attention_map_of_the_pairs():
    task = tasks.recall(pairs=3)
    tokens = task.batches(0)[0][0]
    params = zeros(task)
    got = plot.reading(task, params, tokens)
    assert got.pairs == [(tokens[0], tokens[1]), (tokens[2], tokens[3]), (tokens[4], tokens[5])]
    assert got.asked == tokens[6:].tolist()
    assert got.answers == np.argmax(task.term(params, tokens), -1)[6:].tolist()
    # Where all scores are 0, every token seen so far gets the same weight, and a pair is two.
    even = np.array([2 / 7, 2 / 8, 2 / 9])[:, None]
    np.testing.assert_allclose(got.weights, np.broadcast_to(even, (3, 3)), rtol=1e-6)


# digits


def test_digits_learn():
    task = tiny_digits()
    params, history = train(task)
    assert history.loss[-10:].mean() < 0.7 * history.loss[:3].mean()
    assert 40 < task.evaluate(params)["this model"] <= 100  # guessing gets 10


def test_digits_use_dictionaries_alone():
    words = str(tasks.digits().term).replace("\n", " ").split(" ∘ ")
    assert words == [
        "linear(10)", "rms_norm()", "aggregate()", "dropout(0.2)", "normalize(gelu)", "score(dot)",
        "slots(256)", "rms_norm()",
    ]  # fmt: skip


# text


def test_text_learns_and_is_measured_beside_n_grams(prose):
    task = tiny_text(prose)
    measured = task.evaluate(train(task)[0])
    assert list(measured) == ["3-gram", "5-gram", "this model"]
    kinds = len(set(PROSE))
    assert 0 < measured["5-gram"] < measured["3-gram"] < math.log2(kinds)
    assert 0 < measured["this model"] < 0.9 * math.log2(kinds)


def test_bits_of_a_model_that_knows_nothing(prose):
    task = tiny_text(prose)
    bits = task.evaluate(zeros(task))["this model"]
    assert bits == pytest.approx(math.log2(len(set(PROSE))), rel=1e-5)


def test_many_kinds_of_characters_leave_the_longer_n_gram_out(tmp_path):
    file = tmp_path / "kinds.txt"
    file.write_text("".join(chr(0x4E00 + i) for i in range(7000)) * 2)
    task = tasks.text(steps=1, length=8, width=8, file=str(file))
    assert list(task.evaluate(zeros(task))) == ["3-gram", "this model"]


def test_a_text_shorter_than_a_window(prose):
    source = corpus.text(prose)
    with pytest.raises(ValueError, match="does not fit into the held-out text: 2 to"):
        tasks.text(length=len(source.held_out) + 1, file=str(prose))


def next_of_five(x):
    """Logits that are sure of one thing: after i comes i + 1."""
    return 1e4 * jax.nn.one_hot((x + 1) % 5, 5)


def test_a_sample_continues_the_prompt():
    drawn = sample(pointwise(next_of_five), {}, np.array([3, 1, 2], np.int32), 4, jax.random.key(0))
    assert list(islice(drawn, 9)) == [3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_a_sample_is_drawn_in_proportion():
    def biased(x):
        return jnp.broadcast_to(jnp.log(jnp.array([0.25, 0.75])), (len(x), 2))

    def draw(choose):
        drawn = sample(pointwise(biased), {}, np.zeros(2, int), 2000, jax.random.key(0), choose)
        return np.array(list(islice(drawn, 1000)))

    # 1,000 draws: a standard deviation of 0.014.
    assert draw(identity).mean() == pytest.approx(0.75, abs=0.05)
    assert draw(temperature(0.5)).mean() == pytest.approx(0.9, abs=0.05)  # 9 : 1, the squares
    chex.assert_trees_all_equal(draw(identity), draw(identity))


def test_a_sample_sees_what_the_model_was_trained_on(prose):
    """The later half of a full window is read anew: no position lies past the window."""
    term = tied(embed(5, 4), position_embed(6))
    params = term.init(jax.random.key(0), jnp.arange(3))
    drawn = list(islice(sample(term, params, np.arange(5), 6, jax.random.key(0)), 20))
    assert len(drawn) == 20 and min(drawn) >= 0


@pytest.mark.parametrize("make", [tiny_recall, tiny_digits, tiny_text])
def test_a_task_fits_together(make, prose):
    task: Task = make(prose) if make is tiny_text else make()
    inputs, targets = task.batches(0)
    assert inputs.shape[-len(task.example.shape) :][-1] == task.example.shape[-1]
    assert inputs.dtype == task.example.dtype
    chex.assert_trees_all_equal(task.batches(7), task.batches(7))
    assert differ(task.batches(7), task.batches(8))
    params = task.term.init(jax.random.key(0), task.example)
    total, count = task.loss(params, (inputs, targets), jax.random.key(0))
    assert count == np.sum(targets != -100) and np.isfinite(total)
    term = task.term if make is tiny_digits else each(task.term)
    assert term(params, inputs).shape[:-1] == targets.shape


# pictures


def axes():
    return Figure().subplots()


def test_a_picture_is_a_png(tmp_path):
    history = History(np.linspace(3, 1, 200))
    file = plot.picture(tmp_path / "a.png", plot.curve(history, "nats"), lambda axes: None)
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("loss", [[], [1.0], [2.0, math.nan, math.inf, 1.0]])
def test_a_curve_of_any_history(loss, tmp_path):
    history = History(np.array(loss), reason="by hand")
    plot.picture(tmp_path / "a.png", plot.curve(history, "nats"))
    on = axes()
    plot.curve(history, "nats")(on)
    assert on.get_ylabel() == "training loss, nats"


def test_a_curve_has_its_unit_and_levels():
    on = axes()
    plot.curve(History(np.full(3, 2.0)), "bits", 0.5, {"3-gram": 2.5})(on)
    assert [text.get_text().strip() for text in on.texts] == ["3-gram, held out"]
    np.testing.assert_array_equal(on.lines[0].get_ydata(), [4.0, 4.0, 4.0])


def test_a_lookup_marks_what_was_answered():
    on = axes()
    weights = np.array([[0.1, 0.9], [0.2, 0.3]])
    plot.lookup(Reading(weights, [(0, 7), (1, 6)], asked=[1, 0], answers=[6, 5]))(on)
    assert [text.get_text() for text in on.get_xticklabels()] == ["a → 7", "b → 6"]
    assert [text.get_text() for text in on.get_yticklabels()] == ["b ?", "a ?"]
    assert [(text.get_position(), text.get_text()) for text in on.texts] == [
        ((1, 0), "6"),
        ((0, 1), "5"),
    ]
    boxes = [box for box in on.patches if isinstance(box, Rectangle)]
    assert [box.get_xy() for box in boxes] == [(0.5, -0.5), (-0.5, 0.5)]
    assert [box.get_edgecolor() for box in boxes] == [to_rgba("tab:green"), to_rgba("tab:red")]
    np.testing.assert_array_equal(on.images[0].get_array(), weights)


def test_a_mosaic_shows_rows_as_squares():
    on = axes()
    rows = np.concatenate([np.arange(1.0, 10).reshape(1, 9), np.zeros((1, 9))])
    plot.mosaic(rows, "two")(on)
    whole = np.asarray(on.images[0].get_array())
    assert whole.shape == (32, 32)
    np.testing.assert_allclose(whole[:3, :3], rows[0].reshape(3, 3) / 9)
    assert not whole[3:].any() and not whole[:, 3:].any()


# the command line


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
