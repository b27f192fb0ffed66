"""Generation: read a prompt, then draw token after token, each from the logits of the last.

    state, logits = step(params, state, prompt)
    token         ~ softmax(choose(logits[-1])),   state, logits = step(params, state, token)

All is written for one sequence. A batch is `jax.vmap`, with the lengths of ragged prompts mapped
along: rows then differ in nothing from each prompt alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..combinators import CompositionError, Term, identity, stepwise, unstack
from .context import SplitContext, context_at, laid_out, split_context
from .prompt import Stop, cache_dtype, check_keep, check_prompt, integer, key_of, stop_tokens
from .sampling import wide

__all__ = ["Generated", "generate", "stream_tokens"]

NO_TOKEN = -1
"""What stands behind the end, and for a token that cannot be drawn: because logits are NaN, or
`choose` leaves none."""


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
    stop: Stop = (),
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

    Context that belongs to tokens, such as segments, has a row for each of the prompt, (T,), and
    those that are drawn go on with the last; or a row for each of all, (T + count,); or one for
    all. What `choose` reads is context, too: with `choose=temperature(read("t"))`, `t=0.8`
    and `t=0.9` run one program.

    Raises CompositionError for an empty prompt or a token that is not in the vocabulary, a term
    that looks ahead, one that has no position for the last token, or a choice that gives no
    logits; ContextError for a rng that is no key, and context of another length; ParameterError
    for parameters of another term.

    >>> from combinax.models import greedy
    >>> count_up = pointwise(lambda tokens: jax.nn.one_hot((tokens + 1) % 5, 5))
    >>> generate(count_up, {}, jnp.array([1, 2]), 4, choose=greedy, stop=(0,)).tokens.tolist()
    [3, 4, 0, -1]
    """
    count = integer("generate", 0, count=count)
    prompt = check_prompt("generate", term, params, prompt, count, length)
    split, _ = split_context("generate", term, choose, prompt, count, context)
    static = (term, choose, check_keep(keep), count, stop_tokens(stop), cache_dtype(dtype))
    return looped(*static, params, prompt, length, key_of(rng), split)


def begin(
    term: Term, params: Any, prompt: Array, more: int, dtype: Any, context: SplitContext,
    rewind: int = 0, one_by_one: int | None = None,
) -> tuple[Any, Array, Callable[..., Any]]:  # fmt: skip
    """Prefill: state, logits, and the step that goes on from there, by context that is laid out.
    Drawn tokens come one by one, and so does a prompt from position `one_by_one` on."""
    one_by_one = one_by_one or len(prompt)
    start, step = stepwise(term, rewind=rewind, dtype=dtype, one_by_one=one_by_one)
    state = start(params, prompt, len(prompt) + more, **context_at(context, 0, len(prompt)))
    context = left(context, state)

    def go_on(state: Any, tokens: Array, first: Any) -> Any:
        names = context_at(context, first, len(tokens))
        return step(params, state, tokens, positions=first, **names)

    return *go_on(state, prompt, 0), go_on


def left(context: SplitContext, state: Any) -> SplitContext:
    """The context without the names that the state has read for good."""
    rest = {name: value for name, value in context.shared.items() if name not in state["given"]}
    return context._replace(shared=rest)


def drawn(choose: Term, rng: Array, number: Any, logits: Array, sampling: Any) -> Array:
    made = chosen(choose, logits, sampling)
    token = jax.random.categorical(jax.random.fold_in(rng, number), made)
    return jnp.where(jnp.isnan(made).any(), NO_TOKEN, token).astype(jnp.int32)


def chosen(choose: Term, logits: Array, sampling: Any) -> Array:
    """The logits to draw from, relative to the largest, in at least float32; all are NaN where one
    is NaN, and where all are -inf."""
    made = wide(choose({}, wide(logits), **sampling))
    largest = made.max(-1, keepdims=True)
    sound = (largest > -jnp.inf) & ~jnp.isnan(logits).any(-1, keepdims=True)
    # The largest is 0 by comparison, not by difference: see `choose`.
    return jnp.where(sound, jnp.where(made == largest, 0, made - largest), jnp.nan)


