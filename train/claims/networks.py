"""Two matrices and an activation; one layer and several."""

from __future__ import annotations

from functools import partial

import jax

from ...combinators import Term, gelu, linear
from .. import data
from ..loop import Params, fit
from ..loss import accuracy
from ..optimize import adamw, warmup
from ..plot import bars
from ..tasks import digits, induction, train
from ..tasks.task import entropy
from .finding import Finding, Rows

__all__ = ["depth", "matrices"]


def matrices(seed: int = 0, steps: int = 600) -> Finding:
    """One matrix, two without an activation between, and two with: handwritten digits.

    Two matrices without one are their product, and learn no more than one matrix.
    Source: Minsky and Papert 1969, Perceptrons; Cybenko 1989, Approximation by Superpositions.
    """
    ways = {
        "one": linear(10),
        "two": linear(10) @ linear(64),
        "two, gelu between": linear(10) @ gelu @ linear(64),
    }
    rows: Rows = []
    for way, term in ways.items():
        params, loss = learned(term, seed, steps)
        _, (pictures, labels) = data.digits(seed)
        right, count = accuracy(jax.jit(term)(params, pictures), labels)
        weights = sum(leaf.size for leaf in jax.tree.leaves(params))
        rows.append(
            {"matrices": way, "weights": weights, "training loss": loss,
             "% right": round(100 * float(right / count), 1)}
        )  # fmt: skip
    return Finding(
        rows, bars({row["matrices"]: row["% right"] for row in rows}, "% held out right")
    )


def learned(term: Term, seed: int, steps: int) -> tuple[Params, float]:
    """A network trained on the data of `tasks.digits`, and the loss that it ends with."""
    task = digits(seed, steps)
    birth, rng = jax.random.split(jax.random.key(seed))
    optimizer = adamw(term, task.example, warmup(3e-3, min(100, steps // 10), steps), decay=1e-2)
    params, history = fit(
        partial(entropy, term), optimizer, term.init(birth, task.example), task.batches, steps,
        rng=rng,
    )  # fmt: skip
    return params, round(float(history.loss[-50:].mean()), 4)


def depth(seed: int = 0, steps: int = 700, most: int = 4) -> Finding:
    """One to four layers go on with a sequence as it went before: see `tasks.induction`.

    One layer cannot: it sees the token at hand elsewhere, but not what it followed.
    Source: Olsson et al. 2022, In-context Learning and Induction Heads.
    """
    rows: Rows = []
    for layers in range(1, most + 1):
        task = induction(seed, steps, layers=layers)
        params, history = train(task, seed)
        loss = round(float(history.loss[-50:].mean()), 4)
        rows.append(
            {"layers": layers, "training loss": loss, "% right": round(task.score(params), 1)}
        )
    return Finding(rows, bars({f"{row['layers']}": row["% right"] for row in rows}, "% right"))
