"""Flax both ways: its modules as terms, and terms as its modules."""
# ruff: noqa: F403, F405

from __future__ import annotations

import functools
import sys
import types

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from plain import single

import combinax.combinators.flax as words
from combinax.combinators import *
from combinax.combinators.flax import Network, from_linen, from_nnx

X = single(5, 4, seed=0)
KEY = jax.random.key(3)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


class Tower(nnx.Module):
    """Modules in a list, and dropout."""

    def __init__(self, width: int, depth: int = 2, *, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = self.drop(nnx.relu(layer(x)))
        return x


class Branches(linen.Module):
    """Modules inside a module, and dropout."""

    width: int

    @linen.compact
    def __call__(self, x):
        kept = linen.Dropout(0.5, deterministic=not self.has_rng("dropout"))(x)
        return linen.Dense(self.width)(kept) + linen.LayerNorm()(x)


MODULES = {
    "Dense": from_linen(linen.Dense(3)),
    "Branches": from_linen(Branches(4)),
    "Linear": from_nnx(nnx.Linear, 4, 3, use_bias=False),
    "Tower": from_nnx(Tower, 4, depth=3),
}
every_module = pytest.mark.parametrize("name", MODULES)


@every_module
def test_a_module_is_a_term(name):
    term = MODULES[name]
    params = term.init(KEY, X)
    y = term(params, X)
    assert jax.eval_shape(term, params, X).shape == y.shape
    close(jax.jit(term)(params, X), y)
    close(jax.vmap(term, (None, 0))(params, jnp.stack([X, 2 * X]))[0], y)
    gradient = jax.grad(lambda params: term(params, X).sum())(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    here = {"flax": flax, "tests": types.SimpleNamespace(test_flax=sys.modules[__name__])}
    again = eval(repr(term), {**vars(words), **here})
    assert again == term and hash(again) == hash(term)


def test_linen_answers_as_by_itself():
    module = Branches(4)
    term = from_linen(module)
    params = module.init(KEY, X)["params"]
    np.testing.assert_array_equal(term(params, X), module.apply({"params": params}, X))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, term.init(KEY, X))


def test_nnx_answers_as_by_itself():
    module = Tower(4, rngs=nnx.Rngs(0))
    module.eval()
    term = from_nnx(Tower, 4)
    params = jax.tree.map(jnp.asarray, nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    params = {"layers": {str(number): layer for number, layer in params["layers"].items()}}
    np.testing.assert_array_equal(term(params, X), module(X))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, term.init(KEY, X))


@every_module
def test_first_values_are_drawn_as_the_module_draws_them(name):
    """Normal with a variance of 1 / inputs for matrices, 0 for biases, 1 for scales."""
    wide = single(2, 64, seed=1)
    term = {
        "Dense": from_linen(linen.Dense(64)),
        "Branches": from_linen(Branches(64)),
        "Linear": from_nnx(nnx.Linear, 64, 64),
        "Tower": from_nnx(Tower, 64),
    }[name]
    params, again = term.init(KEY, wide), term.init(KEY, wide)
    for (path, leaf), same in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(again), strict=True
    ):
        np.testing.assert_array_equal(leaf, same)
        kind = path[-1].key
        expected = {"kernel": 1 / 8, "bias": 0, "scale": 0}[kind]
        assert np.std(leaf) == pytest.approx(expected, rel=0.05)
        assert np.mean(leaf) == pytest.approx(float(kind == "scale"), abs=0.02)


@pytest.mark.parametrize("name", ["Branches", "Tower"])
def test_dropout_has_the_rng_of_the_context(name):
    term = identity + MODULES[name]
    params = term.init(KEY, X)
    one, two = (term(params, X, rng=jax.random.key(seed)) for seed in (0, 1))
    np.testing.assert_array_equal(one, term(params, X, rng=jax.random.key(0)))
    assert (one != two).any() and (one != term(params, X)).any()
    twice = Network(term @ term, X, rngs=nnx.Rngs(0))
    assert (twice(X, rng=KEY) != twice(X)).any()


