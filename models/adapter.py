"""Low-rank adapters: a map that stays, plus a narrow one that learns, and both are one map again.

    linear(m) + linear(m) ∘ linear(r) = linear(m)

By two laws, linear ∘ linear = linear and a sum of linears = linear, what the adapter learned merges
into the kernel and costs nothing any more (Hu et al. 2021, LoRA).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from ..combinators import Term, axes, linear, named, shared

__all__ = ["adapted", "merged", "with_adapters"]

Tree = dict[str, Any]


def adapted(rank: int) -> Callable[[int], Term]:
    """Maps with an adapter, from their width: (…, d) -> (…, m). In heads, one narrow map is shared.

    Raises CompositionError for a rank below 1.

    >>> adapted(2)(8)
    add(linear(8, bias=True), named('adapter', compose(linear(8), shared(linear(2), 'heads'))))
    """
    down = shared(linear(rank), across="heads")
    return lambda width: linear(width, bias=True) + named("adapter", linear(width) @ down)


def with_adapters(fresh: Mapping[str, Any], params: Mapping[str, Any]) -> Tree:
    """Parameters of a model, with adapters that change nothing yet.

    `fresh` is what `init` makes for the model with adapters, whose second kernels become zero.
    """
    if "adapter" in fresh:
        down, up = fresh["adapter"]["linear"], fresh["adapter"]["linear_2"]
        idle = {"kernel": jnp.zeros_like(up["kernel"])}
        return {"linear": params, "adapter": {"linear": down, "linear_2": idle}}
    return {
        name: with_adapters(inner, params[name]) if isinstance(inner, Mapping) else params[name]
        for name, inner in fresh.items()
    }


def merged(term: Term, params: Mapping[str, Any], x: Any, /, **context: Any) -> Tree:
    """Parameters of the model without adapters, what they learned added to the kernels.

        kernel′ = kernel + down up

    `term` is the model with adapters, x and the context, which may be abstract, what it runs on.
    Raises what `term.init` raises.

    >>> term, x = adapted(2)(3), jnp.ones((1, 4))
    >>> params = term.init(jax.random.key(0), x)
    >>> plain = merged(term, params, x)
    >>> bool(jnp.allclose(linear(3, bias=True)(plain, x), term(params, x), atol=1e-6))
    True
    """
    return merge(params, axes(term, x, **context))


def merge(params: Mapping[str, Any], names: Mapping[str, Any]) -> Tree:
    if "adapter" in params:
        down, up = (params["adapter"][part]["kernel"] for part in ("linear", "linear_2"))
        first, second = (names["adapter"][part]["kernel"] for part in ("linear", "linear_2"))
        whole = letters(names["linear"]["kernel"], "i", "o")
        product = f"{letters(first, 'i', 'r')},{letters(second, 'r', 'o')}->{whole}"
        kernel = params["linear"]["kernel"] + jnp.einsum(product, down, up)
        return {**params["linear"], "kernel": kernel}
    return {
        name: merge(inner, names[name]) if isinstance(inner, Mapping) else inner
        for name, inner in params.items()
    }


def letters(names: tuple[str, ...], into: str, out: str) -> str:
    """The axes of a kernel as einsum wants them: layers and heads stand side by side in all."""
    copies = iter("abc")
    known = {"in": into, "out": out}
    return "".join(known.get(name) or next(copies) for name in names)
