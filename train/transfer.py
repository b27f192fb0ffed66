"""Transfer: an encoder that others trained on text learns intents from ten sentences of each.

    classifier = linear ∘ mean_pool ∘ encoder

One term and four ways to learn: only the linear map, from what the frozen encoder says; low-rank
adapters in its attention, too; all weights; and all weights from scratch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax.traverse_util import flatten_dict, path_aware_map
from jax import Array

from ..combinators import Term, each, linear, named, pick
from ..models import bert, mean_pool
from ..models.adapter import adapted, merged, with_adapters
from ..models.disk import read_text
from ..models.files import minilm
from ..models.pretrained import batch, configuration, load
from . import data
from .loop import Batch, Params, fit
from .loss import accuracy, cross_entropy
from .optimize import warmup

__all__ = ["Intents", "Row", "classifier", "intents", "transfer"]

Asked = tuple[Any, dict[str, Any]]
"""What goes into a term: x and its context, a row for each sentence."""


class Intents(NamedTuple):
    """Sentences, each with the number of its intent: some to learn from, and all held out."""

    names: tuple[str, ...]
    learned: tuple[list[str], np.ndarray]
    held_out: tuple[list[str], np.ndarray]


class Row(NamedTuple):
    """A way to learn, how many weights learned, and how many held-out sentences it told right."""

    way: str
    weights: int
    percent: float


def intents(path: Path, seed: data.Seed = 0, of_each: int = 10) -> Intents:
    """Draw `of_each` sentences of every intent to learn from, and take all that are held out.

    The file is a JSON list of [split, intent, sentence]; a split is "train" or "val".
    Raises ValueError for another file, or one with too few sentences; OSError where there is none.
    Source: Coucke et al. 2018, Snips Voice Platform, whose 2017 sentences it is made for.
    """
    held = read_text(path)
    try:
        rows = [(str(split), str(name), str(text)) for split, name, text in json.loads(held)]
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is no JSON list of [split, intent, sentence]") from error
    names = tuple(sorted({name for _, name, _ in rows}))
    rng, learned = data.generator(seed), []
    for number, name in enumerate(names):
        found = [text for split, own, text in rows if (split, own) == ("train", name)]
        if len(found) < of_each:
            raise ValueError(f"{name} has {len(found)} sentences to learn from, not {of_each}")
        learned += [(found[i], number) for i in rng.choice(len(found), of_each, replace=False)]
    held_out = [(text, names.index(name)) for split, name, text in rows if split == "val"]
    if not held_out:
        raise ValueError(f"{str(path)!r} holds no sentences out: none has the split 'val'")
    first, second = (
        ([text for text, _ in part], np.array([number for _, number in part], np.int32))
        for part in (learned, held_out)
    )
    return Intents(names, first, second)


def classifier(encoder: Term, classes: int) -> Term:
    """linear ∘ mean_pool ∘ encoder: tokens (T,) -> logits (1, classes) (Devlin et al. 2019).

    >>> from combinax.combinators import fanout, identity
    >>> term, x = classifier(fanout(identity, identity), 7), jnp.ones((3, 4))
    >>> term.init(jax.random.key(0), x, lengths=2)["intents"]["kernel"].shape
    (4, 7)
    """
    return named("intents", linear(classes, bias=True)) @ mean_pool @ pick(0) @ encoder


def transfer(
    source: Intents, seed: int = 0, steps: int = 60, size: int = 32, rank: int = 4
) -> Iterator[Row]:
    """Learn intents by all-MiniLM-L6-v2 in each of the four ways, in turn, and measure it.

    Every way takes `steps` of `size` sentences. What adapters of a `rank` learned is merged into
    the weights before it is measured.
    Raises FileNotFoundError, with the command that installs it, where the encoder is missing.
    Source: Devlin et al. 2019, BERT; Hu et al. 2021, LoRA.
    """
    encoder, pretrained, tokenizer = load(minilm())
    asked, held_out = (batch(tokenizer, texts) for texts, _ in (source.learned, source.held_out))
    plain = classifier(encoder, len(source.names))
    narrow = classifier(bert(configuration(minilm()), adapted(rank)), len(source.names))
    key, one = jax.random.key(seed), jax.tree.map(lambda rows: rows[0], asked)
    learn = partial(tuned, labels=source.learned[1], steps=steps, size=size, seed=seed)

    def row(way: str, weights: int, params: Params) -> Row:
        right, count = accuracy(answers(plain, params, held_out)[:, 0], source.held_out[1])
        return Row(way, weights, 100 * float(right / count))

    scratch = plain.init(key, one[0], **one[1])
    start = {**pretrained, "intents": scratch["intents"]}

    said = answers(mean_pool @ pick(0) @ encoder, pretrained, asked)
    intents = learn(linear(len(source.names), bias=True), start["intents"], (said, {}), rate=1e-2)
    yield row("linear map, encoder frozen", count(intents), {**start, "intents": intents})

    params = with_adapters(narrow.init(key, one[0], **one[1]), start)
    params = learn(narrow, params, asked, rate=2e-3, moves=of_adapters)
    flat: dict[Any, Any] = flatten_dict(params)
    weights = sum(leaf.size for path, leaf in flat.items() if of_adapters(path))
    yield row("low-rank adapters, merged", weights, merged(narrow, params, one[0], **one[1]))

    for way, params in (("all weights", start), ("all weights, from scratch", scratch)):
        yield row(way, count(params), learn(plain, params, asked, rate=2e-4))


def tuned(
    term: Term,
    start: Params,
    asked: Asked,
    labels: np.ndarray,
    rate: float,
    steps: int,
    size: int,
    seed: int,
    moves: Callable[[Any], bool] = lambda path: True,
) -> Params:
    """Learn labels from a start; parameters whose path does not move stay bit for bit.

    logits = each(term)(params, x, context),  (N, 1, classes)
    """
    learns = path_aware_map(lambda path, leaf: "learns" if moves(path) else "stays", start)

    def loss(params: Params, batch: Batch, rng: Array) -> tuple[Array, Array]:
        (x, context), label = batch
        # What stays has no gradient to compute.
        params = jax.tree.map(
            lambda leaf, kind: leaf if kind == "learns" else jax.lax.stop_gradient(leaf),
            params, learns,
        )  # fmt: skip
        return cross_entropy(each(term)(params, x, rng=rng, **context)[:, 0], label)

    schedule = warmup(rate, max(1, steps // 10), steps)
    optimizer = optax.multi_transform(
        {
            "learns": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)),
            "stays": optax.set_to_zero(),
        },
        learns,
    )

    def batches(step: int) -> Batch:
        rows = data.generator((seed, step)).choice(len(labels), min(size, len(labels)), False)
        return jax.tree.map(lambda all_rows: all_rows[rows], (asked, labels))

    params, _ = fit(loss, optimizer, start, batches, steps, rng=jax.random.key(seed))
    return params


def of_adapters(path: tuple[str, ...]) -> bool:
    """Whether a parameter belongs to an adapter or to the linear map."""
    return "adapter" in path or path[0] == "intents"


def answers(term: Term, params: Params, asked: Asked) -> Array:
    """What a term gives for every row."""

    @jax.jit
    def all_rows(params: Params, asked: Asked) -> Array:
        one = lambda row: term(params, row[0], **row[1])  # noqa: E731
        return jax.lax.map(one, asked, batch_size=50)

    return all_rows(params, asked)


def count(params: Params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
