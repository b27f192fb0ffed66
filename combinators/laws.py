"""The laws of the language, as data.

    linear(n) ∘ linear(m) = linear(n)          kernel = A B, bias = a B + b

Each law says what it states, when it holds, how parameters move, and which side costs less.
`check(law)` tests it on random terms, `derive` and `simplify` rewrite with it, and a law of yours
is one more `Law`.
"""

from __future__ import annotations

from .core.errors import CompositionError
from .rules import dictionary_laws, form_laws, linear_laws, lookup_laws, samples
from .rules.law import Law, windowed
from .rules.lookup_laws import lookups

__all__ = ["LAWS", "law"]

LAWS = (
    Law(
        "unit", "f ∘ identity = f = identity ∘ f", samples.composition, sides=form_laws.units,
        moves="as they are",
    ),
    Law(
        "associativity", "(f ∘ g) ∘ h = f ∘ (g ∘ h)",
        samples.composition, sides=form_laws.bracketed,
        moves="as they are",
    ),
    Law(
        "product", "linear ∘ linear = linear",
        samples.linear_after_linear, windowed(linear_laws.merge),
        condition="nothing stands between; neither shares its parameters",
        moves="kernel = A B, bias = a B + b", cheaper="by size",
    ),
    Law(
        "sum", "linear ± linear = linear", samples.sum_of_linears, windowed(linear_laws.merge_sum),
        condition="each is a composition of linear maps, so an adapter too",
        moves="kernel = A ± B, bias = a ± b", cheaper="right",
    ),
    Law(
        "factor", "c · linear = linear", samples.factor_of_linear, windowed(linear_laws.put_factor),
        condition="c is a number, or learned",
        moves="kernel = c A, bias = c a", cheaper="right",
    ),
    Law(
        "factor before", "linear ∘ (c · f) = linear ∘ f", samples.factor_before_linear,
        windowed(linear_laws.fold_factor),
        condition="the linear map is the only reader",
        moves="kernel = diag(c) A", cheaper="right",
    ),
    Law(
        "gain", "linear ∘ norm = linear ∘ norm(gain=False)", samples.gain_before_linear,
        windowed(linear_laws.fold_gain),
        condition="the linear map is the only reader of the norm",
        moves="kernel = diag(scale) A, bias = bias A + a", cheaper="right",
    ),
    Law(
        "side by side", "[linear, linear] = [columns, columns] ∘ linear", samples.side_by_side,
        windowed(linear_laws.together), windowed(linear_laws.apart),
        condition="one input; all have a bias, or none",
        moves="kernels side by side, bit for bit",
    ),
    Law(
        "keys and values",
        "project(q, linear ∘ m, linear ∘ m) = given(project(q, columns, columns), linear ∘ m)",
        samples.keys_and_values, windowed(linear_laws.same_source),
        windowed(linear_laws.own_source),
        condition="both read the same context, and have a bias or not",
        moves="kernels side by side, bit for bit",
    ),
    Law(
        "values", "linear ∘ aggregate = aggregate ∘ linear on values", samples.linear_after_lookup,
        lookups(lookup_laws.into_values), lookups(lookup_laws.out_of_values),
        condition="no bias; the aggregate is the weighted sum",
        moves="the kernel goes to the values, bit for bit", cheaper="by size",
    ),
    Law(
        "keys", "q · (linear k) = (linearᵀ q) · k", samples.long_keys,
        lookups(lookup_laws.keys_to_queries), lookups(lookup_laws.queries_to_keys),
        condition="an inner product scores, and the linear map has no bias",
        moves="the kernel goes over, transposed, bit for bit", cheaper="by size",
    ),
    Law(
        "heads", "linear ∘ heads = total ∘ copies(linear ∘ …)", samples.joined_heads,
        windowed(form_laws.of_joined), windowed(form_laws.of_summed),
        condition="no bias",
        moves="each head takes its rows of the kernel, bit for bit",
    ),
    Law(
        "weights", "aggregate ∘ (f ± g) = aggregate ∘ f ± aggregate ∘ g",
        samples.weights_of_weights,
        windowed(lookup_laws.spread), windowed(lookup_laws.gather),
        condition="f and g weigh the same values; a product of weights is no such sum",
        moves="as they are", cheaper="by size",
    ),
    Law(
        "branches", "(f ± g) ∘ h = f ∘ h ± g ∘ h", samples.one_before_two,
        windowed(form_laws.in_each), windowed(form_laws.before_all),
        condition="h learns nothing and draws nothing",
        moves="as they are", cheaper="by size",
    ),
    Law(
        "shift", "softmax(s + c) = softmax(s)", samples.key_bias, lookups(lookup_laws.no_shift),
        condition="the normalizer sees only differences of a row's scores",
        moves="the bias of the keys goes", cheaper="right",
    ),
    Law(
        "masks", "mask(p) ∘ mask(q) = mask(q & p)", samples.masks,
        windowed(lookup_laws.one_mask), windowed(lookup_laws.two_masks),
        moves="as they are", cheaper="right",
    ),
    Law(
        "unions", "union(f, union(g, h)) = union(f, g, h)",
        samples.unions, windowed(lookup_laws.one_union),
        moves="as they are", cheaper="neither",
    ),
    Law(
        "matrix", "aggregate ∘ normalize(identity) ∘ score(dot) ∘ slots = linear",
        samples.without_activation, lookups(dictionary_laws.collapse),
        condition="no activation, no mask",
        moves="kernel = Kᵀ V", cheaper="by size",
    ),
    Law(
        "network", "aggregate ∘ normalize(f) ∘ score(dot) ∘ slots = linear ∘ f ∘ linear",
        samples.with_activation, lookups(dictionary_laws.as_mlp),
        windowed(dictionary_laws.as_dictionary),
        condition="f acts on each score by itself",
        moves="first kernel = Kᵀ, second = V, bit for bit",
    ),
    Law(
        "brackets", "(Q Kᵀ) V = Q (Kᵀ V)", samples.linear_attention,
        lookups(dictionary_laws.reassociate), lookups(dictionary_laws.in_one_table),
        condition="no normalizer stands between, at most a mask",
        moves="as they are", cheaper="by size",
    ),
    Law(
        "blocks", "all keys = block ⊕ block ⊕ …", samples.attention,
        lookups(dictionary_laws.in_blocks), windowed(dictionary_laws.in_a_table),
        condition="the normalizer merges blocks of keys",
        moves="as they are",
    ),
    Law(
        "map", "each(f ∘ g) = each(f) ∘ each(g)", samples.maps,
        windowed(form_laws.in_maps), windowed(form_laws.in_one_map),
        condition="one axis, and the same context fixed",
        moves="as they are",
    ),
    Law(
        "layers", "f ** n = f ∘ … ∘ f",
        samples.layers, windowed(form_laws.written_out), form_laws.in_layers,
        condition="layers share no parameters",
        moves="one slice each, bit for bit",
    ),
    Law(
        "symmetry", "π ∘ f = f ∘ π", samples.symmetric, sides=form_laws.permuted,
        condition="without masks and positions",
        moves="as they are",
    ),
    Law(
        "steps", "steps = whole", samples.causal_term, sides=form_laws.stepped,
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
