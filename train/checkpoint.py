"""What a run keeps in its folder: the parameters, by path, and in words what they belong to."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from numpy.lib.npyio import NpzFile

from ..models.disk import legible, read_fields, replaced

__all__ = ["load", "save"]

PARAMETERS, WORDS = "parameters.npz", "model.json"
DAMAGES = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, RuntimeError)
"""What Python and NumPy raise about the bytes of an archive."""


def save(folder: Path, params: Any, words: dict[str, Any]) -> Path:
    """Write parameters and what is needed to build their term again: JSON, beside plain arrays.

    Raises OSError where nothing can be written; what was saved before is then still whole.
    """
    flat: Any = flatten_dict(jax.device_get(params), sep="/")
    text = json.dumps(words, indent=2, ensure_ascii=False)
    with replaced(folder / WORDS) as own, replaced(folder / PARAMETERS) as arrays:
        np.savez(arrays, **flat)
        own.write_text(text, encoding="utf-8")
    return folder / PARAMETERS


def load(folder: Path, **kinds: type) -> tuple[Any, dict[str, Any]]:
    """The parameters and the words that `save` wrote; those named are there, and of their type.

    Raises FileNotFoundError for a folder in which no run was saved, ValueError, by its name, for a
    file that is not what `save` writes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save(Path(folder), {"a": {"b": np.ones(2)}}, {"width": 2})
    ...     load(Path(folder), width=int)
    ({'a': {'b': array([1., 1.])}}, {'width': 2})
    """
    missing = [name for name in (WORDS, PARAMETERS) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"no run was saved in {str(folder)!r}: {missing[0]} is missing; `combinax text` saves "
            "one"
        )
    words, file = read_fields(folder / WORDS, **kinds), folder / PARAMETERS
    held = io.BytesIO(file.read_bytes())
    with legible(file, "npz", *DAMAGES), NpzFile(held) as arrays:
        return unflatten_dict({name: arrays[name] for name in arrays.files}, sep="/"), words
