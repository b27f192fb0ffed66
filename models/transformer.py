"""Transformers: residual branches, one after the other, repeated.

    block       = residual(dictionary) ∘ residual(attention)
    transformer = norm ∘ blockⁿ

An encoder and a decoder differ in one word, `mask(causal)`. Where the norm of a branch stands is a
function from a term to a term, `pre_norm(norm)` or `post_norm(norm)`, or one of yours.
"""

from __future__ import annotations

from collections.abc import Callable

from ..combinators import (
    Term,
    compose,
    embed,
    given,
    identity,
    named,
    pick,
    position_embed,
    repeat,
    rms_norm,
    tied,
)
from .attention import causal_scores, cross_attention, multi_head
from .dictionary import dictionary

__all__ = [
    "block", "decoder", "encoder", "encoder_decoder", "gpt", "post_norm", "pre_norm",
    "reading_decoder", "transformer",
]  # fmt: skip

Residual = Callable[[Term], Term]


def pre_norm(norm: Term) -> Residual:
    """f becomes x + f(norm(x)): the residual stream itself is never normed (Xiong et al. 2020).

    >>> pre_norm(rms_norm())(dictionary(8)) == identity + dictionary(8) @ rms_norm()
    True
    """
    return lambda f: identity + f @ norm


def post_norm(norm: Term) -> Residual:
    """f becomes norm(x + f(x)), as in the first transformer (Vaswani et al. 2017).

    >>> post_norm(rms_norm())(dictionary(8)) == rms_norm() @ (identity + dictionary(8))
    True
    """
    return lambda f: norm @ (identity + f)


def block(residual: Residual = pre_norm(rms_norm()), /, **branches: Term) -> Term:
    """Residual branches in the order written, each under the name given: (T, d) -> (T, d).

    `block(attention=f, dictionary=g)` is residual(g) ∘ residual(f) (Vaswani et al. 2017).

    Raises CompositionError at `init` for a branch that does not give back the width it takes.

    >>> term = block(attention=multi_head(8, 2), dictionary=dictionary(16))
    >>> params = term.init(jax.random.key(0), jnp.zeros((3, 8)))
    >>> sorted(params), sorted(params["attention"]), sorted(params["dictionary"])
    (['attention', 'dictionary'], ['heads', 'output', 'rms_norm'], ['rms_norm', 'slots'])
    """
    written = [named(name, residual(branch)) for name, branch in branches.items()]
    return compose(*reversed(written))


def transformer(
    layers: int,
    residual: Residual = pre_norm(rms_norm()),
    norm: Term = rms_norm(),
    /,
    **branches: Term,
) -> Term:
    """norm ∘ blockⁿ, n = layers: (T, d) -> (T, d) (Vaswani et al. 2017).

    With `post_norm` every block ends with a norm: pass `identity` as the last.

    Raises CompositionError for layers below 1.

    >>> transformer(2, dictionary=dictionary(16)) == transformer(
    ...     2, pre_norm(rms_norm()), rms_norm(), dictionary=dictionary(16)
    ... )
    True
    """
    return norm @ named("blocks", repeat(layers, block(residual, **branches)))


def encoder(layers: int, width: int, heads: int, slots: int) -> Term:
    """Every position reads every other: (T, width) -> (T, width) (Devlin et al. 2019).

    `slots` is the number of entries of each layer's dictionary. Variants are one line, too:
    `transformer(4, post_norm(layer_norm()), identity, attention=…, dictionary=…)`.

    Raises CompositionError when the heads do not divide the width.

    >>> term, x = encoder(2, 16, 4, 32), jnp.ones((3, 16))
    >>> term(term.init(jax.random.key(0), x), x).shape
    (3, 16)
    """
    return transformer(layers, attention=multi_head(width, heads), dictionary=dictionary(slots))


def decoder(layers: int, width: int, heads: int, slots: int) -> Term:
    """Every position reads itself and those before: (T, width) -> (T, width) (Radford et al. 2018).

    Raises CompositionError when the heads do not divide the width.

    >>> term, x = decoder(2, 16, 4, 32), jnp.ones((3, 16))
    >>> term(term.init(jax.random.key(0), x), x).shape
    (3, 16)
    """
    attention = multi_head(width, heads, scores=causal_scores)
    return transformer(layers, attention=attention, dictionary=dictionary(slots))


def reading_decoder(layers: int, width: int, heads: int, slots: int) -> Term:
    """A decoder whose layers also read a memory: x (T, width), memory (S, any) -> (T, width)
    (Vaswani et al. 2017).

    Raises CompositionError when the heads do not divide the width.

    >>> reading_decoder(2, 16, 4, 32).reads
    frozenset({'memory'})
    """
    return transformer(
        layers,
        attention=multi_head(width, heads, scores=causal_scores),
        cross=cross_attention(width, heads),
        dictionary=dictionary(slots),
    )


def encoder_decoder(encoder: Term, decoder: Term) -> Term:
    """(x, y) -> decoder(y, memory=encoder(x)): lengths (S, T) -> T (Vaswani et al. 2017).

    Raises CompositionError unless the decoder reads `memory`.

    >>> term = encoder_decoder(encoder(2, 16, 4, 32), reading_decoder(2, 16, 4, 32))
    >>> pair = jnp.zeros((5, 16)), jnp.zeros((3, 16))
    >>> params = term.init(jax.random.key(0), pair)
    >>> sorted(params), term(params, pair).shape
    (['decoder', 'memory'], (3, 16))
    """
    return given(named("decoder", decoder) @ pick(1), memory=encoder @ pick(0))


def gpt(vocabulary: int, width: int, length: int, body: Term) -> Term:
    """Tokens (T,) -> the logits of each next token (T, vocabulary), T up to length (Radford et
    al. 2019).

    One table turns tokens into vectors and scores what comes out of the body, a decoder such as
    `decoder(4, 64, 4, 256)`; positions are learned.

    Raises CompositionError unless the body gives back the width of the embedding.

    >>> term, tokens = gpt(256, 16, 128, decoder(2, 16, 4, 32)), jnp.arange(3)
    >>> term(term.init(jax.random.key(0), tokens), tokens).shape
    (3, 256)
    """
    return tied(embed(vocabulary, width), body @ position_embed(length))
