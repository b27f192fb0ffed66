"""Errors: every text is matched; each is raised as early as can be, and placed exactly once."""
# ruff: noqa: F403, F405

from __future__ import annotations

import ast
import dataclasses
import re
import traceback
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from slips import BATCH, HEAD, KEY, TOKENS, Slip, X, run
from slips_algebra import ALGEBRA
from slips_executions import EXECUTED
from slips_files import FILES
from slips_generation import GENERATION
from slips_refused import REFUSED
from slips_run import RUN
from slips_types import TYPES
from slips_written import WRITTEN

from combinax import combinators, models
from combinax.combinators import *

SLIPS = {**WRITTEN, **REFUSED, **RUN, **EXECUTED, **GENERATION, **TYPES, **FILES, **ALGEBRA}


def text_of(write: Any, error: type[Exception] = TermError) -> str:
    with pytest.raises(error) as caught:
        write()
    return str(caught.value)


# Every text


@pytest.mark.parametrize("name", SLIPS)
def test_texts(name):
    slip: Slip = SLIPS[name]
    with pytest.raises(slip.error) as caught:
        slip.write()
    assert type(caught.value) is slip.error
    assert slip.text in str(caught.value)
    # Nothing of JAX's or Python's insides, and no address, in what a newcomer reads.
    assert not re.search(r"Tracer|0x[0-9a-f]{6}|Width\(|<class|Jaxpr", str(caught.value))


def raises(path: Path) -> set[int]:
    """The lines of a module where it raises an error of ours with a text of its own."""
    names = {
        error.__name__ for error in (TermError, CompositionError, ContextError, ParameterError)
    }
    lines = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            function = node.exc.func
            if isinstance(function, ast.Name) and function.id in names:
                lines.add(node.lineno)
    return lines


def test_every_error_has_its_slip():
    """Each line that raises, in the language and in the models, is where some slip ends."""
    ends = set()
    for slip in SLIPS.values():
        with pytest.raises(TermError) as caught:
            slip.write()
        error: BaseException | None = caught.value
        while error is not None:  # what was placed has what was raised first as its context
            for frame in traceback.extract_tb(error.__traceback__):
                ends.add((frame.filename, frame.lineno))
            error = error.__context__
    unmatched = [
        f"{path.name}:{line}"
        for package in (combinators, models)
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py"))
        for line in sorted(raises(path))
        if (str(path), line) not in ends
    ]
    assert unmatched == []


# Where and when


def test_the_text_shows_the_pipeline():
    attention = aggregate() @ normalize(softmax) @ score(scaled_dot)
    text = text_of(lambda: attention @ project(query=64, key=32, value=64) @ embed(256, 64))
    place = re.search(r"written at (test_errors.py, line \d+)", text)
    assert place and text == (
        "score(scaled_dot) cannot read what project(query=64, key=32, value=64) gives:\n"
        "  a dot product needs query and key of one width; the query has 64, the key 32\n"
        "    project(query=64, key=32, value=64)  anything -> query (…, 64), key (…, 32), "
        "value (…, 64)\n"
        f"  > score(scaled_dot)                    written at {place[1]}"
    )


def test_the_text_shows_shapes_once_they_are_known():
    term = score(scaled_dot) @ project(query=identity, key=read("m"), value=read("m")) @ embed(9, 4)
    text = text_of(lambda: term.init(KEY, TOKENS, m=X[:, :3]))
    place = re.search(r"written at (test_errors.py, line \d+)", text)
    asked = "project(query=identity, key=read('m'), value=read('m'))"
    assert place and text == (
        f"score(scaled_dot) cannot read what {asked} gives:\n"
        "  a dot product needs query and key of one width; the query has 4, the key 3\n"
        f"    {'embed(9, 4)':<{len(asked)}}  (5,) int32 -> (5, 4)\n"
        f"    {asked}  (5, 4) -> query (5, 4), key (5, 3), value (5, 3)\n"
        f"  > {'score(scaled_dot)':<{len(asked)}}  written at {place[1]}"
    )


def test_a_lookup_as_a_whole_is_at_fault_where_no_stage_is():
    """Whether it can be streamed, or stepped, is not said by what a stage reads."""
    gated = named("g", models.gated_dictionary(9))
    text = text_of(lambda: run(streamed(identity + gated @ rms_norm())))
    assert text.startswith("the lookup at 'g' cannot be answered:\n  this lookup cannot be")
    assert "  > compose(aggregate(), named('gate', " in text and "cannot read" not in text

    head = aggregate() @ normalize(softmax) @ mask(causal) @ score(dot) @ project(4)
    params, (start, step) = head.init(KEY, X), stepwise(head)
    text = text_of(lambda: step(params, start(params, X, 4), X))
    place = re.search(r"written at (test_errors.py, line \d+)", text)
    lookup = "compose(aggregate(), normalize(softmax), mask(causal), score(do…"
    assert place and text == (
        "this lookup cannot be answered:\n"
        "  position 4 is past the capacity of 4 positions\n"
        f"    {'project(4)':<{len(lookup)}}  (5, 4) -> query (5, 4), key (5, 4), value (5, 4)\n"
        f"  > {lookup}  written at {place[1]}"
    )


