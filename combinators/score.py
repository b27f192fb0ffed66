"""score: how well does each query match each key? Entries -> Scores, then Scores -> Scores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .errors import CompositionError
from .project import at_least_one, fan_in
from .records import Entries, Marks, Scores, Width, show
from .term import Context, Leaf, Parameter, Stage, Term, as_term, form, mistaken, reference
from .values import Source, pointwise

__all__ = [
    "additive", "alibi", "bias", "bilinear", "cosine", "distance", "dot", "features",
    "relative", "scaled_dot", "score", "softcap", "t5_buckets", "temperature",
]  # fmt: skip


# Functions of a query tile (t, d) and a key tile (s, d)


def dot(query: Array, key: Array) -> Array:
    """query · key for every pair: (t, d), (s, d) -> (t, s), summed in at least float32.

    >>> dot(jnp.ones((1, 2)), jnp.ones((3, 2)))
    Array([[2., 2., 2.]], dtype=float32)
    """
    if query.shape[-1] != key.shape[-1]:
        raise CompositionError(
            f"a dot product needs query and key of one width; the query has {query.shape[-1]}, "
            f"the key {key.shape[-1]}"
        )
    sums = jnp.promote_types(jnp.promote_types(query.dtype, key.dtype), jnp.float32)
    return jax.lax.dot_general(query, key, (((1,), (1,)), ((), ())), preferred_element_type=sums)


def scaled_dot(query: Array, key: Array, scale: float | None = None) -> Array:
    """query · key · scale, by default 1/√d (Vaswani et al. 2017); scale=0.0 means zero.

    >>> scaled_dot(jnp.ones((1, 4)), jnp.ones((1, 4)))
    Array([[2.]], dtype=float32)
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return dot(query * jnp.asarray(scale, query.dtype), key)


def cosine(query: Array, key: Array, eps: float = 1e-12) -> Array:
    """The cosine of the angle between query and key; 0 where one of them is 0.

    >>> cosine(jnp.array([[3.0, 0.0]]), jnp.array([[2.0, 0.0]]))
    Array([[1.]], dtype=float32)
    """

    def unit(x):
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return wide * jax.lax.rsqrt(jnp.sum(jnp.square(wide), -1, keepdims=True) + eps)

    return dot(unit(query), unit(key))


def distance(query: Array, key: Array) -> Array:
    """Minus the squared distance between query and key: the nearer, the higher.

    >>> distance(jnp.zeros((1, 2)), jnp.ones((1, 2)))
    Array([[-2.]], dtype=float32)
    """
    norm = lambda x: dot_rows(x, x)  # noqa: E731
    return 2 * dot(query, key) - norm(query)[:, None] - norm(key)[None, :]


def dot_rows(a: Array, b: Array) -> Array:
    wide = jnp.promote_types(a.dtype, jnp.float32)
    return jnp.sum(a.astype(wide) * b.astype(wide), -1)


@form
class bilinear(Leaf):
    """query · kernel · key (Luong et al. 2015), a score function that learns.

    >>> from combinax.combinators import project
    >>> term = score(bilinear()) @ project(query=2, key=3, value=1)
    >>> term.init(jax.random.key(0), jnp.zeros((4, 5)))["score"]["kernel"].shape
    (2, 3)
    """

    def parameters(self, x: Any) -> dict[str, Parameter]:
        query, key = x
        return {"kernel": Parameter((query.shape[-1], key.shape[-1]), fan_in, ("in", "out"))}

    def apply(self, params: Mapping[str, Array], x: Any, context: Context) -> Array:
        query, key = x
        return dot(query @ params["kernel"], key)


@form
class additive(Leaf):
    """sum over h of out[h] tanh(query W + key U)[h] (Bahdanau et al. 2015), hidden width h.

    >>> additive(4).init(jax.random.key(0), (jnp.zeros((2, 3)), jnp.zeros((2, 5))))["key"].shape
    (5, 4)
    """

    hidden: int

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, hidden=self.hidden)

    def parameters(self, x: Any) -> dict[str, Parameter]:
        query, key = x
        return {
            "query": Parameter((query.shape[-1], self.hidden), fan_in, ("in", "out")),
            "key": Parameter((key.shape[-1], self.hidden), fan_in, ("in", "out")),
            "out": Parameter(
                (self.hidden,), jax.nn.initializers.normal(self.hidden**-0.5), ("in",)
            ),
        }

    def apply(self, params: Mapping[str, Array], x: Any, context: Context) -> Array:
        query, key = x
        hidden = (query @ params["query"])[:, None] + (key @ params["key"])[None, :]
        return jnp.tanh(hidden) @ params["out"]


