"""Equations on a screen: they fit, read one way only, and say what the one-line text says."""

import re

import pytest

from combinax.combinators import (
    aggregate,
    causal,
    dot,
    embed,
    fanout,
    gelu,
    heads,
    identity,
    lift,
    linear,
    mask,
    multiply,
    named,
    normalize,
    position_embed,
    project,
    repeat,
    rms_norm,
    scaled_dot,
    score,
    silu,
    slots,
    softmax,
    tied,
    valid,
    window,
)
from combinax.combinators.core.printing import equation, laid_out

HEAD = aggregate() @ normalize(softmax) @ mask(causal) @ score(scaled_dot) @ project(16)
DICTIONARY = aggregate() @ normalize(gelu) @ score(dot) @ slots(256)
BLOCK = (identity + DICTIONARY @ rms_norm()) @ (identity + linear(64) @ heads(4, HEAD) @ rms_norm())
GPT = tied(embed(256, 64), rms_norm() @ BLOCK**4 @ position_embed(128))

SCREEN = """\
tied(
  embed(256, 64),
  rms_norm()
  ∘ (
      (
        identity
        + aggregate() ∘ normalize(gelu) ∘ score(dot) ∘ slots(256)
          ∘ rms_norm()
      )
      ∘ (
          identity
          + linear(64)
            ∘ heads(
                4,
                aggregate() ∘ normalize(softmax) ∘ mask(causal)
                ∘ score(scaled_dot) ∘ project(16),
              )
            ∘ rms_norm()
        )
    )^4
  ∘ position_embed(128),
)"""


def test_a_long_equation_is_laid_out_on_lines():
    assert str(GPT) == SCREEN


@pytest.mark.parametrize("room", [10, 24, 40, 60, 80, 200])
def test_lines_change_nothing_but_space(room):
    lines = laid_out(equation(GPT), room)
    longest = max(len(word) for word in equation(GPT).split(" ∘ "))
    assert max(map(len, lines.splitlines())) <= max(room, longest)
    joined = re.sub(r"\s*\n\s*", " ", re.sub(r",\s*\n\s*\)", ")", lines))
    assert joined.replace("( ", "(").replace(" )", ")") == equation(GPT)


A, B = linear(2), rms_norm()


@pytest.mark.parametrize(
    ("term", "text"),
    {
        "sum of compositions": (A @ B + A @ B, "linear(2) ∘ rms_norm() + linear(2) ∘ rms_norm()"),
        "composed sum": (A @ (A + B), "linear(2) ∘ (linear(2) + rms_norm())"),
        "sum on the right": (A - (A - B), "linear(2) - (linear(2) - rms_norm())"),
        "product of compositions": (multiply(A @ B, A), "(linear(2) ∘ rms_norm()) · linear(2)"),
        "composed product": (A @ (2.0 * B), "linear(2) ∘ (2.0 · rms_norm())"),
        "product of sums": (multiply(A + B, B), "(linear(2) + rms_norm()) · rms_norm()"),
        "sum of products": (A + 2.0 * A, "linear(2) + 2.0 · linear(2)"),
        "power": (A**2 @ B, "linear(2)^2 ∘ rms_norm()"),
        "power of a composition": ((A @ B) ** 2, "(linear(2) ∘ rms_norm())^2"),
        "pattern": (repeat(4, A, silu), "(linear(2) ; silu)^4"),
        "arguments": (fanout(A + B, A @ B), f"fanout({equation(A + B)}, {equation(A @ B)})"),
        "name": (named("up", A @ B) @ B, "(up: linear(2) ∘ rms_norm()) ∘ rms_norm()"),
    }.values(),
)  # fmt: skip
def test_an_equation_reads_one_way_only(term, text):
    assert str(term) == text


@pytest.mark.parametrize(
    "text",
    [
        "mask(causal & window(2) & valid('l'))",
        "mask((causal | window(2)) & ~valid('l'))",
        "mask(causal & (window(2) & valid('l')))",
        "mask(~(causal & window(2)))",
        "mask((causal & window(2)) | valid('l'))",
        "linear(4, bias=True)",
    ],
)
def test_brackets_stand_where_python_needs_them(text):
    words = dict(mask=mask, causal=causal, window=window, valid=valid, linear=linear)
    assert repr(eval(text, words)) == text


def test_brackets_in_quotes_and_functions_do_not_count():
    term = lift(lambda x: x) @ named("a", linear(3))
    text = f"wide({equation(term)}, 'a, (b', " + "linear(10), " * 8 + "silu)"
    lines = laid_out(text).splitlines()
    assert lines[2] == "  'a, (b',"
    assert re.fullmatch(r"  lift\(<lambda \S+, line \d+>\) ∘ .*,", lines[1])
