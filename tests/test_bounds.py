"""A file is worth what it holds: a tiny one that asks for much is refused at once.

Memory and time are those of a process of its own, which reads one file after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files_oracle import CONFIG, WEIGHTS, bounded, folder
from safetensors.numpy import save_file
from test_configuration import BERT, GPT2
from test_gguf_header import Kind, gguf

from combinax.models.pretrained import load

HUGE = 10**9
SECONDS, MEGABYTES = 1, 100
Asked = Iterator[tuple[Path, str]]
"""Files, each with what is to be said of it."""


def configurations(place: Path) -> Asked:
    sizes = [
        (CONFIG, ("num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size",
            "num_attention_heads", "num_key_value_heads")),
        (BERT, ("num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size",
            "type_vocab_size", "num_attention_heads")),
        (GPT2, ("n_layer", "n_embd", "vocab_size", "n_head", "n_positions", "n_inner")),
    ]  # fmt: skip
    for config, fields in sizes:
        for field in fields:
            for size in (HUGE, 10**18, 10**4000):
                path = folder(place / f"{config['model_type']}-{field}-{size % 7919}")
                (path / "config.json").write_text(json.dumps({**config, field: size}))
                if config is not CONFIG:
                    save_file({"x": np.ones((9, 9), "f4")}, path / "model.safetensors")
                yield path, f"config.json': {field} is 1000000000"
    path = folder(place / "empty", {**CONFIG, "vocab_size": HUGE})
    save_file({**WEIGHTS, "x": np.zeros((0, 10**12), "f4")}, path / "model.safetensors")
    yield path, f"vocab_size is {HUGE}, and the file of weights has 20 numbers in its largest"


def nested(place: Path) -> Asked:
    """JSON that nests or counts without end."""
    for name, kind in (
        ("config.json", "JSON"),
        ("tokenizer.json", "tokenizer"),
        ("tokenizer_config.json", "JSON"),
        ("model.safetensors.index.json", "JSON"),
    ):
        for i, held in enumerate(
            ("[" * 10**6, '{"a":' * 10**6, "9" * 10**5, '{"a":' + "9" * 10**5)
        ):
            path = folder(place / f"{name}-{i}")
            if "index" in name:
                (path / "model.safetensors").unlink()
            (path / name).write_text(held)
            yield path, f"{name}' is no {kind} file, or a damaged one"


def headers(place: Path) -> Asked:
    """Headers of safetensors that lie about their length, or say it of much."""
    for size in (2**64 - 1, 2**63, 2**32, 10**8, 1000):
        file = folder(place / f"{size}") / "model.safetensors"
        file.write_bytes(size.to_bytes(8, "little") + file.read_bytes()[8:])
        yield file.parent, "model.safetensors' is no safetensors file"
    for shape, end in (("[1000000000,1000000000]", 0), ("[4611686018427387904,4]", 0), ("[9]", 36)):
        file = folder(place / shape) / "model.safetensors"
        head = f'{{"x":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{end}]}}}}'.encode()
        file.write_bytes(len(head).to_bytes(8, "little") + head)
        yield file.parent, "model.safetensors' is no safetensors file"


def ggufs(place: Path) -> Asked:
    many = (2**62).to_bytes(8, "little")
    head = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little")
    name, text = (1).to_bytes(8, "little") + b"x", (8).to_bytes(4, "little")
    heads = [name + text + many, many]
    for kind in (*range(13), 99):
        heads.append(name + (9).to_bytes(4, "little") + kind.to_bytes(4, "little") + many)
    for i, held in enumerate(heads):
        file = place / f"head-{i}.gguf"
        file.write_bytes(head + held + bytes(10**5))
        yield file, "gguf' is no GGUF file"
    for field in ("block_count", "embedding_length", "vocab_size", "feed_forward_length"):
        size = {f"llama.{field}": (Kind.UINT32, HUGE)}
        yield gguf(place / f"{field}.gguf", size), f"is {HUGE}, and the file of weights has"
    for shape in ((HUGE, HUGE), (2**64 - 1,), (HUGE,)):
        file = gguf(place / f"{len(shape)}{shape[0]}.gguf", {}, {"output.weight": (shape, 0, b"")})
        yield file, "gguf' is no GGUF file"


def tokenizers(place: Path) -> Asked:
    """Those that pad without end, and those that are none."""
    padding = dict(
        strategy={"Fixed": 10**12}, direction="Right", pad_to_multiple_of=None, pad_id=0,
        pad_type_id=0, pad_token="a",
    )  # fmt: skip
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    more = {"strategy": "BatchLongest", "pad_to_multiple_of": 10**12}
    bpe = {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}
    for i, (held, text) in enumerate(
        (
            ({"model": model, "padding": padding}, "pads to a length of 1,000,000,000,000"),
            ({"model": model, "padding": {**padding, **more}}, "pads to a pad_to_multiple_of of"),
            ({}, "is no tokenizer file"),
            ([], "is no tokenizer file"),
            ({"model": 5}, "is no tokenizer file"),
            ({"model": bpe}, "is no tokenizer file"),
            ({"model": {"type": "Unigram", "vocab": [], "unk_id": 5}}, "is no tokenizer file"),
        )
    ):
        path = folder(place / f"{i}")
        (path / "tokenizer.json").write_text(json.dumps(held))
        yield path, f"tokenizer.json' {text}"


PLACES = (
    "config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json",
    "tokenizer_config.json", "chat_template.jinja", "model.safetensors.index.json",
    "pytorch_model.bin.index.json", "a.gguf",
)  # fmt: skip


def no_files(place: Path) -> Asked:
    """A pipe, a folder, a device, and a tebibyte of nothing, each in the place of every file."""
    for kind in ("pipe", "folder", "device", "sparse"):
        for name in PLACES:
            path = folder(place / f"{kind}-{name}")
            if name.startswith(("pytorch", "model")):
                (path / "model.safetensors").unlink()
            file = path / name
            file.unlink(missing_ok=True)
            if kind == "pipe":
                os.mkfifo(file)
            elif kind == "folder":
                file.mkdir()
            elif kind == "device":
                file.symlink_to("/dev/zero")
            else:
                with file.open("wb") as opened:
                    opened.truncate(2**40)
            if (kind, name) != ("folder", "a.gguf"):
                yield file if name == "a.gguf" else path, f"{name}' "


KINDS = (configurations, nested, headers, ggufs, tokenizers, no_files)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What one process says of all of them, one after the other."""
    asked = {}
    for kind in KINDS:
        asked[kind] = list(kind(tmp_path_factory.mktemp(kind.__name__)))
    paths = [path for pairs in asked.values() for path, _ in pairs]
    said = iter(
        bounded(paths, "lambda path: (pretrained.load(path), pretrained.chat_template(path))")
    )
    return {kind: [(next(said), text) for _, text in pairs] for kind, pairs in asked.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_asks_for_much_is_refused_at_once(kind, outcomes):
    assert len(outcomes[kind]) > 6
    for (path, said, seconds, size), text in outcomes[kind]:
        assert said.split(": ")[0].endswith("Error") and text in said, f"{path}: {said}"
        assert seconds < SECONDS and size < MEGABYTES, f"{path}: {seconds} s, {size} MB"


def test_no_number_of_a_position_is_an_array(tmp_path):
    place = folder(tmp_path / "model", {**CONFIG, "max_position_embeddings": HUGE})
    assert load(place).params["embed"]["table"].shape == (5, 4)


# An index never leaves its folder


def indexed(place: Path, file: Any, index: str = "model.safetensors.index.json") -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(CONFIG))
    (place / index).write_text(json.dumps({"weight_map": dict.fromkeys(WEIGHTS, file)}))
    return place