def test_a_lone_term_is_placed_too():
    text = text_of(lambda: run(linear(3), TOKENS[:, None]))
    place = re.search(r"written at (test_errors.py, line \d+)", text)
    assert place and text == (
        "linear(3) cannot run on (5, 1) int32:\n"
        "  linear takes floats and gets (5, 1) int32; embed(vocabulary, width) turns integers into "
        "vectors\n"
        f"  > linear(3)  written at {place[1]}"
    )


def test_the_place_is_where_the_stage_was_written():
    stage = linear(3)
    written = Path(__file__).read_text().splitlines().index("    stage = linear(3)") + 1
    text = text_of(lambda: run(silu @ stage @ identity, TOKENS[:, None]))
    assert text.endswith(f"  > linear(3)  written at test_errors.py, line {written}")


def test_long_stages_are_shortened():
    block = identity + linear(64) @ heads(4, linear(16) @ heads(4, linear(16) @ linear(64)))
    lines = text_of(lambda: run(repeat(2, linear(65) @ block) @ rms_norm(), X)).splitlines()
    assert all(len(line) < 160 for line in lines) and any("…" in line for line in lines)


INNER = score(dot) @ project(query=identity, key=read("m"), value=read("m"))
PLAIN = {"m": jnp.ones((5, 3))}
FORMS = {
    "join": lambda f: join(silu, f),
    "named": lambda f: named("a", f),
    "add": lambda f: f + silu,
    "fanout": lambda f: fanout(silu, f),
    "parallel": lambda f: parallel(silu, f) @ fanout(silu, silu),
    "repeat": lambda f: repeat(2, f),
    "heads": lambda f: heads(2, f),
    "heads in layers": lambda f: repeat(2, linear(4) @ heads(2, identity + f)),
    "shared": lambda f: heads(2, shared(f, across="heads")),
    "shared by name": lambda f: shared(f, name="w"),
    "precision": lambda f: precision(f, compute="float32"),
    "given": lambda f: given(f, m=pointwise(jnp.sin) @ lift(three)) if "m" in f.reads else f,
}


def three(x):
    return x[:, :3]


@pytest.mark.parametrize("form", FORMS)
def test_outer_terms_pass_an_error_on_unchanged(form):
    inner = aggregate() @ normalize(softmax) @ INNER
    expected = text_of(lambda: run(inner, **PLAIN))
    term = FORMS[form](inner)
    context = {name: PLAIN[name] for name in term.reads}
    assert text_of(lambda: run(term, **context)) == expected


def test_transformations_pass_an_error_on_unchanged():
    inner = aggregate() @ normalize(softmax) @ INNER
    expected = text_of(lambda: run(inner, **PLAIN))
    m = PLAIN["m"]
    several = jnp.stack([X, X])
    ways = {
        "jit": lambda: jax.jit(inner)({}, X, m=m),
        "grad": lambda: jax.grad(lambda x: inner({}, x, m=m).sum())(X),
        "jvp": lambda: jax.jvp(lambda x: inner({}, x, m=m), (X,), (X,)),
        "vmap": lambda: jax.vmap(lambda x: inner({}, x, m=m))(several),
        "scan": lambda: jax.lax.scan(lambda x, _: (inner({}, x, m=m), None), X, length=2),
        "checkpoint": lambda: jax.checkpoint(lambda x: inner({}, x, m=m))(X),
        "each": lambda: each(inner, fixed=("m",))({}, several, m=m),
        "jit of scan": lambda: jax.jit(repeat(2, inner))({}, X, m=m),
    }
    assert {name: text_of(way) for name, way in ways.items()} == dict.fromkeys(ways, expected)


def test_an_error_keeps_its_kind_when_it_is_placed():
    for slip in (RUN["missing context"], RUN["parameters missing"], RUN["float positions"]):
        with pytest.raises(slip.error) as caught:
            slip.write()
        assert (
            caught.value.headline
            and caught.value.pipeline
            and caught.value.reason in str(caught.value)
        )


