"""What a config.json says about numbers, field by field: as transformers reads it, or refused.

Frequencies are those of transformers 5.24 (`model.model.rotary_emb.inv_freq`), in float32.
"""

from __future__ import annotations

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from files_oracle import CONFIG, WEIGHTS, folder

from combinax.combinators import CompositionError, ParameterError
from combinax.models.llama import turned
from combinax.models.pretrained import architecture, configuration, load

LLAMA = {**CONFIG, "hidden_size": 24, "num_attention_heads": 6, "max_position_embeddings": 64}
BERT = dict(
    model_type="bert", vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=8, max_position_embeddings=16,
)  # fmt: skip
GPT2 = dict(model_type="gpt2", vocab_size=9, n_embd=4, n_layer=1, n_head=2, n_positions=16)
LINEAR = dict(rope_type="linear", factor=4.0)
WAVES = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)


def frequencies(config):
    """By how much each pair of a head of width 4 turns from one position to the next."""
    turn = turned({**LLAMA, **config})
    x = jnp.array([[1.0, 1.0, 0.0, 0.0]] * 2)  # pairs (1, 0): one half against the other
    a, b = np.split(np.asarray(turn({}, x))[1], 2)
    return np.arctan2(b, a)


@pytest.mark.parametrize(
    "config, expected",
    [
        ({}, [1.0, 0.01]),
        ({"rope_scaling": LINEAR}, [0.25, 0.0025]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, [0.5, 0.005]),
        ({"rope_scaling": LINEAR, "rope_theta": 7}, [0.25, 0.18898225 / 2]),
        # Where both say something, rope_scaling hides all of rope_parameters, its base too.
        (
            {
                "rope_scaling": LINEAR,
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            },
            [0.25, 0.0025],
        ),
        (
            {"rope_scaling": {}, "rope_parameters": {**LINEAR, "rope_theta": 50.0}},
            [0.25, 0.035355341],
        ),
        (
            {"rope_theta": 50.0, "rope_parameters": {**LINEAR, "rope_theta": 500.0}},
            [0.25, 0.01118034],
        ),
        (
            {
                "rope_parameters": {**WAVES, "original_max_position_embeddings": 16},
                "original_max_position_embeddings": 32,
            },
            [1.0, 0.00125],
        ),
    ],
)
def test_frequencies_are_those_of_transformers(config, expected):
    np.testing.assert_allclose(frequencies(config), expected, rtol=1e-5)


def test_the_length_beside_the_fields_counts():
    """A base of 30 puts the second wavelength, 34.4, between 32 / 4 and 32, and past 16."""
    inside = {**WAVES, "rope_theta": 30.0, "original_max_position_embeddings": 32}
    beside = {**inside, "original_max_position_embeddings": 16}
    one = frequencies({"rope_parameters": inside})
    other = frequencies({"rope_parameters": beside, "original_max_position_embeddings": 32})
    np.testing.assert_array_equal(one, other)
    assert (one != frequencies({"rope_parameters": beside})).any()


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    "asked, text",
    [
        ({"factor": 2.0}, "has a factor of 2.0, and rope_type 'default' has no such field"),
        ({"rope_type": "default", "type": "linear", "factor": 2.0}, "has a factor of 2.0"),
        ({"rope_type": None, "type": "linear", "factor": 2.0}, "rope_type None is not supported"),
        ({"low_freq_factor": 1.0}, "has a low_freq_factor of 1.0"),
        (
            {**LINEAR, "low_freq_factor": 1.0},
            "has a low_freq_factor of 1.0, and rope_type 'linear'",
        ),
        ({**LINEAR, "attention_factor": 3.0}, "has a attention_factor of 3.0, and"),
        ({"full_attention": {"rope_theta": 5e5}}, "has a full_attention of {'rope_theta': 500000"),
        ({**LINEAR, "factor": {}}, "factor has to be a positive number, and it is {}"),
        ({**LINEAR, "factor": float("nan")}, "factor has to be a positive number, and it is nan"),
        ({**LINEAR, "factor": -2.0}, "factor has to be a positive number, and it is -2.0"),
        ({**LINEAR, "factor": "2"}, "factor has to be a positive number, and it is '2'"),
        ({**LINEAR, "factor": True}, "factor has to be a positive number, and it is True"),
        ({**LINEAR, "factor": 10**400}, "factor has to be a positive number, and it is 1000"),
        (
            {**LINEAR, "rope_theta": 1e39},
            r"rope_theta has to be a positive number, and it is 1e\+39",
        ),
        ({**WAVES, "original_max_position_embeddings": 2**31}, "has to be a positive integer"),
        ({**WAVES, "high_freq_factor": 1.0}, "high_freq_factor has to be above low_freq_factor"),
        ({"rope_type": "yarn", "factor": 2.0}, "rope_type 'yarn' is not supported"),
        ("linear", "are fields, not 'linear'"),
    ],
)
def test_rotations_that_are_refused(field, asked, text):
    with pytest.raises(CompositionError, match=text):
        architecture({**LLAMA, field: asked})