@form
class features(Leaf):
    """φ(query) · φ(key): the score of linear attention (Katharopoulos et al. 2020).

    With `identity` or `row_sum` as the normalizer the products can be bracketed the other way.

    >>> features(pointwise(jax.nn.elu)).apply({}, (jnp.ones((1, 2)), jnp.ones((1, 2))), {})
    Array([[2.]], dtype=float32)
    """

    map: Term

    def __post_init__(self):
        if not isinstance(self.map, Leaf):
            object.__setattr__(self, "map", pointwise(self.map))

    def apply(self, params: Any, x: Any, context: Context) -> Array:
        query, key = x
        return dot(self.map.apply({}, query, context), self.map.apply({}, key, context))


# The word


@form
class score(Leaf):
    """Asks how well every query matches every key: Entries -> Scores, score (T, S).

    The score function takes a query tile (t, d) and a key tile (s, d) to (t, s): `dot`,
    `scaled_dot`, `cosine`, `distance`, `bilinear()`, `additive(h)`, `features(φ)`, your own function,
    or your own leaf on the pair of tiles, with parameters if it likes. Keywords go to the
    function: `score(scaled_dot, scale=0.1)`.

    Keys that no query sees (padding) are replaced before they are scored, so that even NaN there
    reaches nothing. Raises CompositionError where widths do not meet.

    >>> from combinax.combinators import project
    >>> term = score(scaled_dot) @ project(4)
    >>> term(term.init(jax.random.key(0), jnp.zeros((3, 2))), jnp.zeros((3, 2))).score.shape
    (3, 3)
    """

    function: Callable[..., Array] | Leaf
    options: tuple[tuple[str, Any], ...] = ()

    def __init__(self, function: Callable[..., Array] | Leaf, **options: Any):
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "options", tuple(sorted(options.items())))
        self.__post_init__()

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.function, type) or not callable(self.function):
            as_term(self.function, "score")
        if isinstance(self.function, Term) and self.options:
            raise CompositionError("score passes keywords to plain functions, not to terms")

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options)
        return f"score({reference(self.function)}{options})"

    def flow(self, kind: Any) -> Any:
        if kind is None:
            return Scores(Width(), Width(), None)
        if not isinstance(kind, Entries):
            raise CompositionError(mistaken(self, "entries", kind))
        query, key = kind.query.width, kind.key.width
        if self.function in (dot, scaled_dot, cosine, distance) and None not in (query, key):
            jax.eval_shape(
                self.function, *(jax.ShapeDtypeStruct((1, n), jnp.float32) for n in (query, key))
            )
        return Scores(Width(), kind.value, None)

    def parameters(self, x: Entries) -> dict[str, Parameter]:
        if not isinstance(x, Entries):
            raise CompositionError(mistaken(self, "entries", x))
        if isinstance(self.function, Leaf):
            return self.function.parameters((x.query, x.key))
        return {}

    def operands(self, params: Mapping[str, Array], context: Context) -> Any:
        return params

    def tile(self, operands: Any, query: Array, key: Array) -> Array:
        """One tile of scores, (t, d) and (s, d) -> (t, s), in at least float32."""
        if isinstance(self.function, Leaf):
            score = self.function.apply(operands, (query, key), {})
        else:
            score = self.function(query, key, **dict(self.options))
        if score.shape != (len(query), len(key)):
            raise CompositionError(
                f"a score function gives one number per query and key, "
                f"{(len(query), len(key))}; this one gives {show(score)}"
            )
        return score.astype(jnp.promote_types(score.dtype, jnp.float32))

    def apply(self, params: Mapping[str, Array], x: Entries, context: Context) -> Scores:
        key = x.key if x.live is None else jnp.where(x.live[:, None], x.key, 0)
        score = self.tile(self.operands(params, context), x.query, key)
        return Scores(score, x.value, x.marks, x.visible, x.live)


