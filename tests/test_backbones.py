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
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from safetensors.numpy import load_file, save_file

from combinax.combinators import CompositionError, ParameterError, Term, observe, unstack
from combinax.models import pretrained
from combinax.models.pretrained import architecture, configuration, load, save

ORACLE = Path(__file__).parent / "oracles" / "backbones.npz"
VARIANTS = (
    "bert", "bert_tanh", "bert_masked", "gpt2", "gpt2_untied", "llama_tied", "llama_untied",
    "llama_biased", "llama_one_key",
)  # fmt: skip
every_variant = pytest.mark.parametrize("name", VARIANTS)
# Float32 sums of a few dozen numbers of size one, in another order.
close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)


class Oracle:
    """What transformers had and what it answered."""

    def __init__(self, name: str):
        with np.load(ORACLE) as arrays:
            mine = {
                key.removeprefix(f"{name}/"): arrays[key]
                for key in arrays
                if key.startswith(f"{name}/")
            }
        weights = "weights/"
        self.config = json.loads(str(mine.pop("config")))
        self.weights = {
            k.removeprefix(weights): v for k, v in mine.items() if k.startswith(weights)
        }
        self.answer = {key: value for key, value in mine.items() if not key.startswith(weights)}

    def folder(self, path: Path, **weights: Any) -> Path:
        """The files that transformers would load."""
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(self.config))
        save_file({**self.weights, **weights}, path / "model.safetensors")
        return path

    def context(self, term: Term) -> dict[str, Any]:
        known = {"lengths": self.answer["length"], "token_types": self.answer.get("token_types")}
        return {name: known[name] for name in term.reads}


oracle = functools.cache(Oracle)


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


# Files


