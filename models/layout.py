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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from ..combinators import ParameterError

__all__ = ["Layout", "Rule", "Source", "from_theirs", "rules", "to_theirs"]

Shape = tuple[int, ...]
Source = Mapping[str, Callable[[], np.ndarray]]
"""The arrays of a file by name, each behind a function that reads it."""


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
    `bare` says of this model. `ignored` is a pattern of names that hold nothing learned by it.
    """

    rules: Mapping[str, Rule]
    prefix: str
    bare: bool = False
    ignored: str = "(?!)"

    def short(self, name: str) -> str:
        """A name less its prefix, and as it is written today: BERT's norms had gamma and beta."""
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name.removeprefix(self.prefix))
        return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)

    def written(self, name: str) -> str:
        """A name as transformers writes it for this model."""
        return name.removeprefix(self.prefix) if self.bare else name


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

    `declared` is the tree of `term.init`, arrays or abstract. Raises ParameterError that lists
    what is missing, what is left over, or what has another shape or no floats, and for a `dtype`
    that is none of floats.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ParameterError(f"parameters are floats, such as 'bfloat16', not {dtype!r}")
    flat: dict[str, Any] = flatten_dict(dict(declared), sep="/")
    shapes = {path: leaf.shape for path, leaf in flat.items()}
    found = {layout.short(name): name for name in source}
    found = {key: name for key, name in found.items() if not re.fullmatch(layout.ignored, key)}
    named = {name: per_layer(name, shapes[rule.paths[0]][0]) for name, rule in layout.rules.items()}
    wanted = {layout.short(full): full for names in named.values() for full in names}
    complain(
        "of this model are not in the file", [wanted[key] for key in wanted.keys() - found.keys()]
    )
    complain(
        "of the file are none of this model's", [found[key] for key in found.keys() - wanted.keys()]
    )
    params = {}
    for name, rule in layout.rules.items():
        ours = [unwritten(shapes[path], jnp.dtype(dtype)) for path in rule.paths]
        for full, at in named[name].items():
            theirs, parts = source[found[layout.short(full)]](), [array[at] for array in ours]
            inner = [part.shape for part in parts]
            if theirs.shape != rule.shape(inner):
                raise ParameterError(
                    f"{full} has shape {theirs.shape}, and this model needs {rule.shape(inner)}"
                )
            if not jnp.issubdtype(theirs.dtype, jnp.floating):
                raise ParameterError(
                    f"{full} holds {theirs.dtype}, and parameters are floats: weights in codes "
                    "are read from GGUF alone"
                )
            for part, value in zip(parts, rule.read(theirs, inner), strict=True):
                part[...] = value
        params |= zip(rule.paths, map(jax.device_put, ours), strict=True)
    return unflatten_dict(params, sep="/")


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
        listed = ", ".join(sorted(names))
        raise ParameterError(f"{len(names)} weights {what}: {listed}")
