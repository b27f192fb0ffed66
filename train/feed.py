"""From a source of batches to what is dispatched: several batches on a new first axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from .step import Batch, is_key, numeric, shown

__all__ = ["Group", "groups"]


class Group(NamedTuple):
    """The batches of `steps` steps, from step `first` on.

    `rows` holds them on a first axis that always has the same size: `taken` says which rows are
    steps, and the last batch fills the rest.
    """

    first: int
    steps: int
    taken: np.ndarray
    rows: Batch


def groups(
    batches: Callable[[int], Batch], first: int, steps: int, size: int, every: int
) -> Iterator[Group]:
    """The steps from `first` on, at most `size` at a time; one group ends at each multiple of
    `every`."""
    source = drawn(batches, first, steps)
    while group := [*islice(source, min(size, every - first % every))]:
        count = len(group)
        rows = jax.tree.map(stacked, *group, *group[-1:] * (size - count))
        yield Group(first, count, np.arange(size) < count, rows)
        first += count


def stacked(*rows: Any) -> Any:
    """Leaves on a new first axis; NumPy knows nothing of random keys."""
    return jnp.stack(rows) if is_key(rows[0]) else np.stack(rows)


def drawn(batches: Callable[[int], Batch], first: int, steps: int) -> Iterator[Batch]:
    """The batch of every step, as long as there are any and all of them are like the first."""
    like: Any = None
    for step in range(first, steps):
        try:
            batch = batches(step)
        except StopIteration:
            return
        if isinstance(batch, Iterator):
            raise ValueError(
                f"batches(step) is one batch, and batches({step}) is a {type(batch).__name__} of "
                "several: write lambda step: next(iterator)"
            )
        for path, leaf in jax.tree.leaves_with_path(batch):
            if not numeric(leaf) and not is_key(leaf):
                raise ValueError(
                    "batches are arrays of numbers or of random keys, and batch "
                    f"{step}{keystr(path)} is {leaf!r:.60}"
                )
        held = jax.tree.map(shown, batch)
        like = held if like is None else like
        if held != like:
            raise ValueError(
                f"batch {step} is {held}, and the first was {like}: every batch has the tree, the "
                "shapes and the types of the first; leave a shorter one out, or fill it up with "
                "rows that are not counted"
            )
        yield batch
