"""The two forms of a repeated block's parameters: stacked on a leading axis, or n separate dicts.

Stacked parameters run as one `lax.scan`, so compile time is flat in depth. A dict of n blocks,
{"0": …, "1": …}, runs unrolled: faster single steps, and layers that can differ. What layers
share stands beside the blocks, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .errors import ParameterError
from .execution import Name, put, select
from .parameter import Parameter, plain
from .term import Term

__all__ = ["stack", "unstack"]

Tree = dict[str, Any]


def stack(term: Term, params: Mapping[str, Any]) -> Tree:
    """The parameters with the blocks of every `repeat` stacked; `unstack` undoes it.

    >>> from combinax.combinators import linear, repeat
    >>> term = repeat(3, linear(4))
    >>> params = term.init(jax.random.key(0), jnp.zeros((2, 4)))
    >>> sorted(unstack(term, params)), sorted(stack(term, unstack(term, params)))
    (['0', '1', '2'], ['linear'])
    """
    return rewrite(term, plain(params), lambda form, tree: together(form, tree), inner_first=True)


def unstack(term: Term, params: Mapping[str, Any]) -> Tree:
    """The parameters with every `repeat` as a dict of n blocks: {"0": …, "1": …}.

    >>> from combinax.combinators import linear, repeat
    >>> term = repeat(2, linear(4))
    >>> params = term.init(jax.random.key(0), jnp.zeros((3, 4)))
    >>> jax.tree.map(jnp.shape, unstack(term, params))
    {'0': {'kernel': (4, 4)}, '1': {'kernel': (4, 4)}}
    """

    def separate(form: Term, tree: Tree) -> Tree:
        return tree if "0" in tree else taken_apart(form, tree, lambda leaf, at: leaf[at])

    return rewrite(term, plain(params), separate, inner_first=False)


def apart(term: Term, declared: Tree, params: Any) -> Tree:
    """Declarations, with those repeats taken apart that the parameters have taken apart."""
    if not isinstance(params, Mapping):
        return declared
    if term.repeats and "0" in params and "0" not in declared:
        declared = taken_apart(term, declared, lambda leaf, at: leaf.inner(), Parameter.inner)
    for name, part in places(term, declared):
        inner = apart(part, dict(select(declared, name)), select(params, name))
        declared = replaced(declared, name, inner)
    return declared


def places(term: Term, tree: Tree) -> list[tuple[Name, Term]]:
    """Each part with its place in this tree: a repeat taken apart has its parts many times."""
    if term.repeats and "0" in tree:
        return [(str(i), term.parts[i % len(term.parts)]) for i in range(term.repeats)]
    return list(zip(term.names, term.parts, strict=True))


def rewrite(
    term: Term, tree: Tree, convert: Callable[[Term, Tree], Tree], inner_first: bool
) -> Tree:
    """The tree with `convert(repeat, its tree)` in place of every repeat's tree."""
    if term.repeats and not inner_first:
        tree = convert(term, tree)
    for name, part in places(term, tree):
        inner = rewrite(part, dict(select(tree, name)), convert, inner_first)
        tree = replaced(tree, name, inner)
    return convert(term, tree) if term.repeats and inner_first else tree


def replaced(tree: Tree, name: Name, inner: Tree) -> Tree:
    if not inner:
        return tree
    if isinstance(name, str):
        return {**tree, name: inner} if name else inner
    return {**tree, **{name[local]: value for local, value in inner.items()}}


def common(term: Term, tree: Tree) -> Tree:
    """The part of a block's parameters that all layers share."""
    if getattr(term, "across", None) == "layers":
        return tree
    found: Tree = {}
    if not term.repeats:
        for name, part in zip(term.names, term.parts, strict=True):
            found = put(found, name, common(part, dict(select(tree, name))))
    return found


def without(tree: Tree, gone: Tree) -> Tree:
    """The tree less what is in another."""
    kept: Tree = {}
    for name, value in tree.items():
        if isinstance(value, dict) and isinstance(gone.get(name), dict):
            value = without(value, gone[name])
            if value:
                kept[name] = value
        elif name not in gone:
            kept[name] = value
    return kept


def leafwise(function: Callable[..., Any], *trees: Tree) -> Tree:
    return jax.tree.map(function, *trees, is_leaf=lambda leaf: isinstance(leaf, Parameter))


def taken_apart(
    form: Term,
    tree: Tree,
    take: Callable[[Any, int], Any],
    keep: Callable[[Any], Any] = lambda leaf: leaf,
) -> Tree:
    """Stacked blocks as {"0": …, "1": …}: `take` is one layer of a leaf, `keep` a shared leaf."""
    blocks: Tree = {}
    for layer in range(form.repeats):
        period, index = divmod(layer, len(form.parts))
        block = dict(select(tree, form.names[index]))
        shared = common(form.parts[index], block)
        blocks = put(blocks, form.names[index], leafwise(keep, shared))
        own = without(block, shared)
        blocks[str(layer)] = leafwise(lambda leaf, period=period: take(leaf, period), own)
    return blocks


def together(form: Term, tree: Tree) -> Tree:
    if "0" not in tree:
        return tree
    numbers = [str(layer) for layer in range(form.repeats)]
    missing = [number for number in numbers if number not in tree]
    if missing:
        raise ParameterError(f"{form.name} has {form.repeats} blocks; {', '.join(missing)} missing")
    stacked = {name: value for name, value in tree.items() if name not in numbers}
    for index, name in enumerate(form.names):
        blocks = [tree[number] for number in numbers[index :: len(form.parts)]]
        stacked = put(stacked, name, leafwise(lambda *leaves: jnp.stack(leaves), *blocks))
    return stacked
