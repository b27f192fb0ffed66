"""Masks of real kernels: a stream gives what NumPy does, and visits no block that holds nothing."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking import ask
from numpy64 import attend
from plain import normal, run

from combinax.combinators import (
    Context,
    Marks,
    Range,
    Rows,
    causal,
    describe,
    dilated,
    mask,
    predicate,
    prefix,
    read,
    same,
    streamed,
    valid,
    window,
)
from combinax.combinators.streaming.block_plan import plan, survey
from combinax.combinators.streaming.grid import ALL, NONE, SOME

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Kernel(NamedTuple):
    """A mask as it is written, its context, and the same as a table that NumPy makes."""

    seen: Any
    table: np.ndarray
    context: Mapping[str, Any] = NOTHING


def rows(t):
    return np.arange(t)[:, None], np.arange(t)[None]


def packed(t):
    """Documents of uneven lengths, padding with number 0 at the end, and places in each."""
    lengths = [t // 8, t // 16, t // 4, t // 4 + t // 8]
    lengths.append(t - sum(lengths))
    segments = np.repeat([1, 2, 3, 4, 0], lengths)
    local = np.concatenate([np.arange(n) for n in lengths])
    return segments.astype(np.int32), local.astype(np.int32)


# Distances


def sliding(t):
    q, k = rows(t)
    near = lambda query, key: jnp.abs(query.position - key.position) < t // 16  # noqa: E731
    return Kernel(causal & near, (k <= q) & (q - k < t // 16))


def strided(t):
    q, k = rows(t)
    table = (k <= q) & ((q - k) % (t // 8) == 0) & (q - k < t // 2)
    return Kernel(causal & dilated(t // 8) & window(t // 2), table)


def global_and_local(t):
    q, k = rows(t)
    every = lambda query, key: jnp.minimum(query.position, key.position) < 3  # noqa: E731
    return Kernel(window(5) | mask(every).predicate, (abs(q - k) < 5) | (np.minimum(q, k) < 3))


def of_a_prefix(t):
    q, k = rows(t)
    return Kernel(prefix(t // 4), (k < t // 4) | (k <= q))


def clipped(t):
    q, k = rows(t)
    seen = lambda query, key: jnp.clip(key.position, t // 8, t // 2) <= query.position  # noqa: E731
    return Kernel(mask(seen).predicate, np.clip(k, t // 8, t // 2) <= q)


# Documents, prefixes, pictures


def documents(t):
    segments, local = packed(t)
    near = predicate(
        lambda query, key: (
            (key["local"] <= query["local"]) & (query["local"] - key["local"] < t // 16)
        ),
        ("local",),
    )
    apart = local[:, None] - local
    table = (segments[:, None] == segments) & (apart >= 0) & (apart < t // 16)
    return Kernel(same("segments") & near, table, dict(segments=segments, local=local))


def shared_prefix(t):
    """A root of a quarter of the rows, and branches that see it and themselves."""
    branch = np.repeat([0, 0, 1, 2, 3, 4, 5, 6], t // 8).astype(np.int32)
    seen = predicate(
        lambda query, key: (query["branch"] == key["branch"]) | (key["branch"] == 0), ("branch",)
    )
    q, k = rows(t)
    table = (k <= q) & ((branch[:, None] == branch) | (branch == 0))
    return Kernel(causal & seen, table, dict(branch=branch))


def block_diffusion(t):
    """A noisy half whose blocks see themselves and the clean blocks before, and a clean half."""
    half, size = t // 2, t // 16

    def seen(query, key):
        noisy = (query.position < half, key.position < half)
        ours, theirs = (x.position % half // size for x in (query, key))
        of_noisy = jnp.where(noisy[1], ours == theirs, theirs < ours)
        return jnp.where(noisy[0], of_noisy, ~noisy[1] & (theirs <= ours))

    q, k = rows(t)
    ours, theirs = q % half // size, k % half // size
    table = ((q < half) & (k < half) & (ours == theirs)) | (
        (k >= half) & np.where(q < half, theirs < ours, theirs <= ours)
    )
    return Kernel(mask(seen).predicate, table)


def last_picture(t):
    """Texts between pictures: each text sees the tokens of the picture before it."""
    picture = np.cumsum(np.arange(t) % (t // 8) == 0).astype(np.int32) - 1
    seen = predicate(lambda query, key: query["picture"] == key.index // (t // 8), ("picture",))
    table = picture[:, None] == np.arange(t) // (t // 8)
    return Kernel(seen, table, dict(picture=picture))


def padded(t):
    q, k = rows(t)
    return Kernel(valid("lengths") & causal, (k < t // 3) & (k <= q), dict(lengths=t // 3))


# Trees and tables


def tree(t):
    """Each token sees its ancestors: a table that a function holds."""
    draw, ancestors = np.random.default_rng(0), np.eye(t, dtype=bool)
    for row in range(1, t):
        ancestors[row] |= ancestors[draw.integers(max(0, row - t // 8), row)]
    table = jnp.asarray(ancestors)
    return Kernel(mask(lambda query, key: table[query.position, key.position]).predicate, ancestors)


def adjacency(t):
    seen = tree(t).table.T
    return Kernel(
        read("graph") & window(t // 4),
        seen & (abs(np.subtract(*rows(t))) < t // 4),
        dict(graph=seen),
    )


def groups_by_table(t):
    """Rows in groups, as a small table says of every 16th, and a table of groups by a fact."""
    size, draw = t // 16, np.random.default_rng(1)
    of_rows = draw.integers(0, 4, 16).astype(np.int32)
    small, kinds = jnp.asarray(of_rows), np.repeat(np.arange(16), size).astype(np.int32)
    seen = predicate(
        lambda query, key: small[query.position // size] == small[key["kind"]], ("kind",)
    )
    group = of_rows[kinds]
    return Kernel(
        seen & causal, (group[:, None] == group) & np.tri(t, dtype=bool), dict(kind=kinds)
    )


# Pictures, videos


def neighbours(place: Callable[[Any], tuple[Any, ...]], reach: int):
    """Rows that are near each other along every axis of the places where they lie."""

    def seen(query, key):
        pairs = zip(place(query.position), place(key.position), strict=True)
        near = [jnp.abs(a - b) <= reach for a, b in pairs]
        return near[0] & near[1] if len(near) == 2 else near[0] & near[1] & near[2]

    def build(t):
        pairs = zip(*map(place, rows(t)), strict=True)
        return Kernel(
            mask(seen).predicate, np.logical_and.reduce([abs(a - b) <= reach for a, b in pairs])
        )

    return build


def plain(n):
    return n // 32, n % 32


def tiled(n):
    """Tiles of 8 × 8, four of them side by side."""
    tile, inside = n // 64, n % 64
    return tile // 4 * 8 + inside // 8, tile % 4 * 8 + inside % 8


def every_second_bit(n):
    n = n & 0x55555555
    for shift, kept in ((1, 0x33333333), (2, 0x0F0F0F0F), (4, 0x00FF00FF), (8, 0x0000FFFF)):
        n = (n ^ (n >> shift)) & kept
    return n


def morton(n):
    return every_second_bit(n), every_second_bit(n >> 1)


def tiles_of_two(n):
    """Which tile of 4 × 4 × 4 a token of 8 × 8 × 16 lies in, tile after tile."""
    tile = n // 64
    return tile // 8, tile // 4 % 2, tile % 4


def space_and_time(t):
    """A token sees its picture, and its place in the pictures before."""
    size = t // 16

    def seen(query, key):
        at_once = query.position // size == key.position // size
        one_place = query.position % size == key.position % size
        return at_once | (one_place & (key.position <= query.position))

    q, k = rows(t)
    return Kernel(
        mask(seen).predicate, (q // size == k // size) | ((q % size == k % size) & (k <= q))
    )


def circle(t):
    """Floats, of which there are no bounds."""
    far = lambda n: (n // 32, n % 32)  # noqa: E731

    def seen(query, key):
        (a, b), (c, d) = far(query.position), far(key.position)
        return jnp.sqrt(jnp.square(a - c) + jnp.square(b - d)) < 4.5

    (a, b), (c, d) = map(far, rows(t))
    return Kernel(mask(seen).predicate, (a - c) ** 2 + (b - d) ** 2 <= 20)


KERNELS = [
    sliding, strided, global_and_local, of_a_prefix, clipped, documents, shared_prefix,
    block_diffusion, last_picture, padded, tree, adjacency, groups_by_table, neighbours(plain, 3),
    neighbours(tiled, 3), neighbours(morton, 3),
    neighbours(lambda n: (n // 64 // 4, n // 64 % 4), 1), neighbours(tiles_of_two, 1),
    space_and_time, circle,
]  # fmt: skip
NAMES = [
    "sliding", "strided", "global and local", "prefix", "clipped", "documents", "shared prefix",
    "block diffusion", "last picture", "padded", "tree", "adjacency", "groups by table",
    "neighbours", "neighbours in tiles", "neighbours along a curve", "tiles in 2 dimensions",
    "tiles in 3 dimensions", "space and time", "circle",
]  # fmt: skip


def parts(table, size):
    """NONE, SOME or ALL for each block of a table."""
    tiles = table.reshape(len(table) // size, size, -1, size)
    return np.where(tiles.all((1, 3)), ALL, np.where(tiles.any((1, 3)), SOME, NONE))


def marks(t):
    rows = Rows(Range(0, t), Range(0, t))
    return Marks(rows, rows)


@pytest.mark.parametrize("build", KERNELS, ids=NAMES)
def test_only_blocks_that_hold_anything_are_visited(build):
    kernel = build(1024)
    found = plan([mask(kernel.seen)], marks(1024), Context(dict(kernel.context)), (64, 64))
    np.testing.assert_array_equal(found, parts(kernel.table, 64))
    assert isinstance(found, np.ndarray) == (not kernel.context)


@pytest.mark.parametrize("build", KERNELS, ids=NAMES)
def test_a_stream_sees_what_the_table_does(build):
    t = 128
    kernel = build(t)
    q, k, v = normal(3, t, 4)
    y = run(streamed(ask(mask(kernel.seen)), 32), {}, q, key=k, value=v, **kernel.context)
    np.testing.assert_allclose(y, attend(q, k, v, kernel.table), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("build", [documents, groups_by_table], ids=["documents", "groups"])
def test_what_the_context_tells_when_it_runs_is_as_exact(build):
    kernel = build(256)

    @jax.jit
    def found(context):
        return plan([mask(kernel.seen)], marks(256), Context(context), (16, 16))

    np.testing.assert_array_equal(found(dict(kernel.context)), parts(kernel.table, 16))


def test_one_comparison_of_floats_that_the_context_tells_is_as_exact():
    """Floats have no bounds: their pairs are asked, even for a single comparison."""
    earlier = mask(predicate(lambda query, key: key["when"] <= query["when"], ("when",)))
    when = np.sort(np.random.default_rng(0).random(64).astype(np.float32))
    found = jax.jit(lambda when: plan([earlier], marks(64), Context({"when": when}), (16, 16)))
    np.testing.assert_array_equal(found(when), parts(when[None] <= when[:, None], 16))


def test_what_costs_more_than_it_saves_is_told():
    """Sixty sines for a pair are more than the products of a head of width 4."""

    def waves(query, key):
        found = jnp.sin(1.0 * query.position)
        for _ in range(60):
            found = jnp.sin(found + key.position)
        return found > 0

    seen = mask(waves)
    q, k = (jax.ShapeDtypeStruct((n, 4), jnp.float32) for n in (2**16, 2**16))
    text = str(describe(streamed(ask(seen), 512), q, key=k, value=k))
    visited = "16,384 of 16,384 blocks visited (0 full, 16,384 partial)"
    assert f"{visited}; not understood block by block: every block is visited" in text
    long = marks(2**16)
    found = survey([seen, mask(causal)], long, Context(), (512, 512), affordable=20)
    assert found.undecided and np.count_nonzero(found.parts) == 128 * 129 // 2
    assert not survey([seen], marks(64), Context(), (16, 16), affordable=20).undecided


def test_a_description_counts_the_blocks_that_its_context_tells():
    kernel = documents(1024)
    q = k = jax.ShapeDtypeStruct((1024, 4), jnp.float32)
    term = streamed(ask(mask(kernel.seen)), 64)
    counts = [np.count_nonzero(parts(kernel.table, 64) == sort) for sort in (ALL, SOME)]
    visited = f"{sum(counts)} of 256 blocks visited ({counts[0]} full, {counts[1]} partial)"
    assert visited in str(describe(term, q, key=k, value=k, **kernel.context))
    abstract = {name: jax.ShapeDtypeStruct((1024,), jnp.int32) for name in kernel.context}
    assert "256 blocks, selected by its context" in str(
        describe(term, q, key=k, value=k, **abstract)
    )
