"""Operators: `f @ g` is compose(f, g), `f + g` is add(f, g), `f ** n` is repeat(n, f).

A term is data, and the core knows no word. This table gives terms the words behind their
operators, and the two ways to use them: `term.init(rng, x)` and `term(params, x)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from .arithmetic import add, scaled, subtract
from .compose import compose
from .core.apply import call
from .core.arguments import NOTHING
from .core.declare import Init
from .core.term import Term
from .core.types import Params, Value
from .repeat import repeat
from .streaming.choose import Choose

__all__ = ["install"]


def swapped(word: Callable[..., Term]) -> Callable[[Term, object], Term]:
    """The operator for a term on the right of a value that is none."""
    return lambda term, other: word(other, term)


def run(term: Term, params: Params = NOTHING, x: Value = NOTHING, /, **context: Value) -> Value:
    """Run the term: pure, so it goes into jit, vmap, grad and the rest as it is."""
    return call(term, params, x, context, Choose)[0]


OPERATORS: Mapping[str, object] = {
    "init": cached_property(Init),  # JAX keeps what it compiles as long as the function lives
    "__call__": run,
    "__matmul__": compose,
    "__rmatmul__": swapped(compose),
    "__add__": add,
    "__radd__": swapped(add),
    "__sub__": subtract,
    "__rsub__": swapped(subtract),
    "__mul__": scaled,
    "__rmul__": scaled,
    "__pow__": lambda term, count: repeat(count, term),
}


def install() -> None:
    """Give every term its operators; the package does it once."""
    for name, operator in OPERATORS.items():
        setattr(Term, name, operator)
        if isinstance(operator, cached_property):
            operator.__set_name__(Term, name)
