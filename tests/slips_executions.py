"""Slips of streams, steps and generation, and of modules that are brought in."""
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import Any, cast

import jax.numpy as jnp
from flax import nnx
from slips import *
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from combinax import models
from combinax.combinators import *
from combinax.combinators.flax import from_nnx
from combinax.models import chat, pretrained

EXECUTED: dict[str, Slip] = {
    # modules of flax
    "a module with state": Slip(
        lambda: run(from_nnx(nnx.BatchNorm, 4)),
        "keeps BatchStat beside its parameters: it has state",
    ),
    # how lookups run
    "a stream of whole rows": Slip(
        lambda: run(streamed(aggregate() @ normalize(sparsemax) @ score(dot) @ PROJECTED)),
        "this lookup cannot be streamed: normalize(sparsemax) needs whole rows of scores; write "
        "streamed(…) around the parts of a model that can be, such as streamed(heads(…))",
    ),
    "a stream of nothing": Slip(
        lambda: streamed(linear(3), 0), "block of streamed is an integer of at least 1, not 0"
    ),
    "a stream in three sizes": Slip(
        lambda: streamed(linear(3), (1, 2, 3)),  # type: ignore[arg-type]
        "block of streamed is a number or a pair, not (1, 2, 3)",
    ),
    "a stream of a length that is a symbol": Slip(
        lambda: exported(streamed(HEAD)),
        "it has t queries and t keys, and a stream cuts numbers of rows into blocks; write "
        "materialized(…) in place of streamed(…), or export it for one length",
    ),
    "a table of positions for a length that is a symbol": Slip(
        lambda: exported(position_embed(8)), 'constraints=["t <= 8"]'
    ),
    "a description for a length that is a symbol": Slip(
        lambda: exported(lift(lambda x: len(describe(linear(3), x).rows) + x)),
        "describe takes a known number of rows, and gets (t, 4)",
    ),
    "a number after the term": Slip(
        lambda: heads(cast(Any, linear(3)), cast(Any, 2)),
        "heads takes the number first: heads(n, linear(3))",
    ),
    "no temperature": Slip(lambda: temperature(0.0), "temperature is a positive number, not 0.0"),
    "a prompt cut short where keys are summed up": Slip(
        lambda: models.generate(*summed(), TOKENS, 2, length=2),
        "give each prompt alone: length leaves its end out, and keys that are summed up",
    ),
    "drafts where keys are summed up": Slip(
        lambda: models.speculate(*summed(), *summed(), TOKENS, 2),
        "use generate: drafts that are refused are taken back, and keys that are summed up",
    ),
    "a prompt that ends inside a prefix": Slip(
        lambda: models.generate(head(prefix(9)), head(prefix(9)).init(KEY, TOKENS), TOKENS, 2),
        "after mask(prefix(9)) a query sees keys that come later",
    ),
    # functions of one's own
    "lift": Slip(
        lambda: run(linear(3) @ lift(broken)), "raised TypeError: dot_general requires contracting"
    ),
    "lift of nothing": Slip(
        lambda: run(linear(3) @ lift(lambda x: None)), "linear takes an array and gets NoneType"
    ),
    "an unknown option": Slip(
        lambda: run(score(scaled_dot, scal=3) @ PROJECTED),
        "score(scaled_dot, scal=3) raised TypeError: scaled_dot() got an unexpected keyword "
        "argument 'scal'",
    ),
    # step by step
    "stepping ahead": Slip(
        lambda: stepped(HEAD),
        "after score(dot) a query sees keys that come later, so it cannot be answered step by "
        "step; mask(causal) hides them",
    ),
    "stepping a lift": Slip(
        lambda: stepped(lift(jnp.sin)),
        "may look at all rows at once, so it cannot run step by step; write pointwise(…)",
    ),
    "stepping a function that is not pointwise": Slip(
        lambda: stepped(linear(3) @ pointwise(lambda x: x - x.mean(0))),
        "is not a function of each row by itself, so it cannot run step by step: reduce over the "
        "last axis, not over rows (axis 0); a function of all rows at once is lift(…), or a",
    ),
    "stepping a join of rows": Slip(
        lambda: stepped(join(learned((1, 4)), identity, axis=0)),
        "adds rows to a sequence at every step",
    ),
    "stepping queries that are learned": Slip(
        lambda: stepped(CAUSAL @ project(query=learned((2, 3)), key=3, value=3)),
        "queries that do not come from the sequence ask all of it at once",
    ),
    "stepping dropout without marks": Slip(
        lambda: stepped(
            compose(aggregate(), dropout(0.5), normalize(softmax), union(SEEN, sink()), PROJECTED),
            rng=KEY,
        ),
        "dropout(0.5) numbers rows and columns from 0 here",
    ),
    "stepping back where keys are summed up": Slip(
        lambda: twice(SUMMED @ project(4), positions=0),
        "position 5 comes next, and not 0: keys that are summed up cannot be taken back",
    ),
    "stepping a pair": Slip(
        lambda: stepped(linear(3) @ pick(1), (X, X[:2])), "a step takes the next rows of one"
    ),
    "stepping with a memory": Slip(
        lambda: stepped(CAUSAL @ project(query=3, key=read("m"), value=read("m")), m=X[:, :3]),
        "m was given to start, which reads it for all steps: leave it out of step",
        ContextError,
    ),
    "stepwise as a term": Slip(
        lambda: stepwise(CAUSAL)({}, X), "stepwise gives two functions: start, step = stepwise("
    ),
    "a step swapped": Slip(
        lambda: stepwise(silu).step(stepwise(silu).start({}, X, 8), {}, X),
        "step takes parameters, then the state that start or the last step gave, and then rows",
        ParameterError,
    ),
    "no capacity": Slip(
        lambda: stepwise(HEAD).start({}, X, 0), "capacity of start is an integer of at least 1"
    ),
    "negative rewind": Slip(
        lambda: stepwise(HEAD, rewind=-1), "rewind of stepwise is an integer of"
    ),
    "reading capacity": Slip(
        lambda: stepwise(pointwise(jnp.sin) @ read("capacity")),
        "stepwise takes capacity for itself, and read('capacity') reads it from the context",
        ContextError,
    ),
    "past the capacity": Slip(
        lambda: stepped(CAUSAL @ PROJECTED, capacity=4),
        "position 4 is past the capacity of 4 positions",
    ),
    # generation
    "a batch of prompts": Slip(
        lambda: models.generate(silu, {}, BATCH, 3),
        "generate continues a prompt of shape (T,), T at least 1, by at least one token, not "
        "(3, 5, 4) by 3; a batch is jax.vmap",
    ),
    "a text for texts": Slip(
        lambda: pretrained.batch(Tokenizer(WordLevel({"?": 0}, "?")), "A man"),
        "batch takes a list of texts, and gets one: ['A man']",
    ),
    "a prompt and parameters swapped": Slip(
        lambda: models.generate(silu, TOKENS, cast(Any, {}), 3),
        "generate takes parameters and then the prompt, and gets a dict",
    ),
    "a function to choose with": Slip(
        lambda: models.generate(NEXT, {}, TOKENS, 3, choose=cast(Any, jnp.argmax)),
        "choose is a term that makes logits of logits, such as greedy or keep_top_k(40), and "
        "jax.numpy.argmax is not",
    ),
    "a choice that gives a token": Slip(
        lambda: models.generate(NEXT, {}, TOKENS, 3, choose=lift(jnp.argmax)),
        "logits of logits, such as greedy or keep_top_k(40), and lift(jax.numpy.argmax) is not",
    ),
    "a number to draw with": Slip(
        lambda: models.generate(NEXT, {}, TOKENS, 3, rng=cast(Any, 0)),
        "rng takes a key, jax.random.key(0), and gets int",
        ContextError,
    ),
    "drafts of nothing": Slip(
        lambda: models.speculate(silu, {}, silu, {}, TOKENS, 3, ahead=0),
        "speculate drafts at least one token ahead, not 0",
    ),
    "a model that never stops": Slip(
        talked,
        "the answer is cut short: the conversation has all 3 tokens of its capacity",
    ),
    "a message that is too long": Slip(
        lambda: talked(capacity=1),
        "the message has 1 tokens, and the conversation 0 of 1: shorten it, or begin with a larger "
        "capacity",
    ),
    "a model that does not know": Slip(
        lambda: talked(logit=float("nan")),
        "the model answers with logits that are NaN: no token is drawn",
    ),
    "a model that was not told how to talk": Slip(
        lambda: chat.load_chat(HERE),
        f"{str(HERE)!r} has no chat template: nothing says how to talk",
    ),
    "a model that cannot stop": Slip(
        lambda: talked(vocabulary=("?",)), "the model has no tokenizer with the token <|im_end|>"
    ),
    "a share of nothing": Slip(
        lambda: models.keep_top_p(0), "keep_top_p keeps a share 0 < p <= 1, not 0"
    ),
}
