"""How the weights of others lie in a file, as data: one line for each of their names.

    output.dense.weight   transposed   dictionary/slots/value

is their name, a law, and our path. Where a line has several paths, the file has their arrays side
by side on the last axis (merged projections); where a name has `{}`, the number of a layer, our
arrays are stacked. Every law can be read both ways, so one table loads and saves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from ..combinators import ParameterError
from .disk import shown

__all__ = ["Layout", "Rule", "Source", "Stored", "from_theirs", "rules", "to_theirs"]

Shape = tuple[int, ...]
FLOATS = ("float32", "float16", "bfloat16", "float64")
LISTED = 12
"""How many names an error lists: those of one layer."""


class Stored(NamedTuple):
    """An array of a file: its shape, its type by NumPy's name or else the file's own, and a
    function that reads it."""

    shape: Shape
    dtype: str
    read: Callable[[], np.ndarray]
    file: Path


Source = Mapping[str, Stored]
"""The arrays of a file by name."""


class Law(NamedTuple):
    """An array as it lies with us and in a file: two functions, each the other's inverse.

    `read(array, shape)` gives our array, of that shape; `write(array)` theirs.
    """

    read: Callable[[Any, Shape], Any]
    write: Callable[[Any], Any]


LAWS = {
    # one number for each of what comes out, heads one after the other
    "vector": Law(lambda a, shape: a.reshape(shape), lambda a: a.reshape(-1)),
    # a row for each of what goes in
    "matrix": Law(lambda a, shape: a.reshape(shape), lambda a: a.reshape(len(a), -1)),
    # a row for each of what comes out
    "transposed": Law(lambda a, shape: a.T.reshape(shape), lambda a: a.reshape(len(a), -1).T),
}


class Rule(NamedTuple):
    """A law, and the paths of our arrays that lie side by side under one name."""

    law: Law
    paths: tuple[str, ...]

    def read(self, array: np.ndarray, shapes: list[Shape]) -> list[np.ndarray]:
        """Ours, of these shapes, from theirs."""
        parts = np.split(array, len(shapes), -1)
        return [self.law.read(part, shape) for part, shape in zip(parts, shapes, strict=True)]

    def write(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Theirs from ours."""
        # safetensors writes in the order of memory, whatever the strides say.
        return np.ascontiguousarray(np.concatenate([self.law.write(a) for a in arrays], -1))

    def shape(self, shapes: list[Shape]) -> Shape:
        """The shape of their array."""
        ours = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        theirs = [jax.eval_shape(self.law.write, array).shape for array in ours]
        return (*theirs[0][:-1], sum(shape[-1] for shape in theirs))


class Layout(NamedTuple):
    """The rules of a model by their names.

    `prefix` begins the names of the backbone, except where a file holds the backbone alone, which
    `bare` says of this model. `ignored` is a pattern of names that hold nothing learned by it,
    `tied` names arrays that a file may repeat: each has to equal the other.
    """

    rules: Mapping[str, Rule]
    prefix: str
    bare: bool = False
    ignored: str = "(?!)"
    tied: Mapping[str, str] = MappingProxyType({})

    def written(self, name: str) -> str:
        """A name as transformers writes it for this model."""
        return name.removeprefix(self.prefix) if self.bare else name

    def found(self, source: Source, names: Collection[str]) -> dict[str, str]:
        """Which name of a file stands for each of these, with the prefix or without.

        Raises ParameterError for two names of one array, and lists names that are missing or left
        over.
        """
        known = {name.removeprefix(self.prefix): name for name in (*names, *self.tied)}
        known |= {name: name for name in (*names, *self.tied)}
        found, more = {}, []
        for name in source:
            if (full := known.get(modern(name))) is None:
                more.append(name)
            elif full in found:
                raise ParameterError(
                    f"{shown(found[full])} and {shown(name)} are two names of one array"
                )
            else:
                found[full] = name
        ignored = re.compile(self.ignored)
        missing = [name for name in names if name not in found]
        complain("of this model are not in the file", missing)
        complain(
            "of the file are none of this model's",
            [name for name in more if not ignored.fullmatch(name.removeprefix(self.prefix))],
        )
        return found


def modern(name: str) -> str:
    """A name as it is written today: BERT's norms had gamma and beta.

    >>> modern("embeddings.LayerNorm.gamma")
    'embeddings.LayerNorm.weight'
    """
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def rules(theirs: str, ours: str, table: str) -> dict[str, Rule]:
    """The rules of a table, one a line: a name, a law, paths. They continue `theirs` and `ours`.

    >>> rules("wte.", "embed/", "weight  matrix  table")["wte.weight"].paths
    ('embed/table',)
    """
    lines = (line.split() for line in table.strip().splitlines())
    return {
        theirs + name: Rule(LAWS[law], tuple(ours + path for path in paths))
        for name, law, *paths in lines
    }