@pytest.mark.parametrize(
    "config, field, values",
    [
        (LLAMA, "rms_norm_eps", [float("nan"), -1.0, float("inf"), "1e-6", None, True, 10**39, 1]),
        (BERT, "layer_norm_eps", [float("nan"), -1.0, float("-inf"), [], None]),
        (GPT2, "layer_norm_epsilon", [float("nan"), -1e-5, {}, None, 1.0]),
        (BERT, "hidden_dropout_prob", [-0.1, 1.0, float("nan"), "0.1"]),
        (BERT, "attention_probs_dropout_prob", [1, None]),
        (GPT2, "resid_pdrop", [2.0]),
        (GPT2, "attn_pdrop", [float("nan")]),
        (GPT2, "embd_pdrop", ["0"]),
        (LLAMA, "attention_dropout", [1.0, "0.1", float("nan")]),
        (LLAMA, "num_hidden_layers", [True, 1.0, -1, 2**31, "1"]),
        (LLAMA, "num_key_value_heads", [0, True, "2", 1.5]),
        (GPT2, "n_inner", [0, -4, "8", True]),
        (GPT2, "n_positions", [0, None, 2**40]),
        (BERT, "type_vocab_size", [0, None, True]),
    ],
)
def test_fields_that_hold_no_such_number(config, field, values):
    for value in values:
        with pytest.raises(CompositionError, match=f"{field} has to be "):
            architecture({**config, field: value})


@pytest.mark.parametrize(
    "config, field, value",
    [
        (LLAMA, "tie_word_embeddings", "false"),
        (LLAMA, "tie_word_embeddings", None),
        (GPT2, "tie_word_embeddings", "true"),
        (LLAMA, "attention_bias", "no"),
        (LLAMA, "hidden_act", ["silu"]),
        (BERT, "hidden_act", {"name": "gelu"}),
        (BERT, "pruned_heads", {"0": [1]}),
        (GPT2, "hidden_size", 8),
        (GPT2, "max_position_embeddings", 32),
        (LLAMA, "quantization_config", {"bits": 4}),
        (LLAMA, "transformers_weights", "other.safetensors"),
        (LLAMA, "model_type", ["llama"]),
        (LLAMA, "head_dim", 8),
    ],
)
def test_fields_with_another_value(config, field, value):
    with pytest.raises(CompositionError, match=f"{field} {re.escape(repr(value))} is not support"):
        architecture({**config, field: value})


def test_dropout_of_attention_is_that_of_training():
    assert architecture(LLAMA) == architecture({**LLAMA, "attention_dropout": None})
    assert "dropout(0.25)" in repr(architecture({**LLAMA, "attention_dropout": 0.25}))


def test_no_eps_is_a_number():
    assert "rms_norm(0.0)" in repr(architecture({**LLAMA, "rms_norm_eps": 0}))


# Weights


def test_a_refusal_names_the_file(tmp_path):
    place = folder(tmp_path / "model", {**CONFIG, "rms_norm_eps": -1.0})
    with pytest.raises(CompositionError, match=r"model/config\.json': rms_norm_eps has to be"):
        load(place)


def test_a_head_beside_the_table_that_it_is_tied_to(tmp_path):
    """Transformers 5 unties them and warns; here nothing says that it should."""
    tie = {**CONFIG, "tie_word_embeddings": True}
    place = folder(tmp_path / "model", tie)
    with pytest.raises(
        ParameterError,
        match=r"model\.safetensors': lm_head\.weight is another array than model\.embed_tokens\."
        r"weight.* set tie_word_embeddings to false",
    ):
        load(place)
    table = WEIGHTS["model.embed_tokens.weight"]
    for same in (table, table.astype(np.float64)):
        assert "head" not in load(folder(place, tie, **{"lm_head.weight": same})).params
    with pytest.raises(ParameterError, match=r"lm_head\.weight is another array"):
        load(folder(place, tie, **{"lm_head.weight": table[:2]}))


