"""Terms on a mesh of eight devices, beside what one device gives.

This is a program, for XLA has its devices when a process begins: `test_meshes.py` runs it. It
prints, as JSON, each case with the end of what was raised.
"""
# ruff: noqa: F403, F405

from __future__ import annotations

import json
import os
import re
import traceback
from typing import Any

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from combinax.combinators import *

BATCH, WIDTH, VOCABULARY = 8, 4, 8
TYPES = {"automatic": AxisType.Auto, "explicit": AxisType.Explicit}
MESHES = {
    name: jax.make_mesh((4, 2), ("data", "model"), (kind,) * 2) for name, kind in TYPES.items()
}


def lookup(scores: Term, how: Any = softmax) -> Term:
    return compose(aggregate(), normalize(how), scores, project(3))


def attention() -> Term:
    """Three dictionaries side by side, with most that is found from rows and heads."""
    seen = mask(causal & same("segments"))
    own = seen @ bias(alibi) @ bias(relative(2)) @ score(scaled_dot)
    return linear(WIDTH) @ heads(2, lookup(union(own, sink(), score(dot) @ slots(3))))


class Case:
    """A batch for a term, and what one device gives for it: the value and its gradient."""

    def __init__(self, term: Term, shape: tuple[int, ...], rng: bool = False):
        draw = np.random.default_rng(0)
        integers = len(shape) == 2
        x = draw.integers(0, VOCABULARY, shape) if integers else draw.standard_normal(shape)
        known = {"segments": jnp.sort(jnp.asarray(draw.integers(0, 3, shape[:2])), 1)}
        self.term, self.x = term, jnp.asarray(x, int if integers else float)
        self.context = {name: known[name] for name in term.reads}
        self.rng = {"rng": jax.random.key(1)} if rng else {}
        first = jax.tree.map(lambda leaf: leaf[0], (self.x, self.context))
        self.params = term.init(jax.random.key(0), first[0], **first[1])
        self.axes = axes(term, first[0], **first[1])
        self.wanted = jax.jit(self.run)(self.params, self.x, self.context)

    def value(self, params: Any, x: Any, context: Any) -> Any:
        return each(self.term)(params, x, **context, **self.rng)

    def run(self, params: Any, x: Any, context: Any, value: Any = None) -> tuple[Any, Any]:
        """What the term gives, and the gradient of a number made of it."""

        def loss(params: Any) -> Any:
            y = (value or self.value)(params, x, context)
            return jnp.sin(y).sum(), y

        gradient, y = jax.grad(loss, has_aux=True)(params)
        return y, gradient

    def placed(self, mesh: Any, rows: P, divided: tuple[str, ...] = ()) -> Any:
        """Rows of the batch divided as told, and the parameters along their named axes."""

        def parameter(leaf: Any, names: tuple[str, ...]) -> Any:
            return put(leaf, P(*("model" if name in divided else None for name in names)))

        put = lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec))  # noqa: E731
        given = jax.tree.map(lambda leaf: put(leaf, rows), (self.x, self.context))
        # Without a place of their own parameters are where they were made.
        params = jax.tree.map(parameter, self.params, self.axes) if divided else self.params
        return params, *given

    def agrees(self, found: Any) -> None:
        """Each device sums its part before all parts are summed."""
        close = lambda a, b: np.testing.assert_allclose(a, b, 2e-4, 2e-4)  # noqa: E731
        jax.tree.map(close, jax.device_get(found), jax.device_get(self.wanted))


TRANSFORMER = rms_norm() @ repeat(2, identity + dropout(0.2) @ attention() @ layer_norm())
CASES = {
    "words": Case(
        tied(embed(VOCABULARY, WIDTH), TRANSFORMER @ position_embed(32)), (BATCH, 24), True
    ),
    "chosen": Case(heads(2, lookup(mask(causal) @ score(scaled_dot))), (BATCH, 256, WIDTH)),
    "union": Case(streamed(attention(), 16), (BATCH, 32, WIDTH)),
    "features": Case(
        streamed(lookup(mask(causal) @ score(features(jax.nn.softplus)), row_sum), 16),
        (BATCH, 32, WIDTH),
    ),
}
SIMPLEX = {
    str(how): Case(lookup(mask(causal) @ score(scaled_dot), how), (BATCH, 8, WIDTH))
    for how in (sparsemax, entmax15, top_k(2), hardmax)
}
BATCHES, ROWS, DIVIDED = P("data"), P(None, "data"), ("heads", "vocabulary")
MOVED = re.compile(r" (all-gather|all-to-all|collective-permute)(-start)?\(")