def test_modules_compose_with_everything():
    block = identity + from_linen(linen.Dense(4)) @ silu @ from_nnx(nnx.Linear, 4, 6) @ rms_norm()
    term = heads(2, from_nnx(nnx.Linear, 4, 3)) @ block**3
    params = term.init(KEY, X)
    assert jax.tree.map(jnp.shape, params) == {
        "repeat": {
            "add": {
                "Dense": {"bias": (3, 4), "kernel": (3, 6, 4)},
                "Linear": {"bias": (3, 6), "kernel": (3, 4, 6)},
                "rms_norm": {"scale": (3, 4)},
            }
        },
        "heads": {"Linear": {"bias": (2, 3), "kernel": (4, 2, 3)}},
    }
    y = jax.jit(term)(params, X)
    close(term(unstack(term, params), X), y)
    x = X
    for layer in range(3):
        add = jax.tree.map(lambda leaf, at=layer: leaf[at], params["repeat"]["add"])
        normed = x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * add["rms_norm"]["scale"]
        hidden = jax.nn.silu(normed @ add["Linear"]["kernel"] + add["Linear"]["bias"])
        x = x + hidden @ add["Dense"]["kernel"] + add["Dense"]["bias"]
    last = params["heads"]["Linear"]
    joined = [x @ last["kernel"][:, head] + last["bias"][head] for head in range(2)]
    close(y, jnp.concatenate(joined, -1))
    assert describe(term, X).total.parameters == sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    "term, kind",
    [
        (from_linen(linen.BatchNorm(use_running_average=False)), "batch_stats"),
        (from_nnx(nnx.BatchNorm, 4), "BatchStat"),
    ],
)
def test_a_module_with_state_is_refused(term, kind):
    with pytest.raises(CompositionError, match=f"keeps {kind} beside its parameters: it has state"):
        (identity + term).init(KEY, X)


# A term as a module

head = aggregate() @ normalize(softmax) @ mask(causal) @ score(scaled_dot) @ project(2)
language = tied(embed(7, 4), rms_norm() @ (identity + dropout(0.5) @ heads(2, head)) ** 2)
TOKENS = jnp.array([1, 5, 2, 3, 0])


class Model(nnx.Module):
    """A flax model with a term inside."""

    def __init__(self, rngs: nnx.Rngs):
        self.backbone = Network(language, TOKENS, rngs=rngs)
        self.head = nnx.Linear(7, 3, rngs=rngs)

    def __call__(self, tokens, **context):
        return self.head(self.backbone(tokens, **context))


def test_a_term_is_a_module():
    module = Network(language, TOKENS, rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param))["params"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, language.init(KEY, TOKENS))
    np.testing.assert_array_equal(module(TOKENS), language(params, TOKENS))
    dropped = module(TOKENS, rng=KEY)
    np.testing.assert_array_equal(dropped, language(params, TOKENS, rng=KEY))
    assert (dropped != module(TOKENS)).any()


def test_a_module_needs_the_context_of_its_term():
    term = linear(3) + read("memory")
    module = Network(term, X, rngs=nnx.Rngs(0), memory=jnp.ones(3))
    close(module(X, memory=jnp.ones(3)), module(X, memory=jnp.zeros(3)) + 1)
    with pytest.raises(ContextError, match="needs memory"):
        module(X)


def test_a_term_without_parameters_is_a_module():
    np.testing.assert_array_equal(Network(silu, X, rngs=nnx.Rngs(0))(X), jax.nn.silu(X))


def test_it_trains_with_the_tools_of_flax_as_with_optax_alone():
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    targets = jnp.array([0, 1, 2, 0, 1])

    def loss(logits):
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    state = optax.adam(0.1).init(params)
    assert params["backbone"]["params"].keys() == {"embed", "repeat", "rms_norm"}

    @nnx.jit
    def step(model, optimizer):
        value, gradient = nnx.value_and_grad(lambda model: loss(model(TOKENS)))(model)
        optimizer.update(model, gradient)
        return value

    @jax.jit
    def alone(params, state):
        def value(params):
            hidden = language(params["backbone"]["params"], TOKENS)
            return loss(hidden @ params["head"]["kernel"] + params["head"]["bias"])

        gradient = jax.grad(value)(params)
        updates, state = optax.adam(0.1).update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    losses = []
    for _ in range(30):
        losses.append(float(step(model, optimizer)))
        params, state = alone(params, state)
    assert losses[-1] < 0.1 < losses[0]
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3),
        nnx.to_pure_dict(nnx.state(model, nnx.Param)),
        params,
    )
