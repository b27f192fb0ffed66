"""A tree of arrays in words that JSON keeps: its nodes, and for every array its shape and type.

    {"a": (x, None)}  ->  {"dict": [["a", {"tuple": [0, null]}]]}  and  [Leaf("['a'][0]", …)]

Dicts keep their order and the type of their names, and nodes without arrays are kept: an empty
dict, an empty tuple, None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from ..models.disk import shown

__all__ = ["Leaf", "described", "differences", "leaf_from", "rebuilt", "unicode"]

LISTED = 5
"""How many differences an error lists."""


class Leaf(NamedTuple):
    """An array of a tree and where it stands; `generator` is that of random keys."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    generator: str | None = None


def described(tree: Any) -> tuple[Any, list[Any], list[Leaf]]:
    """The nodes of a tree, with a number in the place of each leaf, the leaves, and what they are.

    Raises ValueError, by its path, for a leaf that is no array of numbers, or a name of a dict that
    is neither a text of Unicode nor an integer.

    >>> nodes, _, leaves = described({"a": (np.ones(2), None)})
    >>> nodes, leaves[0].path, leaves[0].shape
    ({'dict': [['a', {'tuple': [0, None]}]]}, "['a'][0]", (2,))
    """
    with_paths, structure = jax.tree.flatten_with_path(tree)
    leaves = [leaf_of(keystr(path), leaf) for path, leaf in with_paths]
    nodes = node(tree, jax.tree.unflatten(structure, range(len(leaves))), "")
    return nodes, [leaf for _, leaf in with_paths], leaves


def leaf_of(path: str, leaf: Any) -> Leaf:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        leaf = np.asarray(leaf)
        dtype = leaf.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        made = isinstance(leaf, jax.Array)
        generator = str(jax.random.key_impl(leaf)) if made else str(dtype)
        return Leaf(path, tuple(leaf.shape), str(dtype), generator)
    if not (jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)):
        raise ValueError(f"{path or 'the tree'} holds {dtype}, and arrays of numbers are saved")
    return Leaf(path, tuple(leaf.shape), np.dtype(dtype).name)


def node(tree: Any, numbered: Any, path: str) -> Any:
    """A tree for JSON: as it is, and with numbers in the place of leaves, whose dicts jax sorts."""
    if numbered is None or isinstance(numbered, int):
        return numbered
    if isinstance(tree, Mapping):
        for name in tree:
            if type(name) is not int and not (type(name) is str and unicode(name)):
                raise ValueError(
                    f"{path}[{name!r}] is named by neither an integer nor a text of Unicode"
                )
        inner = [
            [name, node(child, numbered[name], f"{path}[{name!r}]")] for name, child in tree.items()
        ]
        return {"dict": inner}
    sides = [jax.tree_util.flatten_one_level(side)[0] for side in (tree, numbered)]
    pairs = enumerate(zip(*sides, strict=True))
    inner = [node(child, at, f"{path}[{i}]") for i, (child, at) in pairs]
    return {type(tree).__name__: inner}


def unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: a lone surrogate cannot.

    >>> unicode("é"), unicode("\\ud800")
    (True, False)
    """
    return not any("\ud800" <= character <= "\udfff" for character in text)


def leaf_from(path: Any, shape: Any, dtype: Any, generator: Any) -> Leaf:
    """A leaf as it was read. Raises ValueError or TypeError for what is none."""
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{path!r} has the shape {shape!r}")
    if generator is None:
        dtype = jnp.dtype(dtype).name
    return Leaf(path, tuple(shape), dtype, generator)


def rebuilt(nodes: Any, arrays: Sequence[Any]) -> Any:
    """The tree that nodes describe. Raises ValueError for nodes of another kind than dicts, lists,
    tuples and None, which only `like` can tell how to make."""
    match nodes:
        case None:
            return None
        case int():
            return arrays[nodes]
        case {"dict": pairs}:
            return {name: rebuilt(inner, arrays) for name, inner in pairs}
        case {"list": inner}:
            return [rebuilt(one, arrays) for one in inner]
        case {"tuple": inner}:
            return tuple(rebuilt(one, arrays) for one in inner)
    kind = shown(str(next(iter(nodes), "node")))
    raise ValueError(f"it holds a {kind}: load it with a tree that is like what was saved")


def differences(nodes: Any, leaves: Sequence[Leaf], like: Any) -> str:
    """What of a saved tree is not like another, by path; "" where nothing is."""
    asked_nodes, _, asked_leaves = described(like)
    saved = dict(kinds(nodes, leaves, ""))
    asked = dict(kinds(asked_nodes, asked_leaves, ""))
    lines = [
        f"{path or 'the tree'} {said}"
        for path in sorted(saved.keys() | asked.keys())
        if (said := differs(saved.get(path), asked.get(path)))
    ]
    more = f"; and {len(lines) - LISTED} more" if len(lines) > LISTED else ""
    return "; ".join(lines[:LISTED]) + more


def differs(saved: str | None, asked: str | None) -> str:
    if saved == asked:
        return ""
    if saved is None:
        return f"is missing, and should be {asked}"
    return f"is {saved}, and should " + ("not be there" if asked is None else f"be {asked}")


def kinds(nodes: Any, leaves: Sequence[Leaf], path: str) -> Iterator[tuple[str, str]]:
    """Every node of a tree by its path, in words."""
    if nodes is None:
        yield path, "None"
    elif isinstance(nodes, int):
        leaf = leaves[nodes]
        yield path, f"{leaf.dtype} {leaf.shape}"
    else:
        ((kind, inner),) = nodes.items()
        yield path, f"a {kind}" if inner else f"an empty {kind}"
        for name, child in inner if kind == "dict" else enumerate(inner):
            yield from kinds(child, leaves, f"{path}[{name!r}]")
