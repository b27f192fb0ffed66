"""The two layouts of a repeated block's parameters: stacked on a leading axis, or n dicts.

Stacked parameters run as one `lax.scan`, so compile time does not grow with depth. A dict of n
blocks, {"0": …, "1": …}, runs unrolled: single steps are faster, and layers can differ. Parameters
that all layers share stand beside the blocks, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .errors import ParameterError
from .execution import Name, put, select
from .parameter import Parameter, plain
from .term import Term
from .types import Outputs, Params

__all__ = ["stack", "unstack"]

Tree = Outputs


def stack(term: Term, params: Params) -> Tree:
    """The parameters with the blocks of every `repeat` stacked; `unstack` undoes it.

    >>> from combinax.combinators import linear, repeat
    >>> term = repeat(3, linear(4))
    >>> params = term.init(jax.random.key(0), jnp.zeros((2, 4)))
    >>> sorted(unstack(term, params)), sorted(stack(term, unstack(term, params)))
    (['0', '1', '2'], ['linear'])
    """
    return rewrite(term, plain(params), together, inner_first=True)


def unstack(term: Term, params: Params) -> Tree:
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


def apart(term: Term, declared: Tree, params: Array | Params) -> Tree:
    """Declarations with each repeat unstacked whose parameters are unstacked."""
    if not isinstance(params, Mapping):
        return declared
    if term.repeats and "0" in params and "0" not in declared:
        declared = taken_apart(term, declared, lambda leaf, at: leaf.inner(), Parameter.inner)
    for name, part in places(term, declared):
        inner = apart(part, dict(select(declared, name)), select(params, name))
        declared = replaced(declared, name, inner)
    return declared


def places(term: Term, tree: Tree) -> list[tuple[Name, Term]]:
    """Each part with its place in this tree; an unstacked repeat lists a part once per layer."""
    if term.repeats and "0" in tree:
        return [(str(i), term.parts[i % len(term.parts)]) for i in range(term.repeats)]
    return list(zip(term.names, term.parts, strict=True))


def rewrite(
    term: Term, tree: Tree, convert: Callable[[Term, Tree], Tree], inner_first: bool
) -> Tree:
    """The tree with `convert(form, subtree)` in place of the subtree of each repeat `form`."""
    if term.repeats and not inner_first:
        tree = convert(term, tree)
    for name, part in places(term, tree):
        inner = rewrite(part, dict(select(tree, name)), convert, inner_first)
        tree = replaced(tree, name, inner)
    return convert(term, tree) if term.repeats and inner_first else tree


def replaced(tree: Tree, name: Name, inner: Tree) -> Tree:
    """The tree with `inner` in place of the subtree under a name."""
    if not inner:
        return tree
    if isinstance(name, str):
        return {**tree, name: inner} if name else inner
    return {**tree, **{name[local]: value for local, value in inner.items()}}


def common(term: Term, tree: Tree) -> Tree:
    """The subtree of a block's parameters that all layers share."""
    if getattr(term, "across", None) == "layers":
        return tree
    shared: Tree = {}
    if not term.repeats:  # a repeat inside the block has layers of its own
        for name, part in zip(term.names, term.parts, strict=True):
            shared = put(shared, name, common(part, dict(select(tree, name))))
    return shared


def without(tree: Tree, other: Tree) -> Tree:
    """The tree without the leaves that stand in another tree as well."""
    rest: Tree = {}
    for name, value in tree.items():
        if isinstance(value, dict) and isinstance(other.get(name), dict):
            value = without(value, other[name])
            if value:
                rest[name] = value
        elif name not in other:
            rest[name] = value
    return rest


def leafwise(function: Callable[..., Any], *trees: Tree) -> Tree:
    """A function of the leaves of trees, which are arrays or declarations."""
    return jax.tree.map(function, *trees, is_leaf=lambda leaf: isinstance(leaf, Parameter))


def taken_apart(
    form: Term,
    tree: Tree,
    take: Callable[[Any, int], Any],
    keep: Callable[[Any], Any] = lambda leaf: leaf,
) -> Tree:
    """Stacked blocks as {"0": …, "1": …}: `take(leaf, period)` slices a leaf of the block's own,
    `keep(leaf)` converts one that all layers share."""
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
    """The blocks {"0": …, "1": …} of a repeat, stacked on a leading axis."""
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