def refuse_sums(state: Any, why: str) -> None:
    """Raise CompositionError if a cache of the state is the running state of linear attention."""
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(state["memory"]))
    if any(getattr(path[-1], "key", "") == "numerator" for path in paths):
        raise CompositionError(f"{why}, and keys that are summed up cannot be forgotten")


@partial(jax.jit, static_argnums=range(6))
def looped(
    term: Term, choose: Term, keep: Callable, count: int, stop: tuple[int, ...], dtype: Any,
    params: Any, prompt: Array, length: Any, rng: Array, context: SplitContext,
) -> Generated:  # fmt: skip
    params = unstack(term, params)  # layers written out step faster than a scan of them
    ragged, length = length is not None, len(prompt) if length is None else length
    context = laid_out(context, len(prompt), len(prompt) + count, length)
    # Padding that was read is overwritten: it may be all of the prompt but one token, and what
    # stands after a prompt counts for none of it.
    plan = dict(rewind=len(prompt) - 1, one_by_one=1) if ragged else {}
    state, logits, step = begin(term, params, prompt, count, dtype, context, **plan)
    if ragged:
        refuse_sums(state, "give each prompt alone: length leaves its end out")

    def after(number: Any, logits: Array, made: Generated) -> tuple[Array, Array, Generated]:
        token = drawn(choose, rng, number, logits, context.sampling)
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
        state, logits = step(state, token[None], length + made.length - 1)
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
    stop: Stop = (),
    dtype: Any = None,
    **context: Any,
) -> Iterator[int]:
    """The tokens of `generate`, one after the other as they come.

    Raises what `generate` raises.

    >>> count_up = pointwise(lambda tokens: 99.0 * jax.nn.one_hot((tokens + 1) % 5, 5))
    >>> list(stream_tokens(count_up, {}, jnp.array([1, 2]), 3))
    [3, 4, 0]
    """
    count = integer("stream_tokens", 0, count=count)
    prompt = check_prompt("stream_tokens", term, params, prompt, count)
    split, _ = split_context("stream_tokens", term, choose, prompt, count, context)
    rest = (cache_dtype(dtype), stop_tokens(stop), key_of(rng))
    return streamed_tokens(term, choose, unstack(term, params), prompt, count, split, *rest)


def streamed_tokens(
    term: Term, choose: Term, params: Any, prompt: Array, count: int, context: SplitContext,
    dtype: Any, stop: tuple[int, ...], rng: Array,
) -> Iterator[int]:  # fmt: skip
    state, logits, context = read(term, count, dtype, params, prompt, context)
    for token, _ in follow(term, choose, params, state, logits, rng, range(count), stop, context):
        yield token


def follow(
    term: Term, choose: Term, params: Any, state: Any, logits: Array, rng: Array,
    numbers: Iterable[int], stop: tuple[int, ...], context: SplitContext,
) -> Iterator[tuple[int, Any]]:  # fmt: skip
    """Tokens of these numbers as they come, each with the state that has read it: the state that
    was before is used up. `params` are unstacked, `context` is laid out."""
    for number in numbers:
        state, token, logits = go_on(term, choose, params, state, logits, rng, number, context)
        yield int(token), state
        if int(token) in (*stop, NO_TOKEN):
            return


@partial(jax.jit, static_argnums=range(3))
def read(
    term: Term, count: int, dtype: Any, params: Any, prompt: Array, context: SplitContext
) -> Any:
    context = laid_out(context, len(prompt), len(prompt) + count, len(prompt))
    state, logits, _ = begin(term, params, prompt, count, dtype, context)
    return state, logits[-1], left(context, state)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(3,))
def go_on(
    term: Term, choose: Term, params: Any, state: Any, logits: Array, rng: Array, number: Any,
    context: SplitContext,
) -> tuple[Any, Array, Array]:  # fmt: skip
    token = drawn(choose, rng, number, logits, context.sampling)
    names = context_at(context, state["position"], 1)
    state, logits = stepwise(term).step(params, state, token[None], **names)
    return state, token, logits[-1]
