"""Biases by position: a number for each distance between a query and a key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from .bias import Bias, small_normal
from .core.arguments import at_least, boolean
from .core.context import Context
from .core.errors import CompositionError
from .core.marks import Marks
from .core.mesh import entries_at
from .core.parameter import Parameter
from .core.term import form
from .core.types import Table, Value

__all__ = ["alibi", "alibi_slopes", "relative", "t5_buckets"]


@form
class Alibi(Bias):
    """-slope(head) · |distance| (Press et al. 2022): the farther, the lower, and linearly so.

    The slopes of n heads are `alibi_slopes(n)`; it stands inside `heads(n, …)`.
    """

    word = "alibi"
    bare = True

    def operands(self, params: Mapping[str, Array], context: Context) -> Array:
        head = context.scope.head
        if head is None:
            raise CompositionError("alibi gives each head a slope: use it inside heads(n, …)")
        return entries_at(jnp.asarray(alibi_slopes(head.count)), head.index)

    def tile(self, operands: Array, marks: Marks) -> Table:
        apart = jnp.abs(marks.query.position - marks.key.position)
        return -operands * apart.astype(operands.dtype)


alibi = Alibi()


def alibi_slopes(heads: int) -> np.ndarray:
    """The slope of every head: 2^(-8/n), 2^(-16/n), … for n a power of two; otherwise those of the
    next lower power, then every other one of the next higher (Press et al. 2022).

    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    at_least(1, "alibi_slopes", heads=heads)
    lower = 2 ** int(np.log2(heads))
    powers = lambda n: 2.0 ** (-8 / n * np.arange(1, n + 1))  # noqa: E731
    return np.concatenate([powers(lower), powers(2 * lower)[::2][: heads - lower]])


class Distances(Bias):
    """A learned number for each bucket of the distance key - query, clipped to ±reach."""

    reach: int

    def buckets(self) -> np.ndarray:
        """The entry of the table for every distance from -reach to reach."""
        raise NotImplementedError(f"{type(self).__name__} does not define buckets")

    def parameters(self, x: Value) -> dict[str, Parameter]:
        entries = int(self.buckets().max()) + 1
        return {"table": Parameter((entries,), small_normal, ("positions",))}

    def operands(self, params: Mapping[str, Array], context: Context) -> Array:
        return jnp.asarray(params["table"])[self.buckets()]

    def tile(self, operands: Array, marks: Marks) -> Table:
        apart = marks.key.position - marks.query.position
        return entries_at(operands, jnp.clip(apart, -self.reach, self.reach) + self.reach)


@form
class relative(Distances):
    """A learned number for each distance from -n to n, clipped beyond (Shaw et al. 2018).

    Raises CompositionError for an n below 0.

    >>> from combinax.combinators import dot, project, score
    >>> term = bias(relative(2)) @ score(dot) @ project(1)
    >>> term.init(jax.random.key(0), jnp.zeros((3, 1)))["bias"]["table"].shape
    (5,)
    """

    reach: int

    def __post_init__(self):
        super().__post_init__()
        at_least(0, self, reach=self.reach)

    def buckets(self) -> np.ndarray:
        return np.arange(2 * self.reach + 1)


@form
class t5_buckets(Distances):
    """A learned number for each bucket of distance (Raffel et al. 2020): the first half of the
    buckets one distance each, the others logarithmically wider up to `reach`. Without
    `bidirectional` all buckets look back, as in a decoder.

    >>> t5_buckets(8, 16, bidirectional=False).buckets()[:17].tolist()
    [7, 7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 4, 4, 3, 2, 1, 0]
    """

    count: int = 32
    reach: int = 128
    bidirectional: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        boolean(self, bidirectional=self.bidirectional)
        at_least(4 if self.bidirectional else 2, self, count=self.count)
        at_least(self.count // 2 + 1, self, reach=self.reach)

    def buckets(self) -> np.ndarray:
        apart = np.arange(-self.reach, self.reach + 1)
        count = self.count // 2 if self.bidirectional else self.count
        back = np.abs(apart) if self.bidirectional else np.maximum(-apart, 0)
        exact = count // 2
        far = np.log(np.maximum(back, 1) / exact) / np.log(self.reach / exact)
        far = exact + np.floor(far * (count - exact) + 1e-9).astype(int)
        bucket = np.where(back < exact, back, np.minimum(far, count - 1))
        return bucket + (count * (apart > 0) if self.bidirectional else 0)
