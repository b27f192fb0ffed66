"""Generation: context of tokens in each length, parameters in any mapping, slips of arguments."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import freeze
from plain import drawn

from combinax.combinators import (
    ContextError,
    aggregate,
    causal,
    compose,
    each,
    embed,
    identity,
    linear,
    mask,
    normalize,
    observe,
    project,
    read,
    repeat,
    same,
    scaled_dot,
    score,
    softmax,
    stack,
    tied,
    unstack,
)
from combinax.models import generate, greedy, speculate, stream_tokens
from combinax.train.loop import fit

KEY = jax.random.key(0)
PROMPT = np.array([3, 1, 4, 1], np.int32)
COUNT = 3
SIZE, WHOLE = len(PROMPT), len(PROMPT) + COUNT
PACKED: Any = compose(
    aggregate(), normalize(softmax), mask(causal & same("segments")), score(scaled_dot), project(8)
)
MODEL: Any = tied(embed(7, 8), (identity + PACKED) @ (identity + embed(3, 8) @ read("kinds")))
SEGMENTS = np.array([0, 0, 1, 1, 1, 1, 2], np.int32)
KINDS = np.array([0, 1, 2, 0, 0, 0, 0], np.int32)


PARAMS = drawn(MODEL, PROMPT, segments=PROMPT, kinds=PROMPT)


def rerun(prompt: Any, segments: Any, kinds: Any) -> list[int]:
    """The whole forward for every token; context by position, its last row for what lies behind."""
    tokens = np.append(prompt, np.zeros(COUNT, np.int32))
    rows = [np.append(c, np.repeat(c[-1:], WHOLE))[: len(tokens)] for c in (segments, kinds)]
    for at in range(len(prompt), len(tokens)):
        tokens[at] = whole(PARAMS, tokens, segments=rows[0], kinds=rows[1])[at - 1].argmax()
    return tokens[len(prompt) :].tolist()


whole = jax.jit(MODEL)


@pytest.mark.parametrize(
    "segments, kinds",
    [(SIZE, SIZE), (WHOLE, SIZE), (WHOLE - 1, WHOLE), (1, WHOLE)],
    ids=["prompt", "both", "whole", "one for all"],
)
def test_context_has_rows_for_the_prompt_or_for_all_or_for_all_alike(segments, kinds):
    context: dict[str, Any] = dict(segments=SEGMENTS[:segments], kinds=KINDS[:kinds])
    wanted = rerun(PROMPT, **context)
    make = (MODEL, PARAMS, PROMPT, COUNT)
    assert generate(*make, choose=greedy, **context).tokens.tolist() == wanted
    if segments == WHOLE:  # of the same programs one is enough
        assert list(stream_tokens(*make, choose=greedy, **context)) == wanted
        made = speculate(*make[:2], *make, ahead=2, choose=greedy, **context)
        assert made.tokens.tolist() == wanted and made.kept == 2


def test_context_of_prompts_of_several_lengths():
    """What is drawn goes on with the last row that counts, or stands where it stands alone."""
    lengths = np.array([2, 4])

    def one(length, segments):
        return generate(MODEL, PARAMS, PROMPT, COUNT, choose=greedy, length=length,
                        segments=segments, kinds=KINDS)  # fmt: skip

    for segments in (SEGMENTS[:SIZE], SEGMENTS):
        made = jax.vmap(one, (0, None))(lengths, segments).tokens
        for row, length in zip(made, lengths, strict=True):
            known = length if len(segments) == SIZE else length + COUNT
            wanted = rerun(PROMPT[:length], segments[:known], KINDS)
            assert row.tolist() == wanted


def test_a_memory_of_as_many_rows_as_the_prompt_is_one_for_all():
    asked = project(query=8, key=linear(8) @ read("memory"), value=linear(8) @ read("memory"))
    cross = compose(aggregate(), normalize(softmax), score(scaled_dot), asked)
    model: Any = tied(embed(7, 8), identity + cross + read("shift"))
    memory = np.random.default_rng(1).normal(size=(SIZE, 5)).astype(np.float32)
    context: dict[str, Any] = dict(memory=memory, shift=np.arange(8.0, dtype=np.float32))
    params = drawn(model, PROMPT, **context)
    # The shift is as wide as the prompt and what follows are long together.
    made = generate(model, params, PROMPT, 4, choose=greedy, **context).tokens
    tokens = np.append(PROMPT, made)
    chosen = model(params, tokens, **context).argmax(-1)
    assert made.tolist() == chosen[SIZE - 1 : -1].tolist()


@pytest.mark.parametrize("function", [generate, stream_tokens])
@pytest.mark.parametrize("rows", [2, 3, 5, 8])
def test_both_say_which_lengths_there_are(function, rows):
    text = rf"segments has {rows} rows: .* each of the 4 tokens of the prompt.* all 7 tokens"
    with pytest.raises(ContextError, match=text):
        function(MODEL, PARAMS, PROMPT, COUNT, segments=np.zeros(rows, int), kinds=KINDS)


# Arguments

PLAIN: Any = tied(embed(7, 8), (identity + linear(8) @ repeat(2, linear(8))))
WEIGHTS = jax.tree.map(jnp.asarray, drawn(PLAIN, PROMPT))


@pytest.mark.parametrize("stop", [None, 0, np.int32(0), (), [0, 2], {2, 0}, np.array([0, 2])])
def test_where_to_stop(stop):
    made = generate(PLAIN, WEIGHTS, PROMPT, COUNT, choose=greedy, stop=stop).tokens.tolist()
    ends = {*np.ravel([] if stop is None else [*stop] if isinstance(stop, set) else stop).tolist()}
    free = generate(PLAIN, WEIGHTS, PROMPT, COUNT, choose=greedy).tokens.tolist()
    last = next((i + 1 for i, token in enumerate(free) if token in ends), COUNT)
    assert made == free[:last] + [-1] * (COUNT - last)


@pytest.mark.parametrize("prompt", [[3, 1, 4, 1], (3, 1, 4, 1), np.array([3, 1, 4, 1], np.uint8)])
def test_prompts_and_counts_in_other_forms(prompt):
    wanted = generate(PLAIN, WEIGHTS, PROMPT, COUNT, choose=greedy)
    count: Any = np.int64(COUNT)
    made = generate(PLAIN, WEIGHTS, prompt, count, choose=greedy)
    chex.assert_trees_all_equal(made, wanted)


@pytest.mark.parametrize("token", [7, 1000, -1])
def test_a_token_that_is_not_in_the_vocabulary(token):
    prompt = np.array([1, token])
    for function in (
        lambda: generate(PLAIN, WEIGHTS, prompt, 2),
        lambda: generate(identity @ PLAIN @ identity, WEIGHTS, prompt, 2),
        lambda: stream_tokens(PLAIN, WEIGHTS, prompt, 2),
        lambda: speculate(PLAIN, WEIGHTS, PLAIN, WEIGHTS, prompt, 2),
    ):
        with pytest.raises(ValueError, match=rf"token {token} of the prompt is not in the vocab"):
            function()
    # What is padding may be anything.
    made = generate(PLAIN, WEIGHTS, prompt, 2, choose=greedy, length=1)
    assert (
        made.tokens.tolist()
        == generate(PLAIN, WEIGHTS, prompt[:1], 2, choose=greedy).tokens.tolist()
    )


# Parameters


BOXES = {
    "FrozenDict": freeze,
    "State": nnx.State,
    "State of Param": lambda params: nnx.State(jax.tree.map(nnx.Param, params)),
}


@pytest.mark.parametrize("box", BOXES)
def test_parameters_in_other_mappings(box):
    boxed = BOXES[box](WEIGHTS)
    chex.assert_trees_all_equal(PLAIN(boxed, PROMPT), PLAIN(WEIGHTS, PROMPT))
    chex.assert_trees_all_equal(unstack(PLAIN, boxed), unstack(PLAIN, WEIGHTS))
    chex.assert_trees_all_equal(stack(PLAIN, BOXES[box](unstack(PLAIN, WEIGHTS))), WEIGHTS)
    chex.assert_trees_all_equal(observe(PLAIN)(boxed, PROMPT)[0], PLAIN(WEIGHTS, PROMPT))


def test_trained_parameters_stay_in_their_mapping():
    model: Any = each(linear(2))

    def loss(params, batch, rng):
        return jnp.sum(model(params, batch) ** 2), 1

    params = drawn(model, np.ones((3, 4), np.float32))
    batch = lambda step: np.ones((3, 4), np.float32)  # noqa: E731
    wanted, _ = fit(loss, optax.sgd(0.01), params, batch, 2, rng=KEY)
    for box in BOXES.values():
        trained, _ = fit(loss, optax.sgd(0.01), box(params), batch, 2, rng=KEY)
        assert type(trained) is type(box(params))
        chex.assert_trees_all_equal(jax.tree.leaves(trained), jax.tree.leaves(wanted))
