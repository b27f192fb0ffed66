"""Every word of the language in a term with an example input: what the common suite runs.

An entry's key is the word and, after a colon, the variant where a word has several. Inputs are
NumPy arrays, so that each test brings them to its own number type.
"""
# ruff: noqa: F403, F405

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from combinax import models
from combinax.combinators import *

T, D = 5, 4  # rows and width: nearly every example has them, so that compiled work is shared
draw = np.random.default_rng(0)


def fresh(*shape: int) -> Any:
    """Normal numbers, other ones at every call."""
    return draw.standard_normal(shape).astype(np.float32)


SEQUENCE, OTHER, MEMORY = fresh(T, D), fresh(T, D), fresh(T + 1, D)
TOKENS = np.array([1, 0, 6, 1, 3], np.int32)
SEGMENTS = np.array([0, 0, 0, 1, 1], np.int32)
POSITIONS = np.array([2, 3, 5, 6, 9], np.int32)
ADJACENCY = draw.random((T, T)) < 0.6
ROWS = Rows(Range(0, T), Range(0, T))
ENTRIES = Entries(fresh(T, D), fresh(T, D), fresh(T, D), Marks(ROWS, ROWS))
SCORES = Scores(fresh(T, T), fresh(T, D), Marks(ROWS, ROWS))
WEIGHTS = Weights(fresh(T, T), fresh(T, D), Marks(ROWS, ROWS))
RNG = jax.random.key(7)


class Entry(NamedTuple):
    """A term, what goes in, and its context."""

    term: Term
    x: Any = SEQUENCE
    context: Mapping[str, Any] = MappingProxyType({})


# Functions and primitives of a user's own


def wide(key, shape, dtype):
    return jax.random.normal(key, shape, dtype)


def mirrored(x):
    return jnp.flip(x, 0)


def squashed(x):
    return x / (1 + jnp.abs(x))


def nearness(query, key):
    return -0.5 * abs(query.position - key.position)


def same_kind_helps(query, key):
    return jnp.where(query["kind"] == key["kind"], 1.0, 0.0)


def product_of_sums(query, key):
    return query.sum(-1)[:, None] * key.sum(-1)[None, :]


def even_keys(query, key):
    return key.position % 2 == 0


def later_kinds(query, key):
    return key["kind"] >= query["kind"]


def squares(score, visible):
    square = jnp.square(score) if visible is None else jnp.where(visible, jnp.square(score), 0)
    return square / (1 + square.sum(-1, keepdims=True))


def mixed_and_heaviest(weights):
    heaviest = weights.weight.max(-1, keepdims=True)
    return weights(weights.value) + heaviest.astype(weights.value.dtype)


@dataclasses.dataclass(frozen=True)
class shift(Leaf):
    """x + by, with a vector that is learned."""

    rowwise = True

    def parameters(self, x: Any) -> dict[str, Parameter]:
        return {"by": Parameter(x.shape[-1:], wide, ("out",))}

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return x + params["by"]


@dataclasses.dataclass(frozen=True)
class fading(Stage):
    """score - rate · distance, with a rate that is learned."""

    def parameters(self, x: Any) -> dict[str, Parameter]:
        return {"rate": Parameter((), jax.nn.initializers.ones, ())}

    def tile(self, operands: Any, score: Any, marks: Any) -> Any:
        return score - operands["rate"] * abs(marks.query.position - marks.key.position)


@dataclasses.dataclass(frozen=True)
class steps_apart(Bias):
    """A learned number times the distance, as a bias."""

    def parameters(self, x: Any) -> dict[str, Parameter]:
        return {"rate": Parameter((), jax.nn.initializers.ones, ())}

    def tile(self, operands: Any, marks: Any) -> Any:
        return operands["rate"] * abs(marks.query.position - marks.key.position)


@dataclasses.dataclass(frozen=True)
class half_softmax(RowNormalizer):
    """Half of softmax: the other half goes to nothing."""

    def weights(self, score: Any, visible: Any) -> Any:
        return softmax.weights(score, visible) / 2


