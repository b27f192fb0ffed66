"""Backbones against transformers: tiny random ones, loaded from the files that it writes.

`oracles/make_backbones.py` made the arrays.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from combinax.combinators import Term, observe, unstack
from combinax.models.pretrained import load, save

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
    jax.tree.map(np.testing.assert_array_equal, again.params, params)