def several_files(asked: Oracle, folder: Path) -> Path:
    """A folder whose weights lie in two files, with an index."""
    names = sorted(asked.weights)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(asked.config))
    for file, keys in halves.items():
        save_file({key: asked.weights[key] for key in keys}, folder / file)
    index = {"weight_map": {key: file for file, keys in halves.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_several_files_with_an_index(tmp_path):
    asked = oracle("gpt2")
    one = load(asked.folder(tmp_path / "one"))
    several = load(several_files(asked, tmp_path / "several"))
    chex.assert_trees_all_equal(several.params, one.params)


@pytest.mark.parametrize(
    "held, text",
    [
        ({}, "needs a field 'weight_map' of type dict, and has None"),
        ({"weight_map": None}, "needs a field 'weight_map' of type dict, and has None"),
        ({"weight_map": {"more": "a.safetensors"}}, "has more in a.safetensors, which has no such"),
    ],
)
def test_a_damaged_index_is_named(held, text, tmp_path):
    folder = several_files(oracle("gpt2"), tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text(json.dumps(held))
    with pytest.raises(ValueError, match=rf"safetensors\.index\.json' {text}"):
        load(folder)


@pytest.mark.parametrize(
    "file, held",
    [
        ("config.json", b"{"),
        ("config.json", b'"\xff"'),
        ("model.safetensors", b""),
        ("model.safetensors", None),
        ("tokenizer.json", b""),
        ("tokenizer.json", b"{}"),
    ],
)
def test_a_damaged_file_is_named(file, held, tmp_path):
    folder = oracle("gpt2").folder(tmp_path)
    held = (folder / file).read_bytes()[:-1] if held is None else held
    (folder / file).write_bytes(held)
    with pytest.raises(ValueError, match=f"{file}' is no .* file, or a damaged one"):
        load(folder)


def test_a_configuration_is_an_object(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(
        ValueError, match=r"config\.json' needs an object of fields, and holds a li"
    ):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["int8", "uint8", "bool", "int64"])
def test_codes_are_not_taken_for_weights(kind, tmp_path):
    asked, table = oracle("gpt2"), "transformer.wte.weight"
    folder = asked.folder(tmp_path, **{table: np.ones(asked.weights[table].shape, kind)})
    with pytest.raises(ParameterError, match=f"{table} holds {kind}, and parameters are floats"):
        load(folder)


def test_floats_of_eight_bits_are_refused_by_name(tmp_path):
    asked, table = oracle("gpt2"), "transformer.wte.weight"
    codes = {table: np.ones(asked.weights[table].shape, np.int8)}
    file = asked.folder(tmp_path, **codes) / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"I8"', b'"F8_E4M3"'))
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little") + len("F8_E4M3") - len("I8")
    file.write_bytes(length.to_bytes(8, "little") + whole[8:])
    with pytest.raises(ValueError, match=rf"safetensors' has {table} in F8_E4M3, which is not"):
        load(tmp_path)


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(oracle("bert").config))
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor pytorch"):
        load(tmp_path)


def test_bfloat16(tmp_path):
    asked = oracle("llama_tied")
    term, params, _ = load(asked.folder(tmp_path / "theirs"), dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    logits = np.asarray(term(params, asked.answer["tokens"]), np.float32)
    scale = np.abs(asked.answer["output"]).max()
    np.testing.assert_allclose(logits, asked.answer["output"], atol=0.05 * scale)
    save(tmp_path / "ours", asked.config, params)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["dtype"] == "bfloat16"
    chex.assert_trees_all_equal(load(tmp_path / "ours", "bfloat16").params, params)


@pytest.mark.parametrize("name", ["bert", "bert_masked", "gpt2", "llama_tied"])
def test_names_with_and_without_prefix(name, tmp_path):
    """A file of the backbone alone leaves the prefix out, and one of a larger model has it."""
    asked = oracle(name)
    family = asked.config["model_type"]
    prefix = {"bert": "bert.", "gpt2": "transformer.", "llama": "model."}[family]
    params = load(asked.folder(tmp_path / "theirs")).params
    other = asked.folder(tmp_path / "other")
    has = any(key.startswith(prefix) for key in asked.weights)
    renamed = {
        key.removeprefix(prefix) if has else prefix + key: v for key, v in asked.weights.items()
    }
    save_file(renamed, other / "model.safetensors")
    chex.assert_trees_all_equal(load(other).params, params)


def test_a_checkpoint_of_before(tmp_path):
    """The first checkpoint of BERT: other names in norms, and heads that this model has not."""
    asked = oracle("bert_masked")
    params = load(asked.folder(tmp_path / "now")).params
    before = {
        re.sub(
            "LayerNorm.weight$", "LayerNorm.gamma", re.sub("LayerNorm.bias$", "LayerNorm.beta", k)
        ): v
        for k, v in asked.weights.items()
    }
    more = "bert.pooler.dense.weight", "cls.seq_relationship.bias", "bert.embeddings.position_ids"
    copies = {
        "cls.predictions.decoder.weight": asked.weights["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": asked.weights["cls.predictions.bias"],
    }
    folder, file = asked.folder(tmp_path / "before"), tmp_path / "before" / "model.safetensors"
    before |= {name: np.zeros(3, np.float32) for name in more} | copies
    save_file(before, file)
    chex.assert_trees_all_equal(load(folder).params, params)
    for name, value in copies.items():
        save_file(before | {name: value + 1}, file)
        with pytest.raises(ParameterError, match=rf"{re.escape(name)} is another array than "):
            load(folder)


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


# Refusals


@pytest.mark.parametrize(
    "name, field, value",
    [
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("bert", "add_cross_attention", True),
        ("bert", "architectures", ["BertForSequenceClassification"]),
        ("bert", "hidden_act", "quick_gelu"),
        ("bert_masked", "tie_word_embeddings", False),
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "architectures", ["GPT2Model"]),
        ("gpt2", "activation_function", "mish"),
        ("llama_tied", "mlp_bias", True),
        ("llama_tied", "head_dim", 16),
        ("llama_tied", "architectures", ["LlamaForQuestionAnswering"]),
        ("llama_tied", "partial_rotary_factor", 0.5),
        ("llama_tied", "model_type", "mamba"),
        ("llama_tied", "model_type", None),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name, field, value):
    with pytest.raises(CompositionError, match=f"{field} {re.escape(repr(value))} is not support"):
        architecture({**oracle(name).config, field: value})


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope"])
@pytest.mark.parametrize("field", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_other_scalings_are_refused_by_name(kind, field, key):
    config = {**oracle("llama_tied").config, "rope_parameters": None, field: {key: kind}}
    with pytest.raises(CompositionError, match=f"rope_type '{kind}' is not supported"):
        architecture(config)


@pytest.mark.parametrize(
    "name, field, value",
    [
        ("bert", "vocab_size", 0),
        ("bert", "max_position_embeddings", None),
        ("gpt2", "n_head", 2.0),
        ("gpt2", "vocab_size", -1),
        ("llama_tied", "hidden_size", None),
        ("llama_tied", "num_hidden_layers", "2"),
        ("llama_tied", "rope_theta", None),
    ],
)
def test_what_is_no_positive_number_is_refused_by_name(name, field, value):
    config = {**oracle(name).config, "rope_parameters": None, field: value}
    with pytest.raises(CompositionError, match=f"{field} has to be a positive .* is {value!r}"):
        architecture(config)


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)


@pytest.mark.parametrize(
    "scaling, text",
    [
        ({"type": "linear"}, "factor has to be a positive number, and it is 'missing'"),
        ({"type": "linear", "factor": 0}, "factor has to be a positive number, and it is 0"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor has to be a positive number"),
        (LLAMA3, "original_max_position_embeddings has to be a positive integer"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    ],
)
def test_scalings_that_lack_a_number_are_refused_by_name(scaling, text):
    config = {**oracle("llama_tied").config, "rope_parameters": None, "rope_scaling": scaling}
    with pytest.raises(CompositionError, match=text):
        architecture(config)


def test_scaling_by_the_fields_of_before():
    now = oracle("llama_untied").config
    scaling = dict(now["rope_parameters"])
    before = {**now, "rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    del before["rope_parameters"]
    assert architecture(before) == architecture(now)


def test_names_that_are_missing_left_over_or_of_another_shape(tmp_path):
    asked = oracle("gpt2")
    table, more = "transformer.wte.weight", np.zeros(3, np.float32)
    folder = asked.folder(tmp_path, **{"score.weight": more, "transformer.h.2.ln_1.bias": more})
    text = "2 weights of the file are none of this model's: score.weight, transformer.h.2.ln_1.bias"
    with pytest.raises(ParameterError, match=re.escape(text)):
        load(folder)
    with pytest.raises(ParameterError, match="shape \\(3,\\), and this model needs \\(23, 12\\)"):
        load(asked.folder(tmp_path, **{table: more}))
    fewer = {k: v for k, v in asked.weights.items() if ".h.1.ln_1." not in k and k != table}
    save_file(fewer, tmp_path / "model.safetensors")
    text = (
        "3 weights of this model are not in the file: transformer.h.1.ln_1.bias, "
        "transformer.h.1.ln_1.weight, transformer.wte.weight"
    )
    with pytest.raises(ParameterError, match=text):
        load(tmp_path)
