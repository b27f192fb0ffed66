"""Reading weights says what the model itself answers when it is asked."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from combinax.combinators import observe, rms_norm
from combinax.models import gpt2, llama
from combinax.models.reading import matched_pairs, promoted_tokens, spelled

TOKENS = jnp.arange(3)
LLAMA = dict(
    vocab_size=30, hidden_size=24, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, intermediate_size=5,
)  # fmt: skip
GPT2 = dict(vocab_size=30, n_embd=24, n_layer=3, n_head=6, n_inner=5, n_positions=8)
TERMS = {
    "llama": llama(LLAMA),
    "llama tied": llama({**LLAMA, "tie_word_embeddings": True}),
    "llama with an eps": llama({**LLAMA, "tie_word_embeddings": True, "rms_norm_eps": 0.5}),
    "gpt2": gpt2(GPT2),
}
NORMS = {"llama with an eps": rms_norm(0.5)}
every_term = pytest.mark.parametrize("name", TERMS)


def with_parameters(name):
    """Parameters of size one, as dicts that may be changed."""
    term = TERMS[name]
    draw = np.random.default_rng(0)
    shapes = jax.eval_shape(term.init, jax.random.key(0), TOKENS)
    return term, jax.tree.map(lambda leaf: draw.standard_normal(leaf.shape).astype("f4"), shapes)


@every_term
def test_promoted_tokens_are_those_of_a_stream_that_holds_the_value(name):
    _, params = with_parameters(name)
    read = promoted_tokens(params, 1, [4, 2], count=30)
    values = params["blocks"]["dictionary"]["slots"]["value"][1][[4, 2]]
    norm = "layer_norm" if name == "gpt2" else "rms_norm"
    eps = 1e-5 if name == "gpt2" else 1e-6
    centred = values - values.mean(-1, keepdims=True) if name == "gpt2" else values
    size = np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    table = params["head"]["kernel"].T if name == "llama" else params["embed"]["table"]
    logits = centred / size * params[norm]["scale"] @ table.T
    np.testing.assert_array_equal(read.tokens, np.argsort(-logits))
    np.testing.assert_allclose(read.logits / size, -np.sort(-logits), rtol=1e-4, atol=1e-4)


@every_term
@pytest.mark.parametrize("head", [0, 3, 5])
def test_matched_pairs_are_those_of_the_model(name, head):
    """All tokens stand at one position, so all see each other, and none is turned."""
    term, params = with_parameters(name)
    if name == "gpt2":
        params["position_embed"]["table"][:] = 0
    tokens = np.arange(30)
    _, seen = observe(term)(params, tokens, positions=np.zeros(30, int))
    (scores,) = (value.score for path, value in seen.items() if path.endswith("heads/score"))
    score = np.asarray(scores[0]).reshape(6, 30, 30)[head]
    order = np.argsort(-score.ravel())
    matched = functools.partial(matched_pairs, params, 0, head, count=40, norm=NORMS.get(name))
    for kinds in (None, tokens):
        best = matched(tokens=kinds, block=7)
        np.testing.assert_allclose(best.score, score.ravel()[order[:40]], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(best.score, score[best.query, best.key], rtol=1e-4, atol=1e-4)
        assert len({*zip(best.query, best.key, strict=True)}) == 40
    few = matched(tokens=[7, 3])
    assert len(few.score) == 4 and {*few.query} == {*few.key} == {7, 3}
    np.testing.assert_allclose(few.score, score[few.query, few.key], rtol=1e-4, atol=1e-4)


def test_layers_heads_and_entries_that_are_not_there():
    _, params = with_parameters("llama")
    for wrong in (
        lambda: promoted_tokens(params, 3, [0]),
        lambda: promoted_tokens(params, 0, [5]),
        lambda: matched_pairs(params, 3, 0),
        lambda: matched_pairs(params, 0, 6),
        lambda: matched_pairs(params, 0, 0, tokens=[30]),
    ):
        with pytest.raises(IndexError):
            wrong()


class Letters:
    """A tokenizer of three letters."""

    def decode(self, tokens, skip_special_tokens):
        assert not skip_special_tokens
        return "".join("abc"[token] for token in tokens)


def test_tokens_are_spelled_one_by_one():
    assert spelled(Letters(), np.array([2, 0, 1])) == ["c", "a", "b"]
