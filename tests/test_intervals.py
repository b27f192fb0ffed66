"""Interval arithmetic: bounds hold whatever a block holds, and are the numbers of one pair."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from combinax.combinators import Rows
from combinax.combinators.intervals.program import Program
from combinax.combinators.intervals.span import Span

TABLE = jnp.asarray(np.random.default_rng(5).integers(-9, 9, 40))
SQUARE = jnp.asarray(np.random.default_rng(6).integers(0, 9, (7, 5)))
OPERATIONS = {
    "add": lambda q, k: q + k,
    "subtract": lambda q, k: q - k,
    "multiply": lambda q, k: q * k,
    "negative": lambda q, k: -q,
    "absolute": lambda q, k: jnp.abs(q - k),
    "sign": lambda q, k: jnp.sign(q),
    "minimum": lambda q, k: jnp.minimum(q, k),
    "maximum": lambda q, k: jnp.maximum(q, k),
    "clip": lambda q, k: jnp.clip(q, 2, 9) - jnp.clip(k, q, 12),
    "where": lambda q, k: jnp.where(q < k, q + 1, k),
    "where of certain": lambda q, k: jnp.where(q >= 5, q, 5),
    "floor division": lambda q, k: q // 4,
    "modulo": lambda q, k: q % 4,
    "floor division by rows": lambda q, k: q // k,
    "modulo by rows": lambda q, k: q % k,
    "divmod": lambda q, k: jnp.divmod(q, 3)[0] * 3 + jnp.divmod(q, 3)[1],
    "truncated division": lambda q, k: jax.lax.div(q, jnp.full_like(q, 3)),
    "truncated rest": lambda q, k: jax.lax.rem(q, jnp.full_like(q, 3)),
    "square": lambda q, k: q**2 + jnp.square(k),
    "cube": lambda q, k: q**3,
    "product with itself": lambda q, k: (q - k) * (q - k),
    "and": lambda q, k: q & k,
    "or": lambda q, k: q | k,
    "xor": lambda q, k: q ^ k,
    "not": lambda q, k: ~q,
    "low bits": lambda q, k: (q & 7) | (k & 56),
    "shift left": lambda q, k: q << 2,
    "shift right": lambda q, k: q >> 1,
    "shift by rows": lambda q, k: jnp.right_shift(q, k) + jnp.left_shift(q, k),
    "bits counted": lambda q, k: jax.lax.population_count(q),
    "narrower": lambda q, k: q.astype(jnp.int8),
    "without a sign": lambda q, k: q.astype(jnp.uint8),
    "wider": lambda q, k: q.astype(jnp.int32) * k,
    "floats in order": lambda q, k: jnp.where(q.astype(float) < k.astype(float), 1, 0),
    "floats": lambda q, k: (jnp.sqrt(1.0 * q * q) < k).astype(int),
    "truths": lambda q, k: jnp.logical_xor(q < k, q == 3).astype(int),
    "any of some": lambda q, k: jnp.any(q[..., None] == jnp.arange(3), -1).astype(int),
    "sums": lambda q, k: jnp.sum(q[..., None] + jnp.arange(3), -1),
    "table": lambda q, k: TABLE[q],
    "table by difference": lambda q, k: TABLE[jnp.abs(q - k)],
    "table taken": lambda q, k: jnp.take(TABLE, q),
    "table of two": lambda q, k: SQUARE[q, k],
    "table of two, turned": lambda q, k: SQUARE[k % 7, q % 5],
    "table and a column": lambda q, k: SQUARE[q % 7, 1],
    "rows of a table": lambda q, k: SQUARE[q % 7].max(-1),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["int32", "int8", "uint8"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_bounds_hold_and_are_the_numbers_themselves_for_one_pair(name, kind):
    """Thirty by thirty blocks of at most five rows, some of them among the largest numbers."""
    draw, ends = np.random.default_rng(0), np.iinfo(kind)
    small = max(ends.min, -12)
    first = np.concatenate([
        draw.integers(small, 40, 20), draw.integers(ends.min, ends.max - 5, 10)
    ])  # fmt: skip
    rows = (first[:, None] + np.minimum(np.arange(5), draw.integers(0, 5, (30, 1)))).astype(kind)
    queries, keys = rows[::-1], rows
    function = OPERATIONS[name]
    value = jax.jit(function)(
        *np.broadcast_arrays(queries[:, None, :, None], keys[None, :, None, :])
    )
    truth = lambda q, k: function(q.position, k.position) < 3  # noqa: E731
    seen = np.asarray(value) < 3

    def asked(*spans):
        return Program(truth, *(Rows(span, span) for span in spans)).seen(True)

    sides = queries[:, None], keys[None]
    found = asked(*(Span(x.min(-1)[..., None, None], x.max(-1)[..., None, None]) for x in sides))
    some, every = (np.broadcast_to(x, (30, 30)) for x in (found.some, found.every))
    assert (some | ~seen.any((2, 3))).all()
    assert (~every | seen.all((2, 3))).all()

    found = asked(*(Span.point(x[..., :1, None]) for x in sides))
    for said in (found.some, found.every):
        np.testing.assert_array_equal(np.broadcast_to(said, (30, 30)), seen[:, :, 0, 0])
