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
from ..combinators.core.arguments import as_term
from .context import SplitContext, laid_out, split_context
from .generate import NO_TOKEN, Generated, begin, chosen, drawn, refuse_sums
from .prompt import check_prompt, integer, key_of

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
    **context: Any,
) -> Generated:
    """Continue a prompt (T,) by `count` tokens of `term`, with drafts of `ahead` tokens at a time.

    With `choose=greedy` the tokens are those of `generate`; otherwise they have the same
    distribution. `kept` is how many steps of `term` it took (Leviathan et al. 2023).

    Both terms read the same prompt; context is as in `generate`, and goes to whoever reads it.

    Raises CompositionError for drafts of no token, for a draft of another vocabulary, for terms
    whose keys are summed up, and what `generate` raises.

    >>> from combinax.models import greedy
    >>> count_up = pointwise(lambda tokens: jax.nn.one_hot((tokens + 1) % 5, 5))
    >>> same = pointwise(lambda tokens: jax.nn.one_hot(tokens, 5))
    >>> speculate(count_up, {}, same, {}, jnp.array([1]), 3, choose=greedy).tokens.tolist()
    [2, 3, 4]
    """
    count = integer("speculate", 0, count=count)
    if not isinstance(ahead, int) or ahead < 1:
        raise CompositionError(f"speculate drafts at least one token ahead, not {ahead!r}")
    reads = [as_term(one, "speculate").reads for one in (term, draft)]
    tokens = check_prompt("speculate", term, params, prompt, count)
    check_prompt("speculate", draft, draft_params, prompt, count)
    asked = (choose, tokens, count, context, ahead)
    split, kinds = split_context("speculate", term, *asked, reads[1])
    draft_split, draft_kinds = split_context("speculate", draft, *asked, reads[0])
    if kinds != draft_kinds:
        raise CompositionError(
            f"a draft has the vocabulary of the term that judges it: the term gives {kinds} logits "
            f"for each token, the draft {draft_kinds}"
        )
    static = (term, draft, choose, count, ahead)
    return judged(*static, params, draft_params, tokens, key_of(rng), split, draft_split)


@partial(jax.jit, static_argnums=range(5))
def judged(
    term: Term, draft: Term, choose: Term, count: int, ahead: int, params: Any, draft_params: Any,
    prompt: Array, rng: Array, context: SplitContext, draft_context: SplitContext,
) -> Generated:  # fmt: skip
    room = count + ahead + 1

    def read(term: Term, params: Any, context: SplitContext) -> Any:
        context = laid_out(context, len(prompt), len(prompt) + room, len(prompt))
        return begin(term, unstack(term, params), prompt, room, None, context, rewind=ahead)

    large, logits, judge = read(term, params, context)
    small, _, propose = read(draft, draft_params, draft_context)
    for state in (large, small):
        refuse_sums(state, "use generate: drafts that are refused are taken back")

    def likely(logits: Array) -> Array:
        relative = chosen(choose, logits, context.sampling)
        return jnp.where(jnp.isnan(relative), jnp.nan, softmax({}, relative))

    def round_of(carry: Any) -> Any:
        large, small, last, tokens, made, rounds = carry
        at = len(prompt) + made - 1
        key = jax.random.fold_in(rng, made)

        def guess(carry: Any, number: Array) -> Any:
            small, token = carry
            small, logits = propose(small, token[None], at + number)
            guessed = drawn(choose, key, number, logits[-1], context.sampling)
            return (small, guessed), (token, likely(logits[-1]))

        # One step more than there are drafts, so that the last of them is in its state as well.
        (small, _), (asked, q) = jax.lax.scan(guess, (small, last), jnp.arange(ahead + 1))
        large, logits = judge(large, asked, at)
        p, q, drafts = likely(logits), jnp.nan_to_num(q.at[-1].set(0)), asked[1:]

        place = jnp.arange(ahead)
        luck = jax.random.uniform(jax.random.fold_in(key, ahead + 1), (ahead,))
        right = (luck * q[place, drafts] < p[place, drafts]) & (drafts != NO_TOKEN)
        good = jnp.cumprod(right).sum(dtype=jnp.int32)
        rest = jnp.maximum(p[good] - q[good], 0)
        # Rounding alone can tell p from q, and then leave nothing of their difference.
        rest = jnp.where((rest > 0).any(), rest, p[good])
        other = jax.random.categorical(jax.random.fold_in(key, ahead + 2), jnp.log(rest))
        other = jnp.where(jnp.isnan(rest).any(), NO_TOKEN, other).astype(jnp.int32)
        found = jnp.append(drafts, other).at[good].set(other)
        found = jnp.where(jnp.arange(ahead + 1) > good, NO_TOKEN, found)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, found, made, 0)
        return large, small, other, tokens, made + good + 1, rounds + 1

    def unfinished(carry: Any) -> Array:
        _, _, last, _, made, _ = carry
        return (made < count) & (last != NO_TOKEN)

    first = drawn(choose, rng, 0, logits[-1], context.sampling)
    tokens = jnp.full(room, NO_TOKEN, jnp.int32).at[0].set(first)
    carry = large, small, first, tokens, jnp.ones((), jnp.int32), jnp.ones((), jnp.int32)
    *_, tokens, made, rounds = jax.lax.while_loop(unfinished, round_of, carry)
    return Generated(tokens[:count], jnp.minimum(made, count), rounds)
