"""Random terms on which the laws are tested."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..activations import gelu, relu, silu
from ..aggregate import aggregate
from ..arithmetic import multiply
from ..bias import bias
from ..branches import fanout, join
from ..core.term import Term
from ..heads import heads
from ..mask import mask
from ..norm import layer_norm, rms_norm
from ..normalize import normalize
from ..positions import rotary
from ..predicates import causal, dilated, prefix, window
from ..primitives import constant, identity, learned, read
from ..project import linear, project, slots
from ..repeat import each, repeat
from ..score import dot, scaled_dot, score
from ..softmax import softmax
from ..union import sink, union
from ..wrappers import named
from .law import Sample

__all__ = [
    "scores", "head", "linear_after_linear", "sum_of_linears", "factor_of_linear",
    "factor_before_linear", "gain_before_linear", "side_by_side", "keys_and_values",
    "linear_after_lookup", "long_keys", "weights_of_weights", "one_before_two", "key_bias",
    "masks", "unions", "without_activation", "with_activation", "linear_attention", "attention",
    "block", "maps", "layers", "joined_heads", "symmetric", "causal_term", "composition",
]  # fmt: skip


def width(random: np.random.Generator) -> int:
    return int(random.integers(1, 6))


def one_of(random: np.random.Generator, *choices: Any) -> Any:
    return choices[int(random.integers(len(choices)))]


def affine(random: np.random.Generator, to: int | None = None) -> Term:
    """A linear map, with a bias or without."""
    return linear(to or width(random), bias=bool(random.integers(2)))


def scores(random: np.random.Generator) -> Term:
    """An inner product, masked or not."""
    return one_of(random, score(dot), score(scaled_dot), mask(causal) @ score(scaled_dot))


def head(random: np.random.Generator, entries: Term, how: Any = None) -> Term:
    how = how or one_of(random, softmax, gelu, relu)
    return aggregate() @ normalize(how) @ scores(random) @ entries


def entries(random: np.random.Generator, value: Term | int | None = None) -> Term:
    d = width(random)
    return project(query=d, key=d, value=value or width(random))


def around(random: np.random.Generator, term: Term) -> Term:
    """A term as it is, or after or before something else."""
    return one_of(random, term, silu @ term, term @ rms_norm(), named("here", term))


# Samples, law by law


def linear_after_linear(random: np.random.Generator) -> Sample:
    return Sample(around(random, affine(random) @ affine(random)))


def sum_of_linears(random: np.random.Generator) -> Sample:
    d = width(random)
    adapter = linear(d) @ linear(1)
    one, two = one_of(random, (affine(random, d), adapter), (adapter, affine(random, d)))
    sums = one + two, one - two, one + two + affine(random, d)
    return Sample(around(random, one_of(random, *sums)))


def factor_of_linear(random: np.random.Generator) -> Sample:
    d = width(random)
    c = one_of(random, constant(2.0), learned((d,)), learned(()))
    return Sample(around(random, multiply(c, affine(random, d))))


def factor_before_linear(random: np.random.Generator) -> Sample:
    c = one_of(random, constant(2.0), learned((4,)), learned(()))
    return Sample(affine(random) @ multiply(c, silu))


def gain_before_linear(random: np.random.Generator) -> Sample:
    return Sample(around(random, affine(random) @ one_of(random, rms_norm(), layer_norm())))


def side_by_side(random: np.random.Generator) -> Sample:
    d, biased = width(random), bool(random.integers(2))
    f, g, h = (linear(n, bias=biased) for n in (d, d, width(random)))
    return one_of(
        random,
        Sample(head(random, project(query=f, key=g, value=h))),
        Sample(multiply(silu @ f, g)),
        Sample(fanout(f, silu @ h)),
        Sample(join(f, h)),
    )


def keys_and_values(random: np.random.Generator) -> Sample:
    d = width(random)
    asked = project(query=d, key=linear(d) @ read("memory"), value=linear(3) @ read("memory"))
    return Sample(head(random, asked), context={"memory": (3, 6)})


def linear_after_lookup(random: np.random.Generator) -> Sample:
    if random.integers(2):
        return Sample(linear(4) @ head(random, slots(width(random))))
    return Sample(linear(width(random)) @ head(random, entries(random)))


def long_keys(random: np.random.Generator) -> Sample:
    d = width(random)
    inside = project(query=d, key=linear(d) @ linear(2), value=3)
    return Sample(head(random, one_of(random, inside, project(d))))


def weights_of_weights(random: np.random.Generator) -> Sample:
    one, two = (normalize(one_of(random, softmax, relu)) @ scores(random) for _ in range(2))
    both = one_of(random, one + two, one - two, 0.5 * one, learned(()) * two)
    return Sample(aggregate() @ both @ entries(random))


def one_before_two(random: np.random.Generator) -> Sample:
    f, g = (one_of(random, linear(4), silu, identity) for _ in range(2))
    form = one_of(random, f + g, multiply(f, g), fanout(f, g), f - g)
    return Sample(form @ one_of(random, gelu, rotary()))


def key_bias(random: np.random.Generator) -> Sample:
    d = width(random)
    return Sample(head(random, project(query=d, key=linear(d, bias=True), value=3), softmax))


def masks(random: np.random.Generator) -> Sample:
    p, q = (one_of(random, causal, window(2), prefix(2), dilated(2)) for _ in range(2))
    return Sample(aggregate() @ normalize(softmax) @ mask(p) @ mask(q) @ score(dot) @ project(3))


def unions(random: np.random.Generator) -> Sample:
    inner = union(score(dot) @ slots(2), sink())
    both = one_of(random, union(score(dot), inner), union(inner, score(dot)))
    return Sample(aggregate() @ normalize(softmax) @ both @ project(3))


def without_activation(random: np.random.Generator) -> Sample:
    shift = one_of(random, identity, bias(learned((3,))))
    asked = shift @ one_of(random, score(dot), score(scaled_dot))
    return Sample(around(random, aggregate() @ normalize(identity) @ asked @ slots(3)))


def with_activation(random: np.random.Generator) -> Sample:
    how = one_of(random, gelu, relu, silu)
    return Sample(aggregate() @ normalize(how) @ score(dot) @ slots(width(random)))


def linear_attention(random: np.random.Generator) -> Sample:
    asked = one_of(random, score(dot), mask(causal) @ score(dot))
    return Sample(aggregate() @ normalize(identity) @ asked @ project(width(random)))


def attention(random: np.random.Generator) -> Sample:
    return Sample(around(random, head(random, entries(random))))


def block(random: np.random.Generator) -> Term:
    """A term that keeps the shape."""
    return one_of(random, linear(4), rms_norm(), identity + affine(random, 4) @ rms_norm())


def maps(random: np.random.Generator) -> Sample:
    f, g = block(random), silu @ block(random)
    return Sample(one_of(random, each(f @ g), each(f) @ each(g)), (2, 5, 4))


def layers(random: np.random.Generator) -> Sample:
    return Sample(repeat(width(random) + 1, block(random)))


def joined_heads(random: np.random.Generator) -> Sample:
    inner = one_of(random, linear(2), heads(2, linear(2)), head(random, entries(random)))
    return Sample(linear(width(random)) @ heads(one_of(random, 1, 2, 3), inner))


def symmetric(random: np.random.Generator) -> Sample:
    inner = aggregate() @ normalize(softmax) @ score(scaled_dot) @ project(2)
    return Sample(identity + linear(4) @ heads(2, inner) @ rms_norm())


def causal_term(random: np.random.Generator) -> Sample:
    inner = aggregate() @ normalize(softmax) @ mask(causal) @ score(scaled_dot) @ project(2)
    return Sample(identity + linear(4) @ heads(2, inner) @ rms_norm())


def composition(random: np.random.Generator) -> Sample:
    return Sample(silu @ block(random) @ silu @ block(random))