@dataclasses.dataclass(frozen=True)
class positive(Streaming):
    """exp(score) without a maximum taken off, over the sum and one."""

    def reference(self, score: Any, visible: Any) -> Any:
        return jnp.zeros_like(score[:, 0])

    def weigh(self, score: Any, visible: Any, reference: Any) -> Any:
        return jnp.exp(score) if visible is None else jnp.where(visible, jnp.exp(score), 0)

    def rescale(self, old: Any, new: Any) -> Any:
        return jnp.ones_like(old)

    def divisor(self, total: Any) -> Any:
        return 1 + total


@dataclasses.dataclass(frozen=True)
class nearer_than(Predicate):
    """|distance| < by."""

    by: int

    def __call__(self, query: Any, key: Any) -> Any:
        return abs(query.position - key.position) < self.by


# Terms that several entries are made of


def head(*stages: Term, how: Any = softmax, function: Any = scaled_dot, **options: Any) -> Term:
    """A head of width 3, with stages between score and normalize."""
    return compose(aggregate(), normalize(how), *stages, score(function, **options), project(3))


def masked(predicate: Any, **context: Any) -> Entry:
    return Entry(normalize(softmax) @ mask(predicate), SCORES, context)


def weighed(how: Any) -> Entry:
    return Entry(normalize(how) @ mask(causal), SCORES)


def lookup_of(scores: Term) -> Term:
    return compose(aggregate(), normalize(softmax), scores)


def one_table_of(name: str) -> Any:
    return shared(linear(3), name=name)


dictionary = compose(aggregate(), normalize(gelu), score(dot), slots(3))
lookup = lookup_of(score(scaled_dot))
grouped = project(query=3, key=shared(linear(3), "heads"), value=shared(linear(3), "heads"))
cross = project(query=3, key=linear(3) @ read("memory"), value=linear(3) @ read("memory"))

