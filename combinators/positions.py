"""Where a row stands: tables and waves that are added to it, rotations, and scalings of those."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from .core.arguments import at_least, floats, one_sequence, positive
from .core.context import Context
from .core.dtypes import widened
from .core.errors import CompositionError
from .core.leaf import SameShape
from .core.marks import Range, rows_at
from .core.parameter import Parameter
from .core.term import form
from .embed import looked_up, small_normal

__all__ = [
    "by_wavelength", "half_split", "interleaved", "interpolated", "position_embed", "rotary",
    "sinusoidal",
]  # fmt: skip


@form
class position_embed(SameShape):
    """`position_embed(n)` adds a learned vector for each of n positions: (T, d) -> (T, d).

    Raises CompositionError for a position past the table; inside jit a traced position past it
    gives NaN, never another position's row.

    >>> params = position_embed(8).init(jax.random.key(0), jnp.zeros((3, 2)))
    >>> params["table"].shape
    (8, 2)
    """

    rowwise = True

    length: int

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, length=self.length)

    def parameters(self, x: Float[Array, "T d"]) -> dict[str, Parameter]:
        floats(self, x)
        one_sequence("position_embed", x)
        axes = ("positions", "out")
        return {"table": Parameter((self.length, x.shape[-1]), small_normal, axes)}

    def apply(
        self, params: Mapping[str, Array], x: Float[Array, "T d"], context: Context
    ) -> Float[Array, "T d"]:
        rows = looked_up(params["table"], rows_at(context, x.shape[0]).position, "position")
        return x + rows.astype(x.dtype)


@form
class sinusoidal(SameShape):
    """Adds waves of position, sines then cosines: (T, d) -> (T, d) (Vaswani et al. 2017).

    Wave i of d/2 has the angle position / base^(2i/d).

    Raises CompositionError for an odd width.

    >>> sinusoidal()({}, jnp.zeros((1, 4)))
    Array([[0., 0., 1., 1.]], dtype=float32)
    """

    rowwise = True

    base: float = 10000.0

    def __post_init__(self):
        super().__post_init__()
        positive("base of sinusoidal", self.base)

    def apply(
        self, params: Mapping[str, Array], x: Float[Array, "T d"], context: Context
    ) -> Float[Array, "T d"]:
        floats(self, x)
        one_sequence("sinusoidal", x)
        angle = angles(rows_at(context, x.shape[0]).position, x.shape[-1], self.base)
        return x + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(x.dtype)


Scaling = Callable[[Float[np.ndarray, "n"]], Float[ArrayLike, "n"]]
"""A function of the frequencies of n waves."""


def angles(
    position: Range | Int[Array, "T"],
    width: int,
    base: float,
    scaling: Scaling = lambda frequency: frequency,
) -> Float[Array, "T width//2"]:
    """position · base^(-2i/width) for i below width / 2, in at least float32."""
    if width % 2:
        raise CompositionError(f"waves come in pairs, so the width is even; it is {width}")
    frequency = scaling(base ** (-np.arange(0, width, 2) / width))
    position = position.array() if isinstance(position, Range) else position
    frequency = jnp.asarray(frequency, jnp.result_type(float))
    return position[:, None].astype(frequency.dtype) * frequency


def half_split(x: Array) -> tuple[Array, Array]:
    """Pairs number i with number i + d/2 (Llama, GPT-NeoX).

    >>> half_split(jnp.arange(4))
    (Array([0, 1], dtype=int32), Array([2, 3], dtype=int32))
    """
    first, second = jnp.split(x, 2, -1)
    return first, second


def interleaved(x: Array) -> tuple[Array, Array]:
    """Pairs number 2i with number 2i + 1 (Su et al. 2021).

    >>> interleaved(jnp.arange(4))
    (Array([0, 2], dtype=int32), Array([1, 3], dtype=int32))
    """
    return x[..., ::2], x[..., 1::2]


JOINED: dict[Callable[[Array], tuple[Array, Array]], Callable[[Array, Array], Array]] = {
    half_split: lambda a, b: jnp.concatenate([a, b], -1),
    interleaved: lambda a, b: jnp.stack([a, b], -1).reshape(*a.shape[:-1], -1),
}


@form
class rotary(SameShape):
    """Turns pairs of numbers by an angle proportional to position: (T, d) -> (T, d).

    (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ) with θ = position · base^(-2i/d), so the
    dot product of a query and a key depends on their distance alone (Su et al. 2021). `pairs` is
    `half_split` or `interleaved`; `width` rotates only the first numbers of each vector;
    `scaling` is any function of the frequencies (interpolation, Llama 3 …).

    Raises CompositionError for an odd width, or one above that of x.

    >>> rotary()({}, jnp.ones((2, 2)))[1]
    Array([-0.30116868,  1.3817732 ], dtype=float32)
    """

    rowwise = True

    base: float = 10000.0
    pairs: Callable[[Array], tuple[Array, Array]] = half_split
    width: int | None = None
    scaling: Scaling | None = None

    def __post_init__(self):
        super().__post_init__()
        positive("base of rotary", self.base)
        if self.pairs not in JOINED:
            raise CompositionError(f"pairs is half_split or interleaved, not {self.pairs!r}")

    def apply(
        self, params: Mapping[str, Array], x: Float[Array, "T d"], context: Context
    ) -> Float[Array, "T d"]:
        floats(self, x)
        one_sequence("rotary", x)
        width = x.shape[-1] if self.width is None else self.width
        if not 0 < width <= x.shape[-1]:
            raise CompositionError(f"rotary(width={width}) of vectors of width {x.shape[-1]}")
        scaling = self.scaling or (lambda frequency: frequency)
        angle = angles(rows_at(context, x.shape[0]).position, width, self.base, scaling)
        a, b = self.pairs(widened(x[:, :width]))
        cos, sin = jnp.cos(angle).astype(a.dtype), jnp.sin(angle).astype(a.dtype)
        turned = JOINED[self.pairs](a * cos - b * sin, a * sin + b * cos).astype(x.dtype)
        return jnp.concatenate([turned, x[:, width:]], -1) if width < x.shape[-1] else turned


# Scalings: functions of the frequencies, with which rotary reads longer texts


@dataclasses.dataclass(frozen=True)
class interpolated:
    """frequency / factor: the positions of a longer text, as if between those learned (Chen et al.
    2023).

    >>> rotary(scaling=interpolated(4.0))
    rotary(scaling=interpolated(factor=4.0))
    """

    factor: float

    def __post_init__(self):
        positive("factor of interpolated", self.factor)

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        return frequency / self.factor


@dataclasses.dataclass(frozen=True)
class by_wavelength:
    """Interpolates slow waves by a factor, keeps fast ones, and goes over smoothly in between
    (Dubey et al. 2024, Llama 3).

    A wave is slow that turns less than `slow` times in `length` positions, those learned; fast is
    one that turns more than `fast` times.

    >>> by_wavelength(8.0, slow=1.0, fast=4.0, length=100)(np.array([1.0, 0.01])).round(5)
    array([1.     , 0.00125])
    """

    factor: float
    slow: float
    fast: float
    length: int

    def __post_init__(self):
        for field in dataclasses.fields(self):
            positive(f"{field.name} of by_wavelength", getattr(self, field.name))
        if not self.slow < self.fast:
            raise CompositionError(
                f"slow waves of by_wavelength turn less often than fast ones: slow is {self.slow}, "
                f"and fast {self.fast}"
            )

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        turns = self.length * frequency / (2 * math.pi)
        kept = np.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
        return frequency * (kept + (1 - kept) / self.factor)
