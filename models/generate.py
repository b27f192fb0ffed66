"""Generation: read a prompt, then draw token after token, each from the logits of the last.

    state, logits = step(params, state, prompt)
    token         ~ softmax(choose(logits[-1])),   state, logits = step(params, state, token)

All is written for one sequence. A batch is `jax.vmap`, with the lengths of ragged prompts mapped
along: rows then differ in nothing from each prompt alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from ..combinators import CompositionError, Term, identity, stepwise, unstack
from ..combinators.check import check_key
from ..combinators.declare import declare
from ..combinators.project import at_least
from ..combinators.written import reference
from .choose import wide

__all__ = ["Generated", "generate", "stream_tokens"]

NO_TOKEN = -1
"""What stands behind the end, and for a token that cannot be drawn because logits are NaN."""


class Generated(NamedTuple):
    """Tokens (count,), of which `length` were drawn, a stop token included, and what `keep` made
    of each."""

    tokens: Array
    length: Array
    kept: Any


def nothing(logits: Array, token: Array) -> tuple[()]:
    return ()


def generate(
    term: Term,
    params: Any,
    prompt: ArrayLike,
    count: int,
    *,
    choose: Term = identity,
    rng: Array | None = None,
    stop: int | Sequence[int] = (),
    keep: Callable[[Array, Array], Any] = nothing,
    length: Any = None,
    dtype: Any = None,
    **context: Any,
) -> Generated:
    """Continue a prompt (T,) by up to `count` tokens, in one compiled loop.

    `choose` makes logits of logits (`greedy`, `keep_top_k(40) @ temperature(0.8)`), from which
    token number i is drawn with fold_in(rng, i); without `rng` it is key(0), and every call draws
    the same. It ends after a token of `stop`; with `length`, only so many tokens of the prompt
    count, the rest being padding: a prompt of another shape is compiled anew, one that is padded
    to the same shape is not. `keep(logits, token)` of each step is stacked:
    `keep=log_probability`. `dtype` is that of the keys and values kept.

    Raises CompositionError for an empty prompt, a term that looks ahead, one that has no position
    for the last token, or a choice that gives no logits; ContextError for a rng that is no key.

    >>> from combinax.models import greedy
    >>> count_up = pointwise(lambda tokens: jax.nn.one_hot((tokens + 1) % 5, 5))
    >>> generate(count_up, {}, jnp.array([1, 2]), 4, choose=greedy, stop=(0,)).tokens.tolist()
    [3, 4, 0, -1]
    """
    prompt = checked(term, prompt, count, context)
    kind = None if dtype is None else jnp.dtype(dtype)
    static = (term, choose, keep, count, listed(stop), kind)
    return looped(*static, params, prompt, counting(length, prompt), key_of(rng), context)


def key_of(rng: Array | None) -> Array:
    """The key to draw with, key(0) if none is given."""
    if rng is None:
        return jax.random.key(0)
    check_key(rng)
    return rng


def listed(stop: int | Sequence[int]) -> tuple[int, ...]:
    """The tokens to stop after, of which one may stand by itself."""
    return (stop,) if isinstance(stop, int) else tuple(stop)


def counting(length: Any, prompt: Array) -> Any:
    """How many tokens of the prompt count, if that is said."""
    if length is None or isinstance(length, Tracer):
        return length
    whole = not jnp.ndim(length) and jnp.issubdtype(jnp.result_type(length), jnp.integer)
    if not whole or not 1 <= length <= len(prompt):
        raise CompositionError(
            f"length says how many of the prompt's {len(prompt)} tokens count, from 1 on, and is "
            f"{length!r}"
        )
    return length


def checked(term: Term, prompt: ArrayLike, count: int, context: Any) -> Array:
    """The prompt, once it is sure that the term can read it and what is to follow."""
    if isinstance(prompt, Mapping):
        raise CompositionError("generate takes parameters and then the prompt, and gets a dict")
    prompt = jnp.asarray(prompt)
    at_least(0, "generate", count=count)
    if prompt.ndim != 1 or not prompt.size or count < 1:
        raise CompositionError(
            f"generate continues a prompt of shape (T,), T at least 1, by at least one token, not "
            f"{prompt.shape} by {count}; a batch is jax.vmap"
        )
    # Whatever is wrong with the whole, such as a position past a table, is said before the loop.
    declare(term, jax.ShapeDtypeStruct((len(prompt) + count - 1,), prompt.dtype), context)
    return prompt


def begin(
    term: Term, params: Any, prompt: Array, more: int, slack: int, dtype: Any, context: Any,
    alone: int | None = None,
) -> tuple[Any, Array, Callable[..., Any]]:  # fmt: skip
    """The prompt read: state, logits, and the step that goes on from there. What is drawn comes one
    by one, and so does a prompt from `alone` on."""
    plan = dict(rewind=slack, dtype=dtype, one_by_one=alone or len(prompt))
    start, step = stepwise(term, **plan)
    state = start(params, prompt, len(prompt) + more, **context)
    context = {name: value for name, value in context.items() if name not in state["given"]}
    state, logits = step(params, state, prompt, **context)
    return state, logits, partial(step, params, **context)


def drawn(choose: Term, rng: Array, number: Any, logits: Array) -> Array:
    token = jax.random.categorical(jax.random.fold_in(rng, number), chosen(choose, logits))
    return jnp.where(jnp.isnan(logits).any(), NO_TOKEN, token).astype(jnp.int32)


def chosen(choose: Term, logits: Array) -> Array:
    """The logits to draw from, in at least float32."""
    if isinstance(choose, Term):
        made = choose({}, wide(logits))
        if jnp.shape(made) == logits.shape:
            return made
    raise CompositionError(
        "choose is a term that makes logits of logits, such as greedy or keep_top_k(40), and "
        f"{reference(choose)} is not"
    )


def refuse_sums(state: Any, why: str) -> None:
    """Refuse a state in which a lookup keeps sums over its keys in place of rows."""
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(state["memory"]))
    if any(getattr(path[-1], "key", "") == "mixed" for path in paths):
        raise CompositionError(f"{why}, and keys that are summed up cannot be forgotten")


@partial(jax.jit, static_argnums=range(6))
def looped(
    term: Term, choose: Term, keep: Callable, count: int, stop: tuple[int, ...], dtype: Any,
    params: Any, prompt: Array, length: Any, rng: Array, context: Any,
) -> Generated:  # fmt: skip
    params = unstack(term, params)  # layers written out step faster than a scan of them
    # Padding that was read is overwritten: it may be all of the prompt but one token.
    slack = 0 if length is None else len(prompt) - 1
    alone = None if length is None else 1  # what stands after a prompt counts for none of it
    state, logits, step = begin(term, params, prompt, count, slack, dtype, context, alone)
    if length is not None:
        refuse_sums(state, "give each prompt alone: length leaves its end out")
    length = len(prompt) if length is None else length

    def after(number: Any, logits: Array, made: Generated) -> tuple[Array, Array, Generated]:
        token = drawn(choose, rng, number, logits)
        kept = jax.tree.map(
            lambda all, one: all.at[number].set(one), made.kept, keep(logits, token)
        )
        made = Generated(made.tokens.at[number].set(token), number + 1, kept)
        return token, jnp.isin(token, jnp.array((*stop, NO_TOKEN))), made

    def unfinished(carry: Any) -> Array:
        _, _, ended, made = carry
        return ~ended & (made.length < count)

    def one(carry: Any) -> Any:
        state, token, _, made = carry
        state, logits = step(state, token[None], positions=length + made.length - 1)
        return state, *after(made.length, logits[-1], made)

    logits = jnp.where((length > 0) & (length <= len(prompt)), logits[length - 1], jnp.nan)
    fact = jax.eval_shape(keep, logits, jax.ShapeDtypeStruct((), jnp.int32))
    kept = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), fact)
    made = Generated(jnp.full(count, NO_TOKEN, jnp.int32), jnp.zeros((), jnp.int32), kept)
    carry = state, *after(made.length, logits, made)
    return jax.lax.while_loop(unfinished, one, carry)[-1]


def stream_tokens(
    term: Term,
    params: Any,
    prompt: ArrayLike,
    count: int,
    *,
    choose: Term = identity,
    rng: Array | None = None,
    stop: int | Sequence[int] = (),
    dtype: Any = None,
    **context: Any,
) -> Iterator[int]:
    """The tokens of `generate`, one after the other as they come.

    Raises what `generate` raises.

    >>> count_up = pointwise(lambda tokens: 99.0 * jax.nn.one_hot((tokens + 1) % 5, 5))
    >>> list(stream_tokens(count_up, {}, jnp.array([1, 2]), 3))
    [3, 4, 0]
    """
    prompt, rng, stop = checked(term, prompt, count, context), key_of(rng), listed(stop)
    kind = None if dtype is None else jnp.dtype(dtype)
    params = unstack(term, params)
    state, logits = read(term, count, kind, params, prompt, context)
    left = {name: value for name, value in context.items() if name not in state["given"]}
    for token, _ in follow(term, choose, params, state, logits, rng, range(count), stop, left):
        yield token


def follow(
    term: Term, choose: Term, params: Any, state: Any, logits: Array, rng: Array,
    numbers: Iterable[int], stop: tuple[int, ...], context: Any,
) -> Iterator[tuple[int, Any]]:  # fmt: skip
    """Tokens of these numbers as they come, each with the state that has read it: the state that
    was before is used up. `params` are those of layers written out."""
    for number in numbers:
        state, token, logits = go_on(term, choose, params, state, logits, rng, number, context)
        yield int(token), state
        if int(token) in (*stop, NO_TOKEN):
            return


@partial(jax.jit, static_argnums=range(3))
def read(term: Term, count: int, dtype: Any, params: Any, prompt: Array, context: Any) -> Any:
    state, logits, _ = begin(term, params, prompt, count, 0, dtype, context)
    return state, logits[-1]


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(3,))
def go_on(
    term: Term, choose: Term, params: Any, state: Any, logits: Array, rng: Array, number: Any,
    context: Any,
) -> tuple[Any, Array, Array]:  # fmt: skip
    token = drawn(choose, rng, number, logits)
    state, logits = stepwise(term).step(params, state, token[None], **context)
    return state, token, logits[-1]