# Examples are as small as the word allows: a stage between score and normalize takes Scores.
CATALOGUE: dict[str, Entry] = {
    # project
    "linear": Entry(linear(3)),
    "linear: bias": Entry(linear(3, bias=True)),
    "project": Entry(project(3)),
    "project: parts": Entry(project(query=rotary() @ rms_norm() @ linear(4), key=4, value=2)),
    "project: cross": Entry(cross, context={"memory": MEMORY}),
    "project: learned queries": Entry(project(query=learned((2, 3)), key=3, value=3)),
    "slots": Entry(dictionary),
    "slots: entries": Entry(slots(3), ENTRIES),
    "embed": Entry(embed(7, D), TOKENS),
    "position_embed": Entry(position_embed(8)),
    "position_embed: positions": Entry(position_embed(10), context={"positions": POSITIONS}),
    "sinusoidal": Entry(sinusoidal()),
    "rotary": Entry(rotary()),
    "rotary: positions": Entry(rotary(width=2), context={"positions": POSITIONS}),
    "half_split": Entry(rotary(100.0, half_split)),
    "interleaved": Entry(rotary(pairs=interleaved)),
    "interpolated": Entry(rotary(scaling=interpolated(2.0))),
    "by_wavelength": Entry(rotary(10.0, scaling=by_wavelength(2.0, 1.0, 4.0, 9))),
    "tied": Entry(tied(embed(7, D), rms_norm()), TOKENS),
    # score
    "score": Entry(head()),
    "score: options": Entry(score(scaled_dot, scale=0.3), ENTRIES),
    "score: own": Entry(score(product_of_sums), ENTRIES),
    "dot": Entry(score(dot), ENTRIES),
    "scaled_dot": Entry(score(scaled_dot), ENTRIES),
    "cosine": Entry(score(cosine), ENTRIES),
    "distance": Entry(score(distance), ENTRIES),
    "bilinear": Entry(score(bilinear()), ENTRIES),
    "additive": Entry(score(additive(2)), ENTRIES),
    "features": Entry(score(features(pointwise(squashed))), ENTRIES),
    "bias": Entry(bias(nearness), SCORES),
    "bias: rows": Entry(bias(same_kind_helps, ("kind",)), SCORES, {"kind": SEGMENTS}),
    "bias: learned": Entry(bias(learned((T, T), wide)), SCORES),
    "bias: read": Entry(bias(read("table")), SCORES, {"table": fresh(T, T)}),
    "alibi": Entry(heads(2, aggregate() @ normalize(softmax) @ bias(alibi)), SCORES),
    "relative": Entry(bias(relative(2)), SCORES),
    "t5_buckets": Entry(bias(t5_buckets(4, 8)), SCORES),
    "softcap": Entry(softcap(1.5), SCORES),
    "softcap: array": Entry(softcap(1.5)),
    "temperature": Entry(temperature(0.5), SCORES),
    "temperature: learned": Entry(temperature(learned(())), SCORES),
    "temperature: read": Entry(temperature(read("t")), SCORES, {"t": np.float32(0.5)}),
    # mask
    "mask": Entry(mask(causal), SCORES),
    "mask: order": Entry(head(mask(causal), softcap(2.0), bias(nearness), temperature(0.5))),
    "causal": masked(causal),
    "window": masked(causal & window(2)),
    "prefix": masked(prefix(2)),
    "dilated": masked(dilated(2) | window(1)),
    "block_causal": masked(block_causal(2)),
    "same": masked(same("segments"), segments=SEGMENTS),
    "valid": masked(valid("lengths") & ~window(1), lengths=np.int32(4)),
    "predicate": masked(predicate(even_keys)),
    "predicate: rows": masked(predicate(later_kinds, ("kind",)), kind=SEGMENTS),
    "read: adjacency": masked(read("adjacency"), adjacency=ADJACENCY),
    # normalize
    "normalize": Entry(normalize(softmax), SCORES),
    "normalize: own": weighed(squares),
    "softmax": Entry(softmax),
    "sigmoid": weighed(sigmoid),
    "relu": weighed(relu),
    "relu_squared": weighed(relu_squared),
    "gelu": weighed(gelu),
    "gelu_tanh": weighed(gelu_tanh),
    "silu": weighed(silu),
    "identity: weights": weighed(identity),
    "row_sum": Entry(normalize(row_sum) @ score(features(jax.nn.softplus)), ENTRIES),
    "sparsemax": weighed(sparsemax),
    "entmax15": weighed(entmax15),
    "top_k": weighed(top_k(2)),
    "hardmax": weighed(hardmax),
    "log_sum_exp": Entry(log_sum_exp @ mask(causal), SCORES),
    "dropout": Entry(dropout(0.25), context={"rng": RNG}),
    "dropout: weights": Entry(dropout(0.25), WEIGHTS, {"rng": RNG}),
    "dropout: none": Entry(dropout(0.25)),
    # aggregate
    "aggregate": Entry(aggregate() @ normalize(softmax) @ mask(causal), SCORES),
    "aggregate: own": Entry(aggregate(mixed_and_heaviest), WEIGHTS),
    "weighted_sum": Entry(aggregate(weighted_sum), WEIGHTS),
    "largest": Entry(aggregate(largest), WEIGHTS),
    # several dictionaries
    "union": Entry(
        normalize(softmax) @ union(mask(causal) @ score(dot), score(dot) @ slots(2)), ENTRIES
    ),
    "sink": Entry(lookup_of(union(score(dot), sink())), ENTRIES),
    "sink: fixed": Entry(lookup_of(union(score(dot), sink(0.0))), ENTRIES),
    # norms
    "rms_norm": Entry(rms_norm()),
    "layer_norm": Entry(layer_norm()),
    "rms_norm: no gain": Entry(rms_norm(gain=False)),
    "layer_norm: no gain": Entry(layer_norm(gain=False)),
    # combining forms
    "compose": Entry(linear(3) @ silu @ linear(6)),
    "identity": Entry(identity),
    "fanout": Entry(fanout(identity, linear(3))),
    "parallel": Entry(parallel(linear(3), rms_norm()), (SEQUENCE, OTHER)),
    "pick": Entry(pick(1), (SEQUENCE, OTHER)),
    "columns": Entry(columns(1, 3)),
    "join": Entry(join(identity, linear(3))),
    "join: rows": Entry(join(learned((1, D)), identity, axis=0)),
    "add": Entry(identity + linear(D)),
    "subtract": Entry(identity - linear(D)),
    "subtract: weights": Entry(
        aggregate() @ (normalize(softmax) - 0.5 * (normalize(softmax) @ softcap(1.0))), SCORES
    ),
    "multiply": Entry(multiply(silu @ linear(3), linear(3))),
    "multiply: learned": Entry(learned((D,)) * linear(D)),
    "multiply: scores": Entry(multiply(learned(()), score(dot), score(cosine)), ENTRIES),
    "repeat": Entry((identity + linear(D) @ rms_norm()) ** 3),
    "repeat: pattern": Entry(repeat(4, identity + linear(D), rms_norm())),
    "repeat: remat": Entry(repeat(2, linear(D) @ rms_norm(), remat=jax.checkpoint)),
    "repeat: dropout": Entry(repeat(2, dropout(0.25) @ linear(D)), context={"rng": RNG}),
    "each": Entry(each(linear(3) @ rms_norm()), fresh(2, T, D)),
    "each: axis": Entry(each(linear(3) @ lift(mirrored), axis=1), fresh(T, 2, D)),
    "each: fixed": Entry(
        each(identity + read("table"), fixed=("table",)), fresh(2, T, D), {"table": fresh(T, D)}
    ),
    "copies": Entry(copies(2, linear(3) @ rms_norm())),
    "copies: values": Entry(copies(2, temperature(read("t")) @ score(dot), t=(0.5, 2.0)), ENTRIES),
    "total": Entry(total @ copies(2, linear(3))),
    "heads": Entry(linear(D) @ heads(2, linear(3) @ rms_norm())),
    "copies: grouped": Entry(copies(2, copies(2, grouped))),
    "shared": Entry(heads(2, linear(3) @ shared(linear(2), across="heads"))),
    "shared: layers": Entry(repeat(2, identity + shared(linear(D), across="layers") @ rms_norm())),
    "shared: name": Entry(one_table_of("both") @ silu @ linear(D) @ one_table_of("both")),
    "named": Entry(named("second", linear(3)) @ named("first", linear(6))),
    "learned": Entry(learned((2, 3))),
    "constant": Entry(constant(2.0) + linear(D)),
    "read": Entry(linear(3) @ read("memory"), context={"memory": MEMORY}),
    "given": Entry(given(linear(D) + read("memory"), memory=silu)),
    "lift": Entry(lift(mirrored)),
    "pointwise": Entry(pointwise(squashed)),
    "precision": Entry(precision(rms_norm() @ linear(3), sums="float32")),
    # how lookups run
    "materialized": Entry(materialized(head(mask(causal)))),
    "streamed": Entry(streamed(head(mask(causal)), (2, 3))),
    "streamed: union": Entry(
        streamed(lookup_of(union(mask(causal) @ score(dot), sink())), 2), ENTRIES
    ),
    "streamed: features": Entry(
        streamed(head(mask(causal), how=row_sum, function=features(pointwise(jnp.exp))), 2)
    ),
    # bases for own primitives
    "Leaf": Entry(shift()),
    "Stage": Entry(fading(), SCORES),
    "RowNormalizer": weighed(half_softmax()),
    "Streaming": Entry(streamed(head(mask(causal), how=positive()), 2)),
    "Predicate": masked(nearer_than(2) & causal),
    "Bias": Entry(bias(steps_apart()), SCORES),
}
"""A term for every public word, and more where a word means several things."""

