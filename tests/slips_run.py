"""Slips that are known once there is an input: at init, or else at the call."""
# ruff: noqa: F403, F405

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from slips import *

from combinax import models
from combinax.combinators import *

RUN: dict[str, Slip] = {
    "widths from context": Slip(
        lambda: run(
            score(scaled_dot) @ project(query=identity, key=read("m"), value=read("m")),
            m=jnp.ones((5, 3)),
        ),
        "a dot product needs query and key of one width; the query has 4, the key 3",
    ),
    "a residual": Slip(
        lambda: run(identity + linear(3)),
        "add combines values of one shape, and its parts give (5, 4) and (5, 3)",
    ),
    "a length of no prompt": Slip(
        lambda: models.generate(NEXT, {}, TOKENS, 3, length=0),
        "tokens count, from 1 on, and is 0",
    ),
    "tables over values of their own": Slip(
        lambda: run(aggregate() @ (one_head() - 0.5 * one_head())),
        "subtract combines tables over the same values, and each of its parts has its own",
    ),
    "a repeated shape": Slip(
        lambda: run(repeat(2, linear(3))),
        "a repeated block gives back the shape and type it takes; this one turns (5, 4) into "
        "(5, 3)",
    ),
    "keys without values": Slip(
        lambda: run(project(query=3, key=3, value=linear(3) @ read("m")), m=jnp.ones((4, 3))),
        "every key needs a value; there are 5 keys and 4 values",
    ),
    "tied to another width": Slip(
        lambda: run(tied(embed(9, 4), lift(two_columns)), TOKENS),
        "so the body has to end with width 4; it ends with 2",
    ),
    "a join": Slip(
        lambda: run(join(identity, lift(first_row))),
        "join joins arrays that agree but for axis -1, and its parts give (5, 4) and (4,)",
    ),
    "values of a union": Slip(
        lambda: run(union(score(dot), score(dot) @ lift(first_value)) @ project(3)),
        "union joins scores of the same queries over values of one width: scores (5, 5), value "
        "(5, 3) and scores (5, 5), value (5, 1)",
    ),
    "a sink beside what makes its own entries": Slip(
        lambda: run(normalize(softmax) @ union(SCORED, sink())),
        "sink takes entries and gets an array; project(…) or slots(…) turn an array into entries",
    ),
    "a mask after a union": Slip(
        lambda: run(mask(causal) @ union(score(dot), sink()) @ project(3)),
        "write mask(causal) inside each branch of union, before keys of several dictionaries stand "
        "side by side",
    ),
    # context
    "missing context": Slip(
        lambda: run(linear(3) @ read("memory")),
        "read('memory') needs memory=… in the context",
        ContextError,
    ),
    "misspelled context": Slip(
        lambda: run(linear(3) @ read("memory"), memroy=X), "memroy", ContextError
    ),
    "unknown context": Slip(
        lambda: run(linear(3), lengths=3),
        "no stage reads 'lengths'; this term knows positions, rng",
        ContextError,
    ),
    "float positions": Slip(
        lambda: run(rotary(), positions=jnp.arange(5.0)),
        "positions holds integers, not float32",
        ContextError,
    ),
    "too few positions": Slip(
        lambda: run(rotary(), positions=jnp.arange(4)),
        "positions has 4 entries and there are 5 rows",
    ),
    "a number as key": Slip(
        lambda: run(dropout(0.5), rng=0),
        "rng takes a key, jax.random.key(0), and gets int",
        ContextError,
    ),
    "mapped positions": Slip(
        lambda: jax.vmap(rotary(), (None, 0))({}, jnp.ones((5, 5, 4)), positions=jnp.arange(5)),
        "jax.vmap maps every keyword over its first axis: each(term, fixed=('positions',)) keeps "
        "one whole",
        ContextError,
    ),
    "mapped segments": Slip(
        lambda: jax.vmap(SEGMENTED, (None, 0))(
            SEGMENTED.init(KEY, X, segments=TOKENS), jnp.ones((5, 5, 4)), segments=TOKENS
        ),
        "segments has one entry per row, and here it is a single number; jax.vmap maps every "
        "keyword over its first axis: each(term, fixed=('segments',)) keeps it whole",
    ),
    "too few segments": Slip(
        lambda: run(SEGMENTED, segments=jnp.arange(4)),
        "segments needs one entry for each of the 5 query rows",
        ContextError,
    ),
    "context of each": Slip(
        lambda: run(each(linear(4) @ read("m")), BATCH, m=X),
        "each maps 3 rows together with m, which has shape (5, 4); fixed=('m',) gives it to every "
        "row whole",
    ),
    "an axis of each": Slip(
        lambda: run(each(linear(3), axis=3)), "each maps over axis 3, which (5, 4) lacks"
    ),
    "an axis that results lack": Slip(
        lambda: run(each(lift(first_row), axis=2), BATCH),
        "each puts its results back along axis 2, and 4 of them make (4, 5), which lacks it; map "
        "over axis 0",
    ),
    "alibi alone": Slip(
        lambda: run(bias(alibi) @ SCORED),
        "alibi gives each head a slope: use it inside heads(n, …)",
    ),
    # masks and tables
    "a mask of integers": Slip(
        lambda: run(mask(read("m")) @ SCORED, m=jnp.ones((5, 5), int)),
        "a mask is boolean, True = may attend; m is int32: pass m != 0",
    ),
    "a mask of floats": Slip(
        lambda: run(mask(read("m") & causal) @ SCORED, m=jnp.ones((5, 5))),
        "m is float32: pass m != 0 if 1 is visible, m == 0 if it is added to scores (0 visible, "
        "-inf hidden)",
    ),
    "a function that gives numbers": Slip(
        lambda: run(mask(apart) @ SCORED), "a mask is boolean, True = may attend; predicate("
    ),
    "a mask of a batch": Slip(
        lambda: run(mask(read("m")) @ SCORED, m=jnp.ones((2, 5, 5), bool)),
        "a mask of one sequence and head has shape (T, S); m has (2, 5, 5): map it together with "
        "x, each(term), or give each head its own, heads(n, f, m=…)",
    ),
    "a mask of one axis": Slip(
        lambda: run(mask(read("m")) @ SCORED, m=jnp.ones(5, bool)),
        "a mask of one sequence and head has shape (T, S); m has (5,)",
    ),
    "a mask of another length": Slip(
        lambda: run(mask(read("m")) @ SCORED, m=jnp.ones((5, 4), bool)),
        "a mask over 5 queries and 5 keys has shape (5, 5), where 1 counts for all; read('m') "
        "gives (5, 4)",
    ),
    "a function of another shape": Slip(
        lambda: run(mask(narrow) @ SCORED),
        "a mask over 5 queries and 5 keys has shape (5, 5), where 1 counts for all; predicate(",
    ),
    "a mask as lengths": Slip(
        lambda: run(normalize(softmax) @ mask(valid("m")) @ SCORED, m=TOKENS < 3),
        "valid('m') keeps the first n keys, and m is boolean: pass numbers, for an attention mask "
        "mask.sum(-1)",
    ),
    "a bias by a fact that is not named": Slip(
        lambda: run(bias(steep) @ SCORED),
        "marks hold 'slope' where a stage asks for it by name: bias(fn, rows=('slope',)), "
        "predicate(fn, ('slope',))",
        ContextError,
    ),
    "a bias of another shape": Slip(
        lambda: run(bias(read("m")) @ SCORED, m=jnp.ones((2, 5, 5))),
        "bias(read('m')) needs a table of shape (5, 5), where an axis of size 1 counts for all; it "
        "has shape (2, 5, 5). A table per head or sequence is mapped with them: "
        "heads(n, f, name=…), each(f)",
    ),
    "a bias function of another shape": Slip(
        lambda: run(bias(lambda query, key: jnp.ones((2, 5, 1))) @ SCORED),
        "adds one number per query and key, (5, 5), where an axis of size 1 counts for all; this "
        "one gives (2, 5, 1)",
    ),
    "a score of another shape": Slip(
        lambda: run(score(lambda query, key: query) @ PROJECTED),
        "a score function gives one number per query and key, (5, 5); this one gives (5, 3)",
    ),
    "weights of another shape": Slip(
        lambda: run(normalize(first_column) @ SCORED), "gives weights (5, 1) for scores (5, 5)"
    ),
    # inputs
    "a batch": Slip(
        lambda: run(HEAD, BATCH),
        "query of project takes one sequence of vectors, (T, d), and gets (3, 5, 3); for a batch "
        "write each(term)",
    ),
    "a batch of tokens": Slip(
        lambda: run(position_embed(8) @ embed(9, 4), jnp.ones((3, 5), int)),
        "position_embed takes one sequence of vectors, (T, d), and gets (3, 5, 4); for a batch "
        "write each(term)",
    ),
    "a batch for slots": Slip(lambda: run(slots(3), BATCH), "for a batch write each(term)"),
    "one vector": Slip(
        lambda: run(HEAD, X[0]), "takes one sequence of vectors, (T, d), and gets (3,)"
    ),
    "one number": Slip(
        lambda: run(linear(3), jnp.ones(())), "linear takes vectors and gets a single number"
    ),
    "integers": Slip(
        lambda: run(HEAD, TOKENS[:, None]),
        "linear takes floats and gets (5, 1) int32; embed(vocabulary, width) turns integers into "
        "vectors",
    ),
    "integers for a norm": Slip(
        lambda: run(layer_norm(), TOKENS[:, None]), "layer_norm takes floats and gets (5, 1) int32"
    ),
    "floats for embed": Slip(
        lambda: run(embed(9, 2), TOKENS * 1.0), "embed takes integers and gets (5,)"
    ),
    "a list": Slip(lambda: run(linear(3), [X]), "linear takes an array and gets list"),
    "a list of numbers": Slip(
        lambda: called({"table": X}, embed(5, 4), [1, 2, 3]),
        "x is an array, not a list: write jnp.array(…) of numbers",
    ),
    "a text": Slip(lambda: run(embed(5, 4), "hello"), "x is an array, not a str: write jnp.array"),
    "a record": Slip(
        lambda: run(linear(3), Entries(X, X, X, None)), "linear takes an array and gets entries"
    ),
    "an array for aggregate": Slip(
        lambda: run(aggregate()), "aggregate takes weights and gets an array"
    ),
    "an array for score": Slip(lambda: run(score(dot)), "score takes entries and gets an array"),
    "an array for normalize": Slip(
        lambda: run(normalize(softmax)), "normalize takes scores and gets an array"
    ),
    "an array for mask": Slip(lambda: run(mask(causal)), "mask takes scores and gets an array"),
    "an array for parallel": Slip(
        lambda: run(parallel(silu, silu)), "parallel of 2 takes a tuple of 2 and gets (5, 4)"
    ),
    "an array for pick": Slip(lambda: run(pick(0)), "pick takes a tuple and gets (5, 4)"),
    # positions and tokens past a table
    "positions past": Slip(lambda: run(position_embed(3)), "position 4 is past a table of 3"),
    "given positions past": Slip(
        lambda: run(position_embed(8), positions=jnp.array([1, 2, 3, 4, 8])),
        "position 8 is past a table of 8",
    ),
    "negative positions": Slip(
        lambda: run(position_embed(8), positions=jnp.array([-1, 2, 3, 4, 8])),
        "position -1 is before the start of a table of 8",
    ),
    "tokens past": Slip(lambda: run(embed(3, 2), TOKENS), "token 4 is past a table of 3"),
    "negative tokens": Slip(
        lambda: run(embed(9, 2), TOKENS - 1), "token -1 is before the start of a table of 9"
    ),
    "an odd width": Slip(
        lambda: run(rotary(), X[:, :3]), "waves come in pairs, so the width is even; it is 3"
    ),
    "rotary past the width": Slip(
        lambda: run(rotary(width=6)), "rotary(width=6) of vectors of width 4"
    ),
    # parameters of another term
    "no parameters": Slip(
        lambda: linear(3)(X),  # type: ignore[arg-type]
        "a term takes its parameters first and then its input, term(params, x), with params a dict "
        "as term.init(rng, x) makes it; linear got (5, 4) first",
        ParameterError,
    ),
    "arguments swapped": Slip(
        lambda: linear(3)(X, {"kernel": jnp.ones((4, 3))}),  # type: ignore[arg-type]
        "linear got (5, 4) first",
        ParameterError,
    ),
    "no arguments": Slip(lambda: normalize(softmax()), "got nothing first", ParameterError),
    "a list of parameters": Slip(lambda: called([X]), "linear got list first", ParameterError),
    "parameters missing": Slip(
        lambda: called({}),
        "these parameters belong to another term than linear: kernel is missing",
        ParameterError,
    ),
    "parameters left over": Slip(
        lambda: called({"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}),
        "bias is none of its parameters",
        ParameterError,
    ),
    "parameters of another shape": Slip(
        lambda: called({"kernel": jnp.ones((5, 3))}),
        "kernel should have shape (4, 3) and has (5, 3)",
        ParameterError,
    ),
    "a dict for an array": Slip(
        lambda: called({"kernel": {"kernel": jnp.ones((4, 3))}}),
        "kernel is one array of shape (4, 3), not a dict",
        ParameterError,
    ),
    "an array for a dict": Slip(
        lambda: called({"linear": X, "linear_2": X}, linear(3) @ linear(3)),
        "linear is a dict of kernel, not an array of shape (5, 4)",
        ParameterError,
    ),
    "many misfits": Slip(
        lambda: called({}, layer_norm() @ linear(2) @ linear(3)),
        "layer_norm is missing; linear is missing; linear_2 is missing",
        ParameterError,
    ),
    "more misfits than shown": Slip(
        lambda: called({}, linear(1) @ layer_norm() @ linear(2) @ linear(3)),
        "and 1 more",
        ParameterError,
    ),
    "blocks missing": Slip(
        lambda: stack(linear(3) ** 2, {"0": {"kernel": X}}),
        "repeat has 2 blocks; 1 missing",
        ParameterError,
    ),
    "a file that lacks weights": Slip(
        lambda: weights({}),
        "1 weights of this model are not in the file: w",
        ParameterError,
    ),
    "a file of another shape": Slip(
        lambda: weights({"w": np.ones((4, 3))}),
        "w has shape (4, 3), and this model needs (5, 4)",
        ParameterError,
    ),
    "a file of codes": Slip(
        lambda: weights({"w": np.ones((5, 4), np.int8)}),
        "w holds int8, and parameters are floats: weights in codes are read from GGUF alone",
        ParameterError,
    ),
    "parameters that are integers": Slip(
        lambda: weights({}, "int8"),
        "parameters are floats, such as 'bfloat16', not 'int8'",
        ParameterError,
    ),
    "init without key": Slip(
        lambda: linear(3).init(0, X),
        "init takes a key and an input, term.init(jax.random.key(0), x), with x an array or "
        "abstract: jax.ShapeDtypeStruct((5, 4), float)",
        ParameterError,
    ),
    "init without input": Slip(
        lambda: linear(3).init(KEY), "init takes a key and an input", ParameterError
    ),
    "init swapped": Slip(
        lambda: linear(3).init(X, KEY), "init takes a key and an input", ParameterError
    ),
    "init of a shape": Slip(
        lambda: linear(3).init(KEY, (5, 4)), "init takes a key and an input", ParameterError
    ),
    "a shared name": Slip(
        lambda: run(shared(linear(3), name="a") @ shared(linear(4), name="a")),
        "shared(…, name='a') stands in two places that need different parameters: kernel (4, 4) in "
        "one and kernel (4, 3) in the other",
    ),
    "a shared name taken": Slip(
        lambda: run(shared(linear(3), name="linear") @ linear(4)),
        "shared(…, name='linear') takes the name of a stage: choose another",
    ),
}