def automatic(case: Case, divided: tuple[str, ...] = ()) -> None:
    """The compiler divides, and no part of the batch goes to another device."""
    arguments = case.placed(MESHES["automatic"], BATCHES, divided)
    compiled = jax.jit(case.run).lower(*arguments).compile()
    found = compiled(*arguments)
    case.agrees(found)
    assert found[0].sharding.shard_shape(found[0].shape)[0] == BATCH // 4
    moved = [
        line.strip()[:90] for line in (compiled.as_text() or "").splitlines() if MOVED.search(line)
    ]
    assert not moved, moved


def explicit(case: Case, rows: P, divided: tuple[str, ...] = (), entered: bool = True) -> None:
    """The type of the result tells that the batch is divided as it was; with the mesh entered, or
    known from the arguments alone."""
    arguments = case.placed(MESHES["explicit"], rows, divided)
    run = jax.jit(case.run)
    if entered:
        with jax.set_mesh(MESHES["explicit"]):
            found = run(*arguments)
    else:
        found = run(*arguments)
    case.agrees(found)
    spec = jax.typeof(found[0]).sharding.spec
    assert tuple(spec)[: len(rows)] == tuple(rows), spec


def eager(case: Case, rows: P) -> None:
    """Outside jit, where a transpose runs after the mesh is explicit again."""
    with jax.set_mesh(MESHES["explicit"]):
        case.agrees(case.run(*case.placed(MESHES["explicit"], rows)))


def mapped(case: Case) -> None:
    """`jax.shard_map` with its default checks, and the gradient through it."""
    specs = P(), BATCHES, BATCHES
    value = jax.shard_map(case.value, mesh=MESHES["automatic"], in_specs=specs, out_specs=BATCHES)

    def run(params: Any, x: Any, context: Any) -> Any:
        return case.run(params, x, context, value)

    case.agrees(jax.jit(run)(case.params, case.x, case.context))


def mapped_gradient(case: Case) -> None:
    """The gradient inside `jax.shard_map`, of parameters that are the same everywhere."""
    specs = P(), BATCHES, BATCHES
    run = jax.shard_map(
        case.run, mesh=MESHES["automatic"], in_specs=specs, out_specs=(BATCHES, P())
    )
    case.agrees(jax.jit(run)(case.params, case.x, case.context))


def cases() -> Any:
    words, chosen, union, summed = CASES.values()
    for name, case in CASES.items():
        yield f"automatic: {name}", automatic, (case,)
    yield "automatic, heads: union", automatic, (union, DIVIDED)
    yield "explicit: chosen", explicit, (chosen, BATCHES)
    yield "explicit, heads: words", explicit, (words, BATCHES, DIVIDED)
    yield "explicit, rows: union", explicit, (union, ROWS)
    yield "explicit, not entered: union", explicit, (union, BATCHES, (), False)
    yield "explicit, rows: features", explicit, (summed, ROWS)
    for name, case in {"union": union, "features": summed, **SIMPLEX}.items():
        yield f"eager: {name}", eager, (case, BATCHES)
    for name, case in SIMPLEX.items():
        yield f"explicit, rows: {name}", explicit, (case, ROWS)
    for name in ("chosen", "union", "features"):
        yield f"shard_map: {name}", mapped, (CASES[name],)
    yield "gradient in shard_map: union", mapped_gradient, (union,)


def outcome(function: Any, arguments: tuple[Any, ...]) -> str:
    try:
        function(*arguments)
    except Exception:  # whatever it is, it is reported and fails the test
        return traceback.format_exc()[-1500:]
    return ""


if __name__ == "__main__":
    print(json.dumps({name: outcome(function, arguments) for name, function, arguments in cases()}))