SIZES = {"vocab_size": 7, "hidden_size": D, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = {**SIZES, "intermediate_size": 3, "max_position_embeddings": 8}
GPT2 = {"vocab_size": 7, "n_embd": D, "n_layer": 1, "n_head": 2, "n_inner": 3, "n_positions": 8}
LLAMA = {**SIZES, "intermediate_size": 3, "num_key_value_heads": 1}
READ = {"lengths": np.int32(4), "token_types": np.array([0, 0, 1, 1, 0], np.int32)}

MODELS: dict[str, Entry] = {
    "head": Entry(models.head(3, scores=mask(causal) @ score(dot))),
    "multi_head": Entry(models.multi_head(4, 2)),
    "grouped_heads": Entry(models.grouped_heads(4, 4, 2, scores=models.causal_scores)),
    "cross_attention": Entry(models.cross_attention(4, 2), context={"memory": MEMORY}),
    "causal_scores": Entry(models.causal_scores, ENTRIES),
    "from_context": Entry(models.from_context("memory")(3), context={"memory": MEMORY}),
    "one_memory": Entry(heads(2, lookup @ models.one_memory(project(2)))),
    "dictionary": Entry(models.dictionary(3)),
    "biased_dictionary": Entry(models.biased_dictionary(3, D)),
    "gated_dictionary": Entry(models.gated_dictionary(3)),
    "keys": Entry(models.keys(), ENTRIES),
    "block": Entry(models.block(dictionary=models.dictionary(3), map=linear(D))),
    "pre_norm": Entry(models.pre_norm(layer_norm())(linear(D))),
    "post_norm": Entry(models.post_norm(layer_norm())(linear(D))),
    "transformer": Entry(models.transformer(2, dictionary=models.dictionary(3))),
    "encoder": Entry(models.encoder(1, D, 1, 2)),
    "decoder": Entry(models.decoder(2, D, 1, 2)),
    "reading_decoder": Entry(models.reading_decoder(1, D, 1, 2), context={"memory": MEMORY}),
    "encoder_decoder": Entry(
        models.encoder_decoder(layer_norm(), models.cross_attention(D, 1)), (MEMORY, SEQUENCE)
    ),
    "gpt": Entry(models.gpt(7, D, 8, models.dictionary(3)), TOKENS),
    "bert": Entry(models.bert(BERT), TOKENS, READ),
    "sentence": Entry(models.sentence(models.bert(BERT)), TOKENS, READ),
    "first": Entry(lift(models.first)),
    "mean_pool": Entry(models.mean_pool, context={"lengths": np.int32(3)}),
    "unit": Entry(models.unit),
    "gpt2": Entry(models.gpt2(GPT2), TOKENS),
    "llama": Entry(models.llama(LLAMA), TOKENS),
}
"""The same for the models; what is a function from terms to terms is shown at work."""

TOOLS = {
    "Change", "CompositionError", "Context", "ContextError", "Cost", "Derivation",
    "Description", "Entries", "LAWS", "Law", "Machine", "Marks", "Parameter", "ParameterError",
    "Partial", "Range", "Refusal", "Rows", "Sample", "Scores", "Stepwise", "Term", "TermError",
    "Verdict", "Weights", "alibi_slopes", "axes", "carry", "check", "cost", "derive",
    "describe", "diff", "equal", "law", "merge", "observe", "replace", "select", "simplify",
    "stack", "stepwise", "unstack", "windowed",
}  # fmt: skip
"""Public names that are no terms and make none: errors, records, and functions of terms."""

DRAWING = {
    "Generated", "generate", "greedy", "keep_top_k", "keep_top_p", "log_probability",
    "speculate", "stream_tokens",
}  # fmt: skip
"""Names of the models that draw tokens, from logits of which some are -inf."""
