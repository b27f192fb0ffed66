"""Backbones with the weights that others trained: a folder or a file becomes a term and parameters.

    term, params, tokenizer = load("path/to/model")
    logits = term(params, jnp.array(tokenizer.encode("The capital of France is").ids))

A folder is laid out as Hugging Face's are: config.json, model.safetensors (or an index of several
files) and tokenizer.json. A file is a GGUF file. Needs the extra `pretrained`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from ..combinators import CompositionError, Term, stack
from ..combinators.core.check import fit
from ..combinators.core.declare import declare
from ..combinators.core.errors import brief
from . import files, gguf_file
from .bert import bert, bert_layout
from .configuration import Config, require
from .disk import attributed, placed, read_fields, steady, transaction, writing
from .files import minilm, smollm2
from .gpt2 import gpt2, gpt2_layout
from .layout import Source, from_theirs, to_theirs
from .llama import llama, llama_layout

__all__ = [
    "Pretrained", "architecture", "batch", "chat_template", "configuration", "load", "minilm",
    "save", "smollm2",
]  # fmt: skip

FAMILIES = {
    "bert": (bert, bert_layout),
    "gpt2": (gpt2, gpt2_layout),
    "llama": (llama, llama_layout),
}


DEPTHS = {"num_hidden_layers", "n_layer"}
SIZES = DEPTHS | {
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "type_vocab_size", "n_embd", "n_inner", "n_head", "n_positions",
}  # fmt: skip
"""Fields that say how large an array is. A length that rotary positions stand for is none."""


class Pretrained(NamedTuple):
    """A term, its parameters, and the tokenizer that makes its input: a `tokenizers.Tokenizer`, or
    None where the folder has none."""

    term: Term
    params: dict[str, Any]
    tokenizer: Any


def load(path: str | Path, dtype: str = "float32") -> Pretrained:
    """A backbone from a folder of Hugging Face's layout or from a GGUF file.

    The file is mapped into memory and each array copied once, into its place. Layers are stacked;
    `unstack(term, params)` takes them apart. `dtype` is that of the parameters. A file is compared
    with its configuration before anything is made: it never takes more memory than it has numbers.

    Raises errors that name the file: CompositionError, by the field's name, for a variant that is
    not supported; ParameterError, which lists the names, where weights are missing or left over,
    and for weights or a `dtype` that are no floats; FileNotFoundError where there is no such file;
    ValueError for one that is damaged.
    """
    path = Path(path)
    if path.is_dir():
        config, file, source, tokenizer = steady(path, files.PARTS, lambda: read_folder(path))
    else:
        file, (config, source, tokenizer) = path, gguf_file.read(path)
    with attributed(path / "config.json" if path.is_dir() else path):
        make, layout = family(config)
        check_sizes(config, source)
        term, rules = make(config), layout(config)
    with attributed(file):
        params = from_theirs(rules, source, declared(term), dtype)
    return Pretrained(term, params, tokenizer)


def read_folder(folder: Path) -> tuple[dict[str, Any], Path, Source, Tokenizer | None]:
    """The configuration, the weights and where they lie, and the tokenizer; all are open then."""
    config = read_fields(placed(folder, "config.json") or folder / "config.json")
    file, own = files.weights_file(folder), placed(folder, "tokenizer.json")
    tokenizer = None if own is None else files.tokenizer(own)
    return config, file, files.weights(file), tokenizer


def check_sizes(config: Config, source: Source) -> None:
    """A configuration asks for no more than a file has: layers than arrays, or rows than numbers.

    Raises CompositionError with the field.
    """
    numbers = max((math.prod(stored.shape) for stored in source.values()), default=0)
    for field in sorted(SIZES & config.keys()):
        size, most = config[field], len(source) if field in DEPTHS else numbers
        if isinstance(size, int) and size > most:
            what = "arrays" if field in DEPTHS else "numbers in its largest array"
            raise CompositionError(
                f"{field} is {brief(repr(size))}, and the file of weights has {most:,} {what}"
            )


def configuration(path: str | Path) -> dict[str, Any]:
    """The fields of a folder's config.json, or of a GGUF file under the same names.

    Raises ValueError for a file that is damaged.
    """
    path = Path(path)
    if path.is_dir():
        read = lambda: read_fields(placed(path, "config.json") or path / "config.json")  # noqa: E731
        return steady(path, files.PARTS, read)
    return gguf_file.read(path)[0]


def chat_template(path: str | Path) -> str:
    """How a folder, or a GGUF file, says that a conversation is written; "" where it does not."""
    path = Path(path)
    return files.chat_template(path) if path.is_dir() else gguf_file.chat_template(path)


def architecture(config: Config) -> Term:
    """The term that a configuration describes.

    Raises CompositionError, by the field's name, for what is not supported.
    """
    make, _ = family(config)
    return make(config)


def family(config: Config) -> Any:
    kind = config.get("model_type", "")
    require({"model_type": kind}, model_type=tuple(FAMILIES))
    require(config, quantization_config=(None,), transformers_weights=(None, files.WEIGHTS))
    return FAMILIES[kind]


def declared(term: Term) -> dict[str, Any]:
    """What a term that reads tokens learns."""
    one = jax.ShapeDtypeStruct((1,), jnp.int32)
    known = {"token_types": one, "lengths": jax.ShapeDtypeStruct((), jnp.int32)}
    return declare(term, one, {name: known[name] for name in term.reads})[0]


def save(
    folder: str | Path,
    config: Config,
    params: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write a backbone as transformers reads it: config.json, model.safetensors, tokenizer.json.

    `config` is that of the backbone, as `configuration` reads it. What the folder held of a model
    is replaced, an index and its files too, and a tokenizer where none is given: all at once, so
    that `load` finds the old model or the new one, whenever the writer is killed. Two writers wait
    for each other. Other files stay.

    Raises ParameterError for parameters of another model, ValueError for an index that is damaged,
    OSError, which names the file, where the disk is full.
    """
    term, layout = (make(config) for make in family(config))
    fit(term, declared(term), params)
    arrays = to_theirs(layout, stack(term, params))
    folder = Path(folder)
    fields = {name: value for name, value in config.items() if name != "torch_dtype"}
    fields["dtype"] = next(iter(arrays.values())).dtype.name
    text = json.dumps(fields, indent=2, default=np.generic.item)
    with transaction(folder) as new:
        for name in superseded(folder):
            (new / name).touch()
        with writing(folder / "config.json"):
            (new / "config.json").write_text(text, "utf-8")
        if tokenizer is not None:
            with writing(folder / "tokenizer.json"):
                (new / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")
        with writing(folder / files.WEIGHTS):
            try:
                save_file(arrays, new / files.WEIGHTS, metadata={"format": "pt"})
            except SafetensorError as error:
                number = re.search(r"os error (\d+)", str(error))
                raise OSError(number and int(number[1]), str(error)) from error


def superseded(folder: Path) -> list[str]:
    """The files of a folder that a new model may leave without meaning."""
    index = folder / files.INDEX
    before = files.shards(index).values() if index.exists() else ()
    held = {file for file in before if Path(file).name == file != files.WEIGHTS}
    return sorted(
        name for name in {*held, files.INDEX, "tokenizer.json"} if (folder / name).exists()
    )


def batch(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Texts as one batch: tokens (B, T), and as context their `lengths` (B,) and `token_types`
    (B, T); T is the length of the longest.

        tokens, context = batch(tokenizer, texts)
        hidden, pooled = each(term)(params, tokens, **context)

    The tokenizer truncates where it is made to, and MiniLM's is.

    Raises CompositionError for a text that is not in a list.
    """
    if isinstance(texts, str):
        raise CompositionError(f"batch takes a list of texts, and gets one: [{brief(texts)!r}]")
    rows = tokenizer.encode_batch(list(texts))
    lengths = np.array([sum(row.attention_mask) for row in rows], np.int32)
    tokens, types = np.zeros((2, len(rows), lengths.max(initial=0)), np.int32)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        tokens[i, :length], types[i, :length] = row.ids[:length], row.type_ids[:length]
    return tokens, {"lengths": lengths, "token_types": types}
