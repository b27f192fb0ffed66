"""Surgery: what a pattern selects, what replaces it, and which parameters come along."""
# ruff: noqa: F403, F405

from __future__ import annotations

import jax
import numpy as np
import pytest
from plain import close, drawn, single

from combinax.combinators import *

X = single(5, 4, seed=0)
HEAD = aggregate() @ normalize(softmax) @ mask(causal) @ score(scaled_dot) @ project(2)
BLOCK = identity + named("output", linear(4)) @ heads(2, HEAD) @ rms_norm()
MODEL = named("blocks", repeat(2, BLOCK))


def test_patterns_are_words_terms_paths_and_functions():
    norm = "blocks/add/rms_norm"
    for pattern in (rms_norm, rms_norm(), norm, "*/rms_norm", lambda t: t == rms_norm()):
        assert select(MODEL, pattern) == ((norm, rms_norm()),)
    assert [path for path, _ in select(MODEL, heads)] == ["blocks/add/heads"]
    assert len(select(MODEL, linear)) == 4
    project_ = "blocks/add/heads/project/"
    paths = [path for path, _ in select(MODEL, linear(2))]
    assert paths == [project_ + slot for slot in ("query", "key", "value")]
    assert select(MODEL, gelu) == ()


def test_a_norm_is_exchanged_and_the_rest_keeps_its_parameters():
    params = drawn(MODEL, X)
    after = replace(MODEL, rms_norm, layer_norm())
    fresh = drawn(after, X, seed=1)
    moved = carry(MODEL, after, params, fresh)
    old, new = params["blocks"]["add"], moved["blocks"]["add"]
    assert old["heads"] is not new["heads"]
    jax.tree.map(np.testing.assert_array_equal, old["heads"], new["heads"])
    assert sorted(new) == ["heads", "layer_norm", "output"]
    np.testing.assert_array_equal(
        new["layer_norm"]["bias"], fresh["blocks"]["add"]["layer_norm"]["bias"]
    )
    after(moved, X)


def test_an_adapter_is_put_in_and_merges_again():
    def adapted(old):
        return old + named("adapter", linear(old.width) @ linear(1))

    after = replace(MODEL, "blocks/add/output", adapted)
    params, fresh = drawn(MODEL, X), drawn(after, X, seed=1)
    moved = carry(MODEL, after, params, fresh)
    kernel = moved["blocks"]["add"]["output"]["linear"]["kernel"]
    np.testing.assert_array_equal(kernel, params["blocks"]["add"]["output"]["kernel"])
    merged = derive(after, moved, X, by=["sum"])
    assert merged.term == MODEL
    close(merged.term(merged.params, X), after(moved, X))


def test_a_head_is_taken_out():
    term = linear(4) @ join(HEAD, named("second", HEAD))
    after = replace(term, "join/second", lambda old: old @ (0.0 * identity))
    params = drawn(term, X)
    moved = carry(term, after, params, drawn(after, X))
    close(params["join"]["project"], moved["join"]["project"])
    y = after(moved, X)
    kernel = params["linear"]["kernel"].copy()
    kernel[2:] = 0
    without = {**params, "linear": {"kernel": kernel}}
    close(y, term(without, X))


def test_shared_parameters_come_along():
    table = shared(linear(4), name="w")
    before, after = table @ silu @ table, table @ gelu @ table
    assert replace(before, silu, gelu) == after
    params = drawn(before, X)
    moved = carry(before, after, params, drawn(after, X, seed=1))
    np.testing.assert_array_equal(moved["w"]["kernel"], params["w"]["kernel"])


def test_parameters_of_another_shape_are_not_carried():
    before, after = linear(4) @ linear(3), linear(4) @ linear(2)
    params, fresh = drawn(before, X), drawn(after, X, seed=1)
    moved = carry(before, after, params, fresh)
    jax.tree.map(np.testing.assert_array_equal, moved, fresh)


def test_differences_name_what_was_put_in_and_taken_out():
    f = linear(3) @ silu @ linear(8) @ rms_norm()
    assert not diff(f, f) and str(diff(f, f)) == "no difference"
    found = diff(f, linear(3) @ linear(8) @ layer_norm())
    assert [str(d) for d in found] == [
        "rms_norm\n  - rms_norm()\n  + layer_norm()",
        "silu\n  - silu",
    ]
    (deep,) = diff(MODEL, replace(MODEL, causal_mask(), mask(window(2))))
    assert deep.path == "blocks/add/heads/mask" and deep.after == mask(window(2))
    (count,) = diff(heads(2, linear(2)), heads(3, linear(2)))
    assert (count.before, count.after) == (heads(2, linear(2)), heads(3, linear(2)))


def causal_mask() -> Term:
    return mask(causal)


@pytest.mark.parametrize("pattern", [linear, "output", heads])
def test_the_outermost_match_counts(pattern):
    term = named("output", heads(2, heads(2, linear(2))))
    after = replace(term, pattern, lambda old: old @ silu)
    assert len(select(after, silu)) == 1


def test_replaced_by_itself_is_the_same_term():
    assert replace(MODEL, linear, lambda old: old) == MODEL
