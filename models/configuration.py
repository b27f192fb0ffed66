"""What a backbone's config.json says, and what of it is not supported, refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from ..combinators import (
    CompositionError,
    Term,
    embed,
    gelu,
    gelu_tanh,
    linear,
    named,
    relu,
    silu,
    tied,
)

__all__ = ["Config", "activation", "language_model", "positive", "require"]

Config = Mapping[str, Any]
"""The fields of a config.json, as Hugging Face's transformers names them."""

ACTIVATIONS = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": relu,
    "silu": silu,
    "swish": silu,
}


def activation(config: Config, field: str, default: str) -> Term:
    """The activation that a field names; exact and tanh GELU are two.

    Raises CompositionError for one that is not known.

    >>> activation({"hidden_act": "gelu_new"}, "hidden_act", "gelu")
    gelu_tanh
    """
    name = config.get(field, default)
    require({field: name}, **{field: tuple(ACTIVATIONS)})
    return ACTIVATIONS[name]


def language_model(config: Config, width: int, body: Term, tie: bool) -> Term:
    """head ∘ body ∘ embed, the head of its own or the table once more: `tie` says which where the
    configuration does not.

    >>> language_model({"vocab_size": 9}, 4, silu, tie=False)
    compose(named('head', linear(9)), silu, embed(9, 4))
    """
    kinds = positive(config, "vocab_size")
    tokens = embed(kinds, width)
    if config.get("tie_word_embeddings", tie):
        return tied(tokens, body)
    return named("head", linear(kinds)) @ body @ tokens


def positive(config: Config, field: str, kind: type = Integral) -> Any:
    """A field that counts something, or, where `kind` is Real, measures it.

    Raises CompositionError, by the field's name, where it is missing or no number above 0.

    >>> positive({"factor": 0.5}, "factor", Real)
    0.5
    """
    value = config.get(field, "missing")
    if not isinstance(value, kind) or not 0 < value < math.inf:
        what = "number" if kind is Real else "integer"
        raise CompositionError(f"{field} has to be a positive {what}, and it is {value!r}")
    return value


def require(config: Config, **supported: tuple[Any, ...]) -> None:
    """Refuse a configuration whose fields have other values than those listed for them.

    The first value counts where a field is not there. Raises CompositionError with the field.

    >>> require({"scale_attn_weights": True}, scale_attn_weights=(True,))
    """
    for field, values in supported.items():
        asked = config.get(field, values[0])
        if asked not in values:
            known = ", ".join(map(repr, values))
            raise CompositionError(f"{field} {asked!r} is not supported; supported: {known}")
