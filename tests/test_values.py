"""Terms are values: printed, copied, pickled and compared; equal ones share what is compiled."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections import Counter
from typing import Any

import catalogue
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import CATALOGUE
from examples import ENTRIES, NAMESPACE

from combinax.combinators import (
    Term,
    learned,
    linear,
)


def test_repr_is_python_for_an_equal_term(this):
    term = this.term
    again = eval(repr(term), NAMESPACE)
    assert again == term and hash(again) == hash(term) and repr(again) == repr(term)
    assert str(term).strip() and str(again) == str(term)


def test_copies_are_equal_terms(this):
    term = this.term
    for again in (pickle.loads(pickle.dumps(term)), copy.copy(term), copy.deepcopy(term)):
        assert again == term and hash(again) == hash(term) and len({again, term}) == 1
        assert repr(again) == repr(term)


def test_terms_pickled_by_another_process_are_equal():
    # Strings hash differently in every process.
    program = (
        "import pickle, sys, catalogue\n"
        "entries = {**catalogue.CATALOGUE, **catalogue.MODELS}\n"
        "terms = [entry.term for entry in entries.values()]\n"
        "assert len({hash(term) for term in terms}) > 1  # hashes are cached\n"
        "sys.stdout.buffer.write(pickle.dumps(terms))\n"
    )
    path = catalogue.__file__.rsplit("/", 1)[0]
    program = f"import sys; sys.path.insert(0, {path!r})\n" + program
    dumped = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    terms = pickle.loads(dumped.stdout)
    assert [term for entry, term in zip(ENTRIES.values(), terms, strict=True)
            if term != entry.term or hash(term) != hash(entry.term)] == []  # fmt: skip


def test_terms_hold_no_arrays(this):
    def check(value: Any) -> None:
        assert not isinstance(value, (jax.Array, np.ndarray, np.generic))
        if isinstance(value, Term):
            term: Any = value
            check([getattr(term, f.name) for f in dataclasses.fields(term)])
        elif isinstance(value, (list, tuple)):
            for inner in value:
                check(inner)

    check(this.term)


@pytest.fixture
def traces(monkeypatch):
    """How often Python has run a term or an init since the test began: a compiled call does not."""
    counted: Counter[str] = Counter()
    for kind in (Term, type(CATALOGUE["linear"].term.init)):

        def call(self, *args, run=kind.__call__, **context):
            counted["calls"] += 1
            return run(self, *args, **context)

        monkeypatch.setattr(kind, "__call__", call)
    return lambda: counted["calls"]


def test_equal_terms_share_a_jit_cache(this, traces):
    again = eval(repr(this.term), NAMESPACE)
    for one, two, arguments, context in (
        (this.term, again, (this.params, this.x), this.context),
        (this.term.init, again.init, (jax.random.key(0), this.x), this.facts),
    ):
        jax.jit(one).trace(*arguments, **context)
        before = traces()
        jax.jit(two).trace(*arguments, **context)
        assert traces() == before


def test_the_counter_counts_traces(traces):
    for width in (2, 3):
        jax.jit(linear(width)).trace({"kernel": jnp.ones((17, width))}, jnp.ones((1, 17)))
    assert traces() == 2


def test_numbers_of_numpy_are_those_of_python():
    shape: Any = (np.int64(2), 3)
    assert learned(shape) == learned((2, 3))
    assert repr(learned(shape)) == "learned((2, 3))"
