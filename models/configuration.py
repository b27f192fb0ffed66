"""What a backbone's config.json says, and what of it is not supported, refused by name."""

from __future__ import annotations

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
    pointwise,
    relu,
    silu,
    tied,
)
from ..combinators.core.errors import brief

__all__ = [
    "Config", "activation", "epsilon", "flag", "language_model", "positive", "require", "share",
]  # fmt: skip

Config = Mapping[str, Any]
"""The fields of a config.json, as Hugging Face's transformers names them."""

LARGEST, FINITE = 2**31 - 1, 3.4028234663852886e38
"""The largest numbers of int32 and float32."""

ACTIVATIONS = {
    "gelu": gelu,
    "gelu_python": gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_accurate": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "relu": relu,
    "silu": silu,
    "swish": silu,
}


def activation(config: Config, field: str, default: str) -> pointwise:
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
    if flag(config, "tie_word_embeddings", tie):
        return tied(tokens, body)
    return named("head", linear(kinds)) @ body @ tokens


def positive(config: Config, field: str, kind: type = Integral) -> Any:
    """A field that counts something, or, where `kind` is Real, measures it.

    Raises CompositionError, by the field's name, where it is missing or no number above 0, or one
    too large for int32 or float32.

    >>> positive({"factor": 0.5}, "factor", Real)
    0.5
    """
    value = config.get(field, "missing")
    if not number(value, kind) or not 0 < value <= (LARGEST if kind is Integral else FINITE):
        what = "number" if kind is Real else "integer"
        raise CompositionError(
            f"{field} has to be a positive {what}, and it is {brief(repr(value))}"
        )
    return value


def share(config: Config, field: str, default: float) -> float:
    """A field that is a rate of dropout. Raises CompositionError, by its name, outside [0, 1).

    >>> share({}, "resid_pdrop", 0.1)
    0.1
    """
    return between(config, field, default, "a rate of dropout, 0 ≤ rate < 1", below=1)


def epsilon(config: Config, field: str, default: float) -> float:
    """A field that is added to a variance. Raises CompositionError, by its name, outside [0, 1).

    >>> epsilon({"rms_norm_eps": 1e-5}, "rms_norm_eps", 1e-6)
    1e-05
    """
    return between(config, field, default, "a small number, 0 ≤ eps < 1", below=1)


def between(config: Config, field: str, default: float, what: str, below: float) -> float:
    value = config.get(field, default)
    if not number(value, Real) or not 0 <= value < below:
        raise CompositionError(f"{field} has to be {what}, and it is {brief(repr(value))}")
    return float(value)


def flag(config: Config, field: str, default: bool) -> bool:
    """A field that is true or false. Raises CompositionError, by its name, for another value.

    >>> flag({}, "attention_bias", False)
    False
    """
    require(config, **{field: (default, not default)})
    return bool(config.get(field, default))


def number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def require(config: Config, **supported: tuple[Any, ...]) -> None:
    """Refuse a configuration whose fields have other values than those listed for them.

    The first value counts where a field is not there. Raises CompositionError with the field.

    >>> require({"scale_attn_weights": True}, scale_attn_weights=(True,))
    """
    for field, values in supported.items():
        asked = config.get(field, values[0])
        if asked not in values:
            known = ", ".join(map(repr, values))
            raise CompositionError(
                f"{field} {brief(repr(asked))} is not supported; supported: {known}"
            )
