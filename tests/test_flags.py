"""Flags of words are given by name, and are booleans."""

import pytest

from combinax.combinators import CompositionError, linear, relative, t5_buckets


def test_flags_are_named_and_boolean():
    with pytest.raises(TypeError, match="positional"):
        linear(16, 8)  # type: ignore[misc]
    with pytest.raises(CompositionError, match="bias of linear is True or False, not 8"):
        linear(16, bias=8)  # type: ignore[arg-type]
    with pytest.raises(CompositionError, match="bidirectional of t5_buckets is True or False"):
        t5_buckets(bidirectional=0)  # type: ignore[arg-type]
    with pytest.raises(CompositionError, match="reach of relative is an integer of at least 0"):
        relative(-1)
    assert repr(linear(3, bias=True)) == "linear(3, bias=True)"
