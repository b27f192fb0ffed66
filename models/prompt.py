"""The arguments of generation, checked before anything is compiled."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from ..combinators import CompositionError, ParameterError, Term, embed, identity
from ..combinators.compose import Compose
from ..combinators.core.arguments import as_term, at_least
from ..combinators.core.check import check_key
from ..combinators.core.kinds import show
from ..combinators.core.source import reference

__all__ = [
    "Stop", "cache_dtype", "check_choice", "check_keep", "check_logits", "check_prompt",
    "check_tokens", "integer", "key_of", "stop_tokens",
]  # fmt: skip

Stop = int | Sequence[int] | None


def check_prompt(
    where: str, term: Term, params: Any, prompt: ArrayLike, count: int, length: Any = None
) -> Array:
    """The prompt as an array (T,), all of whose tokens are in the vocabulary of the term."""
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
    """The number of tokens that are no padding: all `size` of them without a length."""
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
    """Raise for a token outside a table in which the term looks its input up, where it is known."""
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
    """The embeddings in which a term looks its input up."""
    if isinstance(term, embed):
        yield term
    elif isinstance(term, Compose):
        yield from tables(next((part for part in term.parts if part != identity), identity))
    else:
        for part in term.parts:
            yield from tables(part)


def integer(where: str, least: int, **number: Any) -> int:
    """A number as an int; NumPy's integers are taken, too."""
    ((name, value),) = number.items()
    value = int(value) if isinstance(value, np.integer) else value
    at_least(least, where, **{name: value})
    return value


def stop_tokens(stop: Stop) -> tuple[int, ...]:
    """The tokens that end a generation: none, one, or several."""
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


def cache_dtype(dtype: Any) -> Any:
    """The float type of the KV cache, or None for that of the keys and values."""
    if dtype is None:
        return None
    try:
        kind = jnp.dtype(dtype)
    except TypeError:
        kind = jnp.dtype(bool)
    if not jnp.issubdtype(kind, jnp.floating):
        raise CompositionError(f"dtype is a type of floats such as 'bfloat16', not {dtype!r}")
    return kind


def check_keep(keep: Any) -> Any:
    """`keep`, which is a function of logits and a token."""
    if not callable(keep):
        raise CompositionError(f"keep is a function of logits and a token, not {keep!r}")
    return keep


def key_of(rng: Array | None) -> Array:
    """The key that tokens are drawn with: key(0) without a rng."""
    if rng is None:
        return jax.random.key(0)
    check_key(rng)
    return rng


def check_logits(where: str, logits: Any, total: int) -> None:
    """Raise unless a term gives floats (total, vocabulary)."""
    shape, kind = getattr(logits, "shape", ()), getattr(logits, "dtype", bool)
    if len(shape) != 2 or shape[0] != total or not jnp.issubdtype(kind, jnp.floating):
        raise CompositionError(
            f"{where} draws tokens from logits, floats of shape (T, vocabulary), and gets "
            f"{show(logits)} for {total} tokens"
        )


def check_choice(choose: Any, row: Any, context: dict[str, Any]) -> None:
    """Raise unless `choose` turns a row of logits into another, with the numbers that it reads."""
    row = jax.ShapeDtypeStruct(row.shape, jnp.promote_types(row.dtype, jnp.float32))
    if isinstance(choose, Term):
        made = jax.eval_shape(lambda row: choose({}, row, **context), row)
        if jnp.shape(made) == row.shape:
            return
    raise CompositionError(
        "choose is a term that makes logits of logits, such as greedy or keep_top_k(40), and "
        f"{reference(choose)} is not"
    )
