"""Where vectors come from: a table of tokens, which may score the vectors that come out too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer, max_dim
from jaxtyping import Float, Int

from .core.arguments import as_term, at_least
from .core.context import Context
from .core.errors import CompositionError
from .core.execution import Run
from .core.kinds import Kind, Width, show, symbolic
from .core.leaf import Leaf
from .core.marks import Range
from .core.mesh import entries_at
from .core.parameter import Parameter
from .core.printing import Write
from .core.term import Term, form
from .core.types import Value
from .wrappers import sums

__all__ = ["embed", "tied"]

small_normal = jax.nn.initializers.normal(0.02)


def looked_up(
    table: Float[Array, "n d"], index: Int[Array, "*T"] | Range, what: str
) -> Float[Array, "*T d"]:
    """Rows of a table. Past its ends: an error where the index is known, NaN where it is traced."""
    if isinstance(index, Range):
        check_inside(what, index.start, index.stop - 1, len(table))
        return jax.lax.slice_in_dim(table, index.start, index.stop)
    if not isinstance(index, Tracer) and index.size:
        known = np.asarray(index)
        check_inside(what, known.min(), known.max(), len(table))
    index = index.astype(jnp.int32) if index.dtype.itemsize < 4 else index
    inside = jnp.where(index < 0, len(table), index)
    return entries_at(jnp.asarray(table), inside, mode="fill", fill_value=jnp.nan)


def check_inside(what: str, low: int, high: int, size: int) -> None:
    if low < 0:
        raise CompositionError(f"{what} {low} is before the start of a table of {size}")
    if symbolic((high,)) and max_dim(high, size - 1) != size - 1:
        raise CompositionError(
            f"{what} {high} may be past a table of {size}: say that it is not where the symbol is "
            f'made, jax.export.symbolic_shape("t", constraints=["t <= {size}"])'
        )
    if high >= size:
        raise CompositionError(f"{what} {high} is past a table of {size}")


@form
class embed(Leaf):
    """`embed(n, d)` looks tokens up in a table of n rows: integers (T,) -> (T, d).

    The table starts normal with deviation 0.02 (Radford et al. 2019). A token past the table is
    an error where its value is known; inside jit, where nothing can be raised, it gives NaN,
    never another token's row.

    Raises CompositionError for floats and for tokens past the table.

    >>> params = embed(8, 2).init(jax.random.key(0), jnp.array([1, 2]))
    >>> embed(8, 2)(params, jnp.array([1, 2, 2])).shape
    (3, 2)
    """

    rowwise = True

    vocabulary: int
    width: int

    def __post_init__(self):
        super().__post_init__()
        at_least(1, self, vocabulary=self.vocabulary, width=self.width)

    def flow(self, kind: Kind) -> Kind:
        super().flow(kind)
        return Width(self.width)

    def parameters(self, x: Int[Array, "*T"]) -> dict[str, Parameter]:
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise CompositionError(f"embed takes integers and gets {show(x)}")
        axes = ("vocabulary", "out")
        return {"table": Parameter((self.vocabulary, self.width), small_normal, axes)}

    def apply(
        self, params: Mapping[str, Array], x: Int[Array, "*T"], context: Context
    ) -> Float[Array, "*T d"]:
        return looked_up(params["table"], jnp.asarray(x), "token")


@form
class Unembed(Leaf):
    """Scores each token of an embedding's table: (T, d) -> (T, vocabulary)."""

    rowwise = True

    embed: embed

    word = "unembed"

    @property
    def name(self) -> str:
        return "embed"

    def parameters(self, x: Float[Array, "*T d"]) -> dict[str, Parameter]:
        if x.shape[-1] != self.embed.width:
            raise CompositionError(
                f"tied scores vectors with the table of {self.embed!r}, so the body has to end "
                f"with width {self.embed.width}; it ends with {x.shape[-1]}"
            )
        axes = ("vocabulary", "out")
        return {"table": Parameter((self.embed.vocabulary, self.embed.width), small_normal, axes)}

    def apply(
        self, params: Mapping[str, Array], x: Float[Array, "*T d"], context: Context
    ) -> Float[Array, "*T vocabulary"]:
        contracted = ((x.ndim - 1,), (1,)), ((), ())  # the table as it lies: no step transposes it
        logits = jax.lax.dot_general(
            x, params["table"], contracted, preferred_element_type=sums(x, context)
        )
        return logits.astype(x.dtype)


@form
class Tied(Term):
    """See `tied`."""

    embed: embed
    body: Term

    word = "tied"

    def __post_init__(self):
        super().__post_init__()
        self.flow(None)

    @property
    def parts(self) -> tuple[Term, ...]:
        return self.embed, self.body

    def text(self, write: Write) -> str:
        return f"tied({write(self.embed)}, {write(self.body)})"

    def flow(self, kind: Kind) -> Kind:
        after = self.body.flow(self.embed.flow(kind))
        if isinstance(after, Width) and after.width not in (None, self.embed.width):
            raise CompositionError(
                f"tied scores vectors with the table of {self.embed!r}, so the body has to end "
                f"with width {self.embed.width}; it ends with {after.width}"
            )
        return Width(self.embed.vocabulary)

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        x = run.part(self, 0, x, context)
        x = run.part(self, 1, x, context)
        return Unembed(self.embed).wire(run.enter(self.names[0]), x, context)


def tied(embedding: Term, body: Term) -> Term:
    """`tied(embed(n, d), body)` is unembed ∘ body ∘ embed with one table: tokens -> logits.

    The same table that turns tokens into vectors scores the vectors that come out (Press and
    Wolf 2017): one leaf, whose gradient is the sum of both uses.

    Raises CompositionError unless the body gives back the width of the embedding.

    >>> from combinax.combinators import rms_norm
    >>> term = tied(embed(8, 4), rms_norm())
    >>> term(term.init(jax.random.key(0), jnp.array([1])), jnp.array([1, 2])).shape
    (2, 8)
    """
    if not isinstance(as_term(embedding, "tied"), embed):
        raise CompositionError(f"tied takes embed(vocabulary, width) first, not {embedding!r}")
    return Tied(cast(embed, embedding), as_term(body, "tied"))