def test_an_index_never_leaves_its_folder(tmp_path):
    outside = folder(tmp_path / "outside") / "model.safetensors"
    place = tmp_path / "model"
    place.mkdir()
    (place / "link.safetensors").symlink_to(outside)
    (place / "links").symlink_to(outside.parent)
    (place / "sub").mkdir()
    (place / "circle").symlink_to("circle")
    for file in (
        "../outside/model.safetensors", str(outside), "link.safetensors", "links/model.safetensors",
        "sub/../../outside/model.safetensors", "..", "", "\0", "a\0b", "../model/../outside/x",
        "x" * 5000, "\ud800",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"index\.json' has .* no file inside its folder"):
            load(indexed(place, file))
    for file in (5, None, ["a"], {}):
        with pytest.raises(ValueError, match=r"index\.json' has .* no file inside its folder"):
            load(indexed(place, file))
    for file, text in (
        (".", "is a folder"),
        ("sub", "is a folder"),
        ("gone", "are not there"),
        ("circle", "circle"),
    ):
        with pytest.raises(ValueError, match=text):
            load(indexed(place, file))


def test_files_that_an_index_may_name(tmp_path):
    """Those of its folder, and those to which the cache of Hugging Face links."""
    weights = folder(tmp_path / "outside") / "model.safetensors"
    expected = load(weights.parent).params
    cache = tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    weights.rename(cache / "blobs" / "5f3a")
    snapshot = indexed(cache / "snapshots" / "1c", "a.safetensors")
    (snapshot / "a.safetensors").symlink_to("../../blobs/5f3a")
    assert load(snapshot).params.keys() == expected.keys()
    inside = indexed(tmp_path / "model", "sub/a.safetensors")
    (inside / "sub").mkdir()
    (cache / "blobs" / "5f3a").rename(inside / "sub" / "a.safetensors")
    assert load(inside).params.keys() == expected.keys()


def test_files_of_an_index_share_no_array(tmp_path):
    place = indexed(tmp_path / "model", "a.safetensors")
    save_file(WEIGHTS, place / "a.safetensors")
    save_file({"lm_head.weight": WEIGHTS["lm_head.weight"] + 1}, place / "b.safetensors")
    index = {
        "weight_map": {**dict.fromkeys(WEIGHTS, "a.safetensors"), "lm_head.weight": "b.safetensors"}
    }
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"index\.json' has files that share arrays: lm_head\.we"):
        load(place)
