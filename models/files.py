"""Where weights lie on the disk: every format gives the same, a function for each name."""

from __future__ import annotations

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from .layout import Source

__all__ = ["weights"]


def weights(folder: Path) -> Source:
    """The arrays of a folder by name; a file is mapped into memory, and an array read when asked.

    Raises FileNotFoundError where there are no weights, ImportError where they are those of torch
    and torch is not there to read them.
    """
    for name, read in FORMATS.items():
        if (folder / f"{name}.index.json").is_file():
            index = json.loads((folder / f"{name}.index.json").read_text())
            files = {file: read(folder / file) for file in set(index["weight_map"].values())}
            return {key: files[file][key] for key, file in index["weight_map"].items()}
        if (folder / name).is_file():
            return read(folder / name)
    raise FileNotFoundError(
        f"no weights in {str(folder)!r}: it has neither of {', '.join(FORMATS)}"
    )


def safetensors(file: Path) -> Source:
    handle = safe_open(file, "numpy")
    return {name: partial(handle.get_tensor, name) for name in handle.keys()}  # noqa: SIM118


def pickled(file: Path) -> Source:
    """A file of torch, of which nothing but tensors is unpickled."""
    if find_spec("torch") is None:
        raise ImportError(f"{file.name} is a file of torch: pip install torch, or use safetensors")
    import torch

    def array(tensor: Any) -> np.ndarray:
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()

    tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return {name: partial(array, tensor) for name, tensor in tensors.items()}


FORMATS = {"model.safetensors": safetensors, "pytorch_model.bin": pickled}
