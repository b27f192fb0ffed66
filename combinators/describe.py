"""describe: an execution that counts: what each stage gives, learns and costs, and what runs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from .core.arguments import as_term
from .core.check import check_numbers, entering
from .core.context import Context
from .core.declare import Declare, declare, walk
from .core.execution import Form, Repeated, SharedPart, Step
from .core.kinds import show, spec
from .core.leaf import Leaf, compute
from .core.lookup import Lookup
from .core.parameter import Declarations, Parameter, map_declared
from .core.records import Entries, Scores, Weights
from .core.term import Term
from .core.types import Value
from .description import Description, Row
from .intervals.span import is_whole
from .streaming.choose import Decision, asks, decide, inside_copies
from .streaming.linear_attention import in_part

__all__ = ["describe"]


class Describe(Declare):
    """Run a term on abstract values and note every stage in turn.

    `copies` are the sizes of the forms around, with their names: a stage inside runs as often.
    Inside a lookup of a union, `decided` says that the parts run as that lookup does.
    """

    def __init__(self, root: dict, path=(), aliases=None, rows=None, copies=(), decided=False):
        super().__init__(root, path, aliases)
        self.rows: list[Row] = [] if rows is None else rows
        self.around: tuple[tuple[str, int], ...] = copies
        self.decided = decided

    def at(self, path: tuple[str, ...], aliases: Mapping[str, str] | None = None) -> Describe:
        return Describe(self.root, path, aliases, self.rows, self.around, self.decided)

    def part(self, form: Any, index: int, x: Value, context: Context) -> Value:
        before = len(self.rows)
        y = super().part(form, index, x, context)
        path, _ = self.place(form.names[index])
        if path != self.path:
            self.head(before, form.parts[index], path, y)
        return y

    def head(self, before: int, term: Term, path: tuple[str, ...], y: Value) -> None:
        """Put a line above the stages inside a form, unless one of them stands for all of it."""
        if not any(row.depth == len(path) for row in self.rows[before:]):
            self.rows.insert(before, Row(path, head_line(term, path), gives(y)))

    def leaf(self, term: Leaf, x: Value, context: Context) -> Value:
        y = super().leaf(term, x, context)
        work, products = counts(term, self.outputs, x, context)
        learned = nbytes(map_declared(self.outputs, shaped))
        looked_at = learned if products else min(learned, size(y))  # of a table only some rows
        moved = reads(term, x) + looked_at + size(y) if work else 0
        layers = math.prod(n for name, n in self.around if name == "layers")
        stage = labelled(repr(term), term, self.path)
        row = Row(
            self.path, stage, gives(y), flops=self.times * work, bytes=self.times * size(y),
            moved=self.times * moved, products=layers * products,
        )  # fmt: skip
        self.rows.append(row)
        return y

    @property
    def times(self) -> int:
        """How often a stage here runs."""
        return math.prod(size for _, size in self.around)

    def lookup(self, form: Form, lookup: Lookup, x: Value, context: Context, step: Step) -> Value:
        at, decided = len(self.rows), self.decided
        self.decided = decided or not isinstance(x, Entries)
        y = super().lookup(form, lookup, x, context, step)
        self.decided = decided
        if asks(form, lookup, x) and not decided:
            silent = Declare(self.root, self.path, self.aliases)
            decision = decide(form, lookup, x, context, silent)
            inside = [dataclasses.replace(row, runs="") for row in self.rows[at:]]
            if decision.grid is not None and isinstance(x, Entries):
                inside = in_tiles(inside, decision, x, y, self.times)
            self.rows[at:] = [dataclasses.replace(inside[0], runs=str(decision)), *inside[1:]]
        return y

    def mapped(self, form, x, context, size, axis, given, copies) -> Value:
        self.around = (*self.around, (copies or "each", size))
        return super().mapped(form, x, inside_copies(context, size), size, axis, given, copies)

    def repeated(self, form: Repeated, x: Value, context: Context) -> Value:
        self.around = (*self.around, ("layers", form.periods))
        return super().repeated(form, x, context)

    def shared(self, form: SharedPart, x: Value, context: Context) -> Value:
        if form.across == "heads":  # what does not differ from head to head is computed once
            last = max((i for i, (n, _) in enumerate(self.around) if n == "heads"), default=0)
            self.around = self.around[:last] + self.around[last + 1 :]
        return super().shared(form, x, context)

    def everywhere(self, form: Any, x: Value, context: Context) -> Value:
        before = len(self.rows)
        y = super().everywhere(form, x, context)
        self.head(before, form.parts[0], (form.label,), y)
        self.rows[before:] = [
            dataclasses.replace(row, under=row.under + len(self.path) - 1)
            for row in self.rows[before:]
        ]
        return y


def labelled(stage: str, term: Term, path: tuple[str, ...]) -> str:
    """A stage with the name that it was given, if that is not its word."""
    place = path[-1] if path else term.name
    return stage if place.rstrip("_0123456789") == term.name else f"{place}: {stage}"


def head_line(term: Term, path: tuple[str, ...]) -> str:
    """A form without its parts: they follow, indented."""
    while term.names == ("",):
        term = term.parts[0]
    number = term.repeats or getattr(term, "count", None)
    if term.exports is not None:
        return path[-1]
    return labelled(f"{term.name} × {number}" if number else term.name, term, path)


def shaped(parameter: Parameter) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(parameter.shape, parameter.dtype)


def counts(term: Leaf, declared: Declarations, x: Value, context: Context) -> tuple[float, int]:
    """The FLOPs of one run of a leaf, as XLA counts them before it optimises, and its products."""
    params = map_declared(declared, shaped)
    leaves, tree = jax.tree.flatten((params, spec(x), spec(context)))
    return counted_once(term, tuple(leaves), tree, jnp.result_type(float))


@lru_cache(maxsize=4096)
def counted_once(term: Leaf, leaves: tuple, tree: Any, _float_type: Any) -> tuple[float, int]:
    def run(params, x, context):
        return compute(term, params, x, context, ())

    lowered = jax.jit(run).lower(*jax.tree.unflatten(tree, leaves))
    analysis = lowered.cost_analysis() or {}
    return analysis.get("flops", 0.0), lowered.as_text().count("stablehlo.dot_general")


def reads(term: Leaf, x: Value) -> int:
    """The bytes of x that a stage reads: of a record only its part."""
    match x:
        case Entries(query=query, key=key):
            x = {} if term.role == "masks" else (query, key)
        case Scores(score=score):
            x = score
        case Weights(weight=weight, value=value):
            x = weight, value
    return nbytes(x)


def in_tiles(rows: list[Row], decision: Decision, x: Entries, y: Any, times: int) -> list[Row]:
    """The rows of a lookup that streams: one program that holds no table.

    It reads queries and writes answers once, and reads keys and values once for each tile in which
    they are asked. Where sums of keys stand for full tiles, these are made and asked once.
    """
    grid: Any = decision.grid
    queries, keys, d, e = len(x.query), len(x.key), x.query.shape[-1], x.value.shape[-1]
    summed = decision.stream.features is not None
    tiles = (in_part(grid) if summed else grid).tiles if grid.known else grid.plan.size
    entry = nbytes((x.key, x.value)) / keys
    asked = tiles * grid.block[1] + keys * summed
    moved = nbytes((x.query, y)) + entry * asked
    sums = 2 * (queries + keys) * d * e if summed else 0
    share = min(1.0, tiles * grid.area / (queries * keys))
    first, *rest = (dataclasses.replace(row, flops=row.flops * share, moved=0.0) for row in rows)
    first = dataclasses.replace(first, flops=first.flops + times * sums, moved=times * moved)
    return [first, *rest]


def made(value: Value) -> dict[str, Value]:
    """What a stage made, by name: of a record only the part that is new."""
    match value:
        case Entries(query=query, key=key, value=mixed, visible=None):
            return {"query": query, "key": key, "value": mixed}
        case Entries(visible=visible):
            return {"visible": visible}
        case Scores(score=score):
            return {"scores": score}
        case Weights(weight=weight):
            return {"weights": weight}
    return {"": value}


def gives(value: Value) -> str:
    """What a stage made, in a few words."""
    parts = made(value)
    if len(parts) > 1:
        return f"{len(value.key)} entries"
    ((name, part),) = parts.items()
    return f"{name} {show(spec(part)).removesuffix(' bool')}".strip()


def size(value: Value) -> int:
    """The bytes of what a stage made."""
    return nbytes(made(value))


def nbytes(value: Value) -> int:
    """The bytes of all arrays in a value."""
    leaves = jax.tree.leaves(spec(value))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def describe(term: Term, x: Value, /, **names: Value) -> Description:
    """The table of a term on an input: for every stage, in the order in which they run, what it
    gives, its parameters, its FLOPs, the bytes of what it gives (all copies, layers and rows
    together), and for every lookup what runs. x and the context may be abstract; integers and
    truths in the context that are not tell which blocks a stream visits.

    Raises what `term.init` raises.

    >>> from combinax.combinators import linear, rms_norm
    >>> print(describe(linear(3) @ rms_norm(), jax.ShapeDtypeStruct((2, 4), "float32")))
    stage      gives  learned FLOPs bytes runs
    rms_norm() (2, 4)       4    34    32
    linear(3)  (2, 3)      12    48    24
    total                  16    82    56
    """
    check_numbers("describe", x)
    declared, y = declare(as_term(term, "describe"), x, names)
    run = Describe({})
    x, names = entering(term, x, names)
    known, unknown = known_facts(names)
    jax.eval_shape(
        lambda x, context: term.wire(run, x, context | known), spec(x), spec(Context(unknown))
    )
    if term.exports is None and not any(row.depth == 0 for row in run.rows):
        run.rows.insert(0, Row((), head_line(term, ()), gives(y)))
    return Description(tuple(counted(run.rows, declared)))


def known_facts(names: Mapping[str, Value]) -> tuple[dict[str, Array], dict[str, Value]]:
    """What masks may be asked about, as arrays that are known; and the rest of a context."""

    def is_known(value: Value) -> bool:
        array = isinstance(value, (int, np.ndarray, np.generic, jax.Array))
        return array and not isinstance(value, Tracer) and is_whole(jnp.result_type(value))

    known = {name: jnp.asarray(value) for name, value in names.items() if is_known(value)}
    return known, {name: value for name, value in names.items() if name not in known}


def counted(rows: list[Row], declared: Declarations) -> list[Row]:
    """The rows with the parameters that lie at their paths, each counted where it stands first."""
    sizes: Counter[tuple[str, ...]] = Counter()
    for path, parameter in walk(declared):
        around = (row.path for row in rows if row.path == path[: len(row.path)])
        sizes[max(around, key=len, default=())] += math.prod(parameter.shape)
    return [dataclasses.replace(row, parameters=sizes.pop(row.path, 0)) for row in rows]
