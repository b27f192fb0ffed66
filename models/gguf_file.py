"""GGUF, the one-file format of llama.cpp: configuration, weights and tokenizer of a Llama."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .configuration import Config, positive, require
from .disk import legible
from .layout import Source

__all__ = ["chat_template", "read"]

FIELDS = {
    "vocab_size": "llama.vocab_size",
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "max_position_embeddings": "llama.context_length",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
    "rope_theta": "llama.rope.freq_base",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}


def read(path: Path) -> tuple[dict[str, Any], Source, Tokenizer]:
    """The configuration, the weights and the tokenizer of a file, which is mapped into memory.

    Raises CompositionError, by the field's name, for what is not supported, and ValueError for a
    file that is not GGUF.
    """
    file = opened(path)  # a hundred thousand small objects, so it is not kept
    config = configuration(file)
    return config, weights(file, config), tokenizer(file)


def chat_template(path: Path) -> str:
    """How a conversation is written, as the file says it: a template, "" where there is none."""
    return value(opened(path), "tokenizer.chat_template") or ""


def opened(path: Path) -> GGUFReader:
    if not path.is_file():
        raise FileNotFoundError(
            f"{str(path)!r} is no folder and no GGUF file here, and nothing is downloaded"
        )
    with legible(path, "GGUF", ValueError, IndexError, KeyError, OverflowError):
        return GGUFReader(path)


def path_of(file: GGUFReader) -> Path:
    return Path(str(file.data.filename))


def value(file: GGUFReader, name: str) -> Any:
    """A field of the file, None where it is not there."""
    field = file.get_field(name)
    with legible(path_of(file), "GGUF", UnicodeDecodeError):
        found = None if field is None else field.contents()
    # Floats are kept in float32: the decimal that they were written from, not its rounding.
    return float(str(np.float32(found))) if isinstance(found, float) else found


def needed(file: GGUFReader, name: str) -> Any:
    """A field that has to be there. Raises ValueError, by its name, if not."""
    found = value(file, name)
    if found is None:
        raise ValueError(f"{str(path_of(file))!r} has no field {name}, which is needed")
    return found


def supported(file: GGUFReader, name: str, *values: Any) -> Any:
    """A field that has to have one of these values; refused by name if not."""
    require({name: value(file, name)}, **{name: values})
    return value(file, name)


def configuration(file: GGUFReader) -> dict[str, Any]:
    """The fields of a GGUF file under the names of a config.json.

    Raises CompositionError, by the field's name, for what is not supported.
    """
    supported(file, "general.architecture", "llama")
    supported(file, "llama.rope.scaling.type", None, "none")
    found = {ours: value(file, theirs) for ours, theirs in FIELDS.items()}
    size = positive(found, "hidden_size") // positive(found, "num_attention_heads")
    supported(file, "llama.rope.dimension_count", None, size)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in file.tensors),
        **{name: number for name, number in found.items() if number is not None},
    }


def weights(file: GGUFReader, config: Config) -> Source:
    """The arrays of a GGUF file under the names, and in the order of rows, of transformers."""
    names = {
        f"{theirs.format(layer)}{end}": f"{ours.format(layer)}{end}"
        for layer in range(positive(config, "num_hidden_layers"))
        for theirs, ours in NAMES.items()
        for end in (".weight", ".bias")
    }
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config.get("num_key_value_heads", config["num_attention_heads"]),
    }
    return {
        names.get(tensor.name, tensor.name): partial(
            array, tensor, heads.get(tensor.name.split(".")[-2:][0], 0)
        )
        for tensor in file.tensors
    }


def array(tensor: ReaderTensor, heads: int) -> np.ndarray:
    """The numbers of a tensor. llama.cpp turns neighbours, so it keeps the rows of queries and
    keys interleaved; transformers, and `half_split`, turn one half against the other."""
    numbers = dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
    if not heads:
        return numbers
    pairs = numbers.reshape(heads, -1, 2, *numbers.shape[1:])
    return pairs.swapaxes(1, 2).reshape(numbers.shape)


# Tokenizer

DIGITS = pre_tokenizers.Digits(individual_digits=True)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
BEFORE = {"gpt-2": BYTES, "smollm": pre_tokenizers.Sequence([DIGITS, BYTES])}
"""What cuts a text into words, by the name that llama.cpp gives it."""
CONTROL, USER_DEFINED = 3, 4


def tokenizer(file: GGUFReader) -> Tokenizer:
    """The tokenizer of a GGUF file: byte-level BPE from its vocabulary and merges.

    Raises CompositionError, by the field's name, for another kind.
    """
    supported(file, "tokenizer.ggml.model", "gpt2")
    before = BEFORE[supported(file, "tokenizer.ggml.pre", *BEFORE)]
    tokens, kinds, merges = (
        needed(file, f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "merges")
    )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    made = Tokenizer(models.BPE(vocabulary, pairs))
    made.pre_tokenizer, made.decoder = before, decoders.ByteLevel()
    for special, kind in ((True, CONTROL), (False, USER_DEFINED)):
        made.add_tokens(
            [
                AddedToken(token, special=special, normalized=False)
                for token, own in zip(tokens, kinds, strict=True)
                if own == kind
            ]
        )
    return made
