"""What a run keeps in its folder: the parameters, by path, and in words what they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

__all__ = ["load", "save"]

PARAMETERS, WORDS = "parameters.npz", "model.json"


def save(folder: Path, params: Any, words: dict[str, Any]) -> Path:
    """Write parameters and what is needed to build their term again: JSON, beside plain arrays.

    Raises OSError where nothing can be written.
    """
    flat: Any = flatten_dict(jax.device_get(params), sep="/")
    np.savez(folder / PARAMETERS, **flat)
    (folder / WORDS).write_text(json.dumps(words, indent=2, ensure_ascii=False), encoding="utf-8")
    return folder / PARAMETERS


def load(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The parameters and the words that `save` wrote.

    Raises FileNotFoundError for a folder in which no run was saved, ValueError for files that are
    not what `save` writes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save(Path(folder), {"a": {"b": np.ones(2)}}, {"width": 2})
    ...     load(Path(folder))
    ({'a': {'b': array([1., 1.])}}, {'width': 2})
    """
    missing = [name for name in (WORDS, PARAMETERS) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"no run was saved in {str(folder)!r}: {missing[0]} is missing; `combinax text` saves "
            "one"
        )
    with np.load(folder / PARAMETERS, allow_pickle=False) as arrays:
        params = unflatten_dict({name: arrays[name] for name in arrays.files}, sep="/")
    return params, json.loads((folder / WORDS).read_text(encoding="utf-8"))
