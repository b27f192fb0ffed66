"""GGUF byte by byte: what llama.cpp reads is read, and any other header refused by name."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import chex
import pytest
from files_oracle import CONFIG, WEIGHTS, folder
from gguf import GGUFValueType as Kind

from combinax.combinators import CompositionError
from combinax.models.pretrained import configuration, load

FORMS = {
    Kind.UINT8: "B", Kind.INT8: "b", Kind.UINT16: "H", Kind.INT16: "h", Kind.UINT32: "I",
    Kind.INT32: "i", Kind.FLOAT32: "f", Kind.BOOL: "?", Kind.UINT64: "Q", Kind.INT64: "q",
    Kind.FLOAT64: "d",
}  # fmt: skip
FIELDS: dict[str, tuple[Any, ...]] = {
    "general.architecture": (Kind.STRING, "llama"),
    "llama.vocab_size": (Kind.UINT32, 5),
    "llama.embedding_length": (Kind.UINT32, 4),
    "llama.feed_forward_length": (Kind.UINT32, 3),
    "llama.block_count": (Kind.UINT32, 1),
    "llama.attention.head_count": (Kind.UINT32, 2),
    "llama.attention.layer_norm_rms_epsilon": (Kind.FLOAT32, 1e-6),
    "tokenizer.ggml.model": (Kind.STRING, "gpt2"),
    "tokenizer.ggml.pre": (Kind.STRING, "gpt-2"),
    "tokenizer.ggml.tokens": (Kind.ARRAY, Kind.STRING, ["<end>", "a", "b", "ab"]),
    "tokenizer.ggml.token_type": (Kind.ARRAY, Kind.INT32, [3, 1, 1, 1]),
    "tokenizer.ggml.merges": (Kind.ARRAY, Kind.STRING, ["a b"]),
}
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.layers.0.input_layernorm": "blk.0.attn_norm",
    "model.layers.0.self_attn.q_proj": "blk.0.attn_q",
    "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
    "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
    "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
    "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
    "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate",
    "model.layers.0.mlp.up_proj": "blk.0.ffn_up", "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
}  # fmt: skip
# Two heads of width 2: both halves have one row, so that interleaving moves none.
TENSORS = {
    f"{NAMES[name.removesuffix('.weight')]}.weight": (value.shape[::-1], 0, value.tobytes())
    for name, value in WEIGHTS.items()
}


def text(value: str | bytes) -> bytes:
    held = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(held)) + held


def value(kind: Kind, *held: Any) -> bytes:
    if kind is Kind.STRING:
        return text(held[0])
    if kind is Kind.ARRAY:
        inner, entries = held
        return struct.pack("<IQ", inner, len(entries)) + b"".join(value(inner, e) for e in entries)
    return struct.pack(f"<{FORMS[kind]}", held[0])


def gguf(
    path: Path,
    fields: Any = None,
    tensors: Any = None,
    offsets: dict[str, int] | None = None,
    version: int = 3,
    align: int = 32,
) -> Path:
    """A file of these fields and tensors, or of a list of either, where a name may be twice."""
    fields = [*(fields if isinstance(fields, list) else {**FIELDS, **(fields or {})}.items())]
    tensors = [*(tensors if isinstance(tensors, list) else {**TENSORS, **(tensors or {})}.items())]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields))
    for name, (kind, *held) in fields:
        head += text(name) + struct.pack("<I", kind) + value(kind, *held)
    data = b""
    for name, (shape, kind, held) in tensors:
        data += bytes(-len(data) % align)
        offset = (offsets or {}).get(name, len(data))
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        data += held
    path.write_bytes(head + bytes(-len(head) % align) + data)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("align", [1, 8, 32, 256])
def test_what_is_written_is_read(version, align, tmp_path):
    fields = {"general.alignment": (Kind.UINT32, align)} if align != 32 else {}
    found = load(gguf(tmp_path / "a.gguf", fields, version=version, align=align))
    expected = load(folder(tmp_path / "folder"))
    assert found.term == expected.term
    chex.assert_trees_all_equal(found.params, expected.params)
    assert found.tokenizer.encode("abab").ids == [3, 3]


def test_biases_are_found(tmp_path):
    names = {f"blk.0.attn_{name}.bias": ((4,), 0, bytes(16)) for name in ("q", "k", "v", "output")}
    file = gguf(tmp_path / "a.gguf", tensors=names)
    assert configuration(file)["attention_bias"] is True
    assert load(file).params["blocks"]["attention"]["output"]["bias"].shape == (1, 4)


FACTOR = {"llama.rope.scaling.factor": (Kind.FLOAT32, 4.0)}


@pytest.mark.parametrize(
    "fields, factor",
    [
        ({}, None),
        (FACTOR, 4.0),  # linear, where there is no type
        ({**FACTOR, "llama.rope.scaling.type": (Kind.STRING, "linear")}, 4.0),
        ({**FACTOR, "llama.rope.scaling.type": (Kind.STRING, "none")}, None),
        ({"llama.rope.scale_linear": (Kind.FLOAT32, 2.0)}, 2.0),
        ({**FACTOR, "llama.rope.scale_linear": (Kind.FLOAT32, 2.0)}, 4.0),
        ({"llama.rope.scaling.factor": (Kind.FLOAT32, 0.0)}, None),
    ],
)
def test_positions_are_scaled_as_in_llama_cpp(fields, factor, tmp_path):
    expected = {"rope_scaling": {"rope_type": "linear", "factor": factor}} if factor else {}
    file = gguf(tmp_path / "a.gguf", fields)
    found = {k: v for k, v in configuration(file).items() if "rope" in k}
    assert found == expected
    plain = load(folder(tmp_path / "folder", {**CONFIG, **expected}))
    assert load(file).term == plain.term


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"llama.block_count": (Kind.FLOAT32, 1.0)}, "block_count as FLOAT32, .* to be UINT32"),
        ({"llama.block_count": (Kind.UINT64, 1)}, "block_count as UINT64, .* has to be UINT32"),
        ({"llama.block_count": (Kind.BOOL, True)}, "block_count as BOOL, .* has to be UINT32"),
        ({"llama.block_count": (Kind.STRING, "1")}, "block_count as STRING, .* be UINT32"),
        (
            {"llama.attention.head_count": (Kind.ARRAY, Kind.UINT32, [2])},
            "head_count as an array of UINT32, and it has to be UINT32",
        ),
        ({"llama.rope.freq_base": (Kind.UINT32, 500)}, "freq_base as UINT32, .* be FLOAT32"),
        ({"general.architecture": (Kind.UINT32, 1)}, "architecture as UINT32, .* be STRING"),
        (
            {"tokenizer.ggml.tokens": (Kind.ARRAY, Kind.INT32, [1])},
            "tokens as an array of INT32, and it has to be an array of STRING",
        ),
        (
            {"tokenizer.ggml.token_type": (Kind.ARRAY, Kind.INT32, [1])},
            "has 4 tokenizer.ggml.tokens, of which 4 are different, and 1 types",
        ),
        (
            {"tokenizer.ggml.tokens": (Kind.ARRAY, Kind.STRING, ["a", "a", "b", "c"])},
            "has 4 tokenizer.ggml.tokens, of which 3 are different, and 4 types",
        ),
        ({"tokenizer.ggml.merges": (Kind.ARRAY, Kind.STRING, ["a c"])}, "Token `c` out of vocab"),
        ({"tokenizer.ggml.merges": (Kind.ARRAY, Kind.STRING, ["ab"])}, "out of vocabulary"),
        ({"tokenizer.ggml.tokens": (Kind.ARRAY, Kind.STRING, [b"\xff"])}, "is no GGUF file"),
        ({"general.alignment": (Kind.UINT32, 24)}, "general.alignment is no power of two"),
        ({"general.alignment": (Kind.UINT32, 0)}, "general.alignment is no power of two"),
        ({"general.alignment": (Kind.STRING, "32")}, "general.alignment is no power of two"),
        ({"x": (Kind.ARRAY, Kind.ARRAY, [])}, "it has an array of arrays"),
        (
            {"llama.rope.scaling.factor": (Kind.FLOAT32, float("nan"))},
            "llama.rope.scaling.factor has to be a positive number, and it is nan",
        ),
        (
            {"llama.attention.layer_norm_rms_epsilon": (Kind.FLOAT32, float("nan"))},
            "rms_norm_eps has to be a small number, 0 ≤ eps < 1, and it is nan",
        ),
        ({"llama.rope.dimension_count": (Kind.UINT32, 1)}, "rope.dimension_count 1 is not sup"),
        ({"llama.attention.key_length": (Kind.UINT32, 4)}, "key_length 4 is not supported"),
        ({"llama.attention.value_length": (Kind.UINT32, 4)}, "value_length 4 is not supported"),
        ({"llama.expert_count": (Kind.UINT32, 8)}, "llama.expert_count 8 is not supported"),
        ({"llama.attention.causal": (Kind.BOOL, False)}, "attention.causal False is not supp"),
        ({"llama.rope.scaling.attn_factor": (Kind.FLOAT32, 2.0)}, "attn_factor 2.0 is not supp"),
        ({"llama.rope.scaling.type": (Kind.STRING, "yarn")}, "type 'yarn' is not supported"),
        ({"llama.logit_scale": (Kind.FLOAT32, 0.5)}, "llama.logit_scale 0.5 is not supported"),
    ],
)
def test_fields_that_are_refused(fields, message, tmp_path):
    with pytest.raises(ValueError, match=rf"a\.gguf'.*{message}"):
        load(gguf(tmp_path / "a.gguf", fields))


def test_names_twice_are_refused(tmp_path):
    for fields, tensors, name in (
        ([*FIELDS.items(), ("llama.block_count", (Kind.UINT32, 2))], None, "llama.block_count"),
        (None, [*TENSORS.items(), ("output.weight", ((4,), 0, bytes(16)))], "output.weight"),
    ):
        with pytest.raises(ValueError, match=rf"a\.gguf' is no GGUF .*it has {name} twice"):
            load(gguf(tmp_path / "a.gguf", fields, tensors))


@pytest.mark.parametrize("offset", [2**64 - 32, 2**63, 2**64 - 1, 32, 0, 1, 10**6])
def test_offsets_are_those_of_tensors_in_a_row(offset, tmp_path):
    file = gguf(tmp_path / "a.gguf", offsets={"output.weight": offset})
    with pytest.raises(ValueError, match=rf"a\.gguf' .*output\.weight lies at {offset:,}, not at"):
        load(file)


@pytest.mark.parametrize(
    "tensor, message",
    [
        (((4, 5), 8, bytes(99)), "has rows of 4, no multiple of 32"),
        (((2**32, 2**32), 0, b""), "it ends .* bytes too early"),
        (((4, 5), 0, bytes(79)), "it ends 1 bytes too early"),
        (((4, 5), 99, b""), "99 is not a valid GGMLQuantizationType"),
        (((1, 1, 1, 4, 5), 0, bytes(80)), "has 5 axes, and 4 are the most"),
        (((4, 6), 0, bytes(96)), r"lm_head.weight has shape \(6, 4\), and this model needs \(5, 4"),
        (((4, 5), 24, bytes(20)), "output.weight in I8, which is not read"),
    ],
)
def test_tensors_that_are_refused(tensor, message, tmp_path):
    tensors = {k: v for k, v in TENSORS.items() if k != "output.weight"}
    file = gguf(tmp_path / "a.gguf", tensors=[*tensors.items(), ("output.weight", tensor)])
    with pytest.raises(ValueError, match=rf"a\.gguf'.*{message}"):
        load(file)


@pytest.mark.parametrize(
    "head, message",
    [
        (b"", "mmap"),
        (b"GGUX", "it does not begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 1), "its version is 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "its version is 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "too early"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "too early"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + b"\xff" * 40, "too early"),
    ],
)
def test_heads_that_are_refused(head, message, tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(head)
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))}' is no GGUF file.*{message}"):
        load(file)


def test_frequencies_of_a_table_are_refused_by_name(tmp_path):
    file = gguf(tmp_path / "a.gguf", tensors={"rope_freqs.weight": ((1,), 0, bytes(4))})
    with pytest.raises(ValueError, match=r"are none of this model's: rope_freqs\.weight"):
        load(file)


def test_a_config_error_names_the_file(tmp_path):
    file = gguf(tmp_path / "a.gguf", {"llama.block_count": (Kind.UINT32, 0)})
    with pytest.raises(CompositionError, match=r"a\.gguf': num_hidden_layers has to be a positive"):
        load(file)
