"""project: an input becomes Entries, a question to a dictionary.

The two sources of keys and values are the whole difference between an attention head and an MLP:
`project` takes them from the sequence, `slots` learns them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from .core.arguments import as_term, at_least, boolean, floats, one_sequence
from .core.context import Context
from .core.dtypes import counts_as
from .core.errors import CompositionError
from .core.execution import Run
from .core.kinds import Kind, Width, show
from .core.leaf import Leaf
from .core.marks import Marks, rows_at
from .core.mesh import undivided
from .core.parameter import Parameter
from .core.printing import Write
from .core.records import Entries
from .core.term import Term, form
from .core.types import Value
from .wrappers import sums

__all__ = ["linear", "project", "slots"]

fan_in = jax.nn.initializers.lecun_normal()
fan_out = jax.nn.initializers.variance_scaling(1.0, "fan_out", "normal")


@form
class linear(Leaf):
    """`linear(m)(x)` is `x @ kernel`, a linear map to width m of the last axis: (…, d) -> (…, m).

    With `bias=True` it adds a learned vector. The input width is inferred. The kernel starts
    normal with variance 1/d (LeCun et al. 1998).

    Raises CompositionError for integers, for a width below 1, and a bias that is no boolean.

    >>> params = linear(3).init(jax.random.key(0), jnp.zeros((2, 4)))
    >>> linear(3)(params, jnp.ones((2, 4))).shape
    (2, 3)
    """

    rowwise = True

    width: int
    bias: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, width=self.width)
        boolean(self, bias=self.bias)

    def flow(self, kind: Kind) -> Kind:
        super().flow(kind)
        return Width(self.width)

    def parameters(self, x: Float[Array, "*T d"]) -> dict[str, Parameter]:
        floats(self, x)
        kernel = Parameter((x.shape[-1], self.width), fan_in, ("in", "out"))
        bias = Parameter((self.width,), jax.nn.initializers.zeros, ("out",))
        return {"kernel": kernel, "bias": bias} if self.bias else {"kernel": kernel}

    def apply(
        self, params: Mapping[str, Array], x: Float[Array, "*T d"], context: Context
    ) -> Float[Array, "*T m"]:
        y = jnp.matmul(x, params["kernel"], preferred_element_type=sums(x, context))
        return (y + params["bias"].astype(y.dtype) if self.bias else y).astype(x.dtype)


@form
class Project(Term):
    """See `project`."""

    query: Term
    key: Term
    value: Term

    word = "project"
    labels = ("query", "key", "value")

    @property
    def parts(self) -> tuple[Term, ...]:
        return self.query, self.key, self.value

    def text(self, write: Write) -> str:
        def short(term: Term) -> str:
            plain = isinstance(term, linear) and term == linear(term.width)
            return repr(getattr(term, "width", None)) if plain else write(term)

        slots = [short(part) for part in self.parts]
        if len(set(slots)) == 1:
            return f"project({slots[0]})"
        pairs = zip(self.labels, slots, strict=True)
        return f"project({', '.join(f'{label}={slot}' for label, slot in pairs)})"

    def flow(self, kind: Kind) -> Kind:
        kinds = [part.flow(kind) or Width() for part in self.parts]
        for label, got in zip(self.labels, kinds, strict=True):
            if not isinstance(got, Width):
                raise CompositionError(f"{label} of project must be an array, not {show(got)}")
        return Entries(*kinds, marks=None)

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        query, key, value = (run.part(self, i, x, context) for i in range(3))
        for label, rows in zip(self.labels, (query, key, value), strict=True):
            one_sequence(f"{label} of project", rows)
            counts_as(rows)  # complex numbers are refused here
        if key.shape[0] != value.shape[0]:
            raise CompositionError(
                f"every key needs a value; there are {key.shape[0]} keys and {value.shape[0]} "
                "values"
            )
        made = context.scope.made_inside
        marks = Marks(
            *(
                rows_at(context if part.follows(made) else Context(), rows.shape[0])
                for part, rows in ((self.query, query), (self.key, key))
            )
        )
        return Entries(query, undivided(key), undivided(value), marks)


def project(
    every: int | Term | None = None,
    *,
    query: int | Term | None = None,
    key: int | Term | None = None,
    value: int | Term | None = None,
) -> Term:
    """Three maps of the input: x -> Entries(query (T, d), key (S, d), value (S, e)).

    `project(16)` is three linear maps to width 16; `project(query=…, key=…, value=…)` names them,
    each any term, an int meaning `linear(int)`. Cross-attention reads keys and values from the
    context: `project(query=16, key=linear(16) @ read("memory"), value=linear(16) @ read("memory"))`
    (Vaswani et al. 2017).

    Raises CompositionError when keys and values differ in number, or when x is a batch.

    >>> term = project(query=2, key=2, value=3)
    >>> entries = term(term.init(jax.random.key(0), jnp.zeros((5, 4))), jnp.zeros((5, 4)))
    >>> entries.query.shape, entries.value.shape
    ((5, 2), (5, 3))
    """
    slots = (query, key, value)
    if (every is None) == (slots == (None, None, None)):
        raise CompositionError("project takes one width or term, or query=, key= and value=")
    chosen = (every,) * 3 if every is not None else slots
    for label, slot in zip(Project.labels, chosen, strict=True):
        if slot is None:
            raise CompositionError(f"project has no {label}: give query=, key= and value=")
    return Project(*(slot_term(slot) for slot in chosen))


def slot_term(slot: int | Term | None) -> Term:
    return linear(cast(int, slot)) if isinstance(slot, (int, float)) else as_term(slot, "project")


@form
class slots(Leaf):
    """`slots(n)`: a dictionary of n learned keys and values: x (T, d) -> Entries with S = n.

    The query is x itself. With `dot` and an activation this is an MLP: keys are the columns of its
    first matrix, values the rows of its second (Sukhbaatar et al. 2019; Geva et al. 2021). After
    entries, it keeps their query and offers its own keys and values, to be joined by `union`.

    Raises CompositionError for integers, a batch, or n below 1.

    >>> params = slots(8).init(jax.random.key(0), jnp.zeros((2, 4)))
    >>> params["key"].shape, params["value"].shape
    ((8, 4), (8, 4))
    """

    rowwise = True

    count: int

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, count=self.count)

    def flow(self, kind: Kind) -> Kind:
        if isinstance(kind, Entries):
            return kind
        super().flow(kind)
        return Entries(kind or Width(), kind or Width(), kind or Width(), marks=None)

    def parameters(self, x: Float[Array, "T d"] | Entries) -> dict[str, Parameter]:
        query, value = (x.query, x.value) if isinstance(x, Entries) else (x, x)
        floats(self, query)
        return {
            "key": Parameter((self.count, query.shape[-1]), fan_out, ("slots", "in")),
            "value": Parameter((self.count, value.shape[-1]), fan_in, ("slots", "out")),
        }

    def apply(
        self, params: Mapping[str, Array], x: Float[Array, "T d"] | Entries, context: Context
    ) -> Entries:
        query = x.query if isinstance(x, Entries) else x
        one_sequence("slots", query)
        marks = Marks(rows_at(context, query.shape[0]), rows_at(Context(), self.count))
        key, value = (params[name].astype(query.dtype) for name in ("key", "value"))
        return Entries(query, key, value, marks)
