"""What a run keeps: every kind of node and number comes back, or is refused by its path."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from combinax.train import loop
from combinax.train.checkpoint import load, save

FLOATS = [
    "float16", "float32", "float64", "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
]  # fmt: skip
OTHERS = [
    "bool", "int8", "int32", "int64", "uint8", "uint64", "int2", "int4", "uint2", "uint4",
    "complex64", "complex128",
]  # fmt: skip


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A tree of all that there is, and what comes back of it: saving takes a moment."""
    draw = np.random.default_rng(0)
    arrays = {
        name: np.abs(draw.standard_normal(3)).astype(jnp.dtype(name)) for name in FLOATS + OTHERS
    }
    tree = {
        **arrays,
        "a tuple": (np.ones(2), np.zeros(3)),
        "one": (np.ones(2),),
        "a list": [np.ones(2), (np.ones(1), [])],
        "empty": {},
        "nothing": (None, {}, (), []),
        "a/b": {"c/d": np.ones(1)},
        "a": {"b": {"c": np.zeros(1)}, "b/c": np.ones(2)},
        "a.b": np.ones(3),
        "..": {"": np.ones(4), "\x1b": np.ones(5), "é": np.ones(6)},
        "numbers": {3: np.arange(3), -1: np.arange(4)},
        "no rows": np.zeros((0, 3), np.float16),
        "no rows of eight bits": np.zeros((2, 0), ml_dtypes.float8_e4m3fn),
        "a number": np.float32(2.5),
        "of Python": 7,
        "of jax": jnp.arange(3.0),
        "zeros": np.zeros(1000),
        "turned": np.arange(6.0).reshape(2, 3).T,
        "backward": np.arange(3, dtype=">f4"),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(3, impl="rbg"), 2),
    }
    folder = tmp_path_factory.mktemp("run")
    save(folder, tree, {"width": 2})
    return folder, tree, load(folder, width=int)


