"""Files of torch, read without torch, against what torch reads: `oracles/make_torch.py`."""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from pathlib import Path

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from files_oracle import CONFIG, TORCH, WEIGHTS, folder

from combinax.models.pretrained import load
from combinax.models.torch_file import read

GOOD = [key.removeprefix("good/") for key in TORCH if key.startswith("good/")]
BAD = {
    "protocol_4": "its pickle has the instruction FRAME, which no tensor needs",
    "list": "it holds a list, and weights are tensors by name",
    "list_old": "it holds a list, and weights are tensors by name",
    "list_inside": "x is a list, and weights are tensors",
    "int": "x is a int, and weights are tensors",
    "int_old": "x is a int, and weights are tensors",
    "int_name": "5 is a Tensor, and weights are tensors",
    "text": "x is a str, and weights are tensors",
    "nested": "model is a dict, and weights are tensors",
    "tensor": "it holds a Tensor, and weights are tensors by name",
    "sparse": "it holds a sparse tensor, which is not read",
    "sparse_old": "it holds a sparse tensor, which is not read",
    "gradient": r"x requires a gradient: save the state_dict\(\)",
    "gradient_old": r"x requires a gradient: save the state_dict\(\)",
    "parameter": r"x requires a gradient: save the state_dict\(\)",
    "float8": "",
    "complex": "ComplexFloatStorage that is no storage of numbers",
    "whole_module": "",
    "expanded": r"x of shape \(1000, 1000, 1000\) has 1 numbers",
    "expanded_old": r"x of shape \(1000, 1000, 1000\) has 1 numbers",
    "many_names": "its tensors have 52,012 bytes, and the file",
}


def write(path: Path, name: str) -> Path:
    path.write_bytes(TORCH[name].tobytes())
    return path


@pytest.mark.parametrize("name", GOOD)
def test_what_torch_reads(name, tmp_path):
    source = read(write(tmp_path / "pytorch_model.bin", f"good/{name}"))
    expected = {
        key.removeprefix(f"read/{name}/"): value
        for key, value in TORCH.items()
        if key.startswith(f"read/{name}/")
    }
    assert source.keys() == expected.keys()
    for key, stored in source.items():
        array = stored.read()
        assert array.shape == stored.shape and array.dtype == jnp.dtype(stored.dtype)
        if stored.dtype == "bfloat16":
            array = array.astype(np.float32)
        assert array.dtype == expected[key].dtype
        np.testing.assert_array_equal(array, expected[key])


@pytest.mark.parametrize("name", ["llama", "llama_old"])
def test_a_model_of_torch(name, tmp_path):
    expected = load(folder(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    write(tmp_path / "pytorch_model.bin", f"good/{name}")
    found = load(tmp_path)
    assert found.term == expected.term
    chex.assert_trees_all_equal(found.params, expected.params)


def test_every_bad_file_is_a_case():
    assert BAD.keys() == {key.removeprefix("bad/") for key in TORCH if key.startswith("bad/")}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_read_is_one_error_that_names_the_file(name, tmp_path):
    write(tmp_path / "pytorch_model.bin", f"bad/{name}")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ValueError, match=rf"pytorch_model\.bin' is no torch file.*{BAD[name]}"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["kinds", "kinds_old"])
def test_a_truncated_file_is_named(name, tmp_path):
    whole, file = TORCH[f"good/{name}"].tobytes(), tmp_path / "pytorch_model.bin"
    for size in range(0, len(whole), len(whole) // 40):
        file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=re.escape(str(file))):
            read(file)


class Touch:
    """What a hostile pickle would do."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_nothing_in_a_pickle_is_called(protocol, tmp_path):
    proof, file = tmp_path / "proof", tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"x": Touch(proof)}, protocol))
    with pytest.raises(ValueError, match=re.escape(str(file))):
        read(file)
    assert not proof.exists()


def test_storages_past_the_file_are_refused(tmp_path):
    """Numbers that a pickle makes up: eight where there are six."""
    whole, file = TORCH["good/kinds_old"].tobytes(), tmp_path / "pytorch_model.bin"
    assert whole.count(b"K\x06Nt") >= 1  # the size of the storage of `float`
    file.write_bytes(whole.replace(b"K\x06Nt", b"K\x08Nt", 1))
    with pytest.raises(ValueError, match="a storage has 6 numbers in place of 8"):
        read(file)


@pytest.mark.parametrize(
    "entry, text",
    [
        ("other/data/0", "its entry other/data/0 lies outside its folder"),
        ("data.pkl", "its entry data.pkl lies outside its folder"),
        ("{root}/data/0", "its entry {root}/data/0 is there twice"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_is_one_folder_of_distinct_entries(entry, text, tmp_path):
    file = write(tmp_path / "pytorch_model.bin", "good/kinds")
    with zipfile.ZipFile(file, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(entry.format(root=root), bytes(64))
    with pytest.raises(ValueError, match=rf"pytorch_model\.bin'.*{text.format(root=root)}"):
        read(file)


def test_only_the_folder_of_data_holds_storages(tmp_path):
    expected = read(write(tmp_path / "pytorch_model.bin", "good/kinds"))
    file = write(tmp_path / "more.bin", "good/kinds")
    with zipfile.ZipFile(file, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/0", bytes(64))
    chex.assert_trees_all_equal(
        *(
            {name: stored.read() for name, stored in source.items()}
            for source in (expected, read(file))
        )
    )


def test_a_name_twice_in_a_pickle_is_refused(tmp_path):
    file = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}(X\x01\0\0\0wNX\x01\0\0\0wNu.")
    with pytest.raises(ValueError, match="its pickle has w twice in one dictionary"):
        read(file)


def test_the_weights_of_the_oracle_are_those_of_its_configuration():
    assert WEIGHTS["model.embed_tokens.weight"].shape == (
        CONFIG["vocab_size"], CONFIG["hidden_size"],
    )  # fmt: skip
