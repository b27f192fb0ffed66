"""Chat: a conversation whose state is kept, so that of every turn only what is new is read.

    <|im_start|>role
    content<|im_end|>

for every message, and `<|im_start|>assistant` for the answer that is to follow. Needs the extra
`pretrained`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from tokenizers.decoders import DecodeStream

from ..combinators import CompositionError, Term, stepwise, unstack
from ..combinators.core.declare import declare
from .configuration import require
from .context import SplitContext
from .generate import NO_TOKEN, follow
from .pretrained import Pretrained, chat_template, load
from .prompt import check_choice, check_tokens

__all__ = ["Chat", "Conversation", "begin", "load_chat", "prompt", "reply"]

START, END = "<|im_start|>", "<|im_end|>"
MARKS = {
    "ChatML": START,
    "Llama 3": "<|start_header_id|>",
    "Gemma": "<start_of_turn>",
    "Zephyr": "<|user|>",
    "Mistral": "[INST]",
}
"""The templates that are told apart, by what each of them opens a message with."""

CHUNK = 32
"""How many tokens are read at once: so few that padding costs little, and one number, so that
reading is compiled once and not for every length."""


class Chat(NamedTuple):
    """A model that answers: its layers written out, and the instruction with which it begins."""

    term: Term
    params: Any
    tokenizer: Any
    system: str


class Conversation(NamedTuple):
    """What was said so far: the state that has read it, and how many tokens it has room for."""

    state: Any
    capacity: int


def load_chat(path: str | Path, system: str | None = None) -> Chat:
    """A model from a folder of Hugging Face's layout or from a GGUF file, to talk with.

    `system` is the instruction, the template's own if not given, none if empty. Raises what `load`
    raises, and CompositionError, by its name, for a template other than ChatML, or none, or for a
    tokenizer that does not know where a message ends.
    """
    template = chat_template(path)
    if not template:
        raise CompositionError(f"{str(path)!r} has no chat template: nothing says how to talk")
    kind = next((kind for kind, mark in MARKS.items() if mark in template), None)
    require({"chat_template": kind}, chat_template=("ChatML",))
    default = re.search(rf"{re.escape(START)}system\n([^'{{}}]*){re.escape(END)}", template)
    own = default[1] if default else ""
    return instructed(load(path), own if system is None else system)


def instructed(model: Pretrained, system: str) -> Chat:
    term, params, tokenizer = model
    if tokenizer is None or tokenizer.token_to_id(END) is None:
        raise CompositionError(f"the model has no tokenizer with the token {END}")
    return Chat(term, unstack(term, params), tokenizer, system)


def prompt(chat: Chat, message: str, first: bool = True) -> list[int]:
    """The tokens of a turn, up to where the answer begins; the first turn holds the instruction.

    After an answer, which ends with <|im_end|>, comes the line break that belongs to it. Special
    tokens are those of the template alone: what is typed is text, <|im_end|> too, and begins no
    turn. Raises CompositionError for a message that the tokenizer cannot read so.
    """
    opened = ["", START, f"system\n{chat.system}", END, "\n"] if chat.system else [""]
    turn = [START, f"user\n{message}", END, "\n", START, "assistant\n"]
    return encoded(chat.tokenizer, *(opened if first else ["\n"]), *turn)


def encoded(tokenizer: Any, *parts: str) -> list[int]:
    """The tokens of texts and special tokens, which take turns; one that the tokenizer does not
    know as such is text."""
    plain, special = literal(tokenizer)
    marks = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
    tokens, text = [], ""

    def read() -> list[int]:
        ids = plain.encode(text, add_special_tokens=False).ids
        for token in ids:
            if token in special:
                raise CompositionError(f"the tokenizer reads {special[token]} in what is only text")
        return ids

    for place, part in enumerate(parts):
        if place % 2 and part in marks:
            tokens, text = [*tokens, *read(), marks[part]], ""
        else:
            text += part
    return tokens + read()


@lru_cache(maxsize=8)
def literal(tokenizer: Any) -> tuple[Any, dict[int, str]]:
    """The tokenizer as it reads what is typed, whole and special tokens as the text they are, and
    the special tokens by their ids. Where its vocabulary holds one as a piece, it reads that piece
    all the same. What stands for unknown characters is text."""
    plain = copy.deepcopy(tokenizer)
    plain.no_truncation()
    plain.no_padding()
    marks = {START, END} & {t.content for t in plain.get_added_tokens_decoder().values()}
    plain.add_special_tokens(sorted(marks))
    plain.encode_special_tokens = True
    model = json.loads(plain.to_str())["model"]
    unknown = model.get("unk_id", plain.token_to_id(model.get("unk_token") or ""))
    special = {
        i: token.content
        for i, token in plain.get_added_tokens_decoder().items()
        if token.content in marks or (token.special and i != unknown)
    }
    return plain, special


def begin(chat: Chat, capacity: int) -> Conversation:
    """A conversation in which nothing was said. Raises CompositionError where the model has no
    position for its last token."""
    declare(chat.term, jax.ShapeDtypeStruct((capacity,), np.int32), {})
    one = jax.ShapeDtypeStruct((1,), np.int32)
    # The padding of a chunk is written, too, and then written over.
    return Conversation(stepwise(chat.term).start(chat.params, one, capacity + CHUNK), capacity)


def reply(
    chat: Chat, conversation: Conversation, message: str, choose: Term, rng: Array, **context: Any
) -> Iterator[tuple[str, Conversation]]:
    """The answer to a message, token by token: a piece of text, empty where a character is not
    complete, and the conversation so far. Only the last one can be gone on with: its state takes
    the room of those before.

        token ~ softmax(choose(logits)),  until <|im_end|>

    Token number i of the conversation is drawn with fold_in(rng, i). The context is what `choose`
    reads: with `choose=temperature(read("t"))` another `t` compiles nothing anew. Raises
    CompositionError where the conversation exceeds its capacity, and where logits are NaN.
    """
    state, capacity = conversation
    said = int(state["position"])
    tokens = prompt(chat, message, first=not said)
    check_tokens(chat.term, tokens)
    at = said + len(tokens)
    if at >= capacity:
        raise CompositionError(
            f"the message has {len(tokens)} tokens, and the conversation {said} of {capacity}: "
            "shorten it, or begin with a larger capacity"
        )
    *before, last = (tokens[i : i + CHUNK] for i in range(0, len(tokens), CHUNK))
    for chunk in before:
        state, _ = heard(chat, state, chunk)
    state, logits = heard(chat, state, last)
    check_choice(choose, logits, context)
    stop, text = chat.tokenizer.token_to_id(END), DecodeStream(skip_special_tokens=True)
    answer = follow(
        chat.term,
        choose,
        chat.params,
        state,
        logits,
        rng,
        range(at, capacity),
        (stop,),
        SplitContext({}, {}, context),
    )
    for token, state in answer:
        if token == NO_TOKEN:
            raise CompositionError("the model answers with logits that are NaN: no token is drawn")
        yield text.step(chat.tokenizer, token) or "", Conversation(state, capacity)
        if token == stop:
            return
    raise CompositionError(
        f"the answer is cut short: the conversation has all {capacity} tokens of its capacity"
    )


def heard(chat: Chat, state: Any, chunk: list[int]) -> tuple[Any, Array]:
    """The state that has read a chunk, too, and the logits after it."""
    padded = np.pad(np.array(chunk, np.int32), (0, CHUNK - len(chunk)))
    return read(chat.term, chat.params, state, padded, len(chunk))


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def read(term: Term, params: Any, state: Any, tokens: Any, length: Any) -> tuple[Any, Array]:
    """Read a chunk of which `length` tokens count; what comes next is written over the rest."""
    first = state["position"]
    state, logits = stepwise(term).step(params, state, tokens, positions=first)
    return {**state, "position": first + length}, logits[length - 1]
