"""A toy translation, by an encoder and a decoder."""

from __future__ import annotations

from functools import partial

from ...combinators import embed, linear, position_embed
from ...models import encoder, encoder_decoder, reading_decoder
from .. import sequences
from .task import Task, answered, by_muon

__all__ = ["translation"]


def translation(
    seed: int = 0, steps: int = 1000, batch: int = 64, layers: int = 2, width: int = 64,
    heads: int = 4, length: int = 12, kinds: int = 32, rate: float = 1e-2,
) -> Task:  # fmt: skip
    """Clauses in the order subject, verb, object are written in the order subject, object, verb.

        term = encoder_decoder(encoder ∘ embed, linear ∘ decoder ∘ embed)

    Each word has one translation. Raises ValueError for a length that is no multiple of 3, or kinds
    that are one of 5.
    Source: Vaswani et al. 2017, Attention Is All You Need.

    >>> (source, shown), following = translation(length=6).batches(0)
    >>> source.shape, shown.shape, following.shape
    ((64, 6), (64, 6), (64, 6))
    """
    reads = encoder(layers, width, heads, 4 * width)
    writes = reading_decoder(layers, width, heads, 4 * width)
    term = encoder_decoder(
        reads @ position_embed(length) @ embed(kinds, width),
        linear(kinds) @ writes @ position_embed(length) @ embed(kinds + 1, width),
    )
    draw = partial(sequences.translated, length=length, kinds=kinds)
    return answered(term, draw, seed, batch, by_muon(rate, steps), steps=steps, reference=99.0)
