"""What a generation is asked for: the prompt, the context of its tokens, and numbers, all checked.

Context belongs to tokens, to all of them at once, or to the choice of the next one:

    segments (T,)            one for each token of the prompt; those that follow go on with the last
    segments (T + count,)    one for each token, those that are drawn included
    memory (S, d)            one for all
    temperature ()           what `choose` reads
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from ..combinators import (
    CompositionError,
    ContextError,
    ParameterError,
    Term,
    TermError,
    embed,
    identity,
)
from ..combinators.check import check_key, check_names
from ..combinators.compose import Compose
from ..combinators.declare import declare
from ..combinators.kinds import show, spec
from ..combinators.project import at_least
from ..combinators.stepwise import read_once
from ..combinators.term import as_term
from ..combinators.written import reference

__all__ = [
    "Facts", "Stop", "at", "check_choice", "check_tokens", "divided", "function", "integer",
    "key_of", "kind_of", "laid", "readable", "stops",
]  # fmt: skip

Names = dict[str, Any]
Stop = int | Sequence[int] | None


class Facts(NamedTuple):
    """Context by what it belongs to: single tokens, all tokens alike, the choice of the next."""

    tokens: Names
    all: Names
    choice: Names


def readable(
    where: str, term: Term, params: Any, prompt: ArrayLike, count: int, length: Any = None
) -> Array:
    """The prompt, once it is sure that it is one, and that the term has all of its tokens."""
    as_term(term, where)
    if isinstance(prompt, Mapping):
        raise CompositionError(f"{where} takes parameters and then the prompt, and gets a dict")
    if not isinstance(params, Mapping):
        raise ParameterError(
            f"{where} takes a term, its parameters, a dict as term.init(rng, x) makes it, and then "
            f"the prompt; it got {show(params) if params is not None else 'None'} for parameters"
        )
    tokens: Any = prompt
    if not isinstance(prompt, (Array, Tracer)):
        tokens = np.asarray(prompt)
        if tokens.dtype.kind not in "biuf":
            raise CompositionError(f"{where} continues a prompt of tokens, not {prompt!r}")
    tokens = jnp.asarray(tokens)
    if tokens.ndim != 1 or not tokens.size or count < 1:
        raise CompositionError(
            f"{where} continues a prompt of shape (T,), T at least 1, by at least one token, not "
            f"{tokens.shape} by {count}; a batch is jax.vmap"
        )
    if not isinstance(length, Tracer):
        check_tokens(term, tokens[: counted(length, len(tokens))])
    return tokens


def counted(length: Any, size: int) -> int:
    """How many tokens of a prompt count: all of them if that is not said."""
    if length is None:
        return size
    whole = not jnp.ndim(length) and jnp.issubdtype(jnp.result_type(length), jnp.integer)
    if not whole or not 1 <= length <= size:
        raise CompositionError(
            f"length says how many of the prompt's {size} tokens count, from 1 on, and is "
            f"{length!r}"
        )
    return int(length)


def check_tokens(term: Term, tokens: Any) -> None:
    """Every token stands in the tables in which the term looks tokens up, where it is known."""
    if isinstance(tokens, Tracer) or not len(tokens):
        return
    known = np.asarray(tokens)
    for table in tables(term):
        outside = known[(known < 0) | (known >= table.vocabulary)]
        if outside.size:
            raise CompositionError(
                f"token {outside[0]} of the prompt is not in the vocabulary of {table!r}, tokens 0 "
                f"to {table.vocabulary - 1}"
            )


def tables(term: Term) -> Iterator[embed]:
    """The tables in which a term looks up what it takes."""
    if isinstance(term, embed):
        yield term
    elif isinstance(term, Compose):
        yield from tables(next((part for part in term.parts if part != identity), identity))
    else:
        for part in term.parts:
            yield from tables(part)


def integer(where: str, least: int, **number: Any) -> int:
    """A number of the caller's as an int: one of NumPy's, too."""
    ((name, value),) = number.items()
    value = int(value) if isinstance(value, np.integer) else value
    at_least(least, where, **{name: value})
    return value


def stops(stop: Stop) -> tuple[int, ...]:
    """The tokens to stop after: none, one, or several."""
    if stop is None:
        return ()
    several: Any = stop if np.ndim(stop) or isinstance(stop, (set, frozenset)) else [stop]
    try:
        tokens = tuple(map(operator.index, several))
    except TypeError:
        tokens = (True,)
    if any(isinstance(token, bool) or token < 0 for token in tokens):
        raise CompositionError(f"stop is a token or several, such as (0, 2), not {stop!r}")
    return tokens


def kind_of(dtype: Any) -> Any:
    """The type in which keys and values are kept, if that is said."""
    if dtype is None:
        return None
    try:
        kind = jnp.dtype(dtype)
    except TypeError:
        kind = jnp.dtype(bool)
    if not jnp.issubdtype(kind, jnp.floating):
        raise CompositionError(f"dtype is a type of floats such as 'bfloat16', not {dtype!r}")
    return kind


def function(keep: Any) -> Any:
    """What is made of each step: a function of its logits and its token."""
    if not callable(keep):
        raise CompositionError(f"keep is a function of logits and a token, not {keep!r}")
    return keep


def key_of(rng: Array | None) -> Array:
    """The key to draw with, key(0) if none is given."""
    if rng is None:
        return jax.random.key(0)
    check_key(rng)
    return rng


# Context


def divided(
    where: str, term: Term, choose: Any, prompt: Array, count: int, context: Names,
    ahead: int = 0, others: frozenset[str] = frozenset(),
) -> tuple[Facts, int]:  # fmt: skip
    """The context by what it belongs to, once it is sure that the term can read all of it, and the
    tokens that follow, `ahead` more than are wanted; and how large the vocabulary is. `others` are
    the names that another term reads."""
    check_names(term, TAKEN, where)
    if "positions" in context:
        raise ContextError(f"{where} counts positions by itself, from 0: leave positions out")
    context = {name: array(name, value) for name, value in context.items() if value is not None}
    asked = choose.reads if isinstance(choose, Term) else frozenset()
    choice = {name: value for name, value in context.items() if name in asked}
    elsewhere = (asked | others) - term.reads
    mine = {name: value for name, value in context.items() if name not in elsewhere}

    size, whole = len(prompt), len(prompt) + count  # of which the last token is not read
    tokens = of_tokens(term, size, prompt.dtype, mine)
    for name in tokens:
        if len(mine[name]) not in (size, whole - 1, whole):
            raise ContextError(
                f"{name} has {len(mine[name])} rows: {where} takes one for each of the {size} "
                "tokens of the prompt, where those that follow go on with the last; one for each "
                f"of all {whole} tokens; or one for all"
            )
    shared = {name: value for name, value in mine.items() if name not in tokens}
    facts = Facts({name: mine[name] for name in tokens}, shared, choice)
    # Whatever is wrong with the whole, such as a position past a table, is said before the loop.
    total = whole - 1 + ahead
    rows = {name: resized(mine[name], total) for name in tokens}
    _, logits = declare(term, jax.ShapeDtypeStruct((total,), prompt.dtype), shared | rows)
    check_logits(where, logits, total)
    check_choice(choose, jax.ShapeDtypeStruct(logits.shape[1:], logits.dtype), choice)
    return facts, logits.shape[1]


TAKEN = (
    "ahead", "choose", "count", "draft", "draft_params", "dtype", "keep", "length", "params",
    "prompt", "stop", "term",
)  # fmt: skip
"""What generation takes for itself under names that a term could read."""


def array(name: str, value: Any) -> Any:
    """A value of the context, which is no list."""
    if isinstance(value, (list, str)):
        raise ContextError(
            f"{name} is an array, not a {show(value)}: write jnp.array(…) of numbers"
        )
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def resized(value: Any, rows: int) -> jax.ShapeDtypeStruct:
    """A value in the abstract, with so many rows."""
    return jax.ShapeDtypeStruct((rows, *jnp.shape(value)[1:]), jnp.result_type(value))


def of_tokens(term: Term, size: int, dtype: Any, context: Names) -> tuple[str, ...]:
    """The names in the context that have a row for each token: a single token takes one of them."""
    several = [name for name, value in context.items() if np.ndim(value) and len(value) != 1]
    leaves, tree = jax.tree.flatten(spec(context))
    names = tuple(sorted({*several} - read_once(term)))
    return found(term, size, dtype, names, tuple(leaves), tree) if names else ()


@lru_cache(maxsize=512)
def found(
    term: Term, size: int, dtype: Any, names: tuple[str, ...], leaves: Any, tree: Any
) -> tuple[str, ...]:
    """As few of the names as must be cut to one row, so that the term reads a single token."""
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


def laid(facts: Facts, size: int, total: int, length: Any) -> Facts:
    """Facts with a row for each of `total` tokens: where the prompt of `size` tokens, of which
    `length` count, ends, its last row goes on."""
    place = jnp.arange(total)

    def one(value: Array) -> Array:
        last = (length if len(value) == size else len(value)) - 1
        return jnp.take(value, jnp.minimum(place, last), 0)

    return facts._replace(tokens={name: one(value) for name, value in facts.tokens.items()})


def at(facts: Facts, first: Any, count: int) -> Names:
    """The context of `count` tokens from the first one on: facts that are laid out."""
    rows = jax.lax.dynamic_slice_in_dim
    return facts.all | {name: rows(v, first, count) for name, v in facts.tokens.items()}


# Logits


def check_logits(where: str, logits: Any, total: int) -> None:
    shape, kind = getattr(logits, "shape", ()), getattr(logits, "dtype", bool)
    if len(shape) != 2 or shape[0] != total or not jnp.issubdtype(kind, jnp.floating):
        raise CompositionError(
            f"{where} draws tokens from logits, floats of shape (T, vocabulary), and gets "
            f"{show(logits)} for {total} tokens"
        )


def check_choice(choose: Any, row: Any, context: Names) -> None:
    """What is to be drawn from has the shape of the logits; what it reads is checked, too."""
    row = jax.ShapeDtypeStruct(row.shape, jnp.promote_types(row.dtype, jnp.float32))
    if isinstance(choose, Term):
        made = jax.eval_shape(lambda row: choose({}, row, **context), row)
        if jnp.shape(made) == row.shape:
            return
    raise CompositionError(
        "choose is a term that makes logits of logits, such as greedy or keep_top_k(40), and "
        f"{reference(choose)} is not"
    )
