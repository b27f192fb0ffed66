"""Backbones against transformers: tiny random ones, loaded from the files that it writes.

`oracles/make_backbones.py` made the arrays.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest
from backbones_oracle import Oracle, close, every_variant, oracle, several_files
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from safetensors.numpy import load_file

from combinax.combinators import CompositionError, ParameterError, observe, unstack
from combinax.models import pretrained
from combinax.models.pretrained import configuration, load, save


@every_variant
def test_answers_are_those_of_transformers(name, tmp_path):
    asked = oracle(name)
    term, params, _ = load(asked.folder(tmp_path))
    answer, rows = asked.answer, slice(int(asked.answer["length"]))
    y, seen = jax.jit(observe(term))(params, answer["tokens"], **asked.context(term))
    if isinstance(y, tuple):
        y, pooled = y
        close(pooled, answer["pooled"])
    close(y[rows], answer["output"][rows])

    def at(end: str) -> Any:
        (found,) = (value for path, value in seen.items() if path.endswith(end))
        return found

    maps = at("heads/normalize").weight
    close(maps.reshape(answer["attention"].shape)[:, :, rows], answer["attention"][:, :, rows])
    layers = at("blocks/dictionary")[:, rows]
    if "bert" in name:
        close(layers, answer["hidden"][1:, rows])
    else:  # the last one is given after the norm
        close(layers[:-1], answer["hidden"][1:-1])
        norm = "layer_norm" if "gpt2" in name else "rms_norm"
        last = seen.get(norm, seen.get(f"tied/{norm}"))
        close(last, answer["hidden"][-1])


@every_variant
def test_saving_writes_the_file_of_transformers(name, tmp_path):
    asked = oracle(name)
    term, params, _ = load(asked.folder(tmp_path / "theirs"))
    for form in (params, unstack(term, params)):
        save(tmp_path / "ours", asked.config, form)
        written = load_file(tmp_path / "ours" / "model.safetensors")
        assert written.keys() == asked.weights.keys()
        for key, value in asked.weights.items():
            np.testing.assert_array_equal(written[key], value)
    assert json.loads((tmp_path / "ours" / "config.json").read_text()) == asked.config
    again = load(tmp_path / "ours")
    assert again.term == term
    chex.assert_trees_all_equal(again.params, params)


def test_what_is_saved_takes_the_place_of_several_files(tmp_path):
    asked = oracle("gpt2")
    folder = several_files(asked, tmp_path / "model")
    (folder / "of_others.safetensors").write_bytes(b"")
    params = jax.tree.map(lambda leaf: leaf + 1, load(folder).params)
    save(folder, asked.config, params)
    chex.assert_trees_all_equal(load(folder).params, params)
    left = {"config.json", "model.safetensors", "of_others.safetensors"}
    assert {file.name for file in folder.iterdir()} == left


def test_what_cannot_be_saved_leaves_the_files_of_before(tmp_path, monkeypatch):
    asked = oracle("gpt2")
    folder = several_files(asked, tmp_path / "model")
    before = {file: file.read_bytes() for file in folder.iterdir()}
    params = load(folder).params

    def full(arrays, file, metadata):
        file.write_bytes(b"half")
        raise OSError("no space is left")

    with pytest.raises(TypeError):
        save(folder, {**asked.config, "task": {1, 2}}, params)
    monkeypatch.setattr(pretrained, "save_file", full)
    with pytest.raises(OSError, match="no space is left"):
        save(folder, asked.config, params)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_numbers_of_numpy_in_a_configuration(tmp_path):
    asked = oracle("gpt2")
    params = load(asked.folder(tmp_path / "theirs")).params
    numbers = {k: np.int64(v) if type(v) is int else v for k, v in asked.config.items()}
    save(tmp_path / "ours", numbers, params)
    assert configuration(tmp_path / "ours") == asked.config


def test_parameters_of_another_model_are_not_saved(tmp_path):
    asked = oracle("gpt2")
    _, params, _ = load(asked.folder(tmp_path / "theirs"))
    with pytest.raises(ParameterError, match=r"layer_norm\.bias is missing"):
        save(tmp_path / "ours", asked.config, {**params, "layer_norm": {}})
    assert not (tmp_path / "ours").exists()


# GGUF


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """How llama.cpp's convert_hf_to_gguf.py permutes the rows of queries and keys."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def gguf(
    asked: Oracle, path: Path, kind: str = "F32", arch: str = "llama", pre: str = "smollm",
    **more: str,
) -> Path:  # fmt: skip
    """A GGUF file with the weights of an oracle, as llama.cpp writes it."""
    config, writer = asked.config, GGUFWriter(path, arch)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["<end>", "a", "b", "c", "1", "2", "ab", "abc", "12", "<own>"])
    writer.add_token_types([3, 1, 1, 1, 1, 1, 1, 1, 1, 4])
    writer.add_token_merges(["a b", "ab c", "1 2"])
    for key, value in more.items():
        writer.add_string(key, value)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for key, value in asked.weights.items():
        base, end = key.rsplit(".", 1)
        if (own := base.rsplit(".", 1)[-1]) in heads:
            value = interleaved(value, heads[own])
        how = GGMLQuantizationType[kind if value.ndim > 1 else "F32"]
        writer.add_tensor(f"{names.get_name(base)}.{end}", quantize(value, how), raw_dtype=how)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind, error", [("F32", 0), ("F16", 2**-10)])
