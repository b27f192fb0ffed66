"""describe: what stands at the top of the tree is counted where it runs."""
# ruff: noqa: F403, F405

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from combinax.combinators import *

X = jax.ShapeDtypeStruct((5, 4), jnp.float32)
ONE = shared(linear(4), name="one")
MANY = shared(linear(4) @ silu @ linear(8), name="many")


@pytest.mark.parametrize(
    "term, alone",
    [
        (ONE, linear(4)),
        (MANY, linear(4) @ silu @ linear(8)),
        (ONE @ silu @ ONE, linear(4) @ silu @ linear(4)),
        (heads(2, MANY), heads(2, linear(4) @ silu @ linear(8))),
        (named("first", ONE) ** 3, linear(4) ** 3),
        (identity + MANY, identity + linear(4) @ silu @ linear(8)),
    ],
)
def test_parameters_count_once_and_operations_everywhere(term, alone):
    total = describe(term, X).total
    params = term.init(jax.random.key(0), X)
    assert total.parameters == sum(leaf.size for leaf in jax.tree.leaves(params)) > 0
    assert total.flops == describe(alone, X).total.flops > 0
    assert total.bytes == describe(alone, X).total.bytes > 0


def test_a_shared_term_stands_where_it_runs():
    rows = describe(heads(2, MANY @ ONE) @ ONE, X).rows
    assert [(row.depth, row.stage, row.parameters) for row in rows] == [
        (1, "one: linear(4)", 16),
        (1, "heads × 2", 0),
        (2, "one: linear(4)", 0),
        (2, "many", 0),
        (3, "linear(8)", 32),
        (3, "silu", 0),
        (3, "linear(4)", 32),
    ]


@pytest.mark.parametrize("width", [200, 80, 60])
def test_a_narrow_table_has_a_line_for_every_stage(width):
    """What does not fit is cut short, and what runs is told below."""
    attention = aggregate() @ normalize(softmax) @ mask(causal & window(32)) @ score(scaled_dot)
    table = describe(identity + linear(4) @ heads(2, attention @ project(4)), X)
    text = io.StringIO()
    Console(file=text, width=width).print(table)
    lines = text.getvalue().splitlines()
    for line, row in zip(lines[1:], table.rows, strict=False):
        whole, shown = "  " * (row.depth - table.top) + row.stage, line.split("…")[0]
        assert line.startswith(whole) or ("…" in line and whole.startswith(shown))
    told = lines if width == 200 else lines[len(table.rows) + 2 :]
    assert sum("materialized: the table is small" in line for line in told) == 1


# How a lookup runs


@pytest.mark.parametrize(
    ("platform", "rows", "count", "seen", "how"),
    [
        ("cpu", 64, 8, causal, "materialized: the table is small"),
        ("cpu", 128, 8, causal, "streamed in 128 × 128"),
        ("cpu", 1024, 1, causal, "streamed in 512 × 256"),
        ("cpu", 1024, 8, causal, "streamed in 512 × 256"),
        (
            "cpu",
            16384,
            8,
            causal & window(256),
            "streamed in 256 × 512, one tile a row: 127 of "
            "4,096 blocks of 256 × 256 seen (0 full, 127 partial)",
        ),
        (
            "cpu",
            4096,
            8,
            causal & window(128),
            "streamed in 128 × 256, one tile a row: 63 of 1,024",
        ),
        ("cpu", 1024, 600, ~(causal & ~causal), "streamed in 512 × 256"),
        ("cpu", 64, 8, same("segments"), "materialized: the table is small"),
        (
            "cpu",
            1024,
            8,
            same("segments"),
            "streamed in 512 × 256: 8 blocks, selected by its context",
        ),
        ("gpu", 2048, 8, causal, "materialized: the table is small"),
        ("gpu", 8192, 8, causal, "streamed in 512 × 256"),
    ],
)
def test_a_lookup_streams_where_its_tiles_cost_less(monkeypatch, platform, rows, count, seen, how):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    head = compose(aggregate(), normalize(softmax), mask(seen), score(scaled_dot), project(16))
    x = jax.ShapeDtypeStruct((rows, 32), jnp.float32)
    given = {"segments": jax.ShapeDtypeStruct((rows,), jnp.int32)} if head.reads else {}
    assert how in str(describe(heads(count, head), x, **given))
