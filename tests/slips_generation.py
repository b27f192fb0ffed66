"""Slips of generation: what is asked of a prompt, of a choice, and of the context of tokens."""
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from slips import *
from tokenizers import Tokenizer
from tokenizers.models import Unigram

from combinax import models
from combinax.combinators import *
from combinax.models import chat, generate, keep_top_k, keep_top_p, speculate, stream_tokens

TABLE = embed(7, 7)
PACKED = linear(7) @ compose(
    aggregate(), normalize(softmax), mask(causal & same("segments")), score(dot), project(4), TABLE
)
PARAMS = PACKED.init(KEY, TOKENS, segments=TOKENS)


def packed(rows: int) -> Any:
    return generate(PACKED, PARAMS, TOKENS, 3, segments=jnp.zeros(rows, int))


def confused() -> list[int]:
    """A prompt for a tokenizer whose words hold its special tokens."""
    words = Tokenizer(Unigram([("?", 0.0), (chat.END, 0.0)], 0))
    words.add_special_tokens([chat.END])
    return chat.prompt(chat.Chat(silu, {}, words, ""), chat.END)


GENERATION: dict[str, Slip] = {
    "a token past the vocabulary": Slip(
        lambda: generate(TABLE, TABLE.init(KEY, TOKENS), jnp.array([1, 7]), 3),
        "token 7 of the prompt is not in the vocabulary of embed(7, 7), tokens 0 to 6",
    ),
    "a prompt of text": Slip(
        lambda: generate(NEXT, {}, cast(Any, "abc"), 3),
        "generate continues a prompt of tokens, not 'abc'",
    ),
    "no parameters at all": Slip(
        lambda: stream_tokens(NEXT, None, TOKENS, 3),
        "stream_tokens takes a term, its parameters, a dict as term.init(rng, x) makes it, and "
        "then the prompt; it got None for parameters",
        ParameterError,
    ),
    "a term that reads a rng": Slip(
        lambda: generate(NEXT @ (identity + read("rng")), {}, TOKENS, 3),
        "generate takes rng for itself",
        ContextError,
    ),
    "a count in words": Slip(
        lambda: generate(NEXT, {}, TOKENS, cast(Any, "3")),
        "count of generate is an integer of at least 0, not '3'",
    ),
    "drafts in words": Slip(
        lambda: speculate(NEXT, {}, NEXT, {}, TOKENS, 3, ahead=cast(Any, "4")),
        "speculate drafts at least one token ahead, not '4'",
    ),
    "a stop in words": Slip(
        lambda: generate(NEXT, {}, TOKENS, 3, stop=cast(Any, "end")),
        "stop is a token or several, such as (0, 2), not 'end'",
    ),
    "a dtype of integers": Slip(
        lambda: generate(NEXT, {}, TOKENS, 3, dtype="int8"),
        "dtype is a type of floats such as 'bfloat16', not 'int8'",
    ),
    "something to keep": Slip(
        lambda: generate(NEXT, {}, TOKENS, 3, keep=cast(Any, 3)),
        "keep is a function of logits and a token, not 3",
    ),
    "positions of one's own": Slip(
        lambda: generate(NEXT, {}, TOKENS, 3, positions=TOKENS),
        "generate counts positions by itself, from 0: leave positions out",
        ContextError,
    ),
    "context of another length": Slip(
        lambda: packed(6),
        "segments has 6 rows: generate takes one for each of the 5 tokens of the prompt, where "
        "those that follow go on with the last; one for each of all 8 tokens; or one for all",
        ContextError,
    ),
    "context in a list": Slip(
        lambda: generate(PACKED, PARAMS, TOKENS, 3, segments=[0, 0, 0, 0, 0]),
        "segments is an array, not a list: write jnp.array(…) of numbers",
        ContextError,
    ),
    "no logits": Slip(
        lambda: generate(pointwise(jnp.asarray), {}, TOKENS, 3),
        "generate draws tokens from logits, floats of shape (T, vocabulary), and gets (7,) int32 "
        "for 7 tokens",
    ),
    "a draft of another vocabulary": Slip(
        lambda: speculate(NEXT, {}, pointwise(wider), {}, TOKENS, 3),
        "a draft has the vocabulary of the term that judges it: the term gives 5 logits for each "
        "token, the draft 6",
    ),
    "several shares for one": Slip(
        lambda: generate(
            NEXT, {}, TOKENS, 3, choose=keep_top_p(read("top_p")), top_p=jnp.array([0.5, 0.9])
        ),
        "top_p is one number, and has shape (2,); a batch is jax.vmap",
        ContextError,
    ),
    "a share read too large": Slip(
        lambda: generate(NEXT, {}, TOKENS, 3, choose=keep_top_p(read("top_p")), top_p=1.5),
        "keep_top_p keeps a share 0 < p <= 1, not 1.5",
    ),
    "a count read too small": Slip(
        lambda: generate(NEXT, {}, TOKENS, 3, choose=keep_top_k(read("k")), k=np.int32(0)),
        "count of keep_top_k is an integer of at least 1, not 0",
    ),
    "a temperature read that is 0": Slip(
        lambda: generate(NEXT, {}, TOKENS, 3, choose=temperature(read("t")), t=0.0),
        "temperature is positive, and read('t') is 0.0",
    ),
    "a number to choose by that is not given": Slip(
        lambda: generate(NEXT, {}, TOKENS, 3, choose=temperature(read("t"))),
        "temperature(read('t')) needs t=… in the context",
        ContextError,
    ),
    "a word for a number": Slip(
        lambda: models.keep_top_p(cast(Any, True)), "keep_top_p keeps a share 0 < p <= 1, not True"
    ),
    "a message that ends messages": Slip(
        confused, "the tokenizer reads <|im_end|> in what is only text"
    ),
}


def wider(tokens: Any) -> Any:
    return jax.nn.one_hot(tokens, 6)
