"""Slips in the algebra: laws that do not apply, patterns that fit nothing, samples left out."""
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import Any, cast

from slips import *

from combinax.combinators import *

TWICE = linear(3) @ linear(4)
BETWEEN = identity + linear(4) @ silu @ linear(3)
LEARNED = TWICE.init(KEY, X)


def derived(term: Term, **options: Any) -> Any:
    return derive(term, term.init(KEY, X), X, **options)


ALGEBRA: dict[str, Slip] = {
    "columns of a narrower array": Slip(
        lambda: columns(2, 5) @ linear(4), "columns(2, 5) reads columns of an array of width 4"
    ),
    "columns of a narrow input": Slip(
        lambda: run(columns(2, 5)), "columns(2, 5) reads columns of an array of width 4"
    ),
    "no columns": Slip(lambda: columns(2, 2), "stop of columns"),
    "a gain that is no boolean": Slip(
        lambda: rms_norm(gain=cast(Any, 1)), "gain of rms_norm is True or False, not 1"
    ),
    "an unknown law": Slip(lambda: law("merge"), "no law is called 'merge'; there are unit,"),
    "a law that fits nothing": Slip(
        lambda: derived(silu @ linear(3), by=["product"]),
        "linear ∘ linear = linear does not apply: it fits no stage of compose(silu, linear(3))",
    ),
    "a law whose condition fails": Slip(
        lambda: derived(BETWEEN, by=["product"]),
        "linear ∘ linear = linear is refused at 'silu': silu stands between",
    ),
    "a target that no law leads to": Slip(
        lambda: derived(BETWEEN, to=identity + linear(4)),
        "no chain of laws was found to add(identity, linear(4))",
    ),
    "the condition in the way of a target": Slip(
        lambda: derived(BETWEEN, to=identity + linear(4)),
        "refused at 'silu': silu stands between",
    ),
    "parameters of another term to simplify": Slip(
        lambda: simplify(linear(3), LEARNED, X), "belong to another term", ParameterError
    ),
    "a context name that derive takes": Slip(
        lambda: derive(read("to"), {}, X, to=identity), "derive takes to for itself", ContextError
    ),
    "check without a sample": Slip(
        lambda: check(TWICE), "check takes a sample of the input: check(term, x)"
    ),
    "equal terms of unequal parameters": Slip(
        lambda: equal(TWICE, linear(3), X), "take other parameters: give both, params=(p, q)"
    ),
    "a pattern of another kind": Slip(lambda: select(TWICE, 3), "a pattern is a term, a word"),
    "a pattern that fits nothing": Slip(
        lambda: replace(TWICE, silu, gelu), "nothing in linear(3) ∘ linear(4) matches silu"
    ),
    "a replacement that does not fit": Slip(
        lambda: replace(head(causal), linear, score(dot)), "score takes entries and gets an array"
    ),
}
