"""Speculative decoding: a small term drafts several tokens, and one step of the large judges them.

    accept d with probability min(1, p(d) / q(d)),  else draw from max(p - q, 0) / its sum

What comes out is distributed as the large term alone would have it, whatever the draft.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..combinators import CompositionError, Term, identity, softmax, unstack
from .generate import NO_TOKEN, Generated, begin, checked, chosen, drawn, key_of, refuse_sums

__all__ = ["speculate"]


def speculate(
    term: Term,
    params: Any,
    draft: Term,
    draft_params: Any,
    prompt: ArrayLike,
    count: int,
    *,
    ahead: int = 4,
    choose: Term = identity,
    rng: Array | None = None,
) -> Generated:
    """Continue a prompt (T,) by `count` tokens of `term`, with drafts of `ahead` tokens at a time.

    With `choose=greedy` the tokens are those of `generate`; otherwise they have the same
    distribution. `kept` is how many steps of `term` it took (Leviathan et al. 2023).

    Raises CompositionError for drafts of no token, for terms whose keys are summed up, and what
    `generate` raises.

    >>> from combinax.models import greedy
    >>> count_up = pointwise(lambda tokens: jax.nn.one_hot((tokens + 1) % 5, 5))
    >>> same = pointwise(lambda tokens: jax.nn.one_hot(tokens, 5))
    >>> speculate(count_up, {}, same, {}, jnp.array([1]), 3, choose=greedy).tokens.tolist()
    [2, 3, 4]
    """
    if ahead < 1:
        raise CompositionError(f"speculate drafts at least one token ahead, not {ahead}")
    for one in (term, draft):
        prompt = checked(one, prompt, count + ahead, {})
    static = (term, draft, choose, count, ahead)
    return judged(*static, params, draft_params, prompt, key_of(rng))


@partial(jax.jit, static_argnums=range(5))
def judged(
    term: Term, draft: Term, choose: Term, count: int, ahead: int,
    params: Any, draft_params: Any, prompt: Array, rng: Array,
) -> Generated:  # fmt: skip
    room = count + ahead + 1
    read = partial(begin, prompt=prompt, more=room, slack=ahead, dtype=None, context={})
    large, logits, judge = read(term, unstack(term, params))
    small, _, propose = read(draft, unstack(draft, draft_params))
    for state in (large, small):
        refuse_sums(state, "use generate: drafts that are refused are taken back")

    def likely(logits: Array) -> Array:
        unsound = jnp.isnan(logits).any(-1, keepdims=True)
        return jnp.where(unsound, jnp.nan, softmax({}, chosen(choose, logits)))

    def round_of(carry: Any) -> Any:
        large, small, last, tokens, made, rounds = carry
        at = len(prompt) + made - 1
        key = jax.random.fold_in(rng, made)

        def guess(carry: Any, number: Array) -> Any:
            small, token = carry
            small, logits = propose(small, token[None], positions=at + number)
            return (small, drawn(choose, key, number, logits[-1])), (token, likely(logits[-1]))

        # One step more than there are drafts, so that the last of them is in its state as well.
        (small, _), (asked, q) = jax.lax.scan(guess, (small, last), jnp.arange(ahead + 1))
        large, logits = judge(large, asked, positions=at)
        p, q, drafts = likely(logits), jnp.nan_to_num(q.at[-1].set(0)), asked[1:]

        place = jnp.arange(ahead)
        luck = jax.random.uniform(jax.random.fold_in(key, ahead + 1), (ahead,))
        right = (luck * q[place, drafts] < p[place, drafts]) & (drafts != NO_TOKEN)
        good = jnp.cumprod(right).sum(dtype=jnp.int32)
        rest = jnp.maximum(p[good] - q[good], 0)
        other = jax.random.categorical(jax.random.fold_in(key, ahead + 2), jnp.log(rest))
        other = jnp.where(jnp.isnan(rest).any(), NO_TOKEN, other).astype(jnp.int32)
        found = jnp.append(drafts, other).at[good].set(other)
        found = jnp.where(jnp.arange(ahead + 1) > good, NO_TOKEN, found)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, found, made, 0)
        return large, small, other, tokens, made + good + 1, rounds + 1

    def unfinished(carry: Any) -> Array:
        _, _, last, _, made, _ = carry
        return (made < count) & (last != NO_TOKEN)

    first = drawn(choose, rng, 0, logits[-1])
    tokens = jnp.full(room, NO_TOKEN, jnp.int32).at[0].set(first)
    carry = large, small, first, tokens, jnp.ones((), jnp.int32), jnp.ones((), jnp.int32)
    *_, tokens, made, rounds = jax.lax.while_loop(unfinished, round_of, carry)
    return Generated(tokens[:count], jnp.minimum(made, count), rounds)
