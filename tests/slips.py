"""Slips, and what is said about them: one for every error that the language raises.

A slip is a name, what somebody writes, the kind of error, and words of its text.
"""
# ruff: noqa: F403, F405

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from combinax import models
from combinax.combinators import *
from combinax.models import chat
from combinax.models.layout import Layout, Stored, from_theirs, rules

KEY = jax.random.key(0)
X = jnp.ones((5, 4))
BATCH = jnp.ones((3, 5, 4))
TOKENS = jnp.arange(5)
PROJECTED = project(3)
SCORED = score(dot) @ PROJECTED
WEIGHED = normalize(softmax) @ SCORED
HEAD = aggregate() @ WEIGHED
SEEN = mask(causal) @ score(dot)
SUMMED = aggregate() @ normalize(row_sum) @ mask(causal) @ score(features(pointwise(jnp.exp)))
CAUSAL = aggregate() @ normalize(softmax) @ SEEN
NEXT = pointwise(lambda tokens: jax.nn.one_hot(tokens, 5))
SEGMENTED = normalize(softmax) @ mask(same("segments")) @ SCORED


class Slip(NamedTuple):
    write: Callable[[], Any]
    text: str
    error: type[TermError] = CompositionError


def run(term: Term, x: Any = X, **context: Any) -> Any:
    """Make the parameters and call the term."""
    facts = {name: value for name, value in context.items() if name != "rng"}
    return term(term.init(KEY, x, **facts), x, **context)


def exported(term: Term) -> Any:
    """Export the term for an input of floats (t, 4), where t is a symbol."""
    params = term.init(KEY, X)
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("t, 4"), jnp.float32)
    return jax.export.export(jax.jit(lambda x: term(params, x)))(x)


def stepped(
    term: Term, x: Any = X, rng: Any = None, capacity: int = 8, **context: Any
) -> tuple[Any, Any]:
    """Make the parameters and take one step."""
    params = term.init(KEY, x, **context)
    start, step = stepwise(term)
    return step(params, start(params, x, capacity, **context), x, rng=rng, **context)


def twice(term: Term, **context: Any) -> tuple[Any, Any]:
    """Two steps, the second as the context says."""
    params, (start, step) = term.init(KEY, X), stepwise(term)
    state, _ = step(params, start(params, X, 8), X)
    return step(params, state, X, **context)


def called(params: Any, term: Term = linear(3), x: Any = X) -> Any:
    return term(params, x)


HERE = Path(__file__).parent


def summed() -> tuple[Term, Any]:
    """A small language model whose keys are summed up, and its parameters."""
    term = linear(7) @ SUMMED @ project(4) @ embed(7, 4)
    return term, term.init(KEY, TOKENS)


def head(seen: Any) -> Term:
    """A small language model."""
    attention = compose(aggregate(), normalize(softmax), mask(seen), score(dot), project(4))
    return linear(7) @ attention @ embed(7, 4)


def one_head() -> Term:
    return normalize(softmax) @ score(dot) @ project(4)


def weights(arrays: Any, dtype: str = "float32") -> Any:
    """Parameters of a model with one table, from a file."""
    source = {
        name: Stored(array.shape, array.dtype.name, lambda array=array: array, Path("a.bin"))
        for name, array in arrays.items()
    }
    layout = Layout(rules("", "", "w matrix table"), prefix="")
    return from_theirs(layout, source, {"table": X}, dtype)


def talked(
    vocabulary: tuple[str, ...] = ("?", chat.END), capacity: int = 3, logit: float = 1.0
) -> list[Any]:
    """An answer of a model that says one word for ever, to a message that is one word."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, "?"))
    term = pointwise(lambda tokens: logit * jax.nn.one_hot(0 * tokens, 2))
    model = chat.instructed(chat.Pretrained(term, {}, tokenizer), "")
    return list(chat.reply(model, chat.begin(model, capacity), "hm", models.greedy, KEY))


def broken(x):
    return x @ jnp.ones((7, 7))


def apart(query, key):
    return query.position - key.position


def narrow(query, key):
    return jnp.ones((query.position.shape[0], 4), bool)


def steep(query, key):
    return query["slope"] * key.position


def first_column(score, visible):
    return score[:, :1]


def first_value(entries):
    return entries.replace(value=entries.value[:, :1])


def two_columns(x):
    return x[:, :2]


def first_row(x):
    return x[0]
