"""Text as characters: a source, windows to learn from, and a cover to be measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .data import Pair, Seed, generator
from .loss import IGNORE, next_token

__all__ = ["BytePairs", "Text", "byte_pairs", "cover", "hidden", "text", "windows"]


@dataclass(frozen=True, eq=False)
class Text:
    """Characters as numbers, in two parts.

        character = vocabulary[id]

    `vocabulary` is every character of the text, sorted; `train` and `held_out` are int32 ids,
    and `before` is the id of the character in front of the held-out part.
    `encode` and `decode` raise ValueError for what is not in the vocabulary.

    >>> source = Text("ab", np.array([0, 1]), np.array([1]), before=1)
    >>> source.decode(source.encode("abba"))
    'abba'
    """

    vocabulary: str
    train: np.ndarray
    held_out: np.ndarray
    before: int

    def encode(self, string: str) -> np.ndarray:
        if unknown := sorted(set(string) - set(self.vocabulary)):
            raise ValueError(f"characters that are not in the vocabulary: {unknown}")
        return np.searchsorted(code_points(self.vocabulary), code_points(string)).astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        if outside := [int(i) for i in ids if not 0 <= i < len(self.vocabulary)]:
            raise ValueError(
                f"ids 0 to {len(self.vocabulary) - 1} are characters; {outside[0]} is not"
            )
        return "".join(self.vocabulary[int(i)] for i in ids)


def code_points(string: str) -> np.ndarray:
    return np.frombuffer(string.encode("utf-32-le"), np.uint32)


def reference_prose() -> str:
    """The language reference inside Python, each paragraph once."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise FileNotFoundError(
            "this Python comes without its reference (pydoc_data.topics): name a file of text"
        ) from None
    # Topics contain each other whole, indented differently. Left in, they put 60 % of the held-out
    # characters in a stretch of 40 or more that the training part has too; like this, 11 %.
    once: dict[str, str] = {}
    for topic in topics.values():
        for paragraph in topic.split("\n\n"):
            once.setdefault(" ".join(paragraph.split()), paragraph)
    return "\n\n".join(once.values())


def read_text(file: str | Path) -> str:
    """The text of a user's file. Raises FileNotFoundError where there is none, ValueError for one
    that is empty or holds something else than UTF-8."""
    if not Path(file).is_file():
        raise FileNotFoundError(f"there is no text file {str(file)!r}")
    try:
        held = Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(file)!r} is not UTF-8 text: byte {error.start} is "
            f"0x{error.object[error.start]:02x} ({error.reason}); save it as UTF-8"
        ) from None
    if "\x00" in held:
        raise ValueError(f"{str(file)!r} is no text: it holds bytes of 0, as binary files do")
    if not held.strip():
        raise ValueError(f"{str(file)!r} is empty")
    return held


