"""Reading a language model's weights: what its dictionaries say, and what its heads look for.

Every branch of a transformer adds vectors to one stream, which the last step scores against all
tokens. So what an entry of a dictionary adds, and what a head asks for, can be read in tokens. The
parameters are those of `gpt2` or `llama`, their layers stacked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from ..combinators import Term, layer_norm, rms_norm, scaled_dot

__all__ = ["Pairs", "Promoted", "matched_pairs", "promoted_tokens", "spelled"]

Params = Mapping[str, Any]


class Promoted(NamedTuple):
    """The tokens that entries promote, the most promoted first: each (entries, count)."""

    tokens: np.ndarray
    logits: np.ndarray


class Pairs(NamedTuple):
    """Tokens that ask and tokens that answer, the best match first: each (count,)."""

    query: np.ndarray
    key: np.ndarray
    score: np.ndarray


def promoted_tokens(
    params: Params, layer: int, entries: Sequence[int], count: int = 10
) -> Promoted:
    """Which tokens the entries of a layer's dictionary promote: the largest of

        logits = values · scale @ unembeddingᵀ

    with the scale of the last norm, and centred where that norm centres; its division changes no
    order. A weight that is negative, as those of a gated dictionary may be, suppresses instead.

    Raises IndexError for a layer or an entry that is not there.
    Source: Geva et al. 2021, Transformer Feed-Forward Layers Are Key-Value Memories.
    """
    values = np.asarray(params["blocks"]["dictionary"]["slots"]["value"])[layer][list(entries)]
    if "layer_norm" in params:
        values = values - values.mean(-1, keepdims=True)
    norm = params.get("rms_norm") or params["layer_norm"]
    table = params["head"]["kernel"].T if "head" in params else params["embed"]["table"]
    logits, tokens = jax.lax.top_k((values * norm["scale"]) @ table.T, count)
    return Promoted(np.asarray(tokens), np.asarray(logits))


def matched_pairs(
    params: Params,
    layer: int,
    head: int,
    count: int = 10,
    tokens: Sequence[int] | np.ndarray | None = None,
    block: int = 256,
    norm: Term | None = None,
) -> Pairs:
    """Which tokens a head's queries match best with which tokens' keys: the largest of

        scores = (norm(E) W_query) (norm(E) W_key)ᵀ / √d,   E the embeddings of the tokens

    over all pairs of `tokens`, by default the whole vocabulary: what the head looks for where the
    stream still holds the tokens themselves, and at one position, where rotation does nothing.
    Parameters do not tell the eps of the model's norm: where it is not that of `rms_norm()` or
    `layer_norm()`, give the norm.

    Raises IndexError for a layer or a head that is not there.
    Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.
    """
    table = np.asarray(params["embed"]["table"])
    kinds = np.arange(len(table)) if tokens is None else np.asarray(tokens)
    attention = jax.tree.map(lambda leaf: np.asarray(leaf)[layer], params["blocks"]["attention"])
    norm = norm or (rms_norm() if "rms_norm" in attention else layer_norm())
    stream = norm(attention[norm.name], table[kinds])
    query, key = projected(attention["heads"], stream, head)
    best, least = Pairs(np.zeros(0, int), np.zeros(0, int), np.zeros(0)), -np.inf
    for start in range(0, len(kinds), block):
        score = np.asarray(scores(query[start : start + block], key))
        rows, columns = np.nonzero(score > least)
        found = Pairs(rows + start, columns, score[rows, columns])
        best = Pairs(*(np.concatenate(both) for both in zip(best, found, strict=True)))
        first = np.argsort(-best.score, kind="stable")[:count]
        best = Pairs(*(part[first] for part in best))
        least = best.score[-1] if len(first) == count else -np.inf
    return best._replace(query=kinds[best.query], key=kinds[best.key])


scores = jax.jit(scaled_dot)


def projected(heads: Params, stream: Array, head: int) -> tuple[Array, Array]:
    """The queries and the keys of one head; heads of a group, which nest, have one key."""
    slots = heads.get("heads", heads)["project"]
    query, key = (slots[side].get("linear", slots[side]) for side in ("query", "key"))
    sides = []
    count = math.prod(query["kernel"].shape[1:-1])
    for slot in (query, key):
        kernel = slot["kernel"].reshape(len(slot["kernel"]), -1, slot["kernel"].shape[-1])
        own = np.arange(count)[head] * kernel.shape[1] // count
        bias = slot["bias"].reshape(kernel.shape[1:])[own] if "bias" in slot else 0.0
        sides.append(stream @ kernel[:, own] + bias)
    return sides[0], sides[1]


def spelled(tokenizer: Any, tokens: Iterable[Any]) -> list[str]:
    """Each token as the text that it stands for, in the words of a `tokenizers.Tokenizer`.

    promoted = promoted_tokens(params, 22, [935], 3)
    spelled(tokenizer, promoted.tokens[0])             # [' two', ' three', ' four'], of SmolLM2
    """
    return [tokenizer.decode([int(token)], skip_special_tokens=False) for token in tokens]
