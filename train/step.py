"""One training step: a pure function from a state and a batch to the next state and a record.

    state, record = step(loss, optimizer, state, batch)

The contract of a loss: `loss(params, batch, rng)` gives `(sum, count)`, what it adds up and how
many it adds up, such as the cross-entropy of all targets and their number. A step minimises
sum / count. Given apart, both can be added over micro-batches, whose targets differ in number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike

from .loss import mean

__all__ = ["Batch", "Loss", "Params", "Record", "State", "accumulated", "start", "step"]

Batch = Any
Params = Any
Loss = Callable[[Params, Batch, Array], tuple[ArrayLike, ArrayLike]]
"""(params, batch, rng) -> (sum, count); see `loss.cross_entropy`."""


def numeric(value: Any) -> bool:
    """Whether a leaf is a number or an array of numbers; random keys and texts are none."""
    kind = getattr(value, "dtype", np.dtype(float))
    return isinstance(value, (Array, np.ndarray, np.generic, int, float)) and (
        jnp.issubdtype(kind, np.number) or jnp.issubdtype(kind, np.bool_)
    )


def is_key(value: Any) -> bool:
    """Whether a leaf is an array of random keys."""
    return isinstance(value, Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


class State(NamedTuple):
    """All that a step changes: a pytree. `skips` counts the steps skipped since the last sound one.

    The step number is part of it, and batches and randomness follow from that number, so a saved
    state resumes bit for bit.
    """

    params: Params
    optimizer: optax.OptState
    step: Array
    skips: Array
    rng: Array


class Record(NamedTuple):
    """The report of a step: its mean loss, the number of targets, and whether it was skipped."""

    loss: Array | np.ndarray
    targets: Array | np.ndarray
    skipped: Array | np.ndarray


def start(optimizer: optax.GradientTransformation, params: Params, rng: Array) -> State:
    """The state before step 0, in arrays of its own. Raises ValueError for parameters that are no
    floats.

    >>> int(start(optax.sgd(0.1), {}, jax.random.key(0)).step)
    0
    """
    params = jax.tree_util.tree_map_with_path(parameter, params)
    zero = jnp.zeros((), jnp.int32)
    state = State(params, optimizer.init(params), zero, zero, rng)
    # A copy each: an optimizer may hold the parameters twice, and no buffer is donated twice.
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)


def parameter(path: Any, value: Any) -> Array:
    """A leaf of the parameters as an array whose type no step changes."""
    if not numeric(value) or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise ValueError(
            f"parameters are arrays of floats, and params{jax.tree_util.keystr(path)} is "
            f"{shown(value)}"
        )
    return jnp.asarray(value, jnp.result_type(value))


def shown(value: Any) -> str:
    """A leaf in the words of an error: its type and shape, or what else it is."""
    if not numeric(value) and not is_key(value):
        return f"{value!r:.60}"
    return f"{jnp.result_type(value)}{list(np.shape(value))}"


def step(
    loss: Loss, optimizer: optax.GradientTransformation, state: State, batch: Batch
) -> tuple[State, Record]:
    """Take one step down the gradient of the mean loss; a pure function.

        params′ = params + update(∇ mean(loss(params, batch, rngₛ))),  rngₛ = fold_in(rng, s)

    Where the loss, the gradient or the new parameters are not finite (or too large to square in
    their type), the step is skipped: parameters and optimizer stay bit for bit as they were, and
    only the step number counts on. Shapes: the tree of the state stays what it is, and the record
    is two float32 and a boolean. Raises what the loss raises.
    Source: Robbins and Monro 1951; skipping as in Micikevicius et al. 2018.

    >>> square = lambda params, batch, rng: (jnp.sum((params - batch) ** 2), 1)
    >>> state = start(optax.sgd(0.25), jnp.zeros(()), jax.random.key(0))
    >>> state, record = step(square, optax.sgd(0.25), state, 4.0)
    >>> float(state.params), float(record.loss), bool(record.skipped)
    (2.0, 16.0, False)
    """
    rng = jax.random.fold_in(state.rng, state.step)

    def objective(params: Params) -> tuple[Array, ArrayLike]:
        total, count = counted(loss(params, batch, rng))
        return mean(total, count), count

    (value, count), gradient = jax.value_and_grad(objective, has_aux=True)(state.params)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    # Squares, because they are what overflows first: in the moments of Adam, and for good.
    squares = optax.tree.norm(gradient, squared=True) + optax.tree.norm(params, squared=True)
    sound = jnp.isfinite(value + squares)
    after = state._replace(params=params, optimizer=optimizer_state, skips=jnp.int32(0))
    before = state._replace(skips=state.skips + 1)
    kept = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, before)
    record = Record(value.astype(jnp.float32), jnp.asarray(count, jnp.float32), ~sound)
    return kept._replace(step=state.step + 1), record


def counted(given: Any) -> tuple[ArrayLike, ArrayLike]:
    """The result of a loss, checked to be a sum and a count."""

    def number(part: Any) -> bool:
        return numeric(part) and not np.shape(part) and not jnp.iscomplexobj(part)

    if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(map(number, given)):
        raise ValueError(
            "a loss gives a sum and how many it is the sum of, (total, count), two real numbers, "
            f"and this one gives {jax.tree.map(shown, given)}; of a mean write (mean, 1)"
        )
    return given[0], given[1]


def accumulated(loss: Loss, parts: int) -> Loss:
    """The same loss, a part of the batch at a time: the memory of one micro-batch.

        sum = Σ sumᵢ,  count = Σ countᵢ,  ∇sum = Σ ∇sumᵢ        i = 1 … parts

    So each target weighs the same wherever it stands: sums 10 over 2 targets and 30 over 8 give a
    mean of 4, not the 4.375 of means of means. Gradients, in the type of their parameters, are
    computed along with the sums; they are those of the parameters alone. Part i gets randomness of
    its own, fold_in(rng, i).
    Shapes: every array of a batch is (B, …), and a part has B / parts rows. Raises ValueError for
    parts below 1 or that do not divide the rows, and what the loss raises.
    Source: Ott et al. 2018, Scaling Neural Machine Translation.

    >>> total = lambda params, rows, rng: (params * jnp.sum(rows), rows.shape[0])
    >>> halves, rows = accumulated(total, 2), jnp.array([1.0, 2.0, 3.0, 4.0])
    >>> [float(part) for part in halves(2.0, rows, jax.random.key(0))]
    [20.0, 4.0]
    """
    if not isinstance(parts, int) or isinstance(parts, bool) or parts < 1:
        raise ValueError(f"a batch is taken in 1 part or more; got {parts!r}")

    @jax.custom_vjp
    def whole(params: Params, batch: Batch, rng: Array) -> tuple[ArrayLike, ArrayLike]:
        return forward(params, batch, rng)[0]

    def forward(params: Params, batch: Batch, rng: Array) -> Any:
        def one(row: tuple[Array, Batch]) -> Any:
            def total(params: Params) -> tuple[ArrayLike, ArrayLike]:
                return counted(loss(params, row[1], jax.random.fold_in(rng, row[0])))

            (value, count), gradient = jax.value_and_grad(total, has_aux=True)(params)
            return (jnp.asarray(value), jnp.asarray(count)), gradient

        def add(sums: Any, row: tuple[Array, Batch]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, one(row)), None

        rows = jnp.arange(parts), jax.tree.map(divided, batch)
        like = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], rows))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        return jax.lax.scan(add, nothing, rows)[0]

    def backward(gradient: Params, cotangents: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * cotangents[0], gradient), None, None

    def divided(leaf: ArrayLike) -> Array:
        if not np.ndim(leaf) or np.shape(leaf)[0] % parts:
            raise ValueError(
                f"a batch in {parts} parts needs a number of rows that {parts} divides, and it "
                f"holds {shown(leaf)}"
            )
        return jnp.reshape(leaf, (parts, -1, *np.shape(leaf)[1:]))

    whole.defvjp(forward, backward)
    return whole