@dataclass(frozen=True, eq=False)
class BytePairs:
    """Pairs of bytes as numbers; `words` is the tokenizer as JSON.

    `encode` gives int32 ids, (N,); `decode` gives the text that they stand for.
    """

    words: str

    @cached_property
    def tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.words)

    def encode(self, string: str) -> np.ndarray:
        return np.array(self.tokenizer.encode(string).ids, np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self.tokenizer.decode([int(i) for i in ids])


def byte_pairs(source: Text, vocabulary: int) -> BytePairs:
    """Learn a vocabulary of bytes and pairs of them from the part of a text that is learned from.

    Any text can be written in it. Raises ValueError for a vocabulary that has no room for a pair
    beside the 256 bytes, or more than the text has pairs for, and ModuleNotFoundError without the
    package tokenizers.
    Source: Sennrich et al. 2016; on bytes, Radford et al. 2019.

    >>> pairs = byte_pairs(text(), 300)
    >>> pairs.decode(pairs.encode("∘ the")), len(pairs.encode("the"))
    ('∘ the', 2)
    """
    from tokenizers import ByteLevelBPETokenizer

    if vocabulary < 257:
        raise ValueError(f"256 bytes and a pair are a vocabulary of 257; got {vocabulary}")
    made = ByteLevelBPETokenizer()
    learned = source.decode(source.train)
    made.train_from_iterator([learned], vocab_size=vocabulary, show_progress=False)
    if (found := made.get_vocab_size()) < vocabulary:
        raise ValueError(f"the text has a vocabulary of {found} pairs of bytes, not {vocabulary}")
    return BytePairs(made.to_str())


def hidden(seed: Seed, ids: np.ndarray, share: float, mask: int) -> Pair:
    """Hide a share of all tokens, each drawn by itself: what is read, and what was hidden.

        inputs = mask where hidden, else ids;  targets = ids where hidden, else `IGNORE`

    Shapes: (B, T) -> two arrays (B, T). Raises ValueError for a share that is not between 0 and 1.
    Source: Devlin et al. 2019, BERT.

    >>> hidden(0, np.array([[1, 2, 3, 4]]), 0.5, mask=9)
    (array([[1, 9, 9, 9]]), array([[-100,    2,    3,    4]]))
    """
    if not 0 < share < 1:
        raise ValueError(f"a share of tokens to hide is between 0 and 1; got {share}")
    drawn = generator(seed).random(ids.shape) < share
    return np.where(drawn, mask, ids).astype(ids.dtype), np.where(drawn, ids, IGNORE)


def text(file: str | Path | None = None, blocks: int = 100) -> Text:
    """Read a text as characters and hold out a tenth of it, spread over its whole length.

        held out = blocks 5, 15, 25, … of the text cut into `blocks` equal, contiguous ones

    Cuts move back to the nearest line end, so that blocks begin with a line. By default the text
    is the reference prose in Python's own pydoc_data.topics, markup and all, each paragraph only
    once. Its size depends on the version: Python 3.11.7 has 373,292 characters (336,029 and
    37,263 held out) of 103 kinds.
    Shapes: see `Text`.
    Raises FileNotFoundError where there is no such file, ValueError for a file that is not
    UTF-8, fewer than 100 characters to a block, or fewer than 10 blocks.
    Source: Shannon 1951, Prediction and Entropy of Printed English.

    >>> source = text()
    >>> len(source.vocabulary) > 90, len(source.train) > 8 * len(source.held_out)
    (True, True)
    """
    if blocks < 10:
        raise ValueError(f"every tenth block is held out, so 10 blocks at least; got {blocks}")
    whole = reference_prose() if file is None else read_text(file)
    if len(whole) < 100 * blocks:
        raise ValueError(
            f"{'the reference prose' if file is None else repr(str(file))} has {len(whole)} "
            f"characters; {blocks} blocks of at least 100 need {100 * blocks}: give a longer "
            "text, or fewer blocks (10 at least)"
        )
    size = len(whole) // blocks
    ends = [len(whole) * i // blocks for i in range(1, blocks)]
    cuts = [0, *(whole.rfind("\n", end - size, end) + 1 or end for end in ends), len(whole)]
    points, ids = np.unique(code_points(whole), return_inverse=True)
    parts = np.split(ids.astype(np.int32), cuts[1:-1])
    return Text(
        vocabulary="".join(map(chr, points)),
        train=np.concatenate([part for i, part in enumerate(parts) if i % 10 != 5]),
        held_out=np.concatenate(parts[5::10]),
        before=int(parts[4][-1]),
    )


def windows(seed: Seed, ids: np.ndarray, batch: int, length: int) -> Pair:
    """Draw windows of a text for next-token training.

        inputs[b, t] = ids[sᵦ + t],  targets[b, t] = ids[sᵦ + t + 1],  sᵦ uniform

    Shapes: (N,) -> two arrays (batch, length), of the type of `ids`.
    Raises ValueError for a text that is not longer than the window, or a size below 1.
    Source: Bengio et al. 2003, A Neural Probabilistic Language Model.

    >>> inputs, targets = windows(0, np.arange(10), batch=2, length=3)
    >>> (targets == inputs + 1).all(), inputs.shape
    (np.True_, (2, 3))
    """
    if min(batch, length) < 1 or len(ids) <= length:
        raise ValueError(
            f"windows of {length} tokens and the one after need a longer text; got {len(ids)} "
            f"tokens (batch {batch})"
        )
    starts = generator(seed).integers(len(ids) - length, size=(batch, 1))
    return next_token(ids[starts + np.arange(length + 1)])


def cover(ids: np.ndarray, length: int, stride: int, before: int) -> Pair:
    """Cut a text into windows that ask for each of its tokens exactly once.

        window w begins at w · stride; a target an earlier window asked for is `IGNORE`

    So every token but the first few is predicted from at least `length − stride` others in front
    of it. `before` is the token in front of the text, from which its first one is predicted.
    Shapes: (N,) -> two arrays (1 + ⌈(N − length) / stride⌉, length); N targets count.
    Raises ValueError unless 1 ≤ stride ≤ length ≤ N.
    Source: the sliding window of Baevski and Auli 2019, Adaptive Input Representations.

    >>> inputs, targets = cover(np.array([1, 2, 3, 4, 5]), length=3, stride=2, before=0)
    >>> inputs.tolist(), targets.tolist()
    ([[0, 1, 2], [2, 3, 4]], [[1, 2, 3], [-100, 4, 5]])
    """
    if not 1 <= stride <= length <= len(ids):
        raise ValueError(
            f"a cover needs 1 ≤ stride ≤ length ≤ tokens; got stride {stride}, length {length}, "
            f"{len(ids)} tokens"
        )
    starts = np.append(np.arange(0, len(ids) - length, stride), len(ids) - length)
    stream = np.concatenate([[before], ids]).astype(ids.dtype)
    inputs, targets = next_token(stream[starts[:, None] + np.arange(length + 1)])
    asked = np.concatenate([[0], starts[:-1] + length])
    fresh = starts[:, None] + np.arange(length) >= asked[:, None]
    return inputs, np.where(fresh, targets, np.array(IGNORE, ids.dtype))
