"""Values that do not come from x: constants, what is learned, what stands in the context.

And the forms that say where parameters and context come from: named, shared, given, precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
from jax import Array

from .core.arguments import as_function, at_least, number
from .core.context import Context
from .core.dtypes import widened
from .core.errors import CompositionError
from .core.guards import as_name
from .core.kinds import Kind, Width, told
from .core.leaf import Leaf, of_pairs
from .core.parameter import Initializer, Parameter
from .core.printing import Write, equation
from .core.records import Scores, Weights
from .core.source import PACKAGE, documented, reference
from .core.term import form
from .core.types import Value

__all__ = ["constant", "identity", "learned", "lift", "pointwise", "read"]


# Functions of x that learn nothing


@form
class lift(Leaf):
    """Any parameter-free function as a term: `lift(fn)(x)` is `fn(x)`.

    A TypeError or ValueError that `fn` raises is reported with the stage and the shapes.

    >>> lift(jnp.flip)({}, jnp.arange(3))
    Array([2, 1, 0], dtype=int32)
    """

    function: Callable[[Value], Value]

    def __post_init__(self):
        super().__post_init__()
        as_function(self.function, "lift", "a plain function")

    def flow(self, kind: Kind) -> Kind:
        return None

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        return self.function(x)


@form
class pointwise(Leaf):
    """A function that acts position by position: safe to step, to shard, and on tiles of scores.

    On an array it is the function itself, which may change the last axis; on Scores it acts on the
    scores, on Weights on the weights. `normalize(pointwise(fn))` weighs each score by itself.

    >>> pointwise(jnp.square)({}, jnp.arange(3.0))
    Array([0., 1., 4.], dtype=float32)
    """

    role = "adjusts"

    rowwise = True

    function: Callable[[Array], Array]
    label: str = ""

    def __post_init__(self):
        super().__post_init__()
        as_function(self.function, "pointwise", "a plain function")

    def text(self, write: Write) -> str:
        return self.label or f"pointwise({reference(self.function)})"

    @property
    def name(self) -> str:
        return self.label or "pointwise"

    def flow(self, kind: Kind) -> Kind:
        """Functions of this package keep the width; another may change it."""
        ours = str(getattr(self.function, "__module__", "")).startswith(PACKAGE)
        if ours or isinstance(kind, (Scores, Weights)):
            return kind
        return Width() if isinstance(kind, Width) else None

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        match x:
            case Scores():
                return x.replace(score=widened(of_pairs(self, self.function(x.covered), x.score)))
            case Weights():
                return x.replace(weight=of_pairs(self, self.function(x.weight), x.weight))
        return self.function(x)


def same(x: Value) -> Value:
    return x


identity = documented(
    "The function that gives back what it takes: the unit of composition.",
    pointwise(same, "identity"),
)


# Constants


class Source(Leaf):
    """A term whose value does not depend on x."""

    rowwise = True

    @property
    def constant(self) -> bool:
        return True

    def flow(self, kind: Kind) -> Kind:
        return None


@form
class constant(Source):
    """`constant(c)(x)` is `c`, a number.

    >>> constant(2.0)({}, jnp.zeros(3))
    2.0
    """

    value: float

    def __post_init__(self):
        super().__post_init__()
        number("the value of constant", self.value)

    def text(self, write: Write) -> str:
        return str(self.value) if write is equation else super().text(write)

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        return self.value


@form
class learned(Source):
    """A constant that learns: an array of a given shape, ones to begin with.

    >>> learned((2,)).init(jax.random.key(0), jnp.zeros(3))
    {'value': Array([1., 1.], dtype=float32)}
    """

    shape: tuple[int, ...]
    init_with: Initializer = jax.nn.initializers.ones

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.shape, tuple):
            raise CompositionError(f"learned takes a shape such as (3,), not {told(self.shape)}")
        for length in self.shape:
            at_least(0, self, length=length)

    def parameters(self, x: Value) -> dict[str, Parameter]:
        axes = tuple("out" if i == len(self.shape) - 1 else "in" for i in range(len(self.shape)))
        return {"value": Parameter(self.shape, self.init_with, axes)}

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        return params["value"]


@form
class read(Source):
    """`read("memory")(x, memory=m)` is `m`: a piece of context as a value.

    Raises ContextError when the context lacks it.

    >>> read("memory")({}, jnp.zeros(3), memory=jnp.ones(1))
    Array([1.], dtype=float32)
    """

    label: str

    def __post_init__(self):
        super().__post_init__()
        as_name(self.label, "read")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.label})

    def apply(self, params: Mapping[str, Array], x: Value, context: Context) -> Value:
        return context[self.label]


# Where parameters and context come from
