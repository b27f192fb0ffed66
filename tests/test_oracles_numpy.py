"""Agreement with formulas worked out again in NumPy float64, one number at a time."""

import cmath

import jax
import jax.numpy as jnp
import numpy as np
import numpy64
import pytest
from asking import NORMALIZERS, fast, given, scores, zero
from plain import close

from combinax.combinators import (
    Range,
    alibi_slopes,
    bias,
    entmax15,
    half_split,
    interleaved,
    layer_norm,
    relative,
    rms_norm,
    rotary,
    sinusoidal,
    sparsemax,
    t5_buckets,
)

ROWS = np.random.default_rng(1).standard_normal((6, 7)) * np.array(
    [[0.03], [0.5], [1], [2], [5], [20]]
)
"""From rows that spread over all keys to rows that choose one."""


# Normalizers: values by bisection, slopes by differences and by the Jacobians of the papers


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizers_on_arrays(name):
    with jax.enable_x64(True):
        w = fast(NORMALIZERS[name])({}, ROWS)
        slope = fast(jax.vmap(jax.jacrev(lambda row: NORMALIZERS[name]({}, row))))(ROWS)
    weigh = numpy64.WEIGHTS[name]
    close(w, [weigh(row) for row in ROWS], atol=1e-12, rtol=1e-12)
    for row, jacobian in zip(ROWS, slope, strict=True):
        expected = [numpy64.slopes(lambda z, i=i: weigh(z)[i], row) for i in range(len(row))]
        # differences over 2e-5 lose half of the digits, more where row_sum divides by little
        close(jacobian, expected, atol=1e-7, rtol=1e-5)
    narrow = fast(NORMALIZERS[name])({}, ROWS.astype(np.float32))
    assert narrow.dtype == np.float32
    close(narrow, w, atol=1e-5, rtol=1e-4)  # scores up to 200 are rounded to 1e-5 on the way in


@pytest.mark.parametrize("how, power", [(sparsemax, 0), (entmax15, 1 / 2)])
def test_jacobians_of_the_simplex(how, power):
    """diag(s) - s sᵀ / sum s with s = p^power on the support (Martins 2016; Peters 2019)."""
    with jax.enable_x64(True):
        weights = np.asarray(how({}, ROWS))
        slope = fast(jax.vmap(jax.jacrev(lambda row: how({}, row))))(ROWS)
    close(weights.sum(-1), np.ones(6), atol=1e-14)
    assert ((weights > 0).sum(-1) == 7).any() and ((weights > 0).sum(-1) == 1).any()
    for p, jacobian in zip(weights, slope, strict=True):
        s = np.where(p > 0, p**power, 0)
        close(jacobian, np.diag(s) - np.outer(s, s) / s.sum(), atol=1e-12)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "top_k", "hardmax"])
def test_ties_go_to_the_earlier_or_are_shared(name):
    row = np.array([[1.0, 3, 3, 3, 0]])
    w = NORMALIZERS[name]({}, jnp.asarray(row, jnp.float32))
    close(w[0], numpy64.WEIGHTS[name](row[0]))


# Positions