# Scores -> Scores


@form
class softcap(Stage):
    """cap · tanh(x / cap): keeps scores within ±cap (Gemma 2, 2024); on arrays, too.

    >>> softcap(5.0)({}, jnp.array([0.0, 1e6]))
    Array([0., 5.], dtype=float32)
    """

    cap: float

    def __post_init__(self):
        super().__post_init__()
        if not self.cap > 0:
            raise CompositionError(f"cap is a positive number, not {self.cap!r}")

    def flow(self, kind: Any) -> Any:
        return kind if isinstance(kind, Width) else super().flow(kind) if kind else None

    def tile(self, operands: Any, score: Array, marks: Marks | None) -> Array:
        return self.cap * jnp.tanh(score / self.cap)

    def apply(self, params: Any, x: Any, context: Context) -> Any:
        if isinstance(x, Scores):
            return super().apply(params, x, context)
        return self.tile((), x, None)


@form
class temperature(Stage):
    """score / t: below 1 sharpens, above 1 flattens. t is a number, `learned(())` or `read(name)`.

    >>> from combinax.combinators import learned
    >>> temperature(learned(())).inner
    learned(())
    """

    inner: float | Source

    @property
    def reads(self) -> frozenset[str]:
        return self.inner.reads if isinstance(self.inner, Source) else frozenset()

    def parameters(self, x: Any) -> dict[str, Parameter]:
        return self.inner.parameters(x) if isinstance(self.inner, Source) else {}

    def operands(self, params: Mapping[str, Array], context: Context) -> Any:
        if isinstance(self.inner, Source):
            return self.inner.apply(params, None, context)
        return self.inner

    def tile(self, operands: Any, score: Array, marks: Marks | None) -> Array:
        return score / operands


@form
class bias(Stage):
    """Adds a number to each score: Scores -> Scores.

    `what` is any function of marks, `lambda query, key: -abs(query.position - key.position)`; a
    bias of the vocabulary (`alibi`, `relative(n)`, `t5_buckets()`); or a table, `learned(shape)` or
    `read(name)`, of shape (T, S), (S,) or (), where an axis of size 1 counts for all rows.
    Give the names of context rows that a function wants with `rows`: they are then in
    `query[name]` and `key[name]`.

    Raises CompositionError for a table of another shape.

    >>> bias(alibi)
    bias(alibi)
    """

    what: Any
    rows: tuple[str, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.what, Term) and not isinstance(self.what, (Source, Bias)):
            raise CompositionError(
                f"bias takes a function of marks, learned(shape) or read(name), not {self.what!r}"
            )
        if not callable(self.what):
            as_term(self.what, "bias")

    @property
    def facts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.rows, self.rows

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        return frozenset(self.rows) | getattr(self.what, "reads", frozenset())

    def parameters(self, x: Scores) -> dict[str, Parameter]:
        return self.what.parameters(x) if isinstance(self.what, Leaf) else {}

    def operands(self, params: Mapping[str, Array], context: Context) -> Any:
        if isinstance(self.what, Source):
            return self.what.apply(params, None, context)
        return self.what.operands(params, context) if isinstance(self.what, Bias) else None

    def tile(self, operands: Any, score: Array, marks: Marks | None) -> Array:
        if isinstance(self.what, Source):
            return score + cut(operands, marks)
        if isinstance(self.what, Bias):
            return score + self.what.tile(operands, marks)
        return score + self.what(marks.query, marks.key)

    def apply(self, params: Any, x: Scores, context: Context) -> Scores:
        if isinstance(self.what, Source):
            check_table(self, self.operands(params, context), x.score)
        return super().apply(params, x, context)


def check_table(stage: Term, table: Array, score: Array) -> None:
    """A table fits if each of its axes is the table's or 1."""
    padded = (1,) * (2 - table.ndim) + table.shape
    if table.ndim > 2 or any(n not in (1, m) for n, m in zip(padded, score.shape, strict=True)):
        raise CompositionError(
            f"{stage!r} needs a table of shape {score.shape}, where an axis of size 1 counts for "
            f"all; it has shape {table.shape}. A table per head or sequence is mapped with them: "
            "heads(n, f, name=…), each(f)"
        )


