"""Files of backbones: several with an index, damaged ones, those of GGUF, and what is refused."""

from __future__ import annotations

import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from backbones_oracle import oracle, several_files
from safetensors.numpy import save_file

from combinax.combinators import CompositionError, ParameterError
from combinax.models.pretrained import architecture, load, save


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