def turned(x, position, pairs, base=10000.0, width=None, scaling=lambda f: f):
    """Each pair as one complex number, turned by position · base^(-2i/d)."""
    width = len(x) if width is None else width
    y = np.array(x, np.float64)
    for i in range(width // 2):
        a, b = (i, i + width // 2) if pairs is half_split else (2 * i, 2 * i + 1)
        angle = position * scaling(base ** (-2 * i / width))
        z = complex(x[a], x[b]) * cmath.exp(1j * angle)
        y[a], y[b] = z.real, z.imag
    return y


def slower(frequency):
    """Position interpolation, four to one."""
    return frequency / 4


OPTIONS = [
    {},
    {"base": 500.0},
    {"width": 4},
    {"scaling": slower},
    {"base": 100.0, "width": 2, "scaling": slower},
]


@pytest.mark.parametrize("pairs", [half_split, interleaved])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_rotary_multiplies_complex_numbers(pairs, options):
    x, at = given(5, 1, d=8)[0], np.array([0, 1, 2, 50, 999])
    y = fast(rotary(pairs=pairs, **options))({}, x, positions=at)
    expected = [turned(row, p, pairs, **options) for row, p in zip(x, at, strict=True)]
    close(y, expected, atol=2e-4)  # an angle of 999 is rounded to 3e-5
    with jax.enable_x64(True):
        y = fast(rotary(pairs=pairs, **options))({}, x.astype(np.float64), positions=at)
    close(y, expected, atol=1e-11)


@pytest.mark.parametrize("pairs", [half_split, interleaved])
def test_rotary_is_a_rotation(pairs):
    """Lengths stay, turns add up, and the gradient turns back."""
    x, g = given(5, 1, d=6)[0], given(5, 1, d=6, seed=1)[0]
    turn = lambda x, at: rotary(pairs=pairs)({}, x, positions=at)  # noqa: E731
    at = jnp.array([0, 1, 2, 3, 9])
    close((turn(x, at) ** 2).sum(-1), (x**2).sum(-1), atol=5e-6)
    close(turn(turn(x, at), 2 * at), turn(x, 3 * at), atol=5e-6)
    close(jax.vjp(lambda x: turn(x, at), x)[1](g)[0], turn(g, -at), atol=2e-6)


@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_sinusoidal_waves(base):
    x, at = jnp.zeros((4, 6)), np.array([0, 1, 17, 500])
    angles = at[:, None] / base ** (np.arange(0, 6, 2) / 6)
    expected = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    close(fast(sinusoidal(base))({}, x, positions=at), expected, atol=1e-4)  # 500 ± 3e-5
    close(fast(sinusoidal(base))({}, x + 1, positions=Range(0, 4))[1], 1 + expected[1], atol=1e-6)


def paper_slopes(n):
    """As the paper gives them: a geometric sequence from 2^(-8/n), and every other one beyond."""
    if n & (n - 1) == 0:
        start = 2 ** (-8 / n)
        return [start ** (i + 1) for i in range(n)]
    lower = 1 << (n.bit_length() - 1)
    return paper_slopes(lower) + paper_slopes(2 * lower)[0::2][: n - lower]


def test_alibi_slopes_for_every_number_of_heads():
    for n in range(1, 130):
        slopes = alibi_slopes(n)
        close(slopes, paper_slopes(n), rtol=1e-13)
        assert len(set(slopes.tolist())) == n and (slopes > 0).all() and (slopes < 1).all()


# T5's buckets


def bucket(apart, count, reach, bidirectional):
    """The bucket of a distance key - query, in whole numbers only.

    With m exact buckets of n, bucket m + j begins where j / (n - m) is log(d / m) / log(reach / m):
    where (d / m)^(n - m) reaches (reach / m)^j.
    """
    offset, distance = 0, max(-apart, 0)
    if bidirectional:
        count //= 2
        offset, distance = count * (apart > 0), abs(apart)
    m = count // 2
    if distance < m:
        return offset + distance
    steps = [
        j for j in range(count - m) if distance ** (count - m) * m**j >= reach**j * m ** (count - m)
    ]
    return offset + m + max(steps)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("count, reach", [(32, 128), (8, 16), (32, 1000), (4, 9), (16, 20)])
def test_t5_buckets(count, reach, bidirectional):
    """Far past `reach`, too, as the scores that a bias adds."""
    term = scores(bias(t5_buckets(count, reach, bidirectional=bidirectional)), function=zero)
    T = 2 * reach + 40
    x = jnp.zeros((T, 1))
    table = np.arange(count, dtype=np.float32)
    y = fast(term)({"bias": {"table": table}}, x[:1], key=x, value=x, positions=Range(T // 2, 1))
    apart = np.arange(T) - T // 2
    expected = [bucket(int(d), count, reach, bidirectional) for d in apart]
    np.testing.assert_array_equal(y[0], expected)
    # the properties that make them what they are
    back = np.array(expected[: T // 2 + 1])[::-1]  # at distances 0, 1, 2, …
    assert back[0] == 0 and (np.diff(back) >= 0).all() and (np.diff(back) <= 1).all()
    assert set(expected) == set(range(count)) - ({count // 2} if bidirectional else set())


def test_relative_is_one_number_for_each_distance():
    term, x = scores(bias(relative(2)), function=zero), jnp.zeros((5, 1))
    y = fast(term)({"bias": {"table": np.arange(5.0)}}, x, key=x, value=x)
    apart = np.arange(5) - np.arange(5)[:, None]
    np.testing.assert_array_equal(y, np.clip(apart, -2, 2) + 2)


# Norms


def layer_norm64(x, scale, bias, eps):
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt(np.square(c).mean(-1, keepdims=True) + eps) * scale + bias


def rms_norm64(x, scale, bias, eps):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * scale


@pytest.mark.parametrize("shift, size", [(0, 1), (100, 1), (0, 1e-3), (-3, 1e4)])
@pytest.mark.parametrize("norm, formula", [(layer_norm, layer_norm64), (rms_norm, rms_norm64)])
def test_norms(shift, size, norm, formula):
    """Values, and gradients to x and to what they learn."""
    rng, eps = np.random.default_rng(0), 1e-6
    x = shift + size * rng.standard_normal((3, 8))
    scale, bias, g = rng.standard_normal((3, 8))
    term = norm(eps)
    learned = {"scale": scale, "bias": bias}
    params = {name: learned[name] for name in term.init(jax.random.key(0), jnp.asarray(x))}
    with jax.enable_x64(True):
        y, back = jax.vjp(term, params, jnp.asarray(x))
        tree, dx = back(jnp.tile(jnp.asarray(g), (3, 1)))
    close(y, formula(x, scale, bias, eps), atol=1e-11)

    def loss(x, scale, bias):
        return (g * formula(x, scale, bias, eps)).sum()

    slope = numpy64.slopes(lambda x: loss(x, scale, bias), x, 1e-5 * size)
    close(
        np.asarray(dx) * size, slope * size, atol=1e-8
    )  # differences over 2e-5 lose half of the digits
    for name, slope in tree.items():
        other = {n: p for n, p in learned.items() if n != name}
        expected = numpy64.slopes(lambda p: loss(x, **{name: p}, **other), learned[name])  # noqa: B023
        close(slope, expected, atol=1e-8)
    short = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in params.items()}
    # x is rounded on the way in, by 6e-8 of its size, which the norm magnifies to that of 1
    close(term(short, jnp.asarray(x, jnp.float32)), y, atol=1e-6 * (1 + abs(shift) / size))
