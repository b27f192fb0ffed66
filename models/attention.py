"""Attention: a soft dictionary whose keys and values are computed from a sequence.

    head = aggregate ∘ weights ∘ scores ∘ entries

Each of the three is passed in. `entries` makes the question, from the width of a head: `project`,
`from_context("memory")`, or a function of yours, such as
`lambda width: project(query=rotary() @ linear(width), key=rotary() @ linear(width), value=width)`.
`scores` says how queries meet keys, masks and biases included, and `weights` how scores compete.
"""

from __future__ import annotations

from collections.abc import Callable

from ..combinators import (
    CompositionError,
    Term,
    aggregate,
    causal,
    compose,
    heads,
    linear,
    mask,
    named,
    normalize,
    project,
    read,
    scaled_dot,
    score,
    shared,
    softmax,
)
from ..combinators.core.source import documented

__all__ = [
    "causal_scores", "cross_attention", "from_context", "grouped_heads", "head", "multi_head",
    "one_memory",
]  # fmt: skip

causal_scores = documented(
    "The scores of a decoder: no query sees a key that comes after it.",
    mask(causal) @ score(scaled_dot),
)


def head(
    width: int,
    entries: Callable[[int], Term] = project,
    scores: Term = score(scaled_dot),
    weights: Term = normalize(softmax),
) -> Term:
    """One attention head, softmax(Q Kᵀ / √d) V: (T, any) -> (T, width) (Vaswani et al. 2017).

    Raises CompositionError where the stages passed in do not fit each other.

    >>> head(8, scores=causal_scores)
    compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot), project(8))
    """
    return compose(aggregate(), weights, scores, entries(width))


def multi_head(
    width: int,
    count: int,
    entries: Callable[[int], Term] = project,
    scores: Term = score(scaled_dot),
    weights: Term = normalize(softmax),
    output: Callable[[int], Term] = linear,
) -> Term:
    """output ∘ heads(count, head): (T, any) -> (T, width), each head of width / count (Vaswani et
    al. 2017).

    Raises CompositionError when the heads do not divide the width.

    >>> params = multi_head(8, 2).init(jax.random.key(0), jnp.zeros((3, 4)))
    >>> params["heads"]["project"]["query"]["kernel"].shape, params["output"]["kernel"].shape
    ((4, 2, 4), (8, 8))
    """
    one = head(divided("width", width, "heads", count), entries, scores, weights)
    return named("output", output(width)) @ heads(count, one)


def grouped_heads(
    width: int,
    count: int,
    groups: int,
    entries: Callable[[int], Term] = project,
    scores: Term = score(scaled_dot),
    weights: Term = normalize(softmax),
    output: Callable[[int], Term] = linear,
) -> Term:
    """Heads in groups that share keys and values: (T, any) -> (T, width) (Ainslie et al. 2023).

    output ∘ heads(groups, heads(count / groups, head)). One group is multi-query attention
    (Shazeer 2019), as many groups as heads are `multi_head`.

    Raises CompositionError when the heads do not divide the width, or the groups the heads.

    >>> params = grouped_heads(16, 4, 2).init(jax.random.key(0), jnp.zeros((3, 8)))
    >>> slots = params["heads"]["heads"]["project"]
    >>> slots["query"]["kernel"].shape, slots["key"]["kernel"].shape
    ((8, 2, 2, 4), (8, 2, 4))
    """
    inner = divided("number of heads", count, "groups", groups)
    asked = one_memory(entries(divided("width", width, "heads", count)))
    one = compose(aggregate(), weights, scores, asked)
    return named("output", output(width)) @ heads(groups, heads(inner, one))


def cross_attention(
    width: int,
    count: int,
    memory: str = "memory",
    scores: Term = score(scaled_dot),
    weights: Term = normalize(softmax),
) -> Term:
    """`multi_head` that asks another sequence: x (T, any), memory (S, any) -> (T, width).

    The memory is context, given by keyword or by `given(decoder, memory=encoder)` (Vaswani et
    al. 2017).

    Raises CompositionError when the heads do not divide the width.

    >>> x, memory = jnp.zeros((3, 4)), jnp.zeros((5, 6))
    >>> term = cross_attention(8, 2)
    >>> term(term.init(jax.random.key(0), x, memory=memory), x, memory=memory).shape
    (3, 8)
    """
    return multi_head(width, count, from_context(memory), scores, weights)


def from_context(name: str) -> Callable[[int], Term]:
    """Entries that ask with x and answer with another sequence, which stands in the context.

    >>> from_context("memory")(4).reads
    frozenset({'memory'})
    """

    def entries(width: int) -> Term:
        return project(
            query=width, key=linear(width) @ read(name), value=linear(width) @ read(name)
        )

    return entries


def one_memory(entries: Term) -> Term:
    """The same entries with keys and values shared by all copies of the head (Shazeer 2019).

    >>> one_memory(project(4))
    project(query=4, key=shared(linear(4), 'heads'), value=shared(linear(4), 'heads'))
    """
    query, key, value = entries.parts
    return project(query=query, key=shared(key, "heads"), value=shared(value, "heads"))


def divided(whole: str, size: int, parts: str, count: int) -> int:
    """size / count, which has to be whole."""
    if count < 1 or size % count:
        raise CompositionError(f"a {whole} of {size} does not divide into {count} {parts}")
    return size // count
