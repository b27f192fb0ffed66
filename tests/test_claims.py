"""What papers claim, at a tiny size: the measures by hand, and each command's table and picture."""

from __future__ import annotations

import json
import math
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from combinax.train import __main__ as command
from combinax.train import claims
from combinax.train.claims import attention, encoders, networks


def test_measures_of_weights():
    one_hot = jnp.eye(4)[jnp.array([1, 0, 3, 2])]
    even = jnp.tril(jnp.ones((4, 4))) / jnp.arange(1, 5)[:, None]
    # One-hot rows elsewhere: two entries of 1 a row are wrong. Even ones, by sums of squares.
    assert attention.departure(one_hot) == pytest.approx(math.sqrt(2))
    squares = sum((1 - 1 / n) ** 2 + (n - 1) / n**2 for n in range(1, 5))
    assert attention.departure(even) == pytest.approx(math.sqrt(squares / 4))
    assert attention.spread(one_hot) == 0
    assert attention.spread(even) == pytest.approx(np.log([1, 2, 3, 4]).mean())
    assert attention.departure(jnp.stack([one_hot, even])).shape == (2,)


def test_words_run_together():
    ids, ends = encoders.joined(np.array(list(b"to be  or")), 32)
    assert bytes(ids.tolist()) == b"tobeor" and ends.tolist() == [0, 1, 0, 1, 0, 0]


SMALL = {
    "matrices": networks.matrices,
    "depth": partial(networks.depth, most=1),
    "identity": partial(attention.identity, looks=2),
    "entropy": partial(attention.entropy, looks=2),
    "pretraining": partial(encoders.pretraining, length=16, width=16, tuned=2),
}
COLUMNS = {
    "matrices": ("matrices", ["one", "two", "two, gelu between"]),
    "depth": ("layers", [1]),
    "identity": ("layer", [1, 1, 1, 2, 2, 2]),
    "entropy": ("step", [0, 2, 4, 0, 2, 4]),
    "pretraining": ("windows", [8] * 3 + [32] * 3 + [128] * 3),
}


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_a_claim_is_a_table_and_a_picture(name, tmp_path, monkeypatch):
    monkeypatch.setitem(claims.CLAIMS, name, SMALL[name])
    words = ["claim", name, "--steps", "4", "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(command.app, words)
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    column, values = COLUMNS[name]
    assert said["claim"] == name and [row[column] for row in said["rows"]] == values
    assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert len({json.dumps(row) for row in said["rows"]}) == len(values)
    if name == "matrices":
        assert [row["weights"] for row in said["rows"]] == [7840, *2 * [784 * 64 + 640]]


def test_a_claim_that_there_is_not():
    done = CliRunner().invoke(command.app, ["claim", "entrpy"])
    assert done.exit_code == 2
    assert "there is no claim 'entrpy'; did you mean entropy? there are matrices" in done.output