def test_errors_are_one_family():
    for error in (CompositionError, ContextError, ParameterError):
        assert issubclass(error, TermError) and issubclass(error, ValueError)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_knowable_is_refused_when_written(name):
    """No input and no parameters are needed: the slips of this table make neither."""
    with pytest.raises(TermError) as caught:
        WRITTEN[name].write()
    modules = {
        Path(frame.filename).stem for frame in traceback.extract_tb(caught.value.__traceback__)
    }
    assert not modules & {"declare", "apply", "check"}


def test_an_error_of_init_is_that_of_the_call():
    term = identity + linear(3)
    at_init = text_of(lambda: term.init(KEY, X))
    at_call = text_of(lambda: term({"linear": {"kernel": jnp.ones((4, 3))}}, X))
    assert at_init == at_call


# What a function of one's own raises


def test_an_error_of_a_lifted_function_keeps_its_cause():
    with pytest.raises(
        CompositionError, match=r"lift\(.*wrong\) raised ValueError: no luck"
    ) as caught:
        run(linear(3) @ lift(wrong) @ silu)
    assert isinstance(caught.value.__cause__, ValueError)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("cannot read what silu gives:")
    assert lines[-1].startswith("  > lift(")


def wrong(x):
    raise ValueError("no luck\nand more")


def test_an_error_without_a_text_is_named():
    def silent(x):
        raise ValueError

    assert re.search(r"lift\(.*silent.*\) raised ValueError\n", text_of(lambda: run(lift(silent))))


def missing(x):
    raise KeyError("no such thing")


def test_other_errors_pass_with_a_note_of_the_place():
    with pytest.raises(KeyError, match="no such thing") as caught:
        run(linear(3) @ lift(missing) @ silu)
    notes = "\n".join(getattr(caught.value, "__notes__", []))
    assert re.search(r"lift\(.*missing.*\)", notes) and "written at test_errors.py" in notes


@dataclasses.dataclass(frozen=True)
class halves(Leaf):
    """A primitive of one's own that says what is wrong as the language does."""

    def apply(self, params: Any, x: Any, context: Any) -> Any:
        if x.shape[-1] % 2:
            raise CompositionError(f"halves needs an even width, not {x.shape[-1]}")
        return x[..., : x.shape[-1] // 2]


def test_a_primitive_of_ones_own_raises_as_the_others_do():
    assert run(halves()).shape == (5, 2)
    text = text_of(lambda: run(halves() @ linear(3)))
    assert "halves needs an even width, not 3\n" in text and "linear(3)  (5, 4) -> (5, 3)" in text


def test_a_pointwise_function_of_ones_own_may_change_the_width():
    term = linear(4) + pointwise(lambda x: x[..., :4]) @ linear(8)
    assert run(term).shape == (5, 4)
    assert "its parts give (…, 4) and (…, 8)" in text_of(lambda: linear(4) + gelu @ linear(8))


# Hints that help


def test_reversing_is_only_proposed_where_it_helps():
    for write in (
        lambda: linear(3) @ project(3),
        lambda: softmax @ score(dot),
        lambda: linear(3) @ score(dot),
        lambda: repeat(2, linear(3)) @ linear(4),
        lambda: rms_norm() @ normalize(softmax),
    ):
        assert "applies the last term first" not in text_of(write)


def test_a_misspelled_name_is_recognized():
    text = text_of(lambda: run(linear(3) @ read("memory"), memroy=X))
    assert "needs memory=…" in text and "memroy" in text
    text = text_of(lambda: run(linear(3) @ read("memory"), weather=X))
    assert "needs memory=…" in text


def test_the_reader_of_a_name_is_shown_with_the_fix():
    term = repeat(2, identity + linear(4) @ heads(2, HEAD @ (identity + read("shift"))))
    assert "read('shift') needs shift=… in the context" in text_of(lambda: term.init(KEY, X))


def test_predicates_have_no_truth_value():
    for write in (
        lambda: not causal,
        lambda: causal or window(2),
        lambda: bool(window(2) & causal),
    ):
        assert "not with and, or and not" in text_of(write)


def test_a_token_past_the_table_is_never_another_row_inside_jit():
    """Where nothing can be raised, the number says so."""
    term = embed(3, 2)
    table = {"table": jnp.ones((3, 2))}
    rows = jax.jit(term)(table, jnp.array([0, 3, -1, 2]))
    assert jnp.isnan(rows[1:3]).all() and (rows[jnp.array([0, 3])] == 1).all()


def test_a_batch_is_mapped_as_the_text_says():
    assert "for a batch write each(term)" in text_of(lambda: run(HEAD, BATCH))
    assert run(each(HEAD), BATCH).shape == (3, 5, 3)
