"""An encoder that filled in masked characters, against one from scratch, where labels are few.

The words of a text are run together. Which characters ended a word? Labels are a few windows of
text; masked characters need none, and all of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...combinators import Term, each, embed, linear, named, tied
from ...models import dictionary, multi_head, transformer
from .. import corpus, data
from ..loop import Batch, Params, fit
from ..loss import accuracy
from ..plot import lines
from ..tasks.task import by_muon, entropy, totals, turned
from .finding import Finding, Rows

__all__ = ["joined", "pretraining"]


def joined(ids: np.ndarray, space: int) -> tuple[np.ndarray, np.ndarray]:
    """The characters of a text without its spaces, and 1 for each that a space followed.

        (N,) -> two int32 arrays (M,), M characters that are no spaces

    >>> joined(np.array([5, 6, 0, 7, 0, 0, 8]), space=0)
    (array([5, 6, 7, 8], dtype=int32), array([0, 1, 1, 0], dtype=int32))
    """
    ended = np.append(ids[1:] == space, False)
    kept = ids != space
    return ids[kept].astype(np.int32), ended[kept].astype(np.int32)


def pretraining(
    seed: int = 0, steps: int = 1500, length: int = 64, width: int = 128, tuned: int = 200
) -> Finding:
    """Where did the spaces stand? Told by a pretrained encoder and one from scratch, from 8 to 128
    windows with labels.

    `steps` of filling in masked characters, then `tuned` steps on labels; the encoder from scratch
    takes the latter alone. "none" says that no space stood anywhere.
    Source: Devlin et al. 2019, BERT; Howard and Ruder 2018 (few labels).
    """
    source = corpus.text()
    kinds = len(source.vocabulary)
    space = source.vocabulary.index(" ")
    (ids, ends), (asked, answers) = (
        joined(part, space) for part in (source.train, source.held_out)
    )
    attention = multi_head(width, 4, turned)
    body = transformer(2, attention=attention, dictionary=dictionary(4 * width))
    fills = tied(embed(kinds + 1, width), body)
    tells = named("ends", linear(2)) @ body @ embed(kinds + 1, width)
    key = jax.random.key(seed)
    example = jax.ShapeDtypeStruct((length,), jnp.int32)

    def hidden(step: int) -> Batch:
        rng = data.generator((seed, 0, step))
        return corpus.hidden(rng, corpus.windows(rng, ids, 32, length)[0], 0.15, kinds)

    scratch = tells.init(key, example)
    pretrained = learner(fills, example, steps, seed)(fills.init(key, example), hidden)
    learn = learner(tells, example, tuned, seed)
    whole = len(asked) // length
    held_out = tuple(part[: whole * length].reshape(whole, length) for part in (asked, answers))
    right = totals(accuracy, tells, held_out)
    none = round(100 * float(np.mean(held_out[1] == 0)), 1)
    rows: Rows = []
    for windows in (8, 32, 128):
        places = data.generator((seed, 1, windows)).integers(len(ids) - length, size=(windows, 1))
        labelled = tuple(part[places + np.arange(length)] for part in (ids, ends))

        def some(step: int, labelled: tuple[np.ndarray, ...] = labelled) -> Batch:
            return data.minibatch((seed, 2, step), 8, *labelled)

        for way, start in (("scratch", scratch), ("pretrained", {**scratch, **pretrained})):
            percent = round(100 * right(learn(start, some)), 1)
            rows.append({"encoder": way, "windows": windows, "% right": percent})
        rows.append({"encoder": "none", "windows": windows, "% right": none})
    return Finding(rows, lines(rows, "windows", "% right", "encoder", "% held out right"))


def learner(
    term: Term, example: Any, steps: int, seed: int
) -> Callable[[Params, Callable[[int], Batch]], Params]:
    """Training as a function of where it starts and of the data: compiled once for all of them."""
    loss, optimizer = partial(entropy, each(term)), by_muon(5e-3, steps)(term, example)

    def learn(start: Params, batches: Callable[[int], Batch]) -> Params:
        return fit(loss, optimizer, start, batches, steps, rng=jax.random.key(seed))[0]

    return learn
