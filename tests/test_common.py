"""What every term has in common: each entry of the catalogue passes every test of this file."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import catalogue
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import CATALOGUE, DRAWING, MODELS, TOOLS, Entry

from combinax import combinators, models
from combinax.combinators import (
    Scores,
    Term,
    Weights,
    aggregate,
    axes,
    compose,
    each,
    linear,
    mask,
    predicate,
    score,
    sink,
    stack,
    unstack,
)

NAMESPACE = {
    **{name: getattr(combinators, name) for name in combinators.__all__},
    **vars(catalogue),
    **{name: getattr(models, name) for name in models.__all__},
    "catalogue": catalogue,
    "jax": jax,
}
# Values do not depend on how well XLA optimizes, and a test waits for the compiler alone.
quick = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)
ENTRIES = {**CATALOGUE, **{f"models.{name}": entry for name, entry in MODELS.items()}}


def is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def cast(tree: Any, dtype: Any = None) -> Any:
    """The tree as JAX arrays, floats in the given type."""

    def one(leaf):
        leaf = jnp.asarray(leaf)
        return leaf.astype(dtype) if dtype and is_float(leaf) else leaf

    return jax.tree.map(one, tree)


def spec(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), tree)


def shapes(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: (
            leaf
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        ),
        tree,
    )


def floats(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)]


def inner(a: list[Any], b: list[Any]) -> float:
    return sum(float(jnp.vdot(x, y)) for x, y in zip(a, b, strict=True))


def tables(record: Any) -> dict[str, Any]:
    """The table of a record: its scores or weights."""
    return {k: getattr(record, k) for k in ("score", "weight") if hasattr(record, k)}


def of_floats(term: Term, arguments: tuple[Any, Any, dict[str, Any]]) -> tuple[list[Any], Any]:
    """The float leaves of parameters, input and context, and the floats of the value from them."""
    leaves, tree = jax.tree.flatten(arguments)

    def value(moved: list[Any]) -> list[Any]:
        rest = iter(moved)
        whole = [next(rest) if is_float(leaf) else leaf for leaf in leaves]
        params, x, context = jax.tree.unflatten(tree, whole)
        return floats(term(params, x, **context))

    return floats(leaves), value


def walk(term: Term) -> Iterator[Term]:
    yield term
    for part in term.parts:
        yield from walk(part)


class Example:
    """An entry as float32 arrays, with its parameters and its value, eager and compiled."""

    def __init__(self, name: str):
        entry = ENTRIES[name]
        self.name, self.term = name, entry.term
        self.x, self.context = cast(entry.x), cast(dict(entry.context))
        # init has a key of its own; the one in the context is for dropout.
        self.facts = {name: v for name, v in self.context.items() if name != "rng"}
        self.params = self.term.init(jax.random.key(0), self.x, **self.facts)

    @functools.cached_property
    def value(self) -> Any:
        return self.term(self.params, self.x, **self.context)

    @functools.cached_property
    def compiled(self) -> Any:
        return jax.jit(self.term)

    def batch(self) -> tuple[Any, dict[str, Any]]:
        """Two rows that differ, and their context."""

        def two(leaf):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.vmap(jax.random.fold_in, (None, 0))(leaf, jnp.arange(2))
            return jnp.stack(
                [leaf, leaf / 2 if is_float(leaf) else jnp.flip(leaf, range(leaf.ndim))]
            )

        return jax.tree.map(two, self.x), jax.tree.map(two, self.context)


@pytest.fixture(scope="module", params=ENTRIES)
def this(request: pytest.FixtureRequest) -> Example:
    """Each entry in turn; all tests of one entry follow each other and share its values."""
    return Example(request.param)


# The catalogue is complete


def test_every_public_word_has_an_entry():
    covered = {name.split(":")[0] for name in CATALOGUE}
    assert set(combinators.__all__) - TOOLS == covered
    assert set(combinators.__all__) >= TOOLS
    assert set(models.__all__) - DRAWING == set(MODELS)
    assert set(models.__all__) >= DRAWING


def test_terms_and_what_makes_them_are_no_tools():
    made = [
        name
        for name, value in vars(combinators).items()
        if name in TOOLS - {"replace"}  # which makes a term of a term
        and (
            isinstance(value, Term)
            or getattr(value, "__annotations__", {}).get("return", "").startswith("Term")
        )
    ]
    assert made == []


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_holds_its_word(name):
    term, word = CATALOGUE[name].term, name.split(":")[0]
    value = getattr(combinators, word)
    parts = [*walk(term)]
    fields = [field for part in parts for field in part.fields]
    found = word in re.findall(r"\w+", repr(term)) or value in fields
    kinds = tuple(map(type, (*parts, *fields)))
    assert found or any(issubclass(kind, value) for kind in kinds)


# Declared is real


def test_init_on_shapes_is_init_on_arrays(this):
    abstract = this.term.init(jax.random.key(0), shapes(this.x), **shapes(this.facts))
    assert spec(abstract) == spec(this.params)
    chex.assert_trees_all_equal(abstract, this.params)


def test_declared_shape_is_real_shape(this):
    declared = jax.eval_shape(this.term, shapes(this.params), shapes(this.x), **this.context)
    assert spec(declared) == spec(this.value)
    assert all(np.isfinite(leaf).all() for leaf in floats(this.value))


def test_params_are_a_plain_nested_dict_with_a_name_for_every_axis(this):
    names = axes(this.term, this.x, **this.facts)

    def check(params: Any, names: Any) -> None:
        if isinstance(params, jax.Array):
            assert type(names) is tuple and len(names) == params.ndim
            assert all(isinstance(axis, str) and axis for axis in names)
            return
        assert type(params) is dict and type(names) is dict
        assert params.keys() == names.keys()
        for key, inner in params.items():
            assert isinstance(key, str) and (isinstance(inner, jax.Array) or inner)
            check(inner, names[key])

    check(this.params, names)


# One meaning: eager, compiled, mapped, differentiated


def test_jit_agrees_with_eager(this):
    # Fused sums round in another order.
    chex.assert_trees_all_close(
        this.compiled(this.params, this.x, **this.context), this.value, rtol=1e-5, atol=2e-6
    )


def test_two_calls_are_bit_identical(this):
    again = this.term(this.params, this.x, **this.context)
    chex.assert_trees_all_equal(again, this.value)


def test_vmap_is_each_is_a_loop(this):
    xs, contexts = this.batch()
    whole = {**contexts, **{k: v for k, v in this.context.items() if k == "rng"}}

    @quick
    def both(params, xs, contexts, whole):
        def one(x, context):
            return this.term(params, x, **context)

        return jax.vmap(one)(xs, contexts), each(this.term)(params, xs, **whole)

    vmapped, mapped = both(this.params, xs, contexts, whole)
    rows = [
        this.compiled(this.params, x, **context)
        for x, context in (jax.tree.map(lambda a, i=i: a[i], (xs, contexts)) for i in range(2))
    ]
    loop = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    # Batched products sum in another order.
    chex.assert_trees_all_close(vmapped, loop, rtol=1e-5, atol=2e-6)
    chex.assert_trees_all_close(mapped, loop, rtol=1e-5, atol=2e-6)


def test_float64_and_derivatives(this):
    with jax.enable_x64(True):
        params, x, context = wide = cast((this.params, this.x, this.context), jnp.float64)
        facts = {name: context[name] for name in this.facts}
        fresh = jax.eval_shape(this.term.init, jax.random.key(0), x, **facts)
        assert spec(fresh) == spec(params)
        moving, value = of_floats(this.term, wide)
        assert all(leaf.dtype == jnp.float64 for leaf in jax.eval_shape(value, moving))
        generator = np.random.default_rng(1)
        tangent = [jnp.asarray(generator.standard_normal(leaf.shape)) for leaf in moving]
        cotangent = [
            jnp.asarray(generator.standard_normal(np.shape(leaf))) for leaf in floats(this.value)
        ]

        @quick
        def derivatives(moving, tangent, cotangent):
            y, push = jax.linearize(value, moving)
            pushed = push(tangent)
            (pulled,) = jax.linear_transpose(push, moving)(cotangent)
            return y, pushed, pulled

        y, pushed, pulled = derivatives(moving, tangent, cotangent)
        chex.assert_trees_all_close(y, floats(this.value), rtol=1e-4, atol=1e-4)
        forward, backward = inner(pushed, cotangent), inner(pulled, tangent)
        np.testing.assert_allclose(backward, forward, 1e-10, 1e-10)
        step = 1e-6
        ahead, behind = (
            derivatives(
                [a + distance * t for a, t in zip(moving, tangent, strict=True)],
                tangent,
                cotangent,
            )[0]
            for distance in (step, -step)
        )
        finite = (inner(ahead, cotangent) - inner(behind, cotangent)) / (2 * step)
        # Central differences: rounding of 1e-16 / step, and step² of the third derivative.
        np.testing.assert_allclose(forward, finite, 1e-6, 1e-7)


def test_bfloat16(this):
    params, x, context = cast((this.params, this.x, this.context), jnp.bfloat16)
    # A table of scores or weights is at least float32, whatever the type of what it is made from.
    if isinstance(x, (Scores, Weights)):
        x = dataclasses.replace(x, **tables(this.x))
    y = quick(this.term)(params, x, **context)
    assert all(np.isfinite(np.float32(leaf)).all() for leaf in floats(y))
    assert {leaf.dtype for leaf in tables(y).values()} <= {jnp.dtype(jnp.float32)}
    rest = dataclasses.replace(y, **dict.fromkeys(tables(y))) if tables(y) else y
    expected = jnp.float32 if this.name == "log_sum_exp" else jnp.bfloat16
    assert {leaf.dtype for leaf in floats(rest)} == {jnp.dtype(expected)}


# Terms are values


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


# Masked rows


def all_but_row_one(query, key):
    return (query.index != 1) & (key.index >= 0)


def hidden(term: Any) -> Any:
    """The term with query 1 of every score seeing nothing."""
    if isinstance(term, score):
        return mask(predicate(all_but_row_one)) @ term
    if term.parts and type(term).__name__ == "Compose":
        return compose(*map(hidden, reversed(term.parts)))

    def one(value):
        if isinstance(value, Term):
            return hidden(value)
        return tuple(map(one, value)) if isinstance(value, tuple) else value

    if not term.parts:
        return term
    changes = {f.name: one(getattr(term, f.name)) for f in dataclasses.fields(term)}
    return dataclasses.replace(term, **changes)


def is_lookup(term: Term) -> bool:
    kinds = {type(part) for part in walk(term)}
    return score in kinds and aggregate in kinds


def is_plain_lookup(term: Term) -> bool:
    """A composition that ends with the weighted sum, so that an empty row gives 0."""
    return (
        type(term).__name__ == "Compose"
        and term.parts[-1] == aggregate()
        and not any(isinstance(part, sink) for part in walk(term))
    )


def sees(entry: Entry) -> bool:
    """Whether the entry has scores of which some can be hidden."""
    return isinstance(entry.x, Scores) or is_lookup(entry.term)


# Among the models one of each form of lookup is enough: the rest is made of these.
HIDING = [
    name
    for name, entry in ENTRIES.items()
    if sees(entry)
    and (name in CATALOGUE or name in ("models.gated_dictionary", "models.grouped_heads"))
]


@pytest.mark.parametrize("this", HIDING, indirect=True)
def test_a_row_that_sees_nothing(this):
    term, x = hidden(this.term), this.x
    if isinstance(x, Scores):
        active = jnp.arange(len(x.score)) != 1
        visible = jnp.broadcast_to(active[:, None], x.score.shape)
        x = x.replace(visible=visible, active_queries=active)
    assert term != this.term or x is not this.x
    moving, value = of_floats(term, (this.params, x, this.context))

    @quick
    def run(moving, cotangent):
        y, pull = jax.vjp(value, moving)
        return y, pull(cotangent)[0]

    expected = floats(this.value)
    y, gradient = run(moving, [jnp.ones_like(leaf) for leaf in expected])
    assert all(np.isfinite(leaf).all() for leaf in gradient)
    if this.name == "log_sum_exp":
        assert y[0][1] == -np.inf
        y[0] = y[0].at[1].set(0)
    assert all(np.isfinite(leaf).all() for leaf in y)
    if isinstance(this.value, Weights) or is_plain_lookup(this.term):
        assert (y[0][1] == 0).all()
        row_one = [jnp.zeros_like(leaf) for leaf in expected]
        row_one[0] = row_one[0].at[1].set(1)
        assert all((leaf == 0).all() for leaf in run(moving, row_one)[1])
        # Others see what they saw; without row 1's queries fused products may round differently.
        others = np.arange(len(y[0])) != 1
        chex.assert_trees_all_close(y[0][others], expected[0][others], rtol=1e-5, atol=2e-6)


# Layers


REPEATS = [
    name for name, entry in ENTRIES.items() if any(part.repeats for part in walk(entry.term))
]


@pytest.mark.parametrize("this", REPEATS, indirect=True)
def test_stacked_and_separate_layers(this):
    separate = unstack(this.term, this.params)
    assert spec(separate) != spec(this.params)
    back = stack(this.term, separate)
    assert spec(back) == spec(this.params)
    chex.assert_trees_all_equal(back, this.params)
    assert spec(unstack(this.term, separate)) == spec(separate)
    assert spec(stack(this.term, back)) == spec(back)
    unrolled = quick(this.term)(separate, this.x, **this.context)
    # A scan fuses less than an unrolled loop.
    chex.assert_trees_all_close(unrolled, this.value, rtol=1e-5, atol=2e-6)
