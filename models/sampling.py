"""Choosing: terms from logits to logits that say which tokens may be drawn, and how likely.

    choose = keep_top_p(0.9) @ keep_top_k(40) @ temperature(0.8)

The token is drawn from softmax of what comes out. They compose like all terms, and `identity` draws
from the model as it is. A number that changes from request to request is read from the context, and
then compiles nothing anew:

    choose = keep_top_p(read("top_p")) @ temperature(read("temperature"))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from ..combinators import CompositionError, ContextError, pointwise, read
from ..combinators.core.arguments import at_least, is_number
from ..combinators.core.context import Context
from ..combinators.core.dtypes import widened
from ..combinators.core.leaf import SameShape
from ..combinators.core.source import documented
from ..combinators.core.term import form

__all__ = ["greedy", "keep_top_k", "keep_top_p", "log_probability"]


class Choice(SameShape):
    """Logits (…, V) to logits (…, V), each row by itself."""

    rowwise = True

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(field.label for field in self.fields if isinstance(field, read))


def number_in(context: Context, number: Any, check: Callable[[Any], None]) -> Any:
    """A number that is written, or read from the context and checked unless it is traced."""
    if not isinstance(number, read):
        return number
    value = context[number.label]
    if jnp.ndim(value):
        raise ContextError(
            f"{number.label} is one number, and has shape {jnp.shape(value)}; a batch is jax.vmap"
        )
    if not isinstance(value, Tracer):
        check(np.asarray(value).item())
    return jnp.asarray(value)


# The values of a sort or of top_k are computed once, and so is what is placed by them. XLA fuses
# logits / t into whatever reads it, and rounds it here otherwise than there: at t = 1e-12 no
# logit equals the largest one then, and softmax divides 0 by 0.


def placed(values: Array, places: Array, logits: Array) -> Array:
    """The values at their places, and -inf elsewhere: such a token is never drawn."""
    kind = logits.dtype if jnp.issubdtype(logits.dtype, jnp.floating) else values.dtype
    nothing = jnp.full(logits.shape, -jnp.inf, kind)
    put = lambda row, places, values: row.at[places].set(values)  # noqa: E731
    for _ in range(logits.ndim - 1):
        put = jax.vmap(put)
    return put(nothing, places, values.astype(kind))


def largest(logits: Array, count: int) -> Array:
    """The `count` largest logits, the earlier first among equals, and NaN before all."""
    positive = wide(logits) + 0.0  # top_k puts -0 behind 0
    return placed(*jax.lax.top_k(positive, min(count, logits.shape[-1])), logits)


def cut(logits: Array, kept: Callable[[Array], Array]) -> Array:
    """Logits of which `kept`, a function of them in descending order, says which stay; the first
    stays always, and so does NaN: whoever draws has to see it."""
    number = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    negated, order = jax.lax.sort((-wide(logits), number), num_keys=1, is_stable=True)
    ordered, first = -negated, jnp.arange(logits.shape[-1]) == 0
    stay = kept(ordered) | first | jnp.isnan(ordered)
    return placed(jnp.where(stay, ordered, -jnp.inf), order, logits)


def largest_alone(logits: Array) -> Array:
    return largest(jnp.asarray(logits), 1)


greedy = documented(
    "Only the largest logit, the earlier one among equals: (…, V) -> (…, V).",
    pointwise(largest_alone, "greedy"),
)


@form
class keep_top_k(Choice):
    """Only the k largest logits, the earlier first among equals: (…, V) -> (…, V) (Fan et al.
    2018). k is a number, or `read(name)`.

    Raises CompositionError for k below 1; inside jit, where a k that is read raises nothing, it
    counts as 1.

    >>> keep_top_k(2)({}, jnp.array([1.0, 3.0, 2.0]))
    Array([-inf,   3.,   2.], dtype=float32)
    """

    count: int | read

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.count, read):
            self.check(self.count)

    def check(self, count: Any) -> None:
        at_least(1, self, count=count)

    def apply(self, params: Any, x: Array, context: Context) -> Array:
        count = number_in(context, self.count, self.check)
        if isinstance(count, int):
            return largest(x, count)
        return cut(x, lambda ordered: jnp.arange(ordered.shape[-1]) < count)


@form
class keep_top_p(Choice):
    """Only the most likely tokens that together reach the probability p: (…, V) -> (…, V)
    (Holtzman et al. 2020). p is a number, or `read(name)`.

        token i stays  where  Σⱼ softmax(x)[j] > 1 - p,  over i and all tokens less likely than i

    The token with which p is reached is the last one kept; the most likely always stays, and
    p = 1 keeps all.

    Raises CompositionError unless 0 < p <= 1; inside jit, where a p that is read raises nothing, it
    counts as the nearest of these.

    >>> keep_top_p(0.7)({}, jnp.log(jnp.array([0.5, 0.1, 0.4])))[1]
    Array(-inf, dtype=float32)
    """

    share: float | read

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.share, read):
            self.check(self.share)

    def check(self, share: Any) -> None:
        if not is_number(share) or not 0 < share <= 1:
            raise CompositionError(f"keep_top_p keeps a share 0 < p <= 1, not {share!r}")

    def apply(self, params: Any, x: Array, context: Context) -> Array:
        share = number_in(context, self.share, self.check)
        share = wide(share) if isinstance(share, Array) else share

        def likely(ordered: Array) -> Array:
            largest = ordered[..., :1]
            weight = jnp.where(ordered == largest, 1, jnp.exp(ordered - largest))
            # Summed up from the least likely: a sum from the other end stops short of 1, or beyond.
            tail = jax.lax.cumsum(weight, axis=weight.ndim - 1, reverse=True)
            return (tail > (1 - share) * tail[..., :1]) | (share >= 1)

        return cut(x, likely)


def wide(logits: Array) -> Array:
    """Logits in at least float32: noise of fewer bits leaves tokens of a vocabulary out."""
    return widened(logits)


def log_probability(logits: Array, token: Array) -> Array:
    """How likely the model itself finds a token: (V,), () -> (), as `generate(keep=…)` wants it.

    >>> log_probability(jnp.zeros(4), 1)
    Array(-1.3862944, dtype=float32)
    """
    return jax.nn.log_softmax(wide(logits))[token]
