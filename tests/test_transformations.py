"""A term means the same under every transformation of JAX, short and long enough to be streamed.

Each transformation meets some entries of the catalogue, drawn, and every long term below.
"""
# ruff: noqa: F403, F405

from __future__ import annotations

import copy
import functools
import pickle
import random
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import CATALOGUE, MODELS, Entry, dictionary, fresh, head, lookup_of
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from plain import single

from combinax.combinators import *
from combinax.models import greedy, keep_top_k, keep_top_p, multi_head

LENGTH, BLOCK = 130, 48
LONG = {
    "chosen": Entry(
        heads(2, head(mask(causal & same("segments")), bias(relative(3)), bias(alibi))),
        fresh(128, 4),
        {"segments": np.repeat(np.arange(4), 32)},
    ),
    "pinned": Entry(
        streamed(lookup_of(union(mask(causal) @ score(dot), sink())) @ project(3), BLOCK),
        fresh(LENGTH, 4),
    ),
    "linear": Entry(
        streamed(head(mask(causal), how=row_sum, function=features(jax.nn.softplus)), BLOCK),
        fresh(LENGTH, 4),
    ),
}
ENTRIES = {**CATALOGUE, **{f"models.{name}": entry for name, entry in MODELS.items()}, **LONG}


def is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


class Case:
    """An entry with parameters, and its value as a plain call gives it."""

    def __init__(self, name: str):
        entry = ENTRIES[name]
        self.term, self.x = entry.term, jax.tree.map(jnp.asarray, entry.x)
        self.context = jax.tree.map(jnp.asarray, dict(entry.context))
        self.facts = {name: v for name, v in self.context.items() if name != "rng"}
        self.params = self.term.init(jax.random.key(0), self.x, **self.facts)

    @functools.cached_property
    def value(self) -> Any:
        return self.term(self.params, self.x, **self.context)

    def run(self, params: Any, x: Any, context: Any) -> Any:
        return self.term(params, x, **context)

    @property
    def arguments(self) -> tuple[Any, Any, Any]:
        return self.params, self.x, self.context

    def agrees(self, value: Any, tolerance: float = 2e-5) -> None:
        """Sums of a compiled program round in another order than those of single operations."""
        assert jax.tree.structure(value) == jax.tree.structure(self.value)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, tolerance, tolerance), value, self.value
        )

    def along(self, step: Any) -> Any:
        """A smooth number from all that the term gives, where all floats have moved by a step."""
        leaves, tree = jax.tree.flatten(self.arguments)
        wave = lambda leaf: jnp.cos(jnp.arange(jnp.size(leaf), dtype=float)).reshape(leaf.shape)  # noqa: E731
        moved = [leaf + step * wave(leaf) if is_float(leaf) else leaf for leaf in leaves]
        given = jax.tree.leaves(self.run(*jax.tree.unflatten(tree, moved)))
        return sum(jnp.vdot(wave(leaf), leaf) for leaf in given if is_float(leaf))


case = functools.cache(Case)


