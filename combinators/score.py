"""score: how well does each query match each key? Entries -> Scores, then Scores -> Scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree, Shaped

from .core.arguments import as_function, at_least
from .core.context import Context
from .core.dtypes import floating, wide, widened
from .core.errors import CompositionError
from .core.kinds import Kind, Width, mistaken, show
from .core.leaf import Leaf
from .core.parameter import Parameter
from .core.printing import Write
from .core.records import Entries, Scores, zero_inactive
from .core.source import reference
from .core.term import Term, form
from .core.types import Table
from .primitives import pointwise
from .project import fan_in

__all__ = ["additive", "bilinear", "cosine", "distance", "dot", "features", "scaled_dot", "score"]


# Functions of a query tile (t, d) and a key tile (s, d)

Tiles = tuple[Shaped[Array, "t d"], Shaped[Array, "s d"]]
"""A query tile and a key tile: the input of a score function that is a leaf."""


class ScoreFunction(Protocol):
    """A function of a query tile and a key tile, and of the keywords that `score` is given."""

    def __call__(
        self, query: Shaped[Array, "t d"], key: Shaped[Array, "s d"], /, *args: Any, **options: Any
    ) -> Table: ...


def one_width(query: int, key: int) -> None:
    if query != key:
        raise CompositionError(
            f"a dot product needs query and key of one width; the query has {query}, the key {key}"
        )


def dot(query: Shaped[Array, "t d"], key: Shaped[Array, "s d"]) -> Table:
    """query · key for every pair: (t, d), (s, d) -> (t, s), summed in at least float32.

    >>> dot(jnp.ones((1, 2)), jnp.ones((3, 2)))
    Array([[2., 2., 2.]], dtype=float32)
    """
    one_width(query.shape[-1], key.shape[-1])
    return summed(floating(query), floating(key), 1)


def summed(a: Array, b: Array, axis: int) -> Array:
    """Products over the last axis of a and an axis of b, summed in at least float32."""
    over = (((a.ndim - 1,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, over, preferred_element_type=wide(a, b))


def scaled_dot(
    query: Shaped[Array, "t d"], key: Shaped[Array, "s d"], scale: float | None = None
) -> Table:
    """query · key · scale, by default 1/√d (Vaswani et al. 2017); scale=0.0 means zero.

    >>> scaled_dot(jnp.ones((1, 4)), jnp.ones((1, 4)))
    Array([[2.]], dtype=float32)
    """
    root = max(query.shape[-1], 1) ** -0.5
    if scale is None and query.dtype == wide(query, key):  # no digit of the query is lost
        return dot(query * root, key)
    return dot(query, key) * (root if scale is None else scale)


def cosine(query: Shaped[Array, "t d"], key: Shaped[Array, "s d"], eps: float = 1e-12) -> Table:
    """The cosine of the angle between query and key; 0 where one of them is 0.

    >>> cosine(jnp.array([[3.0, 0.0]]), jnp.array([[2.0, 0.0]]))
    Array([[1.]], dtype=float32)
    """

    def unit(x):
        x = widened(x)
        most = jax.lax.stop_gradient(jnp.max(jnp.abs(x), -1, keepdims=True, initial=0))
        near = x / jnp.where(most < jnp.finfo(x.dtype).tiny, 1, most)  # its squares are safe
        return near * jax.lax.rsqrt(jnp.sum(jnp.square(near), -1, keepdims=True) + eps)

    return dot(unit(query), unit(key))


def distance(query: Shaped[Array, "t d"], key: Shaped[Array, "s d"]) -> Table:
    """Minus the squared distance between query and key: the nearer, the higher.

    >>> distance(jnp.zeros((1, 2)), jnp.ones((1, 2)))
    Array([[-2.]], dtype=float32)
    """
    one_width(query.shape[-1], key.shape[-1])
    sums = wide(query, key)
    return -squares(query.astype(sums), key.astype(sums))


@jax.custom_jvp
@jax.jit
def squares(query: Array, key: Array) -> Array:
    """|query - key|² of every pair: each difference is taken before it is squared, for as a sum of
    products nothing is left of it far from the origin. Compiled, no table of differences is made.
    """
    return jnp.sum(jnp.square(query[:, None] - key[None]), -1)


@squares.defjvp
def squares_jvp(rows: tuple[Array, Array], moved: tuple[Array, Array]) -> tuple[Array, Array]:
    """The derivative is linear in what moves, so there it is a sum of products."""
    (query, key), (dq, dk) = rows, moved
    own = jnp.sum(query * dq, -1)[:, None] + jnp.sum(key * dk, -1)[None]
    return squares(query, key), 2 * (own - dot(dq, key) - dot(query, dk))


@form
class bilinear(Leaf):
    """query · kernel · key (Luong et al. 2015), a score function that learns.

    >>> from combinax.combinators import project
    >>> term = score(bilinear()) @ project(query=2, key=3, value=1)
    >>> term.init(jax.random.key(0), jnp.zeros((4, 5)))["score"]["kernel"].shape
    (2, 3)
    """

    def parameters(self, x: Tiles) -> dict[str, Parameter]:
        query, key = x
        return {"kernel": Parameter((query.shape[-1], key.shape[-1]), fan_in, ("in", "out"))}

    def apply(self, params: Mapping[str, Array], x: Tiles, context: Context) -> Table:
        query, key = x
        return dot(summed(floating(query), params["kernel"], 0), key)


@form
class additive(Leaf):
    """sum over h of out[h] tanh(query W + key U)[h] (Bahdanau et al. 2015), hidden width h.

    >>> additive(4).init(jax.random.key(0), (jnp.zeros((2, 3)), jnp.zeros((2, 5))))["key"].shape
    (5, 4)
    """

    hidden: int

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, hidden=self.hidden)

    def parameters(self, x: Tiles) -> dict[str, Parameter]:
        query, key = x
        return {
            "query": Parameter((query.shape[-1], self.hidden), fan_in, ("in", "out")),
            "key": Parameter((key.shape[-1], self.hidden), fan_in, ("in", "out")),
            "out": Parameter(
                (self.hidden,), jax.nn.initializers.normal(self.hidden**-0.5), ("in",)
            ),
        }

    def apply(self, params: Mapping[str, Array], x: Tiles, context: Context) -> Table:
        query, key = x
        asks = summed(floating(query), params["query"], 0)[:, None]
        answers = summed(floating(key), params["key"], 0)[None, :]
        return summed(jnp.tanh(asks + answers), params["out"], 0)


@form
class features(Leaf):
    """φ(query) · φ(key): the score of linear attention (Katharopoulos et al. 2020).

    With `identity` or `row_sum` as the normalizer the products can be bracketed the other way.

    >>> features(pointwise(jax.nn.elu)).apply({}, (jnp.ones((1, 2)), jnp.ones((1, 2))), {})
    Array([[2.]], dtype=float32)
    """

    map: Any

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.map, Leaf):
            object.__setattr__(self, "map", pointwise(self.map))
        if self.map.learns:
            raise CompositionError(
                f"features takes a map that learns nothing, and {self.map!r} learns: map queries "
                f"and keys before, project(query={self.map!r}, key={self.map!r}, value=…)"
            )

    def apply(self, params: Mapping[str, Array], x: Tiles, context: Context) -> Table:
        query, key = x
        return dot(self.map.apply({}, query, context), self.map.apply({}, key, context))


# The word


@form
class score(Leaf):
    """Asks how well every query matches every key: Entries -> Scores, score (T, S).

    The score function takes a query tile (t, d) and a key tile (s, d) to (t, s): `dot`,
    `scaled_dot`, `cosine`, `distance`, `bilinear()`, `additive(h)`, `features(φ)`, your own
    function, or your own leaf on the pair of tiles, with parameters if it likes. Each number comes
    of its query and its key alone, for a tile may hold any of them. Keywords go to the function:
    `score(scaled_dot, scale=0.1)`.

    Keys that no query sees (padding), and queries that see no key, are replaced before they are
    scored, so that even NaN there reaches nothing.

    Raises CompositionError where widths do not meet.

    >>> from combinax.combinators import project
    >>> term = score(scaled_dot) @ project(4)
    >>> term(term.init(jax.random.key(0), jnp.zeros((3, 2))), jnp.zeros((3, 2))).score.shape
    (3, 3)
    """

    role = "scores"

    rowwise = True

    function: ScoreFunction | Leaf
    options: tuple[tuple[str, Any], ...] = ()

    def __init__(self, function: ScoreFunction | Leaf, **options: Any):
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "options", tuple(sorted(options.items())))
        self.__post_init__()

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.function, Leaf):
            takes = "a function of a query tile and a key tile, such as scaled_dot"
            as_function(self.function, "score", takes)
        if isinstance(self.function, Term) and self.options:
            raise CompositionError("score passes keywords to plain functions, not to terms")

    def text(self, write: Write) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options)
        return f"score({reference(self.function, write)}{options})"

    def flow(self, kind: Kind) -> Kind:
        if kind is None:
            return Scores(Width(), Width(), None)
        if not isinstance(kind, Entries):
            raise CompositionError(mistaken(self, "entries", kind))
        query, key = kind.query.width, kind.key.width
        if self.function in (dot, scaled_dot, cosine, distance) and None not in (query, key):
            one_width(query, key)
        return Scores(Width(), kind.value, None)

    def parameters(self, x: Entries) -> dict[str, Parameter]:
        if not isinstance(x, Entries):
            raise CompositionError(mistaken(self, "entries", x))
        if isinstance(self.function, Leaf):
            return self.function.parameters((x.query, x.key))
        return {}

    def operands(self, params: Mapping[str, Array], context: Context) -> PyTree[Array]:
        return params

    def tile(
        self, operands: PyTree[Array], query: Shaped[Array, "t d"], key: Shaped[Array, "s d"]
    ) -> Table:
        """One tile of scores, (t, d) and (s, d) -> (t, s), in at least float32."""
        if isinstance(self.function, Leaf):
            score = self.function.apply(operands, (query, key), Context())
        else:
            score = self.function(query, key, **dict(self.options))
        if score.shape != (query.shape[0], key.shape[0]):
            raise CompositionError(
                f"a score function gives one number per query and key, "
                f"{(query.shape[0], key.shape[0])}; this one gives {show(score)}"
            )
        return widened(score)

    def apply(self, params: Mapping[str, Array], x: Entries, context: Context) -> Scores:
        query, key = zero_inactive(x.query, x.active_queries), zero_inactive(x.key, x.active_keys)
        score = self.tile(self.operands(params, context), query, key)
        return Scores(score, x.value, x.marks, x.visible, x.active_keys, x.active_queries, x.order)


# Scores -> Scores


# Biases by position