def per_layer(name: str, layers: int) -> dict[str, Any]:
    """The names that a rule's stands for, and where in our stacked arrays each lies."""
    return {name.format(i): i for i in range(layers)} if "{}" in name else {name: ...}


def from_theirs(
    layout: Layout, source: Source, declared: Mapping[str, Any], dtype: Any = "float32"
) -> dict[str, Any]:
    """Our parameters from the arrays of a file, each read once and put into its place.

    `declared` is the tree of `term.init`, arrays or abstract. Names, shapes and types are compared
    before any array is made, so that a model takes no more memory than its file has numbers.
    Raises ParameterError that lists what is missing, what is left over, or what has another shape
    or no floats, and for a `dtype` that is none of floats or in which a number is infinite.
    """
    kind = float_type(dtype)
    flat: dict[str, Any] = flatten_dict(dict(declared), sep="/")
    shapes = {path: leaf.shape for path, leaf in flat.items()}
    named = {name: per_layer(name, shapes[rule.paths[0]][0]) for name, rule in layout.rules.items()}
    found = layout.found(source, [full for names in named.values() for full in names])
    for name, rule in layout.rules.items():
        for full, at in named[name].items():
            needed = rule.shape([one(shapes[path], at) for path in rule.paths])
            check_stored(full, source[found[full]], needed)
    for copy, table in layout.tied.items():
        if copy in found:
            check_equal(copy, table, source[found[copy]], source[found[table]])
    params = {}
    for name, rule in layout.rules.items():
        ours = [unwritten(shapes[path], kind) for path in rule.paths]
        for full, at in named[name].items():
            theirs, parts = source[found[full]].read(), [array[at] for array in ours]
            read = rule.read(theirs, [part.shape for part in parts])
            for part, value in zip(parts, read, strict=True):
                write(full, part, value)
        params |= zip(rule.paths, map(jax.device_put, ours), strict=True)
    return unflatten_dict(params, sep="/")


def float_type(dtype: Any) -> Any:
    """The type of parameters, float32 for float64 where jax has no 64 bits.

    Raises ParameterError for a type that is none of floats.
    """
    try:
        kind = jnp.dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or not jnp.issubdtype(kind, jnp.floating):
        raise ParameterError(f"parameters are floats, such as 'bfloat16', not {dtype!r}")
    return jax.dtypes.canonicalize_dtype(kind)


def one(shape: Shape, at: Any) -> Shape:
    """The shape of what lies at an index of a stacked array, or of the whole one."""
    return shape if at is ... else shape[1:]


def check_stored(name: str, stored: Stored, needed: Shape) -> None:
    """An array of a file has the shape that a model needs, and holds floats."""
    if stored.shape != needed:
        raise ParameterError(f"{name} has shape {stored.shape}, and this model needs {needed}")
    if stored.dtype in FLOATS:
        return
    if stored.dtype.startswith("F"):
        raise ParameterError(
            f"{str(stored.file)!r} has {name} in {stored.dtype}, which is not read: save it in 16 "
            "or 32 bits"
        )
    raise ParameterError(
        f"{name} holds {stored.dtype}, and parameters are floats: weights in codes are read from "
        "GGUF alone"
    )


def check_equal(copy: str, table: str, first: Stored, second: Stored) -> None:
    """An array that a configuration ties to another is that other, where a file has both."""
    same = first.shape == second.shape and np.array_equal(first.read(), second.read())
    if not same:
        raise ParameterError(
            f"{copy} is another array than {table}, and tie_word_embeddings makes them one: where "
            "the file is right, set tie_word_embeddings to false"
        )


def write(name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Copy an array of a file into ours. Raises ParameterError for a number too large for its
    type."""
    with np.errstate(over="ignore"):
        ours[...] = theirs
    narrower = jnp.finfo(ours.dtype).max < jnp.finfo(theirs.dtype).max
    if narrower and (np.isfinite(ours) < np.isfinite(theirs)).any():
        raise ParameterError(f"{name} has a number that is too large for {ours.dtype.name}")


def unwritten(shape: Shape, dtype: Any) -> np.ndarray:
    """An array that begins where JAX wants it to, so that a CPU takes it over without a copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def to_theirs(layout: Layout, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a file, by name, from our parameters with their layers stacked."""
    flat = {path: np.asarray(leaf) for path, leaf in flatten_dict(dict(params), sep="/").items()}
    return {
        layout.written(full): rule.write([flat[path][at] for path in rule.paths])
        for name, rule in layout.rules.items()
        for full, at in per_layer(name, len(flat[rule.paths[0]])).items()
    }


def complain(what: str, names: Collection[str]) -> None:
    if names:
        listed = ", ".join(map(shown, sorted(names)[:LISTED]))
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        raise ParameterError(f"{len(names)} weights {what}: {listed}{more}")
