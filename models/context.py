"""Context of generation: some belongs to single tokens, some to all, some to sampling.

segments (T,)            a row for each token of the prompt; drawn tokens take the last row
segments (T + count,)    a row for each token, drawn ones included
memory (S, d)            one for all tokens
temperature ()           read by `choose`
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..combinators import ContextError, Term, TermError
from ..combinators.core.check import check_names
from ..combinators.core.declare import declare
from ..combinators.core.kinds import show, spec
from ..combinators.stepping.stepwise import read_once
from .prompt import check_choice, check_logits

__all__ = ["SplitContext", "context_at", "laid_out", "split_context"]

Names = dict[str, Any]


class SplitContext(NamedTuple):
    """Context by its use: `rows` one for each token, `shared` by all, `sampling` read by choose."""

    rows: Names
    shared: Names
    sampling: Names


def split_context(
    where: str, term: Term, choose: Any, prompt: Array, count: int, context: Names,
    ahead: int = 0, others: frozenset[str] = frozenset(),
) -> tuple[SplitContext, int]:  # fmt: skip
    """The context by its use, and the size of the vocabulary.

    The term is declared on the prompt and all tokens that follow, `ahead` more than `count`: what
    does not fit raises here. `others` are names that another term reads.
    """
    check_names(term, TAKEN, where)
    if "positions" in context:
        raise ContextError(f"{where} counts positions by itself, from 0: leave positions out")
    context = {name: array(name, value) for name, value in context.items() if value is not None}
    asked = choose.reads if isinstance(choose, Term) else frozenset()
    sampling = {name: value for name, value in context.items() if name in asked}
    elsewhere = (asked | others) - term.reads
    mine = {name: value for name, value in context.items() if name not in elsewhere}

    size, whole = len(prompt), len(prompt) + count  # of which the last token is not read
    per_token = names_per_token(term, size, prompt.dtype, mine)
    for name in per_token:
        if len(mine[name]) not in (size, whole - 1, whole):
            raise ContextError(
                f"{name} has {len(mine[name])} rows: {where} takes one for each of the {size} "
                "tokens of the prompt, where those that follow go on with the last; one for each "
                f"of all {whole} tokens; or one for all"
            )
    rows = {name: mine[name] for name in per_token}
    shared = {name: value for name, value in mine.items() if name not in rows}
    # What is wrong with the whole, such as a position past a table, is said before the loop.
    total = whole - 1 + ahead
    declared = shared | {name: resized(value, total) for name, value in rows.items()}
    _, logits = declare(term, jax.ShapeDtypeStruct((total,), prompt.dtype), declared)
    check_logits(where, logits, total)
    check_choice(choose, jax.ShapeDtypeStruct(logits.shape[1:], logits.dtype), sampling)
    return SplitContext(rows, shared, sampling), logits.shape[1]


TAKEN = (
    "ahead", "choose", "count", "draft", "draft_params", "dtype", "keep", "length", "params",
    "prompt", "rng", "stop", "term",
)  # fmt: skip
"""Keywords of generation, which no stage of a term can read from the context."""


def array(name: str, value: Any) -> Any:
    """A value of the context; a list is refused."""
    if isinstance(value, (list, str)):
        raise ContextError(
            f"{name} is an array, not a {show(value)}: write jnp.array(…) of numbers"
        )
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def resized(value: Any, rows: int) -> jax.ShapeDtypeStruct:
    """The abstract value with `rows` rows."""
    return jax.ShapeDtypeStruct((rows, *jnp.shape(value)[1:]), jnp.result_type(value))


def names_per_token(term: Term, size: int, dtype: Any, context: Names) -> tuple[str, ...]:
    """The names whose values have a row for each token."""
    several = [name for name, v in context.items() if getattr(v, "ndim", 0) and len(v) != 1]
    leaves, tree = jax.tree.flatten(spec(context))
    names = tuple(sorted({*several} - read_once(term)))
    return fewest_cut(term, size, dtype, names, tuple(leaves), tree) if names else ()


@lru_cache(maxsize=512)
def fewest_cut(
    term: Term, size: int, dtype: Any, names: tuple[str, ...], leaves: Any, tree: Any
) -> tuple[str, ...]:
    """The fewest names whose values, cut to one row, let the term read a single token."""
    context = jax.tree.unflatten(tree, leaves)
    for some in chain.from_iterable(combinations(names, n) for n in range(len(names) + 1)):
        cut = context | {name: resized(context[name], 1) for name in some}
        try:
            _, y = declare(term, jax.ShapeDtypeStruct((1,), dtype), cut)
        except TermError:
            continue
        if all(leaf.shape[:1] == (1,) for leaf in jax.tree.leaves(y)):
            return some
    declare(term, jax.ShapeDtypeStruct((size,), dtype), context)  # says what is wrong
    return ()


def laid_out(context: SplitContext, size: int, total: int, length: Any) -> SplitContext:
    """Context with a row for each of `total` tokens. Rows for the prompt alone, of whose `size`
    tokens `length` count, go on with the last one that counts."""
    positions = jnp.arange(total)

    def one(value: Array) -> Array:
        last = (length if len(value) == size else len(value)) - 1
        return jnp.take(value, jnp.minimum(positions, last), 0)

    return context._replace(rows={name: one(value) for name, value in context.rows.items()})


def context_at(context: SplitContext, first: Any, count: int) -> Names:
    """The names that a step over `count` tokens from position `first` on takes."""
    cut = jax.lax.dynamic_slice_in_dim
    return context.shared | {name: cut(v, first, count) for name, v in context.rows.items()}
