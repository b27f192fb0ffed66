"""Scalings of rotary positions: functions of the frequencies that read longer texts."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from .core.arguments import positive

__all__ = ["by_wavelength", "interpolated"]


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

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        turns = self.length * frequency / (2 * math.pi)
        kept = np.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
        return frequency * (kept + (1 - kept) / self.factor)
