"""The three first tasks at a tiny size, and their pictures."""

import math
import os
import subprocess
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from prose import PROSE

from combinax.combinators import (
    each,
    embed,
    identity,
    pointwise,
    position_embed,
    temperature,
    tied,
)
from combinax.train import corpus, data, plot, tasks
from combinax.train.loop import History, fit
from combinax.train.plot import Reading
from combinax.train.tasks import Task, sample, train


def differ(a, b):
    return any(not np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


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


def dispatches_agree():
    task = tiny_recall(steps=6)
    params = jax.jit(task.term.init)(jax.random.key(0), jnp.zeros(6, jnp.int32))
    run = partial(fit, task.loss, task.optimizer, params, task.batches, 6, rng=jax.random.key(1))
    chex.assert_trees_all_equal(run(steps_per_dispatch=1), run(steps_per_dispatch=4))


def test_recall_is_the_same_whatever_a_dispatch_holds():
    """To the last bit as users compile, in a process of its own: not with the flags of tests."""
    environment = {**os.environ, "XLA_FLAGS": ""}
    code = "import test_train; test_train.dispatches_agree()"
    here = Path(__file__).parent
    subprocess.run([sys.executable, "-c", code], cwd=here, env=environment, check=True)


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