@pytest.mark.parametrize("name", ["llama_tied", "llama_one_key"])
def test_gguf_has_what_the_folder_has(name, kind, error, tmp_path):
    asked = oracle(name)
    term, params, _ = load(asked.folder(tmp_path / "folder"))
    found = load(gguf(asked, tmp_path / "file.gguf", kind))
    assert found.term == term
    close_to = functools.partial(np.testing.assert_allclose, rtol=error, atol=error / 2**14)
    jax.tree.map(close_to, found.params, params)


def test_gguf_is_saved_as_a_folder(tmp_path):
    asked = oracle("llama_tied")
    file = gguf(asked, tmp_path / "file.gguf")
    _, params, tokenizer = load(file)
    save(tmp_path / "folder", configuration(file), params, tokenizer)
    again = load(tmp_path / "folder")
    chex.assert_trees_all_equal(again.params, params)
    assert again.tokenizer.to_str() == tokenizer.to_str()
    written = load_file(tmp_path / "folder" / "model.safetensors")
    assert written.keys() == asked.weights.keys()
    for key, value in asked.weights.items():
        np.testing.assert_array_equal(written[key], value)


def test_tokenizer_of_gguf(tmp_path):
    asked = oracle("llama_tied")
    text = "abca12<own>b<end>"
    smol = load(gguf(asked, tmp_path / "smol.gguf")).tokenizer
    assert smol.encode(text).tokens == ["abc", "a", "1", "2", "<own>", "b", "<end>"]
    assert smol.decode(smol.encode(text).ids) == "abca12<own>b"  # control tokens are not text
    gpt2 = load(gguf(asked, tmp_path / "gpt2.gguf", pre="gpt-2")).tokenizer
    assert gpt2.encode("abca12").tokens == ["abc", "a", "12"]


def test_damaged_gguf_is_named(tmp_path):
    file = gguf(oracle("llama_tied"), tmp_path / "file.gguf")
    whole = file.read_bytes()
    many = whole[:16] + b"\xff" + whole[17:]
    for held in (b"", whole[:24], whole[:1000], many):
        file.write_bytes(held)
        with pytest.raises(ValueError, match=r"file\.gguf' is no GGUF file, or a damaged one"):
            load(file)


def test_gguf_without_its_merges(tmp_path):
    file = gguf(oracle("llama_tied"), tmp_path / "file.gguf")
    file.write_bytes(file.read_bytes().replace(b"ggml.merges", b"ggml.mergez"))
    with pytest.raises(ValueError, match=r"file\.gguf' has no field tokenizer\.ggml\.merges"):
        load(file)


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(arch="gemma3"), "general.architecture 'gemma3' is not supported"),
        (
            dict(pre="qwen2"),
            "tokenizer.ggml.pre 'qwen2' is not supported",
        ),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type 'yarn' is not supported"),
    ],
)
def test_what_of_gguf_is_refused(options, text, tmp_path):
    with pytest.raises(CompositionError, match=re.escape(text)):
        load(gguf(oracle("llama_tied"), tmp_path / "file.gguf", **options))
