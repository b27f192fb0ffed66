"""Slips of configurations and of files of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from slips import Slip, X

from combinax.combinators import ParameterError, Term
from combinax.models import llama
from combinax.models.layout import Layout, Stored, from_theirs, rules
from combinax.models.pretrained import check_sizes

LLAMA: dict[str, Any] = dict(
    model_type="llama", hidden_size=4, num_attention_heads=2, intermediate_size=4,
    num_hidden_layers=1, vocab_size=8, max_position_embeddings=8, hidden_act="silu",
)  # fmt: skip


def configured(**fields: Any) -> Term:
    return llama(LLAMA | fields)


def read(name: str, arrays: dict[str, Any], dtype: str = "float32", **options: Any) -> Any:
    """Parameters of a model with one table, from a file that has arrays of one type."""
    layout = Layout(rules("", "", f"{name} matrix table"), prefix="", **options)
    return from_theirs(layout, stored(arrays, dtype), {"table": X})


def stored(arrays: dict[str, Any], dtype: str = "float32") -> dict[str, Stored]:
    return {
        name: Stored(array.shape, dtype, lambda array=array: array, Path("a.bin"))
        for name, array in arrays.items()
    }


FILES: dict[str, Slip] = {
    "a base of text": Slip(
        lambda: configured(rms_norm_eps="small"),
        "rms_norm_eps has to be a small number, 0 ≤ eps < 1, and it is 'small'",
    ),
    "a factor without a type": Slip(
        lambda: configured(rope_scaling={"factor": 2.0}),
        "rope_scaling has a factor of 2.0, and rope_type 'default' has no such field",
    ),
    "bands that cross": Slip(
        lambda: configured(
            rope_scaling=dict(
                rope_type="llama3",
                factor=2.0,
                low_freq_factor=4.0,
                high_freq_factor=1.0,
                original_max_position_embeddings=8,
            )
        ),
        "high_freq_factor has to be above low_freq_factor, 4.0, and it is 1.0",
    ),
    "a number past float32": Slip(
        lambda: read("w", {"w": np.full(X.shape, 1e300)}, "float64"),
        "w has a number that is too large for float32",
        ParameterError,
    ),
    "more layers than arrays": Slip(
        lambda: check_sizes({"num_hidden_layers": 9}, stored({"w": X})),
        "num_hidden_layers is 9, and the file of weights has 1 arrays",
    ),
    "two names of one array": Slip(
        lambda: read("LayerNorm.weight", {"LayerNorm.weight": X, "LayerNorm.gamma": X}),
        "LayerNorm.weight and LayerNorm.gamma are two names of one array",
        ParameterError,
    ),
    "another head than the table": Slip(
        lambda: read("w", {"w": X, "head": X + 1}, tied={"head": "w"}),
        "head is another array than w, and tie_word_embeddings makes them one",
        ParameterError,
    ),
    "eight-bit floats": Slip(
        lambda: read("w", {"w": X}, "F8_E4M3"),
        "'a.bin' has w in F8_E4M3, which is not read: save it in 16 or 32 bits",
        ParameterError,
    ),
}
