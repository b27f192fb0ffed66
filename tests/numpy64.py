"""What the tests compare with: attention in NumPy float64, one row at a time.

A row of the reference is computed from the keys that it may see and from nothing else, so what is
hidden cannot matter, and a row that sees nothing is a row of zeros. Nothing here uses jax.
"""

import math
from typing import Any

import numpy as np

erf = np.vectorize(math.erf, otypes=[float])


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def bisected(scale, power):
    """max(scale z - τ, 0)^power with sum 1: sparsemax is 1, 1 and entmax15 is ½, 2."""

    def weights(z):
        z = scale * (z - z.max())
        low, high = -1.0, 0.0  # at -1 the sum is at least 1, at 0 it is 0
        for _ in range(80):
            middle = (low + high) / 2
            enough = (np.maximum(z - middle, 0) ** power).sum() >= 1
            low, high = (middle, high) if enough else (low, middle)
        return np.maximum(z - low, 0) ** power

    return weights


def largest(count, of):
    """`of` over the `count` largest, the earlier first among equals."""

    def weights(z):
        kept = np.argsort(-z, kind="stable")[:count]
        w = np.zeros_like(z)
        w[kept] = of(z[kept])
        return w

    return weights


def gelu(z):
    return z * (1 + erf(z / math.sqrt(2))) / 2


def gelu_tanh(z):
    return z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2


def sigmoid(z):
    return np.exp(-np.logaddexp(0, -z))


WEIGHTS = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "relu": lambda z: np.maximum(z, 0),
    "relu_squared": lambda z: np.maximum(z, 0) ** 2,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda z: z * sigmoid(z),
    "identity": lambda z: z,
    "row_sum": lambda z: z / z.sum(),
    "sparsemax": bisected(1, 1),
    "entmax15": bisected(1 / 2, 2),
    "top_k": largest(2, softmax),
    "hardmax": largest(1, np.ones_like),
}
"""The weights of one row of visible scores, by the name of the normalizer."""


def length(x):
    return np.sqrt(np.square(x).sum(-1))


SCORES = {
    "dot": lambda q, k: q @ k.T,
    "scaled_dot": lambda q, k: q @ k.T / math.sqrt(q.shape[-1]),
    "cosine": lambda q, k: q @ k.T / (length(q)[:, None] * length(k)),
    "distance": lambda q, k: -np.square(q[:, None] - k).sum(-1),
}
"""The scores (T, S) of queries (T, d) and keys (S, d), by the name of the score function."""


def weights(scores, visible=None, weigh=softmax) -> np.ndarray:
    """(T, S), 0 where a key is hidden."""
    visible = np.ones(scores.shape, bool) if visible is None else visible
    w: Any = np.zeros(scores.shape)
    for row, z, seen in zip(w, scores.astype(np.float64), visible, strict=True):
        if seen.any():
            row[seen] = weigh(z[seen])
    return w


def attend(q, k, v, visible=None, weigh=softmax, score=SCORES["scaled_dot"]):
    """Attention, (T, e), from queries (T, d), keys (S, d) and values (S, e)."""
    if visible is not None:
        live = visible.any(0)[:, None]
        k, v = np.where(live, k, 1), np.where(live, v, 1)
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    return weights(score(q, k), visible, weigh) @ v


def attend_slopes(g, q, k, v, visible=None):
    """The gradients of (g * attend(q, k, v, visible)).sum() to q, k and v."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    w = weights(q @ k.T * scale, visible)
    by_weight = g @ v.T
    by_score = w * (by_weight - (w * by_weight).sum(-1, keepdims=True)) * scale
    return by_score @ k, by_score.T @ q, w.T @ g


def slopes(function, x, step=1e-5):
    """The gradient of a scalar function of an array by central differences."""
    x = np.array(x, np.float64)
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient
