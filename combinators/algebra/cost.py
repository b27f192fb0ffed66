"""The cost of a term: FLOPs, bytes moved, matrix products, and the time of a roofline."""

from __future__ import annotations

import dataclasses

from ..core.term import Term
from ..core.types import Value
from ..describe import describe
from ..description import Row, rounded

__all__ = ["CPU", "Cost", "Machine", "cost"]


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine as a roofline (Williams et al. 2009): `peak` FLOPs and `bandwidth` bytes, each a
    second. The default is two cores of a server CPU.

    >>> Machine(peak=1e12, bandwidth=1e11).seconds(flops=2e12, moved=1e11)
    2.0
    """

    peak: float = 1e11
    bandwidth: float = 2e10

    def seconds(self, flops: float, moved: float) -> float:
        """The time of one program: its FLOPs or its bytes, whichever take longer."""
        return max(flops / self.peak, moved / self.bandwidth)


CPU = Machine()


@dataclasses.dataclass(frozen=True)
class Cost:
    """FLOPs, bytes read and written, matrix products, and seconds on a machine.

    >>> Cost(2e9, 1e6, 3, 0.02)
    2G FLOPs, 1M bytes, 3 products, 20 ms
    """

    flops: float
    bytes: float
    products: int
    seconds: float

    def __repr__(self) -> str:
        flops, moved = (rounded(number) or "0" for number in (self.flops, self.bytes))
        return f"{flops} FLOPs, {moved} bytes, {self.products} products, {time(self.seconds)}"


def time(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def cost(term: Term, x: Value, /, machine: Machine = CPU, **context: Value) -> Cost:
    """The cost of a term on an input, which may be abstract.

    Each stage is one program: it reads what it takes and what it learned, and writes what it gives.
    A stage without FLOPs is a view and moves nothing. A lookup that streams is a single program
    that holds no table (Dao et al. 2022; Abbott and Zardini 2024).

    Raises what `describe` raises.

    >>> from combinax.combinators import linear
    >>> cost(linear(8) @ linear(4), jax.ShapeDtypeStruct((100, 16), "float32"))
    19.2k FLOPs, 13.2k bytes, 2 products, 659 ns
    """
    table = describe(term, x, **context)
    total = table.total
    seconds = sum(machine.seconds(*work) for work in programs(table.rows))
    return Cost(total.flops, total.moved, total.products, seconds)


def programs(rows: tuple[Row, ...]) -> list[tuple[float, float]]:
    """FLOPs and bytes of each program: a stage that moves nothing belongs to the one before."""
    found: list[tuple[float, float]] = []
    for row in rows:
        if found and not row.moved:
            flops, moved = found[-1]
            found[-1] = flops + row.flops, moved
        else:
            found.append((row.flops, row.moved))
    return found
