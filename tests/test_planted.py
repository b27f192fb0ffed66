"""The common suite catches what it is there for: planted faults, each found by its test."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple

import examples
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_common as common
import test_values as values
from catalogue import SCORES, SEQUENCE, Entry
from jax.core import Tracer

from combinax.combinators import (
    Leaf,
    Parameter,
    lift,
    linear,
    normalize,
    pointwise,
    repeat,
    softmax,
)


@jax.custom_jvp
def steep(x):
    return jnp.sin(x)


@steep.defjvp
def wrong_slope(primals, tangents):
    return jnp.sin(primals[0]), 1.01 * jnp.cos(primals[0]) * tangents[0]


def narrow(x):
    return x.astype(jnp.float32)


def unlike_itself(x):
    return x + isinstance(x, Tracer)


def of_the_whole(x):
    """Not the same on a batch: it looks at the number of axes that are mapped."""
    return x * (2 if hasattr(x, "batch_dim") else 1)


counter = itertools.count()


def forgetful(x):
    return x + next(counter)


def uniform(weights):
    """Something of every value, even for a query that sees none."""
    return weights.replace(weight=weights.weight + 1e-3)


@dataclasses.dataclass(frozen=True, repr=False)
class terse(Leaf):
    """A leaf that does not print its width."""

    width: int

    def text(self, write: Any) -> str:
        return "terse(3)"

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return x


@dataclasses.dataclass(frozen=True, eq=False)
class lonely(Leaf):
    """A leaf that is equal to itself alone."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return x


class Held(NamedTuple):
    """A subclass of tuple: a term keeps the numbers in it as they are."""

    number: Any


@dataclasses.dataclass(frozen=True)
class capturing(Leaf):
    """A leaf with an array where nobody looks."""

    tables: tuple[Any, ...] = (1.0, Held(np.float32(2)))

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return x


@dataclasses.dataclass(frozen=True)
class misnamed(Leaf):
    """A leaf whose declaration has an axis without a name."""

    def parameters(self, x: Any) -> dict[str, Parameter]:
        return {"by": Parameter(x.shape[-1:], jax.nn.initializers.ones, ("",))}

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        return x + params["by"]


FAULTS = {
    "a wrong gradient": (pointwise(steep), common.test_float64_and_derivatives),
    "float32 in float64": (pointwise(narrow), common.test_float64_and_derivatives),
    "float32 in bfloat16": (pointwise(narrow), common.test_bfloat16),
    "another value under jit": (pointwise(unlike_itself), common.test_jit_agrees_with_eager),
    "another value under vmap": (pointwise(of_the_whole), common.test_vmap_is_each_is_a_loop),
    "a state": (pointwise(forgetful), common.test_two_calls_are_bit_identical),
    "a text without a field": (terse(4), values.test_repr_is_python_for_an_equal_term),
    "a term equal to itself alone": (lonely(), values.test_copies_are_equal_terms),
    "an array in a term": (capturing(), values.test_terms_hold_no_arrays),
    "an axis without a name": (
        misnamed(),
        common.test_params_are_a_plain_nested_dict_with_a_name_for_every_axis,
    ),
    "weights for nothing": (
        lift(uniform) @ normalize(softmax),
        common.test_a_row_that_sees_nothing,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, monkeypatch):
    term, check = FAULTS[fault]
    x = SCORES if fault == "weights for nothing" else SEQUENCE
    monkeypatch.setitem(common.ENTRIES, fault, Entry(term, x))
    monkeypatch.setitem(examples.NAMESPACE, "terse", terse)
    this = examples.Example(fault)
    with pytest.raises(AssertionError):
        check(this)


def test_sound_terms_pass_the_same_tests(monkeypatch):
    monkeypatch.setitem(common.ENTRIES, "sound", Entry(linear(3), SEQUENCE))
    this = examples.Example("sound")
    for _, check in FAULTS.values():
        if check is not common.test_a_row_that_sees_nothing:
            check(this)


def test_layers_that_mix_are_found(monkeypatch):
    """Blocks in another order are another function."""
    term = repeat(2, linear(4))
    monkeypatch.setitem(common.ENTRIES, "layers", Entry(term, SEQUENCE))
    this = examples.Example("layers")
    monkeypatch.setattr(
        common, "unstack", lambda term, params: {"0": leaf(params, 1), "1": leaf(params, 0)}
    )
    with pytest.raises(AssertionError):
        common.test_stacked_and_separate_layers(this)


def leaf(params: Any, at: int) -> Any:
    return jax.tree.map(lambda stacked: stacked[at], params["linear"])
