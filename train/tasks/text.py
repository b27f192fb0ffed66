"""Text: the next character, the next pair of bytes, and characters that were hidden."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...combinators import (
    CompositionError,
    Term,
    compose,
    dropout,
    each,
    embed,
    named,
    rms_norm,
    temperature,
    tied,
)
from ...models import block, causal_scores, dictionary, multi_head, stream_tokens, transformer
from .. import corpus, data, ngram
from ..loop import Batch, Params
from ..loss import IGNORE, accuracy, cross_entropy
from .task import Task, by_muon, entropy, totals, turned

__all__ = ["byte_pairs", "language", "masked", "sample", "text"]


def language(kinds: int, width: int, layers: int = 2, heads: int = 4) -> Term:
    """Blocks that read a vocabulary of `kinds` tokens: (T,) -> (T, kinds).

    >>> language(50, 16).embed
    embed(50, 16)
    """
    # A few thousand lines are soon known by heart: what a branch adds is dropped now and then.
    layer = block(
        attention=dropout(0.1) @ multi_head(width, heads, turned, causal_scores),
        dictionary=dropout(0.1) @ dictionary(4 * width),
    )
    # A few blocks written out take a fifth less time for a step than a scan of them.
    blocks = [named(f"block_{i}", layer) for i in reversed(range(layers))]
    return tied(embed(kinds, width), compose(rms_norm(), *blocks))


def text(
    seed: int = 0, steps: int = 1500, batch: int = 16, layers: int = 2, width: int = 128,
    heads: int = 4, length: int = 128, rate: float = 1e-2, file: str = "",
) -> Task:  # fmt: skip
    """The next character of English, or of a text file of yours, against n-grams of the same text.

        term = tied(embed, rms_norm ∘ block_1 ∘ block_0),  a block is attention and a dictionary

    Raises what `corpus.text` raises of the file, ValueError for a text whose held-out part is
    shorter than a window, CompositionError for a width that is no multiple of twice the heads.
    Source: Karpathy 2015, The Unreasonable Effectiveness of Recurrent Neural Networks.

    >>> task = text(length=16, width=16)
    >>> task.batches(0)[0].shape, task.example.shape
    ((16, 16), (16,))
    """
    source = corpus.text(file or None)
    kinds = len(source.vocabulary)
    term = language(kinds, width, layers, heads)
    check_length(length, len(source.held_out))
    held_out = corpus.cover(source.held_out, length, length // 2, source.before)
    nats = totals(cross_entropy, term, held_out)

    def rivals() -> Mapping[str, float]:
        orders = [order for order in (3, 5) if kinds**order < 2**63]
        models = {f"{n}-gram": ngram.kneser_ney(source.train, n, kinds) for n in orders}
        return {
            name: float(ngram.bits(model, source.held_out, source.before).mean())
            for name, model in models.items()
        }

    example = jax.ShapeDtypeStruct((length,), jnp.int32)
    return Task(
        term=term,
        example=example,
        batches=lambda step: corpus.windows((seed, 0, step), source.train, batch, length),
        loss=partial(entropy, each(term)),
        optimizer=by_muon(rate, steps)(term, example),
        steps=steps,
        unit="bits per held-out character",
        score=lambda params: nats(params) / np.log(2),
        reference=2.3,
        best=min,
        rivals=rivals,
        words=dict(
            vocabulary=source.vocabulary, width=width, layers=layers, heads=heads, length=length
        ),
    )


def check_length(length: int, tokens: int) -> None:
    if not 2 <= length <= tokens:
        raise ValueError(
            f"a window of {length} tokens does not fit into the held-out text: 2 to {tokens} do"
        )


def byte_pairs(
    seed: int = 0, steps: int = 1500, batch: int = 16, layers: int = 2, width: int = 128,
    heads: int = 4, length: int = 64, rate: float = 1e-2, file: str = "", vocabulary: int = 512,
) -> Task:  # fmt: skip
    """The next pair of bytes, of a vocabulary that is learned from the same text.

    Scored in bits per held-out character, so that it compares with `text` whatever the vocabulary.
    Raises what `text` raises, ModuleNotFoundError without the package tokenizers, and ValueError
    for a vocabulary below 257.
    Source: Sennrich et al. 2016, Neural Machine Translation of Rare Words with Subword Units.

    >>> task = byte_pairs(length=16, width=16, vocabulary=300)
    >>> task.batches(0)[0].shape
    (16, 16)
    """
    source = corpus.text(file or None)
    pairs = corpus.byte_pairs(source, vocabulary)
    learned, held_out = (
        pairs.encode(source.decode(part)) for part in (source.train, source.held_out)
    )
    term = language(vocabulary, width, layers, heads)
    check_length(length, len(held_out) - 1)
    cover = corpus.cover(held_out[1:], length, length // 2, int(held_out[0]))
    characters = len(source.held_out) - len(pairs.decode(held_out[:1]))
    asked = np.sum(cover[1] != IGNORE)
    nats = totals(cross_entropy, term, cover)
    example = jax.ShapeDtypeStruct((length,), jnp.int32)
    return Task(
        term=term,
        example=example,
        batches=lambda step: corpus.windows((seed, 0, step), learned, batch, length),
        loss=partial(entropy, each(term)),
        optimizer=by_muon(rate, steps)(term, example),
        steps=steps,
        unit="bits per held-out character",
        score=lambda params: nats(params) * asked / characters / np.log(2),
        reference=2.5,
        best=min,
        words=dict(
            tokenizer=pairs.words, vocabulary=vocabulary, width=width, layers=layers, heads=heads,
            length=length,
        ),
    )  # fmt: skip


def masked(
    seed: int = 0, steps: int = 2000, batch: int = 32, layers: int = 2, width: int = 128,
    heads: int = 4, length: int = 64, rate: float = 1e-2, file: str = "", share: float = 0.15,
) -> Task:  # fmt: skip
    """Characters that were hidden, by an encoder that reads what stands before and after them.

        term = tied(embed, norm ∘ blockⁿ),  a hidden character is read as one more kind

    Scored by how many hidden characters of held-out text it tells; its rival always tells the most
    common one. Raises what `text` raises, and ValueError for a share that is not between 0 and 1.
    Source: Devlin et al. 2019, BERT.

    >>> inputs, targets = masked(length=16, width=16).batches(0)
    >>> inputs.shape, bool(0.1 < (targets != -100).mean() < 0.2)
    ((32, 16), True)
    """
    source = corpus.text(file or None)
    kinds = len(source.vocabulary)
    attention = multi_head(width, heads, turned)
    body = transformer(layers, attention=attention, dictionary=dictionary(4 * width))
    term = tied(embed(kinds + 1, width), body)
    check_length(length, len(source.held_out))
    rows = len(source.held_out) // length
    whole = source.held_out[: rows * length].reshape(rows, length)
    held_out = corpus.hidden((seed, 1), whole, share, kinds)
    right = totals(accuracy, term, held_out)

    def rivals() -> Mapping[str, float]:
        common = np.bincount(source.train).argmax()
        asked = held_out[1] != IGNORE
        return {"the most common": 100 * float(np.mean(held_out[1][asked] == common))}

    def batches(step: int) -> Batch:
        rng = data.generator((seed, 0, step))
        return corpus.hidden(rng, corpus.windows(rng, source.train, batch, length)[0], share, kinds)

    example = jax.ShapeDtypeStruct((length,), jnp.int32)
    return Task(
        term=term,
        example=example,
        batches=batches,
        loss=partial(entropy, each(term)),
        optimizer=by_muon(rate, steps)(term, example),
        steps=steps,
        unit="% of hidden characters told right",
        score=lambda params: 100 * right(params),
        reference=60.0,
        rivals=rivals,
        words=dict(vocabulary=source.vocabulary, width=width),
    )


def sample(
    term: Term, params: Params, prompt: np.ndarray, length: int, rng: Array,
    choose: Term = temperature(0.8),
) -> Iterator[int]:  # fmt: skip
    """Continue a prompt without end, character by character, seeing at most `length` of them.

        characterᵢ ~ softmax(choose(logits(the last characters)))

    A model knows the distances that it was trained on and no others: when its window is full, the
    later half is read anew. Raises CompositionError for an empty prompt.

    >>> from itertools import islice
    >>> term = tied(embed(5, 4), rms_norm())
    >>> params = term.init(jax.random.key(0), jnp.arange(3))
    >>> len(list(islice(sample(term, params, jnp.arange(3), 8, jax.random.key(1)), 20)))
    20
    """
    if not len(prompt):
        raise CompositionError("a prompt has a character at least, such as a line break")
    half = max(1, length // 2)
    seen = [int(character) for character in prompt[-half:]]
    for number in itertools.count():
        window = jnp.asarray(seen[-half:], jnp.int32)
        key = jax.random.fold_in(rng, number)
        for character in stream_tokens(
            term, params, window, length - len(window), choose=choose, rng=key
        ):
            seen.append(character)
            yield character
