"""The laws of the language, as data.

    linear(n) ∘ linear(m) = linear(n)          kernel = A B, bias = a B + b

Each law says what it states, when it holds, how parameters move, and which side costs less.
`check(law)` tests it on random terms, `derive` and `simplify` rewrite with it, and a law of yours
is one more `Law`.
"""

from __future__ import annotations

from typing import Any

from .aggregate import aggregate
from .algebra.form_laws import (
    before_all,
    bracketed,
    in_each,
    in_layers,
    in_maps,
    in_one_map,
    of_joined,
    of_summed,
    permuted,
    stepped,
    units,
    written_out,
)
from .algebra.law import Law, Sample, windowed
from .algebra.linear_laws import (
    apart,
    fold_factor,
    fold_gain,
    merge,
    merge_sum,
    own_source,
    put_factor,
    same_source,
    together,
)
from .algebra.lookup_laws import (
    as_dictionary,
    as_mlp,
    collapse,
    gather,
    in_a_table,
    in_blocks,
    in_one_table,
    into_values,
    keys_to_queries,
    lookups,
    no_shift,
    one_mask,
    one_union,
    out_of_values,
    queries_to_keys,
    reassociate,
    spread,
    two_masks,
)
from .arithmetic import multiply
from .bias import bias
from .branches import fanout, join
from .core.errors import CompositionError
from .core.term import Term
from .embed import rotary
from .heads import heads
from .mask import mask
from .norm import layer_norm, rms_norm
from .normalize import gelu, normalize, relu, silu, softmax
from .predicates import causal, dilated, prefix, window
from .primitives import constant, identity, learned, read
from .project import linear, project, slots
from .repeat import each, repeat
from .score import dot, scaled_dot, score
from .union import sink, union
from .wrappers import named

__all__ = ["LAWS", "law"]


# Random terms


def width(random: Any) -> int:
    return int(random.integers(1, 6))


def one_of(random: Any, *choices: Any) -> Any:
    return choices[int(random.integers(len(choices)))]


def affine(random: Any, to: int | None = None) -> Term:
    """A linear map, with a bias or without."""
    return linear(to or width(random), bias=bool(random.integers(2)))


def scores(random: Any) -> Term:
    """An inner product, masked or not."""
    return one_of(random, score(dot), score(scaled_dot), mask(causal) @ score(scaled_dot))


def head(random: Any, entries: Term, how: Any = None) -> Term:
    how = how or one_of(random, softmax, gelu, relu)
    return aggregate() @ normalize(how) @ scores(random) @ entries


def entries(random: Any, value: Term | int | None = None) -> Term:
    d = width(random)
    return project(query=d, key=d, value=value or width(random))


def around(random: Any, term: Term) -> Term:
    """A term as it is, or after or before something else."""
    return one_of(random, term, silu @ term, term @ rms_norm(), named("here", term))


# Samples, law by law


def linear_after_linear(random: Any) -> Sample:
    return Sample(around(random, affine(random) @ affine(random)))


def sum_of_linears(random: Any) -> Sample:
    d = width(random)
    adapter = linear(d) @ linear(1)
    one, two = one_of(random, (affine(random, d), adapter), (adapter, affine(random, d)))
    sums = one + two, one - two, one + two + affine(random, d)
    return Sample(around(random, one_of(random, *sums)))


def factor_of_linear(random: Any) -> Sample:
    d = width(random)
    c = one_of(random, constant(2.0), learned((d,)), learned(()))
    return Sample(around(random, multiply(c, affine(random, d))))


def factor_before_linear(random: Any) -> Sample:
    c = one_of(random, constant(2.0), learned((4,)), learned(()))
    return Sample(affine(random) @ multiply(c, silu))


def gain_before_linear(random: Any) -> Sample:
    return Sample(around(random, affine(random) @ one_of(random, rms_norm(), layer_norm())))


def side_by_side(random: Any) -> Sample:
    d, biased = width(random), bool(random.integers(2))
    f, g, h = (linear(n, bias=biased) for n in (d, d, width(random)))
    return one_of(
        random,
        Sample(head(random, project(query=f, key=g, value=h))),
        Sample(multiply(silu @ f, g)),
        Sample(fanout(f, silu @ h)),
        Sample(join(f, h)),
    )


def keys_and_values(random: Any) -> Sample:
    d = width(random)
    asked = project(query=d, key=linear(d) @ read("memory"), value=linear(3) @ read("memory"))
    return Sample(head(random, asked), context={"memory": (3, 6)})


def linear_after_lookup(random: Any) -> Sample:
    if random.integers(2):
        return Sample(linear(4) @ head(random, slots(width(random))))
    return Sample(linear(width(random)) @ head(random, entries(random)))


