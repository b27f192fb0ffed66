"""The first token of a model of text, and the texts of its tokens, by the words saved with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...combinators import Term
from ..corpus import BytePairs, Text
from ..tasks import language

__all__ = ["opening", "term_of", "written"]


def written(words: Mapping[str, Any], prompt: str | None) -> tuple[Text | BytePairs, str]:
    """The texts of a model's tokens, and the one that it begins with."""
    if "tokenizer" in words:
        return BytePairs(words["tokenizer"]), "\n" if prompt is None else prompt
    vocabulary = words["vocabulary"]
    nothing = np.zeros(0, np.int32)
    text = Text(vocabulary, nothing, nothing, before=0)
    return text, opening(vocabulary) if prompt is None else prompt


def opening(vocabulary: str) -> str:
    """The character that a text begins after: a line break, a space, or the first that it has."""
    return next(c for c in ("\n", " ", vocabulary[0]) if c in vocabulary)


def term_of(words: Mapping[str, Any]) -> Term:
    """The language model that these words describe."""
    vocabulary = words["vocabulary"]
    kinds = vocabulary if isinstance(vocabulary, int) else len(vocabulary)
    return language(kinds, words["width"], words["layers"], words["heads"])
