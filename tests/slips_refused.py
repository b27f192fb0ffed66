"""Slips of whoever writes a word, a leaf of their own, or a function of marks wrongly."""
# ruff: noqa: F403, F405

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from slips import *

from combinax.combinators import *

ones = jax.nn.initializers.ones
SHIFTED = {"by": Parameter((4,), ones, ("out",))}


class Undecorated(Leaf):
    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return x


class Undecorated_field(linear):
    extra: int = 0


@dataclasses.dataclass
class Changeable(Leaf):
    by: int = 1

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return x + self.by


@dataclasses.dataclass(frozen=True, repr=False)
class Own(Leaf):
    """A leaf that declares what it is told to."""

    declared: Any = None

    def __post_init__(self):
        pass

    def parameters(self, x: Any) -> Any:
        return self.declared() if callable(self.declared) else {}

    def apply(self, params: Mapping[str, Any], x: Any, context: Any) -> Any:
        return x


@dataclasses.dataclass(frozen=True)
class Folded(Stage):
    def tile(self, operands: Any, score: Any, marks: Any) -> Any:
        return score.sum(-1)


def declared(make: Any) -> Any:
    return lambda: run(Own(make))


def masked(seen: Any, **context: Any) -> Any:
    return run(normalize(softmax) @ mask(seen) @ SCORED, **context)


def biased(what: Any, **context: Any) -> Any:
    return run(bias(what) @ SCORED, **context)


LONG = (identity + linear(4) @ read("memory")) ** 3
CROSSED = score(dot) @ project(query=4, key=read("m"), value=read("m"))
SIX = jnp.ones((6, 4))

