"""Slips that are known when they are written."""
# ruff: noqa: F403, F405

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from slips import *

from combinax import models
from combinax.combinators import *
from combinax.combinators.flax import from_linen, from_nnx

WRITTEN: dict[str, Slip] = {
    # a wrong order of words
    "normalize before score": Slip(
        lambda: normalize(softmax) @ project(4),
        "normalize takes scores and gets entries; score(…) turns entries into scores",
    ),
    "score after normalize": Slip(
        lambda: score(dot) @ normalize(softmax),
        "score takes entries and gets weights; score comes right after project(…) or slots(…)",
    ),
    "score of an array": Slip(
        lambda: score(dot) @ linear(3),
        "score takes entries and gets an array; project(…) or slots(…) turn an array into entries",
    ),
    "mask after normalize": Slip(
        lambda: mask(causal) @ WEIGHED,
        "mask takes scores and gets weights; it stands before normalize: "
        "normalize(…) @ mask(…) @ score(…)",
    ),
    "bias before score": Slip(
        lambda: bias(alibi) @ project(3),
        "bias takes scores and gets entries; score(…) turns entries into scores",
    ),
    "aggregate before normalize": Slip(
        lambda: aggregate() @ SCORED,
        "aggregate takes weights and gets scores; normalize(…) turns scores into weights",
    ),
    "linear after project": Slip(
        lambda: linear(3) @ project(3),
        "linear takes an array and gets entries; aggregate() @ normalize(…) @ score(…) turns "
        "entries into an array",
    ),
    "norm after normalize": Slip(
        lambda: rms_norm() @ WEIGHED,
        "rms_norm takes an array and gets weights; aggregate() turns weights into an array",
    ),
    "softmax of scores": Slip(
        lambda: softmax @ SCORED, "softmax acts on arrays; on scores write normalize(softmax)"
    ),
    "log-sum-exp of weights": Slip(
        lambda: log_sum_exp @ WEIGHED, "log_sum_exp takes scores and gets weights"
    ),
    "sink of scores": Slip(lambda: sink() @ SCORED, "sink takes entries and gets scores"),
    "keys of an array": Slip(
        lambda: models.keys() @ linear(3), "keys takes entries, as project(…) or slots(…) give them"
    ),
    "left to right": Slip(
        lambda: compose(project(3), score(dot), normalize(softmax), aggregate()),
        "compose applies the last term first: write compose(aggregate(), normalize(softmax), "
        "score(dot), project(3))",
    ),
    # widths that do not meet
    "query and key": Slip(
        lambda: score(scaled_dot) @ project(query=64, key=32, value=64),
        "a dot product needs query and key of one width; the query has 64, the key 32",
    ),
    "sum of widths": Slip(
        lambda: linear(3) + linear(7),
        "add combines values of one shape, and its parts give (…, 3) and (…, 7)",
    ),
    "sum of scores and weights": Slip(
        lambda: score(dot) + normalize(softmax) @ score(dot),
        "add combines values of one shape, and its parts give scores",
    ),
    "repeated width": Slip(
        lambda: repeat(2, linear(3)) @ linear(4),
        "a repeated block gives back the shape it takes; this one turns (…, 4) into (…, 3)",
    ),
    "tied width": Slip(
        lambda: tied(embed(9, 4), linear(3)),
        "tied scores vectors with the table of embed(9, 4), so the body has to end with width 4; "
        "it ends with 3",
    ),
    "heads of scores": Slip(
        lambda: heads(2, SCORED), "heads joins arrays, and its term gives scores"
    ),
    "union of entries": Slip(
        lambda: union(identity, score(dot)) @ project(3),
        "union joins scores, and a part gives query",
    ),
    "project of scores": Slip(
        lambda: project(query=SCORED, key=3, value=3) @ linear(3),
        "query of project must be an array, not scores",
    ),
    "parallel of a fanout": Slip(
        lambda: parallel(silu, silu, silu) @ fanout(silu, silu),
        "parallel of 3 takes a tuple of 3 and gets (anything; anything)",
    ),
    "pick past a tuple": Slip(
        lambda: pick(2) @ fanout(silu, silu), "pick(2) cannot select from a tuple of 2"
    ),
    # heads that do not divide
    "heads of a width": Slip(
        lambda: models.multi_head(10, 4), "a width of 10 does not divide into 4 heads"
    ),
    "groups of heads": Slip(
        lambda: models.grouped_heads(16, 4, 3),
        "a number of heads of 4 does not divide into 3 groups",
    ),
    # backbones
    "a variant": Slip(
        lambda: models.gpt2({"n_embd": 4, "scale_attn_weights": False}),
        "scale_attn_weights False is not supported; supported: True",
    ),
    "a size that is missing": Slip(
        lambda: models.llama({}), "hidden_size has to be a positive integer, and it is 'missing'"
    ),
    "a name for fields": Slip(
        lambda: models.llama(
            {"hidden_size": 8, "num_attention_heads": 2, "rope_scaling": "linear"}
        ),
        "rope_parameters, or rope_scaling, are fields, not 'linear'",
    ),
    # modules of flax
    "a class of linen": Slip(
        lambda: from_linen(linen.Dense),  # type: ignore[arg-type]
        "from_linen takes a module with its arguments, from_linen(linen.Dense(8)), not flax.linen.",
    ),
    "a module of nnx that is made": Slip(
        lambda: from_nnx(nnx.Linear(4, 8, rngs=nnx.Rngs(0))),  # type: ignore[arg-type]
        "from_nnx makes its module, from_nnx(nnx.Linear, 4, 8), and takes no Linear that is made",
    ),
    # a word not called, a plain function, something else
    "a word": Slip(
        lambda: linear(3) @ rms_norm,  # type: ignore[operator]
        "compose joins terms, and rms_norm is a word not called: write rms_norm()",
    ),
    "a word first": Slip(
        lambda: rms_norm @ linear(3),  # type: ignore[operator]
        "rms_norm is a word not called: write rms_norm()",
    ),
    "a word with arguments": Slip(
        lambda: identity + linear,  # type: ignore[operator]
        "add joins terms, and linear is a word not called: write linear(…)",
    ),
    "a word that is a function": Slip(
        lambda: heads(4, project),  # type: ignore[arg-type]
        "heads joins terms, and project is a word not called: write project(…)",
    ),
    "a normalizer": Slip(
        lambda: normalize(top_k),  # type: ignore[arg-type]
        "top_k is a word not called: write top_k(…)",
    ),
    "a score": Slip(
        lambda: score(bilinear),  # type: ignore[arg-type]
        "bilinear is a word not called: write bilinear(",
    ),
    "a bias": Slip(lambda: bias(relative), "relative is a word not called: write relative(…)"),
    "a predicate": Slip(lambda: mask(window), "window is a predicate not called: write window(…)"),
    "a plain function": Slip(
        lambda: jnp.sin @ linear(3),  # type: ignore[operator]
        "compose joins terms, and sin is a plain function: write lift(sin), or pointwise(sin) if "
        "it acts position by position",
    ),
    "a lambda": Slip(
        lambda: linear(3) @ (lambda x: x),  # type: ignore[operator]
        "<lambda> is a plain function: write lift(…), or pointwise(…)",
    ),
    "a number": Slip(
        lambda: linear(3) @ 3,  # type: ignore[operator]
        "compose joins terms, and 3 is not a term; terms are built from words such as linear(64)",
    ),
    "nothing to repeat": Slip(lambda: repeat(3), "repeat takes the number and the term to repeat"),
    "a named score": Slip(
        lambda: score("dot"),  # type: ignore[arg-type]
        "score takes a function of a query tile and a key tile, such as scaled_dot, not 'dot'",
    ),
    "a named normalizer": Slip(
        lambda: normalize("softmax"),  # type: ignore[arg-type]
        "normalize takes a normalizer such as softmax, pointwise(fn), or a function of (score, "
        "visible), not 'softmax'",
    ),
    "a softmax of JAX": Slip(
        lambda: normalize(jax.nn.softmax),  # type: ignore[arg-type]
        "normalize takes a function of (score, visible), and jax.nn.softmax is not one: write "
        "normalize(softmax) for softmax, normalize(pointwise(…)) for a function of each score by "
        "itself",
    ),
    "a function of one score": Slip(
        lambda: normalize(jax.nn.sigmoid),  # type: ignore[arg-type]
        "normalize takes a function of (score, visible), and jax.nn.sigmoid is not one",
    ),
    "a linear normalizer": Slip(
        lambda: normalize(linear(3)),  # type: ignore[arg-type]
        "(score, visible), not linear(3)",
    ),
    "a number as bias": Slip(
        lambda: bias(3.0), "bias takes a function of marks, learned(shape) or read(name), not 3.0"
    ),
    "a linear bias": Slip(
        lambda: bias(linear(3)),
        "bias takes a function of marks, learned(shape) or read(name), not linear(3)",
    ),
    "a normalizer as fold": Slip(
        lambda: aggregate(softmax),  # type: ignore[arg-type]
        "aggregate takes a function of Weights, such as largest, not softmax",
    ),
    "a lifted term": Slip(
        lambda: lift(softmax), "lift takes a plain function, and softmax is a term already"
    ),
    "a number as mask": Slip(
        lambda: mask(0.5),
        "a mask is a predicate such as causal, a boolean function of marks, or read(name), True = "
        "may attend; not 0.5",
    ),
    "a number and a predicate": Slip(
        lambda: causal & np.int32(3),  # type: ignore[operator]
        "a mask is a predicate such as causal, a boolean function of marks, or read(name), True = "
        "may attend; not an array of int32",
    ),
    "and": Slip(
        lambda: causal and window(3),
        "predicates combine with &, | and ~, not with and, or and not",
    ),
    "a product": Slip(
        lambda: silu @ linear(3) * linear(3) @ linear(4),
        "write multiply(f, g) for a product of terms: Python gives * and @ one precedence, so "
        "f * g @ h would be read as (f * g) @ h",
    ),
    # arrays in terms
    "an array as bias": Slip(
        lambda: bias(jnp.ones((3, 3))),
        "bias got an array for what, and terms hold no arrays: what is learned is a parameter "
        "(learned(shape)), any other array is context (read(name))",
    ),
    "an array as mask": Slip(
        lambda: mask(np.tril(np.ones((3, 3), bool))), "mask got an array for predicate"
    ),
    # numbers out of range
    **{
        f"{number} of {word}, {got}": Slip(
            write, f"{number} of {word} is an integer of at least 1, not {got}"
        )
        for word, number, got, write in [
            ("linear", "width", "0", lambda: linear(0)),
            ("linear", "width", "2.5", lambda: linear(2.5)),  # type: ignore[arg-type]
            ("embed", "vocabulary", "0", lambda: embed(0, 3)),
            ("heads", "count", "0", lambda: heads(0, linear(3))),
            ("copies", "count", "True", lambda: copies(True, linear(3))),
            ("repeat", "count", "-1", lambda: linear(3) ** -1),
            ("slots", "count", "0", lambda: slots(0)),
            ("top_k", "count", "0", lambda: top_k(0)),
            ("window", "width", "0", lambda: window(0)),
            ("dilated", "step", "0", lambda: dilated(0)),
            ("block_causal", "size", "0", lambda: block_causal(0)),
            ("additive", "hidden", "0", lambda: additive(0)),
            ("position_embed", "length", "0", lambda: position_embed(0)),
        ]
    },
    "a prefix": Slip(lambda: prefix(-1), "length of prefix is an integer of at least 0, not -1"),
    "a flag for a sink": Slip(lambda: sink(True), "the score of sink is a number, not True"),
    "a constant of text": Slip(
        lambda: constant("a"),  # type: ignore[arg-type]
        "the value of constant is a number, not 'a'",
    ),
    "a part by a flag": Slip(lambda: pick(True), "pick takes the number of a part, not True"),
    "a length of a half": Slip(
        lambda: learned((0.5,)),  # type: ignore[arg-type]
        "length of learned is an integer of at least 0, not 0.5",
    ),
    "waves that are slow and fast": Slip(
        lambda: by_wavelength(8.0, slow=4.0, fast=4.0, length=100),
        "slow waves of by_wavelength turn less often than fast ones: slow is 4.0, and fast 4.0",
    ),
    "the width of a norm": Slip(
        lambda: rms_norm(8),
        "eps of rms_norm is a small number, 0 <= eps < 1, not 8; the width is that of x",
    ),
    "buckets": Slip(
        lambda: t5_buckets(1), "count of t5_buckets is an integer of at least 4, not 1"
    ),
    "a shape": Slip(
        lambda: learned(3),  # type: ignore[arg-type]
        "learned takes a shape such as (3,), not 3",
    ),
    "dropout": Slip(
        lambda: dropout(1.0), "rate is the probability of dropping, 0 <= rate < 1, not 1.0"
    ),
    "negative dropout": Slip(lambda: dropout(-0.1), "0 <= rate < 1, not -0.1"),
    "a soft cap": Slip(lambda: softcap(0.0), "cap is a positive number, not 0.0"),
    "a pattern": Slip(
        lambda: repeat(3, silu, gelu),
        "repeat makes whole patterns: 3 blocks do not divide into patterns of 2",
    ),
    # names
    "a name twice": Slip(
        lambda: named("a", linear(3)) @ named("a", linear(3)),
        "compose has two parts called 'a': give one another name with named('a_b', …)",
    ),
    "no name": Slip(lambda: named("a b", linear(3)), "named takes a name, not 'a b'"),
    "fixed for none": Slip(
        lambda: each(linear(3) @ read("a"), fixed="b"),
        "each keeps 'b' whole for compose(linear(3), read('a')), which knows a, positions",
    ),
    "given to none": Slip(
        lambda: given(linear(3), memory=linear(3)),
        "given passes 'memory' to linear(3), which reads nothing",
    ),
    "given out to none": Slip(
        lambda: heads(2, linear(3) @ read("a"), slope=(1, 2)),
        "heads gives out 'slope' to compose(linear(3), read('a')), which reads a",
    ),
    "given out too often": Slip(
        lambda: copies(2, linear(3) @ read("a"), a=(1, 2, 3)),
        "copies gives one a to each of 2 copies, and it has shape (3,)",
    ),
    "one number given out": Slip(
        lambda: copies(2, linear(3) @ read("a"), a=1.0),  # type: ignore[arg-type]
        "copies gives one a to each of 2 copies, and it has shape ()",
    ),
    "shared across what": Slip(
        lambda: shared(linear(3), "head"),
        'shared takes across="heads", across="layers", or name="…"',
    ),
    "precision of integers": Slip(
        lambda: precision(linear(3), compute="int32"),
        "precision takes float types such as 'bfloat16', not 'int32'",
    ),
    "tied without embed": Slip(
        lambda: tied(linear(3), linear(3)),
        "tied takes embed(vocabulary, width) first, not linear(3)",
    ),
    "pairs": Slip(
        lambda: rotary(pairs="half"),  # type: ignore[arg-type]
        "pairs is half_split or interleaved, not 'half'",
    ),
    "project twice": Slip(
        lambda: project(3, query=3), "project takes one width or term, or query=, key= and value="
    ),
    "project without key": Slip(
        lambda: project(query=3), "project has no key: give query=, key= and value="
    ),
    "keywords of a term": Slip(
        lambda: score(bilinear(), scale=3), "score passes keywords to plain functions, not to terms"
    ),
    "axes of a parameter": Slip(
        lambda: Parameter((2, 3), jax.nn.initializers.ones, ("in",)),
        "a parameter of shape (2, 3) has axes ('in',)",
    ),
}