def two(tree: Any) -> Any:
    """Two times the same, on a new axis in front."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), tree)


def first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


# The transformations: each gives back what the plain call gives


def by_jit(this: Case) -> Any:
    return jax.jit(this.run)(*this.arguments)


def by_vmap_of_vmap(this: Case) -> Any:
    mapped = jax.vmap(jax.vmap(this.run, (None, 0, 0)), (None, 0, 0))
    return first(first(jax.jit(mapped)(this.params, *two(two((this.x, this.context))))))


def by_each(this: Case) -> Any:
    if "rng" in this.context:  # rows draw numbers of their own
        return by_jit(this)
    x, context = two(two((this.x, this.context)))
    return first(first(jax.jit(each(each(this.term)))(this.params, x, **context)))


def by_scan(this: Case) -> Any:
    def step(params: Any, row: Any) -> Any:
        return params, this.run(params, *row)

    run = jax.jit(lambda params, rows: jax.lax.scan(step, params, rows)[1])
    return first(run(this.params, two((this.x, this.context))))


def same_gradient(this: Case, run: Callable[..., Any]) -> None:
    """The parameters have the same gradient through `run` as through the term."""

    def of(run: Callable[..., Any]) -> Any:
        values = lambda params: jax.tree.leaves(run(params, this.x, this.context))  # noqa: E731
        floats = lambda params: [leaf for leaf in values(params) if is_float(leaf)]  # noqa: E731
        return jax.jit(jax.grad(lambda params: sum(jnp.sin(x).sum() for x in floats(params))))

    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, of(run)(this.params), of(this.run)(this.params))


def by_remat(this: Case) -> Any:
    run = jax.checkpoint(this.run)
    same_gradient(this, run)
    return run(*this.arguments)


def by_shard_map(this: Case) -> Any:
    """With the checks that are on by default, on a mesh of one device."""
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(AxisType.Auto,))

    def run(params: Any, x: Any, context: Any) -> Any:
        rows = lambda tree: jax.tree.map(lambda leaf: leaf[None], tree)  # noqa: E731
        mapped = jax.vmap(this.run, (None, 0, 0))
        specs = P(), P("batch"), P("batch")
        return first(
            jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=P("batch"))(
                params, rows(x), rows(context)
            )
        )

    same_gradient(this, run)
    return jax.jit(run)(*this.arguments)


def by_disable_jit(this: Case) -> Any:
    with jax.disable_jit():
        return this.run(*this.arguments)


def by_debug_nans(this: Case) -> Any:
    with jax.debug_nans(True):
        same_gradient(this, this.run)
        return jax.jit(this.run)(*this.arguments)


def by_strict_promotion(this: Case) -> Any:
    with jax.numpy_dtype_promotion("strict"):
        return jax.jit(this.run)(*this.arguments)


def by_x64(this: Case) -> Any:
    with jax.enable_x64(True):
        wide = lambda leaf: leaf.astype(float) if is_float(leaf) else leaf  # noqa: E731
        y = jax.jit(this.run)(*jax.tree.map(wide, this.arguments))
        assert {leaf.dtype for leaf in jax.tree.leaves(y) if is_float(leaf)} <= {np.dtype(float)}
        return y


def by_numpy(this: Case) -> Any:
    """Parameters that a compiled function closes over, as NumPy holds them."""
    params = jax.tree.map(np.asarray, this.params)
    return jax.jit(lambda x, context: this.run(params, x, context))(this.x, this.context)


def by_pickle(this: Case) -> Any:
    """An unpickled copy of a deep copy."""
    term = pickle.loads(pickle.dumps(copy.deepcopy(this.term)))
    return jax.jit(term)(this.params, this.x, **this.context)


def by_init(this: Case) -> Any:
    """A compiled init takes the context that a call takes, its key included."""
    params = jax.jit(this.term.init)(jax.random.key(0), this.x, **this.context)
    chex.assert_trees_all_close(params, this.params, rtol=1e-6, atol=1e-6)
    return this.run(params, this.x, this.context)


def by_export(this: Case) -> Any:
    """Exported for every batch."""
    (batch,) = jax.export.symbolic_shape("batch")
    run = jax.jit(jax.vmap(this.run, (None, 0, 0)))
    symbols = lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype)  # noqa: E731
    rows = this.x, this.context
    exported = jax.export.export(run)(this.params, *jax.tree.map(symbols, rows))
    return first(exported.call(this.params, *two(rows)))


TRANSFORMATIONS: dict[str, Callable[[Case], Any]] = {
    function.__name__.removeprefix("by_"): function
    for function in (
        by_jit, by_vmap_of_vmap, by_each, by_scan, by_remat, by_shard_map, by_disable_jit,
        by_debug_nans, by_strict_promotion, by_x64, by_numpy, by_pickle, by_init, by_export,
    )
}  # fmt: skip


def chosen(count: int, *kinds: str) -> list[tuple[str, str]]:
    """Each kind with every long term, and with some short ones, other ones for each."""
    names = [name for name in ENTRIES if name not in LONG]
    random.Random(0).shuffle(names)
    rest = iter(names * 2)
    return [(kind, name) for kind in kinds for name in [*LONG, *(next(rest) for _ in range(count))]]


@pytest.mark.parametrize(("kind", "name"), chosen(4, *TRANSFORMATIONS))
def test_means_what_the_plain_call_means(kind: str, name: str):
    this = case(name)
    this.agrees(TRANSFORMATIONS[kind](this))


def test_what_is_chosen_for_the_long_term_is_a_stream():
    this = case("chosen")
    assert "streamed in 128 × 128" in str(describe(this.term, this.x, **this.context))


# Derivatives, in float64 beside differences of plain calls

DERIVATIVES: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "jvp": (1, lambda f: lambda t: jax.jvp(f, (t,), (1.0,))[1]),
    "linearize": (1, lambda f: lambda t: jax.linearize(f, t)[1](1.0)),
    "grad of grad": (2, lambda f: jax.grad(jax.grad(f))),
    "hessian": (2, jax.hessian),
    "grad of jvp": (2, lambda f: jax.grad(lambda t: jax.jvp(f, (t,), (1.0,))[1])),
}


DIFFERENCES = {1: (1, -8, 0, 8, -1), 2: (-1, 16, -30, 16, -1)}
"""Twelve times the first and the second derivative, from values at five points."""


@pytest.mark.parametrize(("kind", "name"), chosen(3, *DERIVATIVES))
def test_derivatives_are_limits_of_differences(kind: str, name: str):
    order, derivative = DERIVATIVES[kind]
    this = copy.copy(case(name))  # which others share, so it is not made in float64
    with jax.enable_x64(True):
        wide = lambda leaf: leaf.astype(float) if is_float(leaf) else leaf  # noqa: E731
        this.params, this.x, this.context = jax.tree.map(wide, this.arguments)
        h = 1e-4
        values = np.array([float(this.along(jnp.float64(n * h))) for n in range(-2, 3)])
        wanted = np.dot(DIFFERENCES[order], values) / (12 * h**order)
        found = jax.jit(derivative(this.along))(jnp.float64(0))
    # Rounding of 1e-16 over h², of sums of some hundreds. A step moves an embedding
    # of size 0.02 by h, and (h / 0.02)⁴ is left.
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


# Lengths that are symbols

THREE = project(3)
EVERY_WAY = heads(2, head(mask(causal & same("segments")), bias(relative(3)), bias(alibi)))
SEEN = {"segments": np.array([0, 0, 0, 1, 1], np.int32)}


def exported(term: Term, *constraints: str, **context: Any) -> Any:
    """A term exported for an input of floats, (t, 4), whose context has the same rows."""
    scope = jax.export.SymbolicScope(constraints)
    length, width = jax.export.symbolic_shape("t, 4", scope=scope)
    x = jax.ShapeDtypeStruct((length, width), jnp.float32)
    facts = {k: jax.ShapeDtypeStruct((length,), v.dtype) for k, v in context.items()}
    params = term.init(jax.random.key(0), jnp.zeros((5, 4)), **context)
    run = lambda params, x, facts: term(params, x, **facts)  # noqa: E731
    return jax.export.export(jax.jit(run))(params, x, facts), params


@pytest.mark.parametrize(
    ("term", "context"),
    [
        (EVERY_WAY, SEEN),
        (lookup_of(union(mask(causal) @ score(dot), sink(), score(dot) @ slots(2))) @ THREE, {}),
        (head(mask(causal), how=row_sum, function=features(jax.nn.softplus)), {}),
        (compose(dictionary, rotary(), position_embed(8), sinusoidal()), {}),
        (repeat(2, identity + linear(4) @ multi_head(4, 2)), {}),
        (join(*(head(mask(causal), how=how) for how in (top_k(2), hardmax, sparsemax))), {}),
        (keep_top_p(0.9) @ keep_top_k(3), {}),
        (greedy, {}),
    ],
    ids=["head", "union", "features", "positions", "repeat", "top_k", "keep", "greedy"],
)  # fmt: skip
def test_one_program_for_every_length(term: Term, context: dict[str, Any]):
    program, params = exported(term, "t <= 8", **context)
    for rows in (1, 4, 8):
        x = fresh(rows, 4)
        facts = {name: np.resize(value, rows) for name, value in context.items()}
        y = program.call(params, x, facts)
        np.testing.assert_allclose(y, term(params, x, **facts), 2e-5, 2e-5)


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (
            lambda: exported(streamed(EVERY_WAY), **SEEN),
            "it has t queries and t keys, and a stream cuts numbers of rows into blocks; write "
            "materialized(…) in place of streamed(…), or export it for one length",
        ),
        (
            lambda: exported(position_embed(8)),
            'constraints=["t <= 8"]',
        ),
        (
            lambda: exported(lift(lambda x: jnp.zeros(len(x)))),
            "raised TypeError: '_DimExpr' object",
        ),
        (lambda: exported(lift(describing)), "describe takes a known number of rows, and gets (t"),
        (lambda: exported(lift(stepping)), "a step takes a known number of rows, and gets (t, 4)"),
    ],
    ids=["stream", "table", "own function", "describe", "step"],
)  # fmt: skip
def test_where_a_length_has_to_be_a_number(write: Callable[[], Any], text: str):
    with pytest.raises(CompositionError) as error:
        write()
    assert text in str(error.value) and ".py, line" in str(error.value)


def describing(x: Any) -> Any:
    return x + len(describe(linear(3), x).rows)


def stepping(x: Any) -> Any:
    start, step = stepwise(head(mask(causal)))
    params = head().init(jax.random.key(0), jnp.zeros((5, 4)))
    return step(params, start(params, jnp.zeros((5, 4)), 8), x)


def test_parameters_are_made_inside_a_trace_with_a_key_from_outside():
    key, x = jax.random.key(0), single(5, 4)
    made = linear(3).init(key, x)
    make = lambda x: linear(3).init(key, x)  # noqa: E731
    found = [jax.jit(make)(x), first(jax.vmap(make)(two(x))), jax.linearize(make, x)[0]]
    for params in found:
        np.testing.assert_allclose(params["kernel"], made["kernel"], 1e-6)


# Names that a user's context may have are no names of ours to jit


@pytest.mark.parametrize("name", ["x", "params", "rng", "self", "state", "key", "context"])
def test_a_context_of_any_name_is_compiled(name: str):
    key, x = jax.random.key(0), fresh(5, 4)
    term = linear(3) + read(name) if name != "rng" else dropout(0.5) @ linear(3)
    context = {name: key if name == "rng" else fresh(5, 3)}
    params = jax.jit(term.init)(key, x, **context)
    y = jax.jit(term)(params, x, **context)
    np.testing.assert_allclose(y, term(params, x, **context), 1e-5, 1e-5)
    seen, _ = jax.jit(observe(term))(params, x, **context)
    np.testing.assert_allclose(seen, y, 1e-5, 1e-5)
    start, step = stepwise(term)
    state = start(params, x, 8, **context)
    _, stepped = jax.jit(step)(params, state, x, **context)
    np.testing.assert_allclose(stepped, y, 1e-5, 1e-5)
