"""Forms around one term: where its parameters and its context come from, and in what precision."""

from __future__ import annotations

from functools import cached_property

import jax.numpy as jnp
from jax import Array

from .core.arguments import as_term
from .core.context import Context, Precision
from .core.dtypes import numbered, wide
from .core.errors import CompositionError
from .core.execution import Run
from .core.guards import as_place, unread
from .core.kinds import Kind
from .core.printing import Write, equation
from .core.term import Export, Term, form
from .core.types import Value

__all__ = ["given", "named", "precision", "shared"]


class Wrapper(Term):
    """A form around one part, transparent to names: its parameters lie where the part's would."""

    term: Term

    @property
    def parts(self) -> tuple[Term, ...]:
        return (self.term,)

    @property
    def names(self) -> tuple[str, ...]:
        return ("",)

    @property
    def name(self) -> str:
        return self.term.name

    @property
    def exports(self) -> tuple[Export, ...] | None:
        return self.term.exports

    @property
    def constant(self) -> bool:
        return self.term.constant

    @property
    def mapped_axes(self) -> int:
        return self.term.mapped_axes

    def flow(self, kind: Kind) -> Kind:
        return self.term.flow(kind)


@form
class named(Wrapper):
    """The same term, its parameters under a name of your choice.

    >>> from combinax.combinators import linear
    >>> list((linear(2) @ named("first", linear(3))).init(jax.random.key(0), jnp.zeros((1, 4))))
    ['first', 'linear']
    """

    label: str
    term: Term
    given = True

    @property
    def names(self) -> tuple[str, ...]:
        return (self.label,)

    @property
    def exports(self) -> tuple[Export, ...]:
        return (Export(self.label, self.label, True),)

    def text(self, write: Write) -> str:
        if write is equation:
            return f"({self.label}: {equation(self.term)})"
        return super().text(write)

    def __post_init__(self):
        as_term(self.term, "named")
        as_place(self.label, "named")
        super().__post_init__()

    @property
    def name(self) -> str:
        return self.label

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        return run.part(self, 0, x, context)


@form
class Shared(Wrapper):
    """See `shared`."""

    term: Term
    across: str

    word = "shared"

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        return run.shared(self, x, context)


@form
class Everywhere(Wrapper):
    """See `shared`."""

    term: Term
    label: str

    @property
    def exports(self) -> None:
        return None

    def text(self, write: Write) -> str:
        return f"shared({write(self.term)}, name={self.label!r})"

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        return run.everywhere(self, x, context)


def shared(term: Term, across: str = "", *, name: str = "") -> Term:
    """One parameter set for all copies (across="heads"), all layers (across="layers"), or all
    places of one name (name=…).

    Across heads, vmap computes what does not differ once: keys and values shared by a group of
    heads are grouped-query attention (Ainslie et al. 2023). Under a name the parameters stand at
    the top of the tree, once.

    Raises CompositionError unless exactly one of the three is asked for.

    >>> from combinax.combinators import heads, linear
    >>> term = heads(3, linear(2) @ shared(linear(4), across="heads"))
    >>> params = term.init(jax.random.key(0), jnp.zeros((1, 4)))
    >>> params["linear"]["kernel"].shape, params["linear_2"]["kernel"].shape
    ((4, 4), (4, 3, 2))
    """
    as_term(term, "shared")
    if bool(across) == bool(name) or across not in ("", "heads", "layers"):
        raise CompositionError('shared takes across="heads", across="layers", or name="…"')
    return Everywhere(term, as_place(name, "shared")) if name else Shared(term, across)


@form
class Given(Term):
    """See `given`."""

    term: Term
    sources: tuple[tuple[str, Term], ...]

    word = "given"

    @property
    def parts(self) -> tuple[Term, ...]:
        return (self.term, *(term for _, term in self.sources))

    @property
    def labels(self) -> tuple[str | None, ...]:
        return (None, *(name for name, _ in self.sources))

    def text(self, write: Write) -> str:
        sources = ", ".join(f"{name}={write(term)}" for name, term in self.sources)
        return f"given({write(self.term)}, {sources})"

    @cached_property
    def reads(self) -> frozenset[str]:
        inner = self.term.reads - {name for name, _ in self.sources}
        return inner.union(*(term.reads for _, term in self.sources))

    def flow(self, kind: Kind) -> Kind:
        for _, source in self.sources:
            source.flow(kind)
        return self.term.flow(kind)

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        values = {
            name: run.part(self, i, x, context) for i, (name, _) in enumerate(self.sources, 1)
        }
        inside = (context | numbered(values, self.term.row_facts)).within(
            made_inside=self.made(context.scope.made_inside)
        )
        return run.part(self, 0, x, inside)

    def made(self, before: frozenset[str]) -> frozenset[str]:
        """The names whose rows are made of rows of the sequence, from those around the term."""
        ours = {name for name, source in self.sources if source.follows(before)}
        return before - {name for name, _ in self.sources} | ours


def given(term: Term, /, **sources: Term) -> Term:
    """`given(f, x=g)` runs g on the same input and passes what it gives to f as context x.

    Rows that g makes of rows of the sequence stand at their positions.

    An encoder-decoder (Vaswani et al. 2017) is
    `given(decoder @ pick(1), memory=encoder @ pick(0))`.

    Raises CompositionError for a name that f does not read.

    >>> given(read("twice"), twice=2.0 * lift(jnp.sin))({}, jnp.zeros(1))
    Array([0.], dtype=float32)
    """
    as_term(term, "given")
    for name, source in sources.items():
        as_term(source, "given")
        if name not in term.reads:
            raise unread(f"given passes {name!r} to", name, term, term.reads)
    return Given(term, tuple(sources.items()))


@form
class precision(Wrapper):
    """A term in chosen number types: `compute` for activations, `params` for what init makes,
    `sums` for norms and products, at least float32 if not given.

    Mixed precision (Micikevicius et al. 2018) is `precision(f, compute="bfloat16")`: parameters
    stay float32 and are rounded where they are used, and so is context that is computed with; what
    comes out has the compute type. The module `dtypes` says which types each word takes and gives.

    Raises CompositionError for a name that is not a float type.

    >>> from combinax.combinators import linear
    >>> term, x = precision(linear(2), compute="bfloat16"), jnp.ones((1, 3))
    >>> params = term.init(jax.random.key(0), x)
    >>> params["kernel"].dtype, term(params, x).dtype
    (dtype('float32'), dtype(bfloat16))
    """

    term: Term
    compute: str = ""
    params: str = ""
    sums: str = ""

    def __post_init__(self):
        as_term(self.term, "precision")
        super().__post_init__()
        for field in ("compute", "params", "sums"):
            name = getattr(self, field)
            name = name if isinstance(name, str) else jnp.dtype(name).name
            if name and not (
                hasattr(jnp, name) and jnp.issubdtype(getattr(jnp, name), jnp.floating)
            ):
                raise CompositionError(
                    f"precision takes float types such as 'bfloat16', not {name!r}"
                )
            object.__setattr__(self, field, name)

    def wire(self, run: Run, x: Value, context: Context) -> Value:
        outer = context.scope.precision
        policy = Precision(
            self.compute or outer.compute, self.params or outer.params, self.sums or outer.sums
        )
        return run.part(self, 0, policy.cast(x), context.within(precision=policy))


def sums(x: Array, context: Context) -> jnp.dtype:
    """The type in which sums over x run: at least float32, or what `precision` asks for."""
    return wide(x, context.scope.precision.sums or jnp.float32)