def long_keys(random: Any) -> Sample:
    d = width(random)
    inside = project(query=d, key=linear(d) @ linear(2), value=3)
    return Sample(head(random, one_of(random, inside, project(d))))


def weights_of_weights(random: Any) -> Sample:
    one, two = (normalize(one_of(random, softmax, relu)) @ scores(random) for _ in range(2))
    both = one_of(random, one + two, one - two, 0.5 * one, learned(()) * two)
    return Sample(aggregate() @ both @ entries(random))


def one_before_two(random: Any) -> Sample:
    f, g = (one_of(random, linear(4), silu, identity) for _ in range(2))
    form = one_of(random, f + g, multiply(f, g), fanout(f, g), f - g)
    return Sample(form @ one_of(random, gelu, rotary()))


def key_bias(random: Any) -> Sample:
    d = width(random)
    return Sample(head(random, project(query=d, key=linear(d, bias=True), value=3), softmax))


def masks(random: Any) -> Sample:
    p, q = (one_of(random, causal, window(2), prefix(2), dilated(2)) for _ in range(2))
    return Sample(aggregate() @ normalize(softmax) @ mask(p) @ mask(q) @ score(dot) @ project(3))


def unions(random: Any) -> Sample:
    inner = union(score(dot) @ slots(2), sink())
    both = one_of(random, union(score(dot), inner), union(inner, score(dot)))
    return Sample(aggregate() @ normalize(softmax) @ both @ project(3))


def without_activation(random: Any) -> Sample:
    shift = one_of(random, identity, bias(learned((3,))))
    asked = shift @ one_of(random, score(dot), score(scaled_dot))
    return Sample(around(random, aggregate() @ normalize(identity) @ asked @ slots(3)))


def with_activation(random: Any) -> Sample:
    how = one_of(random, gelu, relu, silu)
    return Sample(aggregate() @ normalize(how) @ score(dot) @ slots(width(random)))


def linear_attention(random: Any) -> Sample:
    asked = one_of(random, score(dot), mask(causal) @ score(dot))
    return Sample(aggregate() @ normalize(identity) @ asked @ project(width(random)))


def attention(random: Any) -> Sample:
    return Sample(around(random, head(random, entries(random))))


def block(random: Any) -> Term:
    """A term that keeps the shape."""
    return one_of(random, linear(4), rms_norm(), identity + affine(random, 4) @ rms_norm())


def maps(random: Any) -> Sample:
    f, g = block(random), silu @ block(random)
    return Sample(one_of(random, each(f @ g), each(f) @ each(g)), (2, 5, 4))


def layers(random: Any) -> Sample:
    return Sample(repeat(width(random) + 1, block(random)))


def joined_heads(random: Any) -> Sample:
    inner = one_of(random, linear(2), heads(2, linear(2)), head(random, entries(random)))
    return Sample(linear(width(random)) @ heads(one_of(random, 1, 2, 3), inner))


def symmetric(random: Any) -> Sample:
    inner = aggregate() @ normalize(softmax) @ score(scaled_dot) @ project(2)
    return Sample(identity + linear(4) @ heads(2, inner) @ rms_norm())


def causal_term(random: Any) -> Sample:
    inner = aggregate() @ normalize(softmax) @ mask(causal) @ score(scaled_dot) @ project(2)
    return Sample(identity + linear(4) @ heads(2, inner) @ rms_norm())


def composition(random: Any) -> Sample:
    return Sample(silu @ block(random) @ silu @ block(random))