@pytest.mark.parametrize(
    "name, other",
    [
        ("model.norm.weight", "norm.weight"),
        ("model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
    ],
)
def test_two_names_of_one_array(name, other, tmp_path):
    place = folder(tmp_path / "model", CONFIG, **{other: 9 + WEIGHTS[name]})
    pair = f"({re.escape(name)} and {re.escape(other)}|{re.escape(other)} and {re.escape(name)})"
    with pytest.raises(ParameterError, match=rf"model\.safetensors': {pair} are two names of one"):
        load(place)


def test_a_prefix_is_that_of_the_backbone_alone(tmp_path):
    names = {"model.lm_head.weight": WEIGHTS["lm_head.weight"]}
    place = folder(tmp_path / "model", CONFIG, **names)
    with pytest.raises(ParameterError, match=r"none of this model's: model\.lm_head\.weight"):
        load(place)


def test_control_characters_are_shown_escaped(tmp_path):
    name = "a\x1b[2J\u202eb\n"
    place = folder(tmp_path / "model", CONFIG, **{name: np.ones(1, np.float32)})
    with pytest.raises(ParameterError, match=r"model's: a\\x1b\[2J\\u202eb\\n$"):
        load(place)
    (place / "config.json").write_text(json.dumps({**CONFIG, "model_type": name}))
    with pytest.raises(CompositionError, match=r"model_type 'a\\x1b\[2J\\u202eb\\n' is not"):
        load(place)


def test_many_names_are_listed_briefly(tmp_path):
    more = {f"x{i:03}": np.ones(1, np.float32) for i in range(100)}
    place = folder(tmp_path / "model", CONFIG, **more)
    with pytest.raises(ParameterError, match=r"^\S+ 100 weights of the .* x011 and 88 more$"):
        load(place)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "number, dtype", [(1e300, "float32"), (-1e300, "bfloat16"), (7e4, "float16")]
)
def test_a_number_that_is_too_large_for_its_type(number, dtype, tmp_path):
    norm = np.array([1, number, np.inf, np.nan])
    place = folder(tmp_path / "model", CONFIG, **{"model.norm.weight": norm})
    with jax.enable_x64(True):
        found = load(place, "float64").params["rms_norm"]["scale"]
        np.testing.assert_array_equal(found, norm)
    with pytest.raises(
        ParameterError,
        match=rf"model\.safetensors': model\.norm\.weight has a number .* too large for {dtype}",
    ):
        load(place, dtype)
    if number > 1e5:  # without 64 bits, float64 is float32
        with pytest.raises(ParameterError, match="too large for float32"):
            load(place, "float64")


@pytest.mark.parametrize("dtype", ["int8", "nonsense", "bool"])
def test_parameters_are_floats(dtype, tmp_path):
    place = folder(tmp_path / "model")
    with pytest.raises(ParameterError, match="parameters are floats, such as 'bfloat16', not "):
        load(place, dtype)


@pytest.mark.parametrize("twice", [b'"F32"', b'"I32"'])
def test_an_array_twice_in_a_header(twice, tmp_path):
    """The library takes the last of them; JSON itself allows it."""
    entry = b'"x":{"dtype":%s,"shape":[1],"data_offsets":[0,4]}'
    header = b"{" + entry % b'"F32"' + b"," + entry % twice + b"}"
    folder(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    with pytest.raises(ValueError, match=r"model\.safetensors' is no .*its header has x twice"):
        load(tmp_path / "model")


def test_which_weights_are_taken(tmp_path):
    """As transformers: one file before an index, safetensors before torch."""
    place = folder(tmp_path / "model")
    expected = load(place).params
    (place / "pytorch_model.bin").write_bytes(b"")
    (place / "model.safetensors.index.json").write_text("[]")
    assert load(place).params.keys() == expected.keys()
    (place / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json' needs an object of fields"):
        load(place)


def test_configuration_is_what_is_written(tmp_path):
    assert configuration(folder(tmp_path / "model")) == CONFIG