def same(found, expected):
    """The same nodes, names in one order, and leaves alike to the last bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if hasattr(theirs, "dtype") and jnp.issubdtype(theirs.dtype, jax.dtypes.prng_key):
            assert mine.dtype == theirs.dtype
            mine, theirs = jax.random.key_data(mine), jax.random.key_data(theirs)
        theirs = np.asarray(theirs)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype.newbyteorder("="))
        np.testing.assert_array_equal(np.asarray(mine), theirs)


def test_all_that_is_saved_comes_back(everything):
    _, tree, (found, words) = everything
    same(found, tree)
    assert words == {"width": 2} and list(found) == list(tree)
    assert found["bfloat16"].dtype == ml_dtypes.bfloat16 and type(found["one"]) is tuple


def test_it_comes_back_like_what_it_is_asked_to_be(everything):
    folder, tree, _ = everything
    same(load(folder, tree)[0], tree)
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), getattr(leaf, "dtype", np.int64)), tree
    )
    same(load(folder, lambda words: abstract if words == {"width": 2} else {})[0], tree)


def test_a_whole_training_state(tmp_path):
    """Named tuples of an optimizer are made by the tree that is asked for."""
    params = {"w": jnp.ones((2, 3), jnp.bfloat16), "frozen": None}
    state = loop.start(optax.adamw(1e-3), params, jax.random.key(5))
    save(tmp_path, state, {})
    with pytest.raises(ValueError, match="it holds a State: load it with a tree that is like"):
        load(tmp_path)
    found, _ = load(tmp_path, jax.eval_shape(lambda: state))
    assert type(found) is loop.State
    same(found, state)


DIFFERENCES = [
    ({"a": np.ones((2, 3)), "b": (np.ones(1), None)}, ""),
    ({"a": np.ones((3, 2)), "b": (np.ones(1), None)}, r"\['a'\] is float64 \(2, 3\), .* \(3, 2\)"),
    ({"a": np.ones((2, 3), "f4"), "b": (np.ones(1), None)}, r"\['a'\] is float64 .* be float32"),
    ({"b": (np.ones(1), None)}, r"\['a'\] is float64 \(2, 3\), and should not be there"),
    (
        {"a": np.ones((2, 3)), "b": (np.ones(1), None), "c/d": {}},
        r"\['c/d'\] is missing, and should be an empty dict",
    ),
    ({"a": np.ones((2, 3)), "b": [np.ones(1), None]}, r"\['b'\] is a tuple, and should be a list"),
    ({"a": np.ones((2, 3)), "b": (np.ones(1), {})}, r"\['b'\]\[1\] is None, .* an empty dict"),
    (np.ones(1), "the tree is a dict, and should be float64"),
    ({f"x{i}": np.ones(1) for i in range(9)}, "; and 8 more$"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    save(folder, DIFFERENCES[0][0], {"width": 2})
    return folder


@pytest.mark.parametrize("like, text", DIFFERENCES)
def test_what_differs_is_said_by_path(like, text, small):
    if not text:
        assert load(small, like)[1] == {"width": 2}
        return
    with pytest.raises(ValueError, match=rf"model\.json' has another tree .*: .*{text}"):
        load(small, like)


@pytest.mark.parametrize(
    "tree, words, text",
    [
        ({"a": {"b": "text"}}, {}, r"\['a'\]\['b'\] holds <U4, and arrays of numbers are saved"),
        ([np.array([object()])], {}, r"\[0\] holds object, and arrays of numbers"),
        ({"a": np.ones(1, np.longdouble)}, {}, r"\['a'\] holds \w+, which orbax does not store"),
        ({(1, 2): np.ones(1)}, {}, r"^\[\(1, 2\)\] is named by neither an integer nor a text"),
        ({"a": [{"\ud800": np.ones(1)}]}, {}, r"^\['a'\]\[0\]\['\\ud800'\] is named by neither"),
        ({}, {"width": ["\udfff"]}, "the word 'width' holds a text that is not Unicode"),
        ({}, {"\ud800": 1}, r"the word '\\ud800' holds"),
        ({"a": np.ones(1)}, {"checkpoint": 1}, "the word 'checkpoint' is taken"),
    ],
)
def test_what_is_not_saved(tree, words, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        save(tmp_path / "run", tree, words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tree", [{}, None, (), {"a": np.zeros((0, 3), np.float16)}, {"a": [None]}])
def test_a_tree_without_numbers(tree, tmp_path):
    assert save(tmp_path, np.ones(1), {}) != save(tmp_path, tree, {"width": 2})
    for like in (None, tree):
        found, words = load(tmp_path, like)
        same(found, tree)
        assert words == {"width": 2}


def test_words_that_are_no_json_change_nothing(small):
    before = sorted(small.rglob("*"))
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(small, {"a": np.ones(1)}, {"width": {1, 2}})
    assert sorted(small.rglob("*")) == before


def test_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run was saved in .*model\.json is missing"):
        load(tmp_path)


# Damage


def changed(run: Path, /, **fields: object) -> None:
    file = run / "model.json"
    held = json.loads(file.read_text())
    held["checkpoint"] |= fields
    file.write_text(json.dumps(held))


@pytest.fixture
def run(tmp_path):
    save(tmp_path, {"a": np.arange(6.0), "b": np.zeros((0, 2))}, {"width": 2})
    return tmp_path


LEAF = ["['a']", [6], "float64", None]


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"folder": "../elsewhere"}, "'../elsewhere' is no folder of arrays"),
        ({"folder": "/parameters-1"}, "'/parameters-1' is no folder of arrays"),
        ({"folder": 5}, "unsupported operand"),
        ({"tree": {"set": []}}, "it holds a set: load it with a tree"),
        ({"tree": 9}, "index out of range"),
        ({"tree": "text"}, "it holds a t: load"),
        ({"leaves": [["a", [-1], "float64", None]]}, r"'a' has the shape \[-1\]"),
        ({"leaves": [["a", [6], "nonsense", None], LEAF]}, "nonsense"),
        ({"leaves": [["a", [6], "key<fry>", "nonsense"], LEAF]}, "nonsense"),
        ({"leaves": 5}, "not iterable"),
        ({"files": []}, "does not say which files belong to it"),
    ],
)
def test_a_tree_that_is_none(fields, text, run):
    changed(run, **fields)
    with pytest.raises(ValueError, match=rf"model\.json' .*{text}"):
        load(run)


def test_arrays_are_no_larger_than_their_files(run):
    huge = ["['b']", [10**9, 10**9], "float64", None]
    changed(run, leaves=[LEAF, huge])
    with pytest.raises(
        ValueError, match=r"model\.json' has arrays of 8,000,[0,]+,048 bytes, and their fi"
    ):
        load(run)


def test_arrays_of_another_tree(run):
    changed(run, leaves=[["['a']", [5], "float64", None], ["['b']", [0, 2], "float64", None]])
    with pytest.raises(ValueError, match=r"parameters-\w+' is no orbax .*others than those of mod"):
        load(run)


def test_every_damaged_file_is_named(run):
    files = [file for file in run.rglob("*") if file.is_file()]
    assert len(files) > 5
    for file in files:
        whole = file.read_bytes()
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
        for held in (b"", whole[:middle], flipped, whole + b"x"):
            file.write_bytes(held)
            with pytest.raises(ValueError, match=re.escape(str(file))):
                load(run)
        if file.name != "model.json":
            file.unlink()
            with pytest.raises(ValueError, match=rf"{re.escape(str(file))}' is missing"):
                load(run)
        file.write_bytes(whole)
    (run / files[-1].parent / "more").write_text("")
    with pytest.raises(ValueError, match="more' belongs to no run: the run is damaged"):
        load(run)


def test_orbax_is_imported_where_it_is_used():
    code = (
        "import sys, combinax.combinators, combinax.models, combinax.train.checkpoint;"
        "print([name for name in sys.modules if name.startswith(('orbax', 'tensorstore'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