LAWS = (
    Law(
        "unit", "f ∘ identity = f = identity ∘ f", composition, sides=units,
        moves="as they are",
    ),
    Law(
        "associativity", "(f ∘ g) ∘ h = f ∘ (g ∘ h)", composition, sides=bracketed,
        moves="as they are",
    ),
    Law(
        "product", "linear ∘ linear = linear", linear_after_linear, windowed(merge),
        condition="nothing stands between; neither shares its parameters",
        moves="kernel = A B, bias = a B + b", cheaper="by size",
    ),
    Law(
        "sum", "linear ± linear = linear", sum_of_linears, windowed(merge_sum),
        condition="each is a composition of linear maps, so an adapter too",
        moves="kernel = A ± B, bias = a ± b", cheaper="right",
    ),
    Law(
        "factor", "c · linear = linear", factor_of_linear, windowed(put_factor),
        condition="c is a number, or learned",
        moves="kernel = c A, bias = c a", cheaper="right",
    ),
    Law(
        "factor before", "linear ∘ (c · f) = linear ∘ f", factor_before_linear,
        windowed(fold_factor),
        condition="the linear map is the only reader",
        moves="kernel = diag(c) A", cheaper="right",
    ),
    Law(
        "gain", "linear ∘ norm = linear ∘ norm(gain=False)", gain_before_linear,
        windowed(fold_gain),
        condition="the linear map is the only reader of the norm",
        moves="kernel = diag(scale) A, bias = bias A + a", cheaper="right",
    ),
    Law(
        "side by side", "[linear, linear] = [columns, columns] ∘ linear", side_by_side,
        windowed(together), windowed(apart),
        condition="one input; all have a bias, or none",
        moves="kernels side by side, bit for bit",
    ),
    Law(
        "keys and values",
        "project(q, linear ∘ m, linear ∘ m) = given(project(q, columns, columns), linear ∘ m)",
        keys_and_values, windowed(same_source), windowed(own_source),
        condition="both read the same context, and have a bias or not",
        moves="kernels side by side, bit for bit",
    ),
    Law(
        "values", "linear ∘ aggregate = aggregate ∘ linear on values", linear_after_lookup,
        lookups(into_values), lookups(out_of_values),
        condition="no bias; the aggregate is the weighted sum",
        moves="the kernel goes to the values, bit for bit", cheaper="by size",
    ),
    Law(
        "keys", "q · (linear k) = (linearᵀ q) · k", long_keys,
        lookups(keys_to_queries), lookups(queries_to_keys),
        condition="an inner product scores, and the linear map has no bias",
        moves="the kernel goes over, transposed, bit for bit", cheaper="by size",
    ),
    Law(
        "heads", "linear ∘ heads = total ∘ copies(linear ∘ …)", joined_heads,
        windowed(of_joined), windowed(of_summed),
        condition="no bias",
        moves="each head takes its rows of the kernel, bit for bit",
    ),
    Law(
        "weights", "aggregate ∘ (f ± g) = aggregate ∘ f ± aggregate ∘ g", weights_of_weights,
        windowed(spread), windowed(gather),
        condition="f and g weigh the same values; a product of weights is no such sum",
        moves="as they are", cheaper="by size",
    ),
    Law(
        "branches", "(f ± g) ∘ h = f ∘ h ± g ∘ h", one_before_two,
        windowed(in_each), windowed(before_all),
        condition="h learns nothing and draws nothing",
        moves="as they are", cheaper="by size",
    ),
    Law(
        "shift", "softmax(s + c) = softmax(s)", key_bias, lookups(no_shift),
        condition="the normalizer sees only differences of a row's scores",
        moves="the bias of the keys goes", cheaper="right",
    ),
    Law(
        "masks", "mask(p) ∘ mask(q) = mask(q & p)", masks,
        windowed(one_mask), windowed(two_masks),
        moves="as they are", cheaper="right",
    ),
    Law(
        "unions", "union(f, union(g, h)) = union(f, g, h)", unions, windowed(one_union),
        moves="as they are", cheaper="neither",
    ),
    Law(
        "matrix", "aggregate ∘ normalize(identity) ∘ score(dot) ∘ slots = linear",
        without_activation, lookups(collapse),
        condition="no activation, no mask",
        moves="kernel = Kᵀ V", cheaper="by size",
    ),
    Law(
        "network", "aggregate ∘ normalize(f) ∘ score(dot) ∘ slots = linear ∘ f ∘ linear",
        with_activation, lookups(as_mlp), windowed(as_dictionary),
        condition="f acts on each score by itself",
        moves="first kernel = Kᵀ, second = V, bit for bit",
    ),
    Law(
        "brackets", "(Q Kᵀ) V = Q (Kᵀ V)", linear_attention,
        lookups(reassociate), lookups(in_one_table),
        condition="no normalizer stands between, at most a mask",
        moves="as they are", cheaper="by size",
    ),
    Law(
        "blocks", "all keys = block ⊕ block ⊕ …", attention,
        lookups(in_blocks), windowed(in_a_table),
        condition="the normalizer merges blocks of keys",
        moves="as they are",
    ),
    Law(
        "map", "each(f ∘ g) = each(f) ∘ each(g)", maps,
        windowed(in_maps), windowed(in_one_map),
        condition="one axis, and the same context fixed",
        moves="as they are",
    ),
    Law(
        "layers", "f ** n = f ∘ … ∘ f", layers, windowed(written_out), in_layers,
        condition="layers share no parameters",
        moves="one slice each, bit for bit",
    ),
    Law(
        "symmetry", "π ∘ f = f ∘ π", symmetric, sides=permuted,
        condition="without masks and positions",
        moves="as they are",
    ),
    Law(
        "steps", "steps = whole", causal_term, sides=stepped,
        condition="no row sees a later one",
        moves="as they are",
    ),
)  # fmt: skip
"""The laws, in the order of the page on them."""


def law(name: str) -> Law:
    """The law of this name.

    Raises CompositionError for a name that no law has.

    >>> law("product")
    product: linear ∘ linear = linear
    """
    for one in LAWS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in LAWS)
    raise CompositionError(f"no law is called {name!r}; there are {known}")
