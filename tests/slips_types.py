"""Slips of number types, and of what learns where nothing can."""
# ruff: noqa: F403, F405

from __future__ import annotations

import jax.numpy as jnp
from slips import *

from combinax.combinators import *

TYPES: dict[str, Slip] = {
    "complex values": Slip(
        lambda: run(project(query=4, key=4, value=lift(as_complex))),
        "complex64 numbers have no order and are not mixed: pass their real and imaginary parts",
    ),
    "a list of positions": Slip(
        lambda: run(rotary(), positions=[0, 1, 2, 3, 4]),
        "positions is an array, not a list: jnp.array(positions)",
        ContextError,
    ),
    "positions past int32": Slip(
        lambda: run(rotary(), positions=jnp.arange(5, dtype=jnp.uint32) + jnp.uint32(2**31)),
        "positions holds 2147483648, and numbers of rows are int32, -2147483648 to 2147483647",
        ContextError,
    ),
    "float lengths": Slip(
        lambda: run(mask(valid("lengths")) @ project(4), lengths=jnp.bfloat16(300)),
        "valid('lengths') compares numbers of rows: lengths holds integers, not bfloat16: give it "
        "in jnp.int32, as it was counted",
    ),
    "float segments": Slip(
        lambda: run(mask(same("segments")) @ project(4), segments=jnp.zeros(5)),
        "same('segments') compares numbers of rows: segments holds integers, not float32",
    ),
    "integer parameters": Slip(
        lambda: linear(3)({"kernel": jnp.ones((4, 3), int)}, X),
        "kernel should hold float32 and holds int32",
        ParameterError,
    ),
    "features that learn": Slip(
        lambda: features(linear(4)),
        "features takes a map that learns nothing, and linear(4) learns: map queries and keys "
        "before, project(query=linear(4), key=linear(4), value=…)",
    ),
    "a width as a flag": Slip(
        lambda: linear(16, bias=8),  # type: ignore[arg-type]
        "bias of linear is True or False, not 8",
    ),
}


def as_complex(x):
    return x.astype(jnp.complex64)
