"""Transfer: adapters and their law, a tiny encoder from end to end, and the real one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_backbones import oracle
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from combinax.combinators import linear, unstack
from combinax.models import bert
from combinax.models.adapter import adapted, merged, with_adapters
from combinax.train import __main__ as command
from combinax.train import transfer
from combinax.train.transfer import intents

SNIPS = Path(__file__).parents[2] / "shared" / "data" / "snips.json"
WORDS = ("play", "book", "song", "table", "loud", "for", "two", "a")


# Adapters


@pytest.fixture(scope="module")
def tiny():
    """A tiny encoder with random adapters, and what goes in."""
    config = oracle("bert").config
    narrow, plain = bert(config, adapted(3)), bert(config)
    tokens, context = jnp.arange(5), {"lengths": 4, "token_types": jnp.zeros(5, int)}
    draw = np.random.default_rng(0)
    shapes = jax.eval_shape(narrow.init, jax.random.key(0), tokens, **context)
    params: Any = jax.tree.map(lambda leaf: 0.3 * draw.standard_normal(leaf.shape, "f4"), shapes)
    return narrow, plain, params, tokens, context


@pytest.mark.parametrize("form", [lambda term, params: params, unstack])
def test_merged_adapters_give_identical_logits(tiny, form):
    narrow, plain, params, tokens, context = tiny
    own = merged(narrow, params, tokens, **context)
    expected = narrow(form(narrow, params), tokens, **context)
    for mine, theirs in zip(plain(form(plain, own), tokens, **context), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)  # sums of a few dozen floats


def test_new_adapters_change_nothing(tiny):
    narrow, plain, params, tokens, context = tiny
    own = merged(narrow, params, tokens, **context)
    fresh = narrow.init(jax.random.key(0), tokens, **context)
    begun = with_adapters(fresh, own)
    for mine, theirs in zip(
        narrow(begun, tokens, **context), plain(own, tokens, **context), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    chex.assert_trees_all_equal(merged(narrow, begun, tokens, **context), own)
    down = begun["blocks"]["attention"]["add"]["heads"]["project"]["query"]["adapter"]["linear"]
    assert down["kernel"].shape == (2, 12, 3)  # one for all heads
    assert np.std(down["kernel"]) > 0.1


# A tiny encoder


@pytest.fixture
def encoder(tmp_path, monkeypatch):
    """The folder of a tiny encoder with a tokenizer, in the place of MiniLM."""
    folder = oracle("bert").folder(tmp_path / "encoder")
    config = {**oracle("bert").config, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    monkeypatch.setattr(transfer, "minilm", lambda: folder)
    jax.config.update("jax_disable_most_optimizations", True)  # a test waits for the compiler alone
    yield folder
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def sentences(tmp_path):
    file = tmp_path / "sentences.json"
    rows = [
        [split, intent, " ".join((*words, *("a",) * (number % 3)))]
        for split, count in (("train", 12), ("val", 5))
        for intent, words in (
            ("music", ("play", "song")),
            ("rest", ("book", "table", "for", "two")),
        )
        for number in range(count)
    ]
    file.write_text(json.dumps(rows))
    return file


def test_intents_are_drawn_from_a_file(sentences):
    source = intents(sentences, seed=1)
    assert source.names == ("music", "rest")
    assert source.learned[1].tolist() == [0] * 10 + [1] * 10
    assert all(
        ("play" in text) == (label == 0) for text, label in zip(*source.learned, strict=True)
    )
    assert len(source.held_out[0]) == 10
    assert source.learned[0] != intents(sentences, seed=2).learned[0]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{", "is no JSON list of"),
        ("[[1, 2]]", "is no JSON list of"),
        ("7", "is no JSON list of"),
        ('[["train", "a", "b"]]', "a has 1 sentences to learn from, not 10"),
        (json.dumps([["train", "a", "b"]] * 10), "holds no sentences out"),
    ],
)
def test_other_files_are_refused(text, reason, tmp_path):
    file = tmp_path / "sentences.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason):
        intents(file)


def test_the_four_ways(encoder, sentences, tmp_path):
    words = ["transfer", "--data", str(sentences), "--steps", "40", "--out", str(tmp_path)]
    done = CliRunner().invoke(command.app, words, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    head, *lines, picture = done.output.splitlines()
    assert picture == f"picture: {tmp_path / 'transfer.png'}"
    assert head == "2 intents: 20 sentences, 10 held out"
    ways = ["linear map, encoder frozen", "low-rank adapters, merged", "all weights"]
    assert len(lines) == 4 and lines[3].startswith("all weights, from scratch")
    for line, way in zip(lines, ways, strict=False):
        assert line.startswith(way)
    learned = [int(re.findall(r"([\d,]+) weights", line)[0].replace(",", "")) for line in lines]
    assert learned[0] == 12 * 2 + 2 and learned[0] < learned[1] < learned[2] == learned[3]
    right = [float(re.findall(r"([\d.]+) % right", line)[0]) for line in lines]
    assert min(right) >= 50 and max(right) == 100  # one word tells them apart
    kept = json.loads((tmp_path / "transfer.json").read_text())
    assert [row["weights"] for row in kept] == learned
    assert [round(row["percent"], 1) for row in kept] == right


def test_only_what_moves_is_learned(encoder, sentences):
    source = intents(sentences)
    params = {"a": {"kernel": jnp.ones((3, 2))}, "b": {"kernel": jnp.ones((2, 2))}}
    term = linear(2)
    term = transfer.named("b", term) @ transfer.named("a", term)
    x = np.random.default_rng(0).standard_normal((20, 1, 3)).astype("f4")
    after = transfer.tuned(
        term, params, (x, {}), source.learned[1], 0.1, 3, 8, 0, lambda path: path[0] == "b"
    )
    np.testing.assert_array_equal(after["a"]["kernel"], params["a"]["kernel"])
    assert (after["b"]["kernel"] != params["b"]["kernel"]).any()


def test_a_missing_file_ends_the_command_with_the_reason(tmp_path):
    done = CliRunner().invoke(command.app, ["transfer", "--data", str(tmp_path / "no.json")])
    assert done.exit_code == 2 and "no.json': no such file or directory" in done.output


# The real one


@pytest.mark.skipif(not SNIPS.is_file(), reason="the file shared/data/snips.json is not here")
def test_ten_sentences_of_each_intent_are_enough():
    """The fast way alone: a linear map of what the frozen encoder says."""
    row = next(transfer.transfer(intents(SNIPS)))
    assert row.percent >= 90