def cut(table: Array, marks: Marks | None) -> Array:
    """The part of a captured (T, S) table that belongs to a tile."""
    padded = table.reshape((1,) * (2 - table.ndim) + table.shape)
    if marks is None:
        return padded
    return marks.key.take(marks.query.take(padded, 0), 1)


# Biases by position


class Bias(Leaf):
    """What `bias` adds, as a function of a tile's marks, with parameters if it likes."""

    def operands(self, params: Mapping[str, Array], context: Context) -> Any:
        return params

    def tile(self, operands: Any, marks: Marks) -> Array:
        raise NotImplementedError(f"{type(self).__name__} does not define tile")


@form
class Alibi(Bias):
    """-slope(head) · |distance| (Press et al. 2022): the farther, the lower, and linearly so.

    The slopes of n heads are `alibi_slopes(n)`; it stands inside `heads(n, …)`.
    """

    def __repr__(self) -> str:
        return "alibi"

    def operands(self, params: Any, context: Context) -> Array:
        if "head" not in context:
            raise CompositionError("alibi gives each head a slope: use it inside heads(n, …)")
        head = context["head"]
        return jnp.asarray(alibi_slopes(head.count), jnp.float32)[head.index]

    def tile(self, operands: Array, marks: Marks) -> Array:
        return -operands * jnp.abs(marks.query.position - marks.key.position)


alibi = Alibi()


def alibi_slopes(heads: int) -> np.ndarray:
    """The slope of every head: 2^(-8/n), 2^(-16/n), … for n a power of two; otherwise those of the
    next lower power, then every other one of the next higher (Press et al. 2022).

    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    lower = 2 ** int(np.log2(heads))
    powers = lambda n: 2.0 ** (-8 / n * np.arange(1, n + 1))  # noqa: E731
    return np.concatenate([powers(lower), powers(2 * lower)[::2][: heads - lower]])


@form
class relative(Bias):
    """A learned number for each distance key - query from -n to n, clipped beyond (Shaw et al. 2018).

    >>> from combinax.combinators import project
    >>> term = bias(relative(2)) @ score(dot) @ project(1)
    >>> term.init(jax.random.key(0), jnp.zeros((3, 1)))["bias"]["table"].shape
    (5,)
    """

    reach: int

    def buckets(self) -> np.ndarray:
        """The entry of the table for every distance from -reach to reach."""
        return np.arange(2 * self.reach + 1)

    def parameters(self, x: Any) -> dict[str, Parameter]:
        entries = int(self.buckets().max()) + 1
        return {"table": Parameter((entries,), jax.nn.initializers.normal(0.02), ("positions",))}

    def operands(self, params: Mapping[str, Array], context: Context) -> Array:
        return params["table"][self.buckets()]

    def tile(self, operands: Array, marks: Marks) -> Array:
        apart = marks.key.position - marks.query.position
        return operands[jnp.clip(apart, -self.reach, self.reach) + self.reach]


@form
class t5_buckets(relative):
    """A learned number for each bucket of distance (Raffel et al. 2020): the first half of the
    buckets one distance each, the others logarithmically wider up to `reach`. Without
    `bidirectional` all buckets look back, as in a decoder.

    >>> t5_buckets(8, 16, bidirectional=False).buckets()[:17].tolist()
    [7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 4, 4, 4, 3, 2, 1, 0]
    """

    count: int = 32
    reach: int = 128
    bidirectional: bool = True

    def buckets(self) -> np.ndarray:
        apart = np.arange(-self.reach, self.reach + 1)
        count = self.count // 2 if self.bidirectional else self.count
        back = np.abs(apart) if self.bidirectional else np.maximum(-apart, 0)
        exact = count // 2
        far = np.log(np.maximum(back, 1) / exact) / np.log(self.reach / exact)
        far = exact + np.floor(far * (count - exact) + 1e-9).astype(int)
        bucket = np.where(back < exact, back, np.minimum(far, count - 1))
        return bucket + (count * (apart > 0) if self.bidirectional else 0)
