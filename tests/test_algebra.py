"""Derivations: what must come out, what it costs, how it prints; verdicts and equality."""
# ruff: noqa: F403, F405

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain import drawn, single

from combinax import models
from combinax.combinators import *
from combinax.combinators.algebra.verdict import apart

X = single(5, 4, seed=0)
LOOKUP = aggregate() @ normalize(softmax) @ mask(causal) @ score(scaled_dot)
HEAD = LOOKUP @ project(3)
LINEAR = aggregate() @ normalize(identity) @ score(dot) @ project(3)
AFTER = score(scaled_dot, scale=3**-0.5)
CIRCUITS = total @ copies(
    2,
    compose(
        aggregate(), normalize(softmax), mask(causal), AFTER,
        project(query=linear(4), key=identity, value=linear(4)),
    ),
)  # fmt: skip
CUT = project(query=columns(0, 3), key=columns(3, 6), value=columns(6, 9))
LATENT = project(query=3, key=linear(3) @ linear(2), value=linear(3) @ linear(2))
ABSORBED = project(query=linear(2) @ linear(3), key=2, value=2)
DIFFERENTIAL = (normalize(softmax) @ score(dot)) - 0.5 * (normalize(softmax) @ score(cosine))

# What is derived: both ends of a chain, and the laws on the way.
CHAINS = {
    "a head streams": (HEAD, streamed(HEAD), ["blocks"]),
    "two maps are one": (linear(2) @ linear(3), linear(2), ["product"]),
    "three projections are one": (HEAD, LOOKUP @ CUT @ linear(9), ["side by side"]),
    "one projection is three": (LOOKUP @ CUT @ linear(9), HEAD, ["side by side, backwards"]),
    "linear attention": (
        LINEAR,
        streamed(aggregate() @ normalize(identity) @ score(features(identity)) @ project(3)),
        ["brackets", "blocks"],
    ),
    "an adapter merges": (
        linear(3, bias=True) + named("adapter", linear(3) @ shared(linear(1), "heads")),
        linear(3, bias=True),
        ["sum"],
    ),
    "a gain folds": (linear(3) @ rms_norm(), linear(3) @ rms_norm(gain=False), ["gain"]),
    "the circuits of heads": (
        linear(4) @ heads(2, HEAD), CIRCUITS, ["keys", "product", "heads", "values", "product"],
    ),
    "latents are the cache": (
        LOOKUP @ LATENT,
        linear(3) @ aggregate() @ normalize(softmax) @ mask(causal) @ AFTER @ ABSORBED,
        ["keys", "values, backwards"],
    ),
    "a dictionary is a matrix": (
        aggregate() @ normalize(identity) @ score(dot) @ slots(7), linear(4), ["matrix"],
    ),
    "a dictionary is an MLP": (
        aggregate() @ normalize(gelu) @ score(dot) @ slots(7),
        linear(4) @ gelu @ linear(7),
        ["network"],
    ),
    "differential attention": (
        aggregate() @ DIFFERENTIAL @ project(3),
        compose(
            aggregate() @ normalize(softmax) @ score(dot)
            - 0.5 * (aggregate() @ normalize(softmax) @ score(cosine)),
            project(3),
        ),
        ["weights"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_what_is_derived(name):
    term, target, laws = CHAINS[name]
    params = drawn(term, X)
    chain = derive(term, params, X, to=target)
    after, moved = chain
    assert after == target and sorted(step.law for step in chain.steps) == sorted(laws)
    # float32, of numbers up to a hundred.
    assert all(step.error is not None and step.error < 2e-4 for step in chain.steps)
    assert apart(target(moved, X), term(params, X)) < 1e-5
    assert chain.steps[-1].cost == cost(target, X)


def test_what_is_derived_is_equal():
    for name in ("a head streams", "two maps are one", "a gain folds", "a dictionary is a matrix"):
        term, target, _ = CHAINS[name]
        params = drawn(term, X)
        moved = derive(term, params, X, to=target).params
        assert equal(term, target, X, params=(params, moved)).equal is True


# simplify

SIMPLER = {
    "narrow in the middle stays": (linear(8) @ linear(1), linear(8) @ linear(1)),
    "wide in the middle goes": (linear(3) @ linear(8), linear(3)),
    "an activation stays": (linear(3) @ silu @ linear(8), linear(3) @ silu @ linear(8)),
    "a useless bias of keys goes": (
        LOOKUP @ project(query=2, key=linear(2, bias=True), value=3),
        LOOKUP @ project(query=2, key=2, value=3),
    ),
    "masks become one": (mask(causal) @ mask(window(2)) @ score(dot) @ project(3),
                         mask(window(2) & causal) @ score(dot) @ project(3)),
    "factors go": (linear(3) @ (2.0 * (0.5 * linear(8))), linear(3)),
    "projections stay three": (
        LOOKUP @ project(query=rotary() @ linear(4), key=rotary() @ linear(4), value=4),
        LOOKUP @ project(query=rotary() @ linear(4), key=rotary() @ linear(4), value=4),
    ),
    "into slots": (
        linear(4) @ aggregate() @ normalize(gelu) @ score(dot) @ slots(9),
        aggregate() @ normalize(gelu) @ score(dot) @ slots(9),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SIMPLER)
def test_simpler_is_the_same_function_at_less_cost(name):
    term, expected = SIMPLER[name]
    params = drawn(term, X)
    chain = simplify(term, params, X)
    assert chain.term == expected
    if name != "masks become one":
        assert apart(expected(chain.params, X), term(params, X)) < 1e-5
    prices = [chain.cost, *(step.cost for step in chain.steps)]
    assert prices[-1].seconds <= prices[0].seconds
    again = simplify(chain.term, chain.params, X)
    assert again.term == chain.term and again.steps == ()
    jax.tree.map(np.testing.assert_array_equal, again.params, chain.params)


def test_a_second_step_may_pay_for_the_first():
    """Keys go over to queries at no gain, and then two maps of queries are one."""
    term = LOOKUP @ project(query=16, key=16, value=4)
    chain = simplify(term, drawn(term, X), X)
    assert [step.law for step in chain.steps][:2] == ["keys", "product"]
    assert chain.term.parts[0].parts[:2] == (linear(4), identity)


def test_linear_attention_from_the_length_where_it_wins():
    features_ = aggregate() @ normalize(identity) @ score(features(identity)) @ project(64)
    plain = aggregate() @ normalize(identity) @ score(dot) @ project(64)
    for rows, expected in ((32, plain), (4096, features_)):
        x = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
        params = jax.eval_shape(plain.init, jax.random.key(0), x)
        chain = simplify(plain, params, x, laws=[law("brackets")])
        assert chain.term == expected


CONFIG = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = {**CONFIG, "num_key_value_heads": 1, "intermediate_size": 12}
BERT = {**CONFIG, "intermediate_size": 12, "max_position_embeddings": 8}


def test_models_keep_their_outputs():
    tokens = jnp.arange(6)
    llama = models.llama(LLAMA)
    params = drawn(llama, tokens)
    after, moved = chain = simplify(llama, params, tokens)
    assert [(step.law, step.path) for step in chain.steps] == [("gain", "rms_norm")]
    assert apart(after(moved, tokens), llama(params, tokens)) < 1e-5
    bert = models.bert({**BERT, "architectures": ["BertForMaskedLM"]})
    context = {"lengths": jnp.int32(5), "token_types": jnp.zeros(6, jnp.int32)}
    params = drawn(bert, tokens, **context)
    for stored in (params, unstack(bert, params)):
        after, moved = chain = simplify(bert, stored, tokens, **context)
        assert [step.law for step in chain.steps] == ["shift"]
        y = bert(params, tokens, **context)
        assert apart(after(moved, tokens, **context), y) < 1e-5
        assert ("0" in moved["tied"]["blocks"]) == ("0" in stored["tied"]["blocks"])


# Costs


def test_costs_are_counted_by_hand():
    x = jax.ShapeDtypeStruct((10, 4), jnp.float32)
    price = cost(linear(3), x, machine=Machine(1e3, 1e2))
    moved = 4 * (10 * 4 + 4 * 3 + 10 * 3)
    assert (price.flops, price.bytes, price.products) == (240, moved, 1)
    assert price.seconds == max(240 / 1e3, moved / 1e2) == 3.28
    layers = repeat(5, linear(4))
    assert cost(layers, x).products == 5
    assert cost(heads(2, linear(3)), x).flops == 480
    assert cost(columns(0, 2) @ identity, x) == Cost(0, 0, 0, 0.0)


def test_a_stream_moves_less_and_computes_as_much():
    """Tables go to memory and back; a stream reads keys once for each row of tiles."""
    x = jax.ShapeDtypeStruct((2048, 64), jnp.float32)
    plain = aggregate() @ normalize(softmax) @ score(scaled_dot) @ project(64)
    table, stream = (cost(form(plain), x) for form in (materialized, streamed))
    assert stream.flops == table.flops and stream.products == table.products
    projected = cost(project(64), x).bytes
    entries = 4 * 2048 * 64
    tiles = 2048 // 512
    assert stream.bytes == projected + 2 * entries + tiles * 2 * entries
    # Scores and weights are written and read again.
    assert table.bytes == projected + 4 * (4 * 2048 * 2048) + 4 * entries
    assert stream.seconds < table.seconds
    masked = LOOKUP @ project(64)
    half = cost(streamed(masked), x)
    assert half.flops < 0.75 * cost(materialized(masked), x).flops


# Printing


def test_a_chain_prints_in_the_terminal_in_markdown_in_html_and_in_latex():
    term = linear(2) @ linear(3)
    chain = derive(term, drawn(term, X), X)
    text, error = str(chain), f"{chain.steps[0].error:.1e}"
    assert (
        text
        == repr(chain)
        == (
            "  linear(2) ∘ linear(3)\n"
            "= linear(2)\n"
            "    product: linear ∘ linear = linear at linear\n"
            "    FLOPs 180 → 80, bytes 312 → 152, products 2 → 1, time 15.6 ns → 7.6 ns\n"
            f"    largest difference {error}"
        )
    )
    head, _, row = chain.markdown().splitlines()[2:5]
    assert head.startswith("| law | at | before | after | FLOPs |")
    assert row.startswith("| product | linear | `linear(2) ∘ linear(3)` | `linear(2)` | 180 → 80 |")
    page = chain._repr_html_()
    assert page.count("<tr>") == 2 and "<pre>linear(2)</pre>" in page
    assert chain.latex() == (
        "\\begin{align*}\n"
        "& \\mathrm{linear}(2) \\circ \\mathrm{linear}(3) \\\\\n"
        "={} & \\mathrm{linear}(2) && \\text{product}\n"
        "\\end{align*}"
    )


def test_a_chain_that_stays_says_so():
    term = linear(3) @ silu @ linear(3)
    chain = simplify(term, drawn(term, X), X)
    assert str(chain).endswith("stays: no law makes it cheaper")
    assert chain.refused == ("linear ∘ linear = linear is refused at 'silu': silu stands between",)


def test_of_a_long_term_only_what_changes_is_printed():
    bert = models.bert(BERT)
    context = {"lengths": jnp.int32(5), "token_types": jnp.zeros(6, jnp.int32)}
    chain = simplify(bert, drawn(bert, jnp.arange(6), **context), jnp.arange(6), **context)
    text = str(chain)
    assert "at blocks/attention/add/heads/project:\n  aggregate()" in text
    assert "embed(9, 8)" not in text


def test_tracers_and_shapes_measure_no_error():
    term, x = linear(2) @ linear(3), jax.ShapeDtypeStruct((5, 4), jnp.float32)
    params = drawn(term, X)
    (step,) = derive(term, params, x).steps
    assert step.error is None and "largest" not in str(derive(term, params, x))
    moved = jax.jit(lambda params, x: derive(term, params, x).params)(params, X)
    assert moved["kernel"].shape == (4, 2)


# equal and check


def test_equality_is_proved_refuted_or_not_known():
    yes = equal(LOOKUP @ project(3), streamed(HEAD, 2), X)
    assert yes.equal is True and yes and "both are" in str(yes)
    no = equal(linear(3) @ silu, linear(3) @ gelu, X)
    assert no.equal is False and not no and "on x =" in str(no)
    double = pointwise(lambda x: x + x)
    unknown = equal(double, pointwise(lambda x: 2 * x), X)
    assert unknown.equal is None and not unknown and "not known" in str(unknown)
    same = equal(double, double, X)
    assert same.equal is True and "the same term" in str(same)


def test_equality_reads_parameters():
    params = drawn(linear(3), X)
    other = {"kernel": params["kernel"] + 1}
    assert equal(linear(3), linear(3), X, params=(params, params)).equal is True
    assert equal(linear(3), linear(3), X, params=(params, other)).equal is False


def first_rows(x):
    return x[:3]


def test_the_kit_finds_what_is_broken():
    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    sine.defjvp(lambda given, slopes: (jnp.sin(given[0]), 2 * slopes[0]))
    verdict = check(linear(3) @ pointwise(sine), X)
    assert not verdict and "✗ derivative = finite difference" in str(verdict)
    assert str(verdict).count("✓") == 5
    wide = check(pointwise(lambda x: x.astype(jnp.result_type(float))), X)
    assert not wide and "✗ bfloat16 gives bfloat16" in str(wide)
    ahead = check(lift(first_rows), X)
    assert (
        ahead and "– steps = whole: " in str(ahead) and "– stream = table: no lookup" in str(ahead)
    )


def test_the_kit_passes_what_is_whole():
    verdict = check(HEAD, X)
    assert verdict and str(verdict).count("✓") == 7
    tokens = check(embed(7, 4), jnp.arange(5))
    assert tokens and "– derivative = finite difference: what goes in" in str(tokens)


def test_two_terms_against_each_other():
    assert check((linear(3) @ silu, linear(3) @ silu), X)
    wrong = check((silu, gelu), X)
    assert "on x = [[0.0, 0.0, 0.0, 1.0]]" in str(wrong) and not wrong
    other = check((linear(3), linear(3) @ linear(4)), X)
    assert "their parameters differ, so give both" in str(other)
    p, q = drawn(linear(3), X), drawn(linear(3) @ identity, X)
    assert check((linear(3), linear(3)), X, params=(p, q))
