"""GGUF, the one-file format of llama.cpp: configuration, weights and tokenizer of a Llama."""

from __future__ import annotations

import re
import struct
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType as Kind
from gguf import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .configuration import Config, positive, require
from .disk import attributed, legible, shown
from .gguf_header import Header, Tensor, read_header
from .layout import Source, Stored

__all__ = ["chat_template", "read"]

FIELDS = {
    "vocab_size": ("llama.vocab_size", Kind.UINT32),
    "hidden_size": ("llama.embedding_length", Kind.UINT32),
    "intermediate_size": ("llama.feed_forward_length", Kind.UINT32),
    "num_hidden_layers": ("llama.block_count", Kind.UINT32),
    "num_attention_heads": ("llama.attention.head_count", Kind.UINT32),
    "num_key_value_heads": ("llama.attention.head_count_kv", Kind.UINT32),
    "max_position_embeddings": ("llama.context_length", Kind.UINT32),
    "rms_norm_eps": ("llama.attention.layer_norm_rms_epsilon", Kind.FLOAT32),
    "rope_theta": ("llama.rope.freq_base", Kind.FLOAT32),
    "bos_token_id": ("tokenizer.ggml.bos_token_id", Kind.UINT32),
    "eos_token_id": ("tokenizer.ggml.eos_token_id", Kind.UINT32),
    "pad_token_id": ("tokenizer.ggml.padding_token_id", Kind.UINT32),
}
"""Our name of a field, theirs, and the type in which llama.cpp reads it."""

NEUTRAL = {
    "expert_count": (Kind.UINT32, 0),
    "expert_used_count": (Kind.UINT32, 0),
    "attention.causal": (Kind.BOOL, True),
    "attention.sliding_window": (Kind.UINT32, 0),
    "attention.scale": (Kind.FLOAT32, 0.0),
    "attention.clamp_kqv": (Kind.FLOAT32, 0.0),
    "attention.max_alibi_bias": (Kind.FLOAT32, 0.0),
    "attn_logit_softcapping": (Kind.FLOAT32, 0.0),
    "final_logit_softcapping": (Kind.FLOAT32, 0.0),
    "rope.scaling.attn_factor": (Kind.FLOAT32, 1.0),
    "embedding_scale": (Kind.FLOAT32, 0.0, 1.0),
    "residual_scale": (Kind.FLOAT32, 0.0, 1.0),
    "logit_scale": (Kind.FLOAT32, 0.0, 1.0),
}
"""Fields that change numbers, with the values that change none; they may be missing."""

FACTOR = "llama.rope.scaling.factor"
ENDS = ("weight", "bias")

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
    file = opened(path)
    with attributed(path):
        config = configuration(file)
        return config, weights(file, config), tokenizer(file)


def chat_template(path: Path) -> str:
    """How a conversation is written, as the file says it: a template, "" where there is none."""
    return value(opened(path), "tokenizer.chat_template", Kind.STRING) or ""


def opened(path: Path) -> Header:
    if not path.exists():
        raise FileNotFoundError(
            f"{str(path)!r} is no folder and no GGUF file here, and nothing is downloaded"
        )
    with legible(path, "GGUF", ValueError, KeyError, OverflowError, struct.error):
        return read_header(path)


def value(file: Header, name: str, kind: Kind, many: bool = False) -> Any:
    """A field of the file, None where it is not there.

    Raises ValueError for one of another type: llama.cpp converts none.
    """
    field = file.fields.get(name)
    if field is None:
        return None
    if (field.kind, field.many) != (kind, many):
        is_a, needs = ("an array of " * m + k.name for k, m in (field[:2], (kind, many)))
        raise ValueError(f"{str(file.file)!r} has {name} as {is_a}, and it has to be {needs}")
    if kind is not Kind.STRING:
        # Floats are kept in float32: the decimal that they were written from, not its rounding.
        one = (lambda n: float(str(n))) if kind is Kind.FLOAT32 else kind_of(kind)
        return [one(number) for number in field.held] if many else one(field.held)
    with legible(file.file, "GGUF", UnicodeDecodeError):
        return [text.decode() for text in field.held] if many else field.held.decode()


def kind_of(kind: Kind) -> type:
    return bool if kind is Kind.BOOL else int


def needed(file: Header, name: str, kind: Kind, many: bool = False) -> Any:
    """A field that has to be there. Raises ValueError, by its name, if not."""
    found = value(file, name, kind, many)
    if found is None:
        raise ValueError(f"{str(file.file)!r} has no field {name}, which is needed")
    return found


