"""Tasks: each fits together, and its data is what it says, against rules written another way."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from combinax.train import corpus, sequences, tables
from combinax.train.loss import IGNORE, check_targets
from combinax.train.tasks import TASKS, Task, train
from combinax.train.tasks.pictures import patches

TABLE = "size,color,kind\n" + "1,red,cat\n3,blue,dog\n2,red,cat\n" * 20


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    place = tmp_path_factory.mktemp("table") / "a.csv"
    place.write_text(TABLE)
    return place


def made(name: str, file: Any, **settings: Any) -> Task:
    return TASKS[name](**settings, **(dict(file=str(file)) if name == "table" else {}))


# What is common to all


@pytest.mark.parametrize("name", TASKS)
def test_a_task_fits_together(name, file):
    """Shapes and kinds alone: nothing is compiled."""
    task = made(name, file)
    key = jax.random.key(0)
    params = jax.eval_shape(task.term.init, key, task.example)
    inputs, targets = batch = task.batches(0)
    one = jax.eval_shape(task.term, params, task.example)
    of_rows = [leaf.shape[-len(like.shape) :] for leaf, like in zip(
        jax.tree.leaves(inputs), jax.tree.leaves(task.example), strict=True)]  # fmt: skip
    assert of_rows == [
        like.shape if name not in ("digits", "table") else (targets.shape[0], like.shape[-1])
        for like in jax.tree.leaves(task.example)
    ]
    check_targets(targets, one.shape[-1])
    total, count = jax.eval_shape(task.loss, params, batch, key)
    assert total.shape == count.shape == () and (targets != IGNORE).any()
    chex.assert_trees_all_equal(batch, task.batches(0))
    assert not np.array_equal(jax.tree.leaves(inputs)[0], jax.tree.leaves(task.batches(1)[0])[0])
    assert task.best in (min, max) and task.steps >= 200 and task.unit


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_is_a_number_or_a_text(name):
    """So that a command can set it, and a run write it down."""
    for parameter in inspect.signature(TASKS[name]).parameters.values():
        assert type(parameter.default) in (int, float, str), parameter


def test_held_out_data_is_not_trained_on():
    task = TASKS["addition"](modulus=7, batch=24)
    seen = {tuple(row) for step in range(20) for row in task.batches(step)[0].tolist()}
    assert len(seen) == 24  # of 49 pairs, half
    assert task.score(zeros(task)) < 60


def zeros(task: Task) -> Any:
    declared = jax.eval_shape(task.term.init, jax.random.key(0), task.example)
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), declared)


# Sequences


@pytest.mark.parametrize(
    "answer, rule",
    [(np.asarray, list), (np.fliplr, lambda row: row[::-1]), (np.sort, sorted)],
)
def test_what_is_written_is_the_answer(answer, rule):
    inputs, targets = sequences.rewritten(3, 20, answer, length=5, kinds=7)
    for shown, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert shown[5] == 7 and wanted[:5] == [IGNORE] * 5
        assert wanted[5:] == rule(shown[:5]) and shown[6:] == wanted[5:-1]


def test_what_is_repeated_can_be_looked_up():
    """A target is what followed the last time that the token at hand was seen."""
    inputs, targets = sequences.repeated(0, 50, length=16, kinds=20)
    periods = set()
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        for t, target in enumerate(wanted):
            earlier = [i for i in range(t) if row[i] == row[t]]
            assert (target == IGNORE) is not bool(earlier)
            assert not earlier or target == row[earlier[-1] + 1]
        periods.add(wanted.count(IGNORE))
    assert periods == set(range(4, 9))


def test_sums_are_sums():
    inputs, targets = sequences.sums(5)
    pairs = {
        (a, b): c for (a, b, _), (_, _, c) in zip(inputs.tolist(), targets.tolist(), strict=True)
    }
    assert pairs == {(a, b): (a + b) % 5 for a in range(5) for b in range(5)}


def test_parities_are_parities():
    inputs, targets = sequences.parities(1, 10, 6)
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        for t in range(6):
            assert wanted[2 * t] == row[2 * t + 1] == 2 + row[: 2 * t + 1 : 2].count(1) % 2
            assert wanted[2 * t + 1] == IGNORE


def test_brackets_are_nested():
    inputs, targets = sequences.brackets(2, 50, length=20, kinds=3, depth=4)
    deepest = 0
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        stack: list[int] = []
        for token, target in zip(row, wanted, strict=True):
            if token < 3:
                stack.append(token)
            else:
                assert stack.pop() == token - 3
            assert target == (stack[-1] if stack else 3)
            deepest = max(deepest, len(stack))
    assert deepest == 4


def test_translations_go_word_by_word():
    (source, shown), following = sequences.translated(0, 20, length=6, kinds=7)
    words = {}
    for said, before, after in zip(
        source.tolist(), shown.tolist(), following.tolist(), strict=True
    ):
        assert before == [7, *after[:-1]]
        for i in (0, 3):
            subject, verb, object_ = said[i : i + 3]
            for word, other in zip((subject, object_, verb), after[i : i + 3], strict=True):
                assert words.setdefault(word, other) == other
    assert len(set(words.values())) == 7


SIZES: dict[str, Any] = {
    "rewritten": partial(sequences.rewritten, 0, 0, np.sort, 2, 2),
    "repeated": partial(sequences.repeated, 0, 1, 3, 9),
    "sums": partial(sequences.sums, 0),
    "parities": partial(sequences.parities, 0, 1, 0),
    "brackets": partial(sequences.brackets, 0, 1, 1, 0, 1),
    "translated": partial(sequences.translated, 0, 0, 3, 7),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_below_one(name):
    with pytest.raises(ValueError, match=r"sizes are at least 1; got \w+=0"):
        SIZES[name]()


def test_other_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="a period of 8 needs as many kinds; there are 7"):
        sequences.repeated(0, 1, 16, 7)
    for length, kinds in ((4, 7), (3, 10)):
        with pytest.raises(ValueError, match=f"got {length} words of {kinds} kinds"):
            sequences.translated(0, 1, length, kinds)


# Text


def test_byte_pairs_write_any_text():
    source = corpus.text()
    pairs = corpus.byte_pairs(source, 400)
    text = source.decode(source.held_out[:500]) + "∘ ü 日本"
    assert pairs.decode(pairs.encode(text)) == text
    assert len(pairs.encode(text)) < 400 and pairs.encode(text).max() < 400
    with pytest.raises(ValueError, match="a pair are a vocabulary of 257; got 256"):
        corpus.byte_pairs(source, 256)


def test_byte_pairs_of_a_text_that_has_few(tmp_path):
    (tmp_path / "a.txt").write_text("ab\n" * 4000)
    with pytest.raises(ValueError, match=r"has a vocabulary of \d+ pairs of bytes, not 999"):
        corpus.byte_pairs(corpus.text(tmp_path / "a.txt"), 999)


def test_bits_a_character_do_not_depend_on_the_vocabulary():
    """A model that knows nothing takes log₂ of the vocabulary for each token."""
    for vocabulary in (300, 400):
        task = TASKS["byte_pairs"](vocabulary=vocabulary, length=64, width=8, layers=1)
        source = corpus.text()
        pairs = corpus.byte_pairs(source, vocabulary)
        tokens = pairs.encode(source.decode(source.held_out))
        characters = len(source.held_out) - len(pairs.decode(tokens[:1]))
        wanted = (len(tokens) - 1) * np.log2(vocabulary) / characters
        assert task.score(zeros(task)) == pytest.approx(wanted, rel=1e-5)


def test_hidden_characters_are_asked_for():
    ids = np.arange(4000).reshape(40, 100) % 50
    inputs, targets = corpus.hidden(0, ids, 0.15, mask=50)
    hidden = targets != IGNORE
    assert 0.13 < hidden.mean() < 0.17  # 4,000 draws: a standard deviation of 0.006
    chex.assert_trees_all_equal(inputs, np.where(hidden, 50, ids))
    chex.assert_trees_all_equal(targets[hidden], ids[hidden])
    for share in (0, 1, -0.1):
        with pytest.raises(ValueError, match=f"is between 0 and 1; got {share}"):
            corpus.hidden(0, ids, share, 50)


# Pictures and tables


def test_patches_are_squares_row_by_row():
    picture = np.arange(784.0).reshape(28, 28)
    for i, patch in enumerate(np.asarray(patches(jnp.asarray(picture.reshape(784))))):
        row, column = divmod(i, 4)
        chex.assert_trees_all_equal(
            patch, picture[7 * row : 7 * row + 7, 7 * column : 7 * column + 7].reshape(49)
        )


def test_a_table_is_scaled_by_what_is_learned_from(file):
    found = tables.read_table(file)
    assert found.columns == ("size", "color=blue", "color=red") and found.classes == ("cat", "dog")
    features, labels = found.learned
    assert len(labels) == 48 and len(found.held_out[1]) == 12
    np.testing.assert_allclose([features[:, 0].mean(), features[:, 0].std()], [0, 1], atol=1e-6)
    chex.assert_trees_all_equal(features[:, 1], (labels == 1).astype(np.float32))
    assert tables.read_table(file, "color").classes == ("blue", "red")


ROWS = "1,red,cat\n" * 12 + "2,blue,dog\n" * 12
BAD = {
    "empty": ("", "is empty"),
    "blank": (" \n\n", "is empty"),
    "binary": (b"\x89PNG\xff", "is not UTF-8 text: byte 0"),
    "with bytes of 0": (b"a\x00b,c", "holds bytes of 0, as binary files do"),
    "no rows": ("a,b,c\n", "has 0 rows of data, and 20 are the least"),
    "few rows": ("a,b,c\n1,red,cat", "has 1 rows of data"),
    "a row too short": (f"a,b,c\n{ROWS}1,red\n", "line 26 of .*: it has 2 fields, and there are 3"),
    "a row too long": (f"a,b,c\n1,2,3,4\n{ROWS}", "line 2 of .*: it has 4 fields, and there ar"),
    "no value": (f"a,b,c\n{ROWS}1,,cat\n", "line 26 of .*: column 'b' has no value"),
    "no names": (f"a,a,c\n{ROWS}", "line 1 of .*: the first line names the columns, and it is"),
    "an open quote": (f'a,b,c\n{ROWS}1,"red,cat\n', "line 26 of .*: unexpected end of data"),
    "one class": (f"a,b,c\n{ROWS}".replace("dog", "cat"), "is 'cat' in every row: there is not"),
    "a class a row": (
        "a,b\n" + "".join(f"{i},{i}\n" for i in range(30)), "has 30 values in 30 rows: a label"
    ),
    "nothing but a label": ("a\n" + "x\ny\n" * 20, "has no column but the label 'a'"),
    "an infinity": (f"a,b,c\n{ROWS}inf,red,cat\n", "column 'a' holds numbers that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_tables_that_cannot_be_used(name, tmp_path):
    held, text = BAD[name]
    file = tmp_path / "bad.csv"
    file.write_bytes(held if isinstance(held, bytes) else held.encode())
    with pytest.raises(ValueError, match=text):
        tables.read_table(file)


def test_tables_that_are_not_there(file, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no text file '.*gone.csv'"):
        tables.read_table(tmp_path / "gone.csv")
    with pytest.raises(ValueError, match="has no column 'sort'; it has size, color, kind"):
        tables.read_table(file, "sort")
    with pytest.raises(ValueError, match="name it with --file"):
        TASKS["table"]()


def test_a_table_is_learned(file):
    task = made("table", file, steps=60, batch=16, width=8)
    params, _ = train(task)
    assert task.score(params) == 100 > task.rivals()["the most common"] > 50


def test_a_text_that_is_none(tmp_path):
    for held, text in ((b"", "is empty"), (b"a\x00" * 9999, "holds bytes of 0")):
        (tmp_path / "a.txt").write_bytes(held)
        with pytest.raises(ValueError, match=text):
            corpus.text(tmp_path / "a.txt")