REFUSED: dict[str, Slip] = {
    # classes and fields
    "a leaf without its decorator": Slip(
        Undecorated,
        "Undecorated is not a dataclass, as every term is: write @dataclasses.dataclass(frozen="
        "True) above class Undecorated",
    ),
    "a field without its decorator": Slip(
        lambda: Undecorated_field(3), "Undecorated_field is not a dataclass, as every term is"
    ),
    "a leaf that is not frozen": Slip(
        Changeable,
        "Changeable can be changed, and terms are immutable: write @dataclasses.dataclass(frozen="
        "True) above class Changeable",
    ),
    "a list as a field": Slip(
        lambda: run(linear(3) @ Own(cast(Any, [1, 2]))),
        "Own holds [1, 2] in declared, and terms are hashed by their fields: give it as a tuple",
    ),
    "an array as a field of one's own": Slip(
        lambda: run(Own(np.ones((3, 4)))),
        "Own holds an array (3, 4) float64 in declared, and terms are hashed by their fields: what "
        "is learned is a parameter (learned(shape)), any other array is context (read(name))",
    ),
    # parameters
    "an array as a parameter": Slip(
        declared(lambda: {"by": jnp.ones(4)}),
        "Own declares by as an array (4,), and what is learned is declared by shape, initializer "
        "and axes: Parameter((4,), jax.nn.initializers.ones, ('out',))",
    ),
    "one parameter alone": Slip(
        declared(lambda: SHIFTED["by"]),
        "parameters of Own gives one Parameter; it gives a dict of them by name",
    ),
    "a shape that is a number": Slip(
        declared(lambda: {"by": Parameter(cast(Any, 4), ones, ("out",))}),
        "shape of a parameter is a tuple, and here it is 4",
    ),
    "axes that are a word": Slip(
        declared(lambda: {"by": Parameter((4,), ones, cast(Any, "out"))}),
        "axes of a parameter is a tuple, and here it is 'out'",
    ),
    "a shape of floats": Slip(
        declared(lambda: {"by": Parameter(cast(Any, (4.0,)), ones, ("out",))}),
        "a shape is a tuple of integers, not (4.0,)",
    ),
    "numbers as an initializer": Slip(
        declared(lambda: {"by": Parameter((4,), cast(Any, jnp.ones(4)), ("out",))}),
        "a parameter takes an initializer, a function of (key, shape, dtype) such as "
        "jax.nn.initializers.ones, not an array (4,)",
    ),
    "an initializer of another shape": Slip(
        declared(lambda: {"by": Parameter((4,), lambda *_: jnp.ones(3), ("out",))}),
        "an initializer gives the shape that it is asked for, (4,); <lambda slips_refused.py, line",
    ),
    # names
    "no name to read": Slip(
        lambda: read(""), "read takes a name of the context, not ''"
    ),
    "a number to read": Slip(
        lambda: read(cast(Any, 3)), "read takes a name of the context, not 3"
    ),
    "a number for names": Slip(
        lambda: predicate(lambda q, k: k.position > 1, cast(Any, 3)),
        "predicate takes names of the context, not 3",
    ),
    "numbers among names": Slip(
        lambda: bias(lambda q, k: k["a"], cast(Any, ("a", 3))),
        "rows of bias takes a name of the context, not 3",
    ),
    "a name nobody reads, given": Slip(
        lambda: given(LONG, memo=identity),
        "given passes 'memo' to repeat(3, add(identity, compose(linear(4), read('memory')))), "
        "which reads memory; did you mean memory?",
    ),
    "a name nobody reads in a long term": Slip(
        lambda: given(LONG @ LONG, memo=identity),
        "given passes 'memo' to compose(repeat(3, add(identity, compose(linear(4), read('memory…, "
        "which reads memory; did you mean memory?",
    ),
    "a number as a name": Slip(
        lambda: named(cast(Any, 3), linear(4)), "named takes a name, not 3"
    ),
    "no name to share under": Slip(
        lambda: shared(linear(4), name="a b"), "shared takes a name, not 'a b'"
    ),
    # arrays where terms belong
    "an array composed": Slip(
        lambda: linear(4) @ cast(Any, jnp.ones((100, 100))),
        "compose joins terms, and an array (100, 100) is not a term: what is learned is a "
        "parameter (learned(shape)), any other array is context (read(name))",
    ),
    "an array of NumPy before a term": Slip(
        lambda: cast(Any, np.ones((100, 100))) @ linear(4),
        "compose joins terms, and an array (100, 100) float64 is not a term",
    ),
    "an array of NumPy added": Slip(
        lambda: cast(Any, np.ones(100)) + linear(4),
        "add joins terms, and an array (100,) float64 is not a term",
    ),
    "an array as a width of a window": Slip(
        lambda: window(cast(Any, jnp.ones((100, 100)))),
        "width of window is an integer of at least 1, not an array (100, 100)",
    ),
    "remat that is true": Slip(
        lambda: repeat(2, linear(4), remat=cast(Any, True)),
        "remat takes a transformation of functions, remat=jax.checkpoint, not True",
    ),
    "no heads to slope": Slip(
        lambda: alibi_slopes(0), "heads of alibi_slopes is an integer of at least 1, not 0"
    ),
    "names that collide in a pattern": Slip(
        lambda: repeat(2, named("a", linear(4)), named("a", linear(4))),
        "repeat has two parts called 'a': give one another name with named('a_b', …)",
    ),
    "names that collide in what is given": Slip(
        lambda: given(named("k", linear(4)) @ read("k"), k=linear(4)),
        "given has two parts called 'k': give one another name with named('k_b', …)",
    ),
    # functions of marks
    "Python's and": Slip(
        lambda: masked(lambda q, k: q.position >= k.position and k.position > 0),
        "asks whether an array is true, as `if`, `and`, `or`, `not` and 1 < x < 2 do: every number "
        "of an array has its own truth, so combine them with &, | and ~, and choose with jnp.where",
    ),
    "Python's if": Slip(
        lambda: run(lift(lambda x: x if x.sum() > 0 else -x)),
        "asks whether an array is true, as `if`, `and`, `or`, `not` and 1 < x < 2 do",
    ),
    "a predicate of rows": Slip(
        lambda: masked(lambda q, k: q.position[:, 0] < 3),
        "answers for each pair of a query and a key: query.position is (5, 1), key.position (1, 5) "
        "and the result (5, 5), or 1 along a side that it does not look at; this one is (5,): keep "
        "both axes, fold none by any, all or an index",
    ),
    "a stage that folds": Slip(
        lambda: run(Folded() @ SCORED),
        "Folded() gives one number for each pair of a query and a key, (5, 5), and here it gives "
        "(5,)",
    ),
    "a fact of the other side": Slip(
        lambda: run(
            mask(predicate(lambda q, k: q["on"] & k["on"], ("on",))) @ CROSSED,
            m=SIX, on=jnp.ones(6, bool),
        ),
        "on has one entry for each row of the other side of the table, and none for these 5: name "
        "the rows of each side, such as same('on', 'memory_on')",
        ContextError,
    ),
    "a fact of neither side": Slip(
        lambda: run(
            mask(predicate(lambda q, k: k["on"], ("on",))) @ CROSSED, m=SIX, on=jnp.ones(4, bool)
        ),
        "on needs one entry for each of the 5 query rows, or one for all; it has shape (4,)",
        ContextError,
    ),
    "an attention mask for lengths": Slip(
        lambda: masked(valid("m"), m=jnp.array([1, 1, 0, 1, 0])),
        "valid('m') keeps the first n keys, and m has an entry for each of 5 rows: pass one "
        "number, m.sum(-1) for an attention mask that ends in zeros; same('m') keeps rows of 1 and "
        "0 apart wherever they are",
    ),
    # positions and steps
    "one position for each sequence": Slip(
        lambda: run(each(HEAD), BATCH, positions=jnp.arange(3)),
        "positions has one integer per row of every sequence that each maps, and here it has shape "
        "(3,); fixed=('positions',) gives every sequence the same",
        ContextError,
    ),
    "steps of a batch in two maps": Slip(
        lambda: stepped(each(linear(3)) @ each(linear(3)), BATCH),
        "a batch that runs step by step is one each: write each(f @ g) for each(f) @ each(g)",
    ),
    "a lift that breaks on a chunk": Slip(
        lambda: lifted(lambda x: x.reshape(5, 4)),
        "may look at all rows at once, so it cannot run step by step; write pointwise(…)",
    ),
    "an axis that is a letter": Slip(
        lambda: each(identity, axis=cast(Any, "a")), "axis of each is an integer, not 'a'"
    ),
    "an axis that is a truth": Slip(
        lambda: each(identity, axis=True), "axis of each is an integer, not True"
    ),
    "an axis of a join that is no integer": Slip(
        lambda: join(identity, axis=cast(Any, 1.0)), "axis of join is an integer, not 1.0"
    ),
    "a predicate without a return": Slip(
        lambda: run(mask(predicate(cast(Any, lambda query, key: None))) @ SCORED), "gives None"
    ),
    "a bias without a return": Slip(
        lambda: run(bias(lambda query, key: None) @ SCORED), "gives None"
    ),
    "context that is a word": Slip(
        lambda: (identity + read("m"))({}, X, m="train"),
        "m holds arrays, not a str",
        ContextError,
    ),
    "several keys": Slip(
        lambda: dropout(0.5)({}, X, rng=jax.random.split(KEY)),
        "rng is one key, and here it has shape (2,); jax.vmap maps a batch of keys",
        ContextError,
    ),
    "several keys for init": Slip(
        lambda: linear(4).init(jax.random.split(KEY), X), "rng is one key", ContextError
    ),
    "an option of stepwise at start": Slip(
        lambda: stepwise(linear(4)).start(linear(4).init(KEY, X), X, capacity=16, dtype="bfloat16"),
        "no stage reads 'dtype', and start does not take it: write stepwise(term, dtype=…)",
        ContextError,
    ),
    "a name that start does not know": Slip(
        lambda: stepwise(linear(4)).start(linear(4).init(KEY, X), X, capacity=16, mode="train"),
        "no stage reads 'mode'; this term knows",
        ContextError,
    ),
}  # fmt: skip


def lifted(function: Any) -> Any:
    """Start a term for chunks of one row, in which a function wants all."""
    term = linear(4) @ lift(function)
    return stepwise(term).start(term.init(KEY, X), X[:1], 8)
