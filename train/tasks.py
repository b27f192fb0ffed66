"""Three first tasks, each a small frozen record: a term, a stream of data, a loss, an evaluation.

recall   a dictionary of key-value pairs is shown, then asked: the soft dictionary, literally
digits   784 pixels ask a dictionary of pictures which digit they are
text     the next character of English
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..combinators import (
    CompositionError,
    Term,
    causal,
    dropout,
    each,
    embed,
    gelu,
    linear,
    mask,
    named,
    normalize,
    project,
    rms_norm,
    rotary,
    scaled_dot,
    score,
    temperature,
    tied,
    window,
)
from ..models import block, causal_scores, dictionary, multi_head, stream_tokens
from . import corpus, data, ngram
from .loop import Batch, History, Loss, Params, Record, fit
from .loss import accuracy, check_targets, cross_entropy
from .optimize import adamw, muon, warmup

__all__ = ["Task", "digits", "language", "recall", "sample", "text", "train"]


@dataclass(frozen=True, eq=False)
class Task:
    """What there is to train: every field is data or a pure function.

    `example` is one abstract input of the term; `batches(step)` gives (inputs, targets);
    `evaluate(params)` measures held-out data, and whatever there is to compare with, in `unit`.
    """

    term: Term
    example: jax.ShapeDtypeStruct
    batches: Callable[[int], Batch]
    loss: Loss
    optimizer: optax.GradientTransformation
    steps: int
    unit: str
    evaluate: Callable[[Params], Mapping[str, float]]


def train(
    task: Task, seed: int = 0, report: Callable[[int, Record], None] = lambda first, record: None
) -> tuple[Params, History]:
    """Train a task from the parameters that its seed makes: see `fit`."""
    birth, rng = jax.random.split(jax.random.key(seed))
    params = task.term.init(birth, task.example)
    return fit(task.loss, task.optimizer, params, task.batches, task.steps, rng=rng, report=report)


def entropy(term: Term, params: Params, batch: Batch, rng: Array) -> tuple[Array, Array]:
    """The loss of all three tasks."""
    inputs, targets = batch
    return cross_entropy(term(params, inputs, rng=rng), targets)


def totals(measure: Callable[..., Any], term: Term, params: Params, held_out: Batch) -> float:
    """A measure that is a sum and a count, over the rows of held-out data: the mean."""

    @jax.jit
    def sums(params, held_out):
        one = lambda row: measure(term(params, row[0]), row[1])  # noqa: E731
        return jax.lax.map(one, held_out, batch_size=64)

    total, count = (np.sum(part, dtype=float) for part in sums(params, held_out))
    return float(total / count)


# recall


def recall(seed: int = 0, steps: int = 300, batch: int = 64, pairs: int = 8) -> Task:
    """Associative recall, with twice as many keys and values as pairs, all of them asked.

        term = tied(embed, rms_norm ∘ far ∘ near)

    `near` sees one token back, so a value learns whose it is; `far` looks a key up.
    Raises ValueError for sizes below 1 (see `data.recall`).
    Source: Olsson et al. 2022, In-context Learning and Induction Heads (the two steps).

    >>> task = recall(pairs=2)
    >>> task.batches(0)[0].shape, task.example.shape
    ((64, 6), (6,))
    """
    kinds, width = 4 * pairs, 32
    draw = partial(data.recall, pairs=pairs, keys=2 * pairs, values=2 * pairs, questions=pairs)
    near = multi_head(width, 4, scores=mask(causal & window(2)) @ score(scaled_dot))
    far = multi_head(width, 1, scores=causal_scores)
    term = tied(embed(kinds, width), rms_norm() @ block(near=near, far=far))
    example = jax.ShapeDtypeStruct((3 * pairs,), jnp.int32)
    held_out = draw((seed, 1), 1000)
    return Task(
        term=term,
        example=example,
        batches=lambda step: draw((seed, 0, step), batch),
        loss=partial(entropy, each(term)),
        optimizer=adamw(term, example, warmup(5e-3, min(50, steps), steps), decay=1e-3),
        steps=steps,
        unit="% of held-out questions answered right",
        evaluate=lambda params: {"this model": 100 * totals(accuracy, term, params, held_out)},
    )


# digits


def digits(seed: int = 0, steps: int = 1000, batch: int = 128, slots: int = 256) -> Task:
    """Handwritten digits, by one dictionary whose keys and values are pictures.

        term = linear(10) ∘ rms_norm ∘ dictionary(slots) ∘ rms_norm

    A batch of pictures is a sequence of questions. Every picture is moved by up to a pixel each
    time it is drawn. Raises FileNotFoundError where the data is missing, ValueError for a batch
    that is not 1 to 4,000.
    Source: LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition.

    >>> digits(slots=16).term
    compose(linear(10), rms_norm(), aggregate(), dropout(0.2), normalize(gelu), score(dot), \
slots(16), rms_norm())
    """
    (images, labels), held_out = data.digits(seed)
    check_targets(labels, 10)
    pictures = dictionary(slots, weights=dropout(0.2) @ normalize(gelu))
    term = linear(10) @ rms_norm() @ pictures @ rms_norm()
    example = jax.ShapeDtypeStruct((1, images.shape[1]), jnp.float32)

    def batches(step: int) -> Batch:
        rng = data.generator((seed, 0, step))
        picture, label = data.minibatch(rng, batch, images, labels)
        return data.moved(rng, picture), label

    def evaluate(params: Params) -> Mapping[str, float]:
        right, count = accuracy(jax.jit(term)(params, held_out[0]), held_out[1])
        return {"this model": 100 * float(right / count)}

    return Task(
        term=term,
        example=example,
        batches=batches,
        loss=partial(entropy, term),
        optimizer=adamw(term, example, warmup(3e-3, min(100, steps), steps), decay=1e-2),
        steps=steps,
        unit="% of 1,000 held-out digits told right",
        evaluate=evaluate,
    )


# text


def turned(width: int) -> Term:
    """Entries whose queries and keys know how far apart they stand (Su et al. 2021)."""
    return project(query=rotary() @ linear(width), key=rotary() @ linear(width), value=width)


def language(kinds: int, width: int) -> Term:
    """Two blocks that read characters of so many kinds: (T,) -> (T, kinds).

    >>> language(50, 16).embed
    embed(50, 16)
    """
    # A few thousand lines are soon known by heart: what a branch adds is dropped now and then.
    layer = block(
        attention=dropout(0.1) @ multi_head(width, 4, turned, causal_scores),
        dictionary=dropout(0.1) @ dictionary(4 * width),
    )
    # Two blocks written out take a fifth less time for a step than a scan of them.
    body = rms_norm() @ named("upper", layer) @ named("lower", layer)
    return tied(embed(kinds, width), body)


def text(
    source: corpus.Text,
    seed: int = 0,
    steps: int = 1500,
    batch: int = 16,
    length: int = 128,
    width: int = 128,
) -> Task:
    """The next character: two blocks of a transformer, against n-grams of the same text.

        term = tied(embed, rms_norm ∘ upper ∘ lower),  a block is attention and a dictionary

    Raises ValueError for a text whose held-out part is shorter than a window, CompositionError
    for a width that is no multiple of 8 (four heads of pairs that rotary turns).
    Source: Karpathy 2015, The Unreasonable Effectiveness of Recurrent Neural Networks.
    """
    kinds = len(source.vocabulary)
    term = language(kinds, width)
    example = jax.ShapeDtypeStruct((length,), jnp.int32)
    held_out = corpus.cover(source.held_out, length, length // 2, source.before)

    def evaluate(params: Params) -> Mapping[str, float]:
        orders = [order for order in (3, 5) if kinds**order < 2**63]
        models = {f"{n}-gram": ngram.kneser_ney(source.train, n, kinds) for n in orders}
        bits = {
            name: float(ngram.bits(model, source.held_out, source.before).mean())
            for name, model in models.items()
        }
        return {**bits, "this model": totals(cross_entropy, term, params, held_out) / np.log(2)}

    return Task(
        term=term,
        example=example,
        batches=lambda step: corpus.windows((seed, 0, step), source.train, batch, length),
        loss=partial(entropy, each(term)),
        optimizer=muon(term, example, warmup(1e-2, min(100, steps), steps), decay=0.1),
        steps=steps,
        unit="bits per held-out character",
        evaluate=evaluate,
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