def supported(file: Header, name: str, kind: Kind, *values: Any) -> Any:
    """A field that has to have one of these values; refused by name if not."""
    require({name: value(file, name, kind)}, **{name: values})
    return value(file, name, kind)


def configuration(file: Header) -> dict[str, Any]:
    """The fields of a GGUF file under the names of a config.json.

    Raises CompositionError, by the field's name, for what is not supported.
    """
    supported(file, "general.architecture", Kind.STRING, "llama")
    found = {ours: value(file, *theirs) for ours, theirs in FIELDS.items()}
    size = positive(found, "hidden_size") // positive(found, "num_attention_heads")
    for name in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
        supported(file, f"llama.{name}", Kind.UINT32, None, size)
    for name, (kind, *values) in NEUTRAL.items():
        supported(file, f"llama.{name}", kind, None, *values)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        **{name: number for name, number in found.items() if number is not None},
        **scaling(file),
    }


def scaling(file: Header) -> dict[str, Any]:
    """How positions are scaled, as llama.cpp reads it: a factor alone is linear, and one of 0 is
    none."""
    kind = supported(file, "llama.rope.scaling.type", Kind.STRING, None, "linear", "none")
    factors = (
        value(file, f"llama.rope.{name}", Kind.FLOAT32)
        for name in ("scaling.factor", "scale_linear")
    )
    factor = next((factor for factor in factors if factor is not None), 0.0)
    if kind == "none" or factor == 0:
        return {}
    return {
        "rope_scaling": {"rope_type": "linear", "factor": positive({FACTOR: factor}, FACTOR, Real)}
    }


def weights(file: Header, config: Config) -> Source:
    """The arrays of a GGUF file under the names, and in the order of rows, of transformers."""
    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config.get("num_key_value_heads", config["num_attention_heads"]),
    }
    source = {}
    for name, tensor in file.tensors.items():
        turns = heads.get(name.split(".")[-2:][0], 0)
        read = partial(array, file.file, name, tensor, turns)
        source[renamed(name)] = Stored(tensor.shape, "float32", read, file.file)
    if len(source) < len(file.tensors):
        raise ValueError(f"{str(file.file)!r} has two names of one array")
    return source


def renamed(name: str) -> str:
    """The name that transformers gives to a tensor of llama.cpp; another stays.

    >>> renamed("blk.3.attn_q.weight"), renamed("rope_freqs.weight")
    ('model.layers.3.self_attn.q_proj.weight', 'rope_freqs.weight')
    """
    base, _, end = name.rpartition(".")
    layer = re.match(r"blk\.(\d+)\.", base)
    theirs = NAMES.get(re.sub(r"^blk\.\d+\.", "blk.{}.", base)) if end in ENDS else None
    return f"{theirs.format(layer and layer[1])}.{end}" if theirs else name


def array(file: Path, name: str, tensor: Tensor, heads: int) -> np.ndarray:
    """The numbers of a tensor. llama.cpp turns neighbours, so it keeps the rows of queries and
    keys interleaved; transformers, and `half_split`, turn one half against the other."""
    try:
        numbers = dequantize(tensor.data, tensor.kind).reshape(tensor.shape)
    except NotImplementedError:
        raise ValueError(
            f"{str(file)!r} has {shown(name)} in {tensor.kind.name}, which is not read"
        ) from None
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


def tokenizer(file: Header) -> Tokenizer:
    """The tokenizer of a GGUF file: byte-level BPE from its vocabulary and merges.

    Raises CompositionError, by the field's name, for another kind, and ValueError for tokens that
    do not fit each other.
    """
    supported(file, "tokenizer.ggml.model", Kind.STRING, "gpt2")
    before = BEFORE[supported(file, "tokenizer.ggml.pre", Kind.STRING, *BEFORE)]
    tokens, kinds, merges = (
        needed(file, f"tokenizer.ggml.{name}", kind, many=True)
        for name, kind in (
            ("tokens", Kind.STRING), ("token_type", Kind.INT32), ("merges", Kind.STRING),
        )
    )  # fmt: skip
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if not len(vocabulary) == len(tokens) == len(kinds):
        raise ValueError(
            f"{str(file.file)!r} has {len(tokens)} tokenizer.ggml.tokens, of which "
            f"{len(vocabulary)} are different, and {len(kinds)} types"
        )
    with legible(file.file, "GGUF", Exception):  # the library raises no other of its own
        made = Tokenizer(models.BPE(vocabulary, [pair(merge) for merge in merges]))
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


def pair(merge: str) -> tuple[str, str]:
    first, _, second = merge.partition(" ")
    return first, second
