"""What transformers had and what it answered, for tiny backbones; their files."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from combinax.combinators import Term

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
