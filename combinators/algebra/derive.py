"""simplify and derive: chains of equations from one term to another, with what each step costs."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..core.apply import from_numpy
from ..core.arguments import as_term
from ..core.check import check_names, fit
from ..core.declare import declare, walk
from ..core.errors import CompositionError, brief
from ..core.parameter import plain
from ..core.term import Term
from ..core.types import Params, Value
from ..laws import LAWS
from ..laws import law as law_called
from ..rules.law import Law
from .cost import CPU, Cost, Machine, cost
from .derivation import Derivation, Step
from .rewrite import Direction, Program, Refused, Rewrite, applied, directions, rewrites

__all__ = ["Derivation", "Step", "derive", "simplify"]

EXPANSIONS = 200
"""Terms from which a search for a target looks further before it gives up."""

DETOUR = 12
"""Words that a term on the way may have beyond those of the longer end of the chain."""


def simplify(
    term: Term, params: Mapping[str, Value], x: Value, /, machine: Machine = CPU,
    laws: Iterable[Law] = LAWS, **context: Value,
) -> Derivation:  # fmt: skip
    """The same function at less cost: `term, params = simplify(term, params, x)`.

    Applies, one at a time, the law that saves the most time on a `machine`, alone or followed by a
    second one at the same place; where no time is saved, a law that leaves fewer parameters or
    words; until none does. x and the context may be abstract: they give the shapes on which costs
    depend. What it did is in the derivation, which prints. Layers stay stacked or unstacked.

    Raises what `term.init` raises, and ParameterError for parameters of another term.

    >>> from combinax.combinators import linear
    >>> term, x = linear(2) @ linear(50), jnp.ones((5, 4))
    >>> simplify(term, term.init(jax.random.key(0), x), x).term
    linear(2)
    """
    program, sight = entered("simplify", term, params, x, machine, context)
    both = directions(laws)
    return followed(program, sight, both, cheapest(term, sight, both))


def derive(
    term: Term, params: Mapping[str, Value], x: Value, /, to: Term | None = None,
    by: Iterable[str | Law] = (), machine: Machine = CPU, laws: Iterable[Law] = LAWS,
    **context: Value,
) -> Derivation:  # fmt: skip
    """The chain of equations from a term to another one, `to`, or by the laws named in `by`.

    Each step tells its law, what it changed, the change of cost, and, where x is no abstract value,
    the largest difference from the output of the first term. Without `to` and `by` the chain is
    that of `simplify`.

    Raises CompositionError where no chain of laws leads to the target, or a law does not apply: the
    text says at which stage which condition failed.

    >>> from combinax.combinators import linear
    >>> term, x = linear(2) @ linear(3), jnp.ones((5, 4))
    >>> print(derive(term, term.init(jax.random.key(0), x), x, to=linear(2)))
      linear(2) ∘ linear(3)
    = linear(2)
        product: linear ∘ linear = linear at linear
        FLOPs 180 → 80, bytes 312 → 152, products 2 → 1, time 15.6 ns → 7.6 ns
        largest difference ...
    """
    program, sight = entered("derive", term, params, x, machine, context)
    both = directions(laws)
    if to is not None:
        chain = searched(term, as_term(to, "derive"), sight, both)
    else:
        named = [law_called(name) if isinstance(name, str) else name for name in by]
        chain = in_turn(term, named, sight) if named else cheapest(term, sight, both)
    return followed(program, sight, both, chain, measured=not is_abstract((x, context)))


# Chains are planned on terms alone, and parameters are moved once


@dataclasses.dataclass(frozen=True, eq=False)
class Sight:
    """The shapes and prices, on a machine, that a plan reads beside a term."""

    x: Value
    context: Mapping[str, Value]
    machine: Machine

    def steps(self, term: Term, laws: Iterable[Direction]) -> list[Rewrite | Refused]:
        return [*rewrites(term, declare(term, self.x, self.context)[0], laws)]

    def price(self, term: Term) -> Cost:
        return cost(term, self.x, self.machine, **self.context)

    def worth(self, term: Term) -> tuple[float, int]:
        """The measure that `simplify` lowers: seconds to nine digits, then parameters and words."""
        declared = declare(term, self.x, self.context)[0]
        count = sum(math.prod(parameter.shape) for _, parameter in walk(declared))
        return float(f"{self.price(term).seconds:.9g}"), count + words(term).total()


def entered(
    where: str, term: Term, params: Params, x: Value, machine: Machine, context: Mapping[str, Value]
) -> tuple[Program, Sight]:
    """A term with parameters that are checked, and what a plan sees."""
    check_names(as_term(term, where), ("machine", "laws", "to", "by"), where)
    program = Program(term, jax.tree.map(from_numpy, plain(params)), x, context)
    fit(term, program.declared, program.params)
    return program, Sight(x, context, machine)


def cheapest(term: Term, sight: Sight, laws: list[Direction]) -> list[Rewrite]:
    """Rewrites that each save time, the one that saves most first, until none does."""
    useful = [direction for direction in laws if saves(direction)]
    chain: list[Rewrite] = []
    while found := saving(term, sight, useful):
        chain += found
        term = chain[-1].term
    return chain


def saves(direction: Direction) -> bool:
    """Whether a law may cost less in this direction."""
    side = direction.law.cheaper
    return side == "by size" or side == ("left" if direction.backwards else "right")


def saving(term: Term, sight: Sight, laws: list[Direction]) -> list[Rewrite]:
    """The rewrite that saves the most, time before parameters and words; if none saves any, two
    that do so together; or nothing."""
    now = sight.worth(term)
    single = [[one] for one in applicable(sight.steps(term, laws))]
    double = (
        [one, two]
        for (one,) in single
        for two in applicable(sight.steps(one.term, laws))
        if two.path[: len(one.path) - 1] == one.path[:-1] and two.term != term
    )
    for chains in (single, double):
        priced = [(sight.worth(chain[-1].term), chain) for chain in chains]
        better = [(w, chain) for w, chain in priced if w[0] < now[0] or (w < now and tidy(chain))]
        if better:
            return min(better, key=lambda pair: pair[0])[1]
    return []


def tidy(chain: list[Rewrite]) -> bool:
    """Whether the laws of a chain cost less on their right side, whatever the sizes."""
    return all(one.direction.law.cheaper == "right" for one in chain)


def applicable(found: Iterable[Rewrite | Refused]) -> list[Rewrite]:
    return [one for one in found if isinstance(one, Rewrite)]


def in_turn(term: Term, laws: Iterable[Law], sight: Sight) -> list[Rewrite]:
    """One rewrite by each of the laws, at the first place where it applies."""
    chain: list[Rewrite] = []
    for one in laws:
        found = sight.steps(term, directions([one]))
        chosen = applicable(found)
        if not chosen:
            refused = "; ".join(dict.fromkeys(str(f) for f in found))
            where = f"it fits no stage of {brief(repr(term))}"
            raise CompositionError(refused or f"{one.statement} does not apply: {where}")
        chain.append(chosen[0])
        term = chosen[0].term
    return chain


def searched(term: Term, target: Term, sight: Sight, laws: list[Direction]) -> list[Rewrite]:
    """The rewrites that lead to a target: first from the terms that are most like it."""
    wanted, count = words(target), itertools.count()
    open_: list[tuple[int, int, Term, list[Rewrite]]] = [(0, next(count), term, [])]
    known, refused = {term}, dict[str, None]()
    longest = max(wanted.total(), words(term).total()) + DETOUR  # some laws lengthen without end
    for _ in range(EXPANSIONS):
        if not open_:
            break
        _, _, term, chain = heapq.heappop(open_)
        if term == target:
            return chain
        for found in sight.steps(term, laws):
            if isinstance(found, Refused):
                refused[str(found)] = None
            elif found.term not in known and (has := words(found.term)).total() <= longest:
                known.add(found.term)
                key = (wanted - has).total() + (has - wanted).total() + len(chain)
                heapq.heappush(open_, (key, next(count), found.term, [*chain, found]))
    why = "".join(f"\n  {reason}" for reason in [*refused][:3])
    raise CompositionError(
        f"no chain of laws was found to {brief(repr(target))}, among {len(known)} terms" + why
    )


def words(term: Term) -> Counter[str]:
    """How often each leaf and each form stands in a term."""
    own = type(term).__name__ if term.parts else repr(term)
    return sum(map(words, term.parts), Counter([own]))


def followed(
    program: Program, sight: Sight, laws: list[Direction], chain: list[Rewrite],
    measured: bool = False,
) -> Derivation:  # fmt: skip
    """The derivation of a chain, with the parameters moved along."""
    first, before, steps = program.term, outputs(program) if measured else [], []
    for found in chain:
        program = applied(found, program)
        error = largest_difference(before, outputs(program)) if measured else None
        price = sight.price(found.term)
        steps.append(
            Step(str(found.direction), found.direction.law.statement, "/".join(found.path),
                 found.before, found.after, found.term, price, error)
        )  # fmt: skip
    useful = [direction for direction in laws if saves(direction)]
    refused = [str(f) for f in sight.steps(program.term, useful) if isinstance(f, Refused)]
    unique = tuple(dict.fromkeys(refused))
    return Derivation(first, sight.price(first), tuple(steps), *program[:2], unique)


def is_abstract(value: Value) -> bool:
    """Whether a value has shapes but no numbers."""
    kinds = jax.ShapeDtypeStruct, Tracer
    return any(isinstance(leaf, kinds) for leaf in jax.tree.leaves(value))


def outputs(program: Program) -> list[Any]:
    term, params, x, context = program
    return jax.tree.leaves(term(params, x, **context))


def largest_difference(one: list[Any], other: list[Any]) -> float:
    """The largest difference of two outputs, number by number."""
    pairs = zip(one, other, strict=True)
    return max((float(jnp.max(jnp.abs(a - b), initial=0)) for a, b in pairs), default=0.0)
