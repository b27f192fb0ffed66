"""Observed execution: the output, and with it every named value on the way there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from .core.apply import Apply, call
from .core.arguments import as_term
from .core.context import Context, OwnNames
from .core.execution import Form, Repeated, put
from .core.term import Term
from .core.types import Outputs, Params, Value

__all__ = ["observe"]


class Observe(Apply):
    """The plain meaning, keeping what every part gives under the part's name."""

    def part(self, form: Form, index: int, x: Value, context: Context) -> Value:
        y = super().part(form, index, x, context)
        name = form.names[index]
        if isinstance(name, str) and name:
            self.outputs = put(self.outputs, name, {"": y})
        return y

    def block(
        self, form: Repeated, layer: int, context: Context, x: Value
    ) -> tuple[Value, Outputs]:
        y, kept = super().block(form, layer, context, x)
        return y, {"": y, **kept}

    def mapped(self, form, x, context, size, axis, given, copies) -> Value:
        y = super().mapped(form, x, context, size, axis, given, copies)
        name = form.names[0]
        if isinstance(name, str) and name:
            self.outputs = put(self.outputs, name, {"": y})
        return y


@dataclasses.dataclass(frozen=True)
class Observed:
    """See `observe`."""

    term: Term
    __signature__ = OwnNames()

    def __call__(
        self, params: Params, x: Value, /, **context: Value
    ) -> tuple[Value, dict[str, Value]]:
        y, kept = call(self.term, params, x, context, Observe)
        return y, dict(flat(kept, ()))


def flat(tree: Outputs, path: tuple[str, ...]) -> Iterator[tuple[str, Value]]:
    for name, value in tree.items():
        if name == "":
            yield "/".join(path), value
        else:
            yield from flat(value, (*path, name))


def observe(term: Term) -> Observed:
    """`observe(f)(params, x)` is f(x) and a dict of all named values on the way, by path.

    Values of heads are stacked on axis 0, those of a scanned repeat on an axis before that. It is
    a pure function that equals, and hashes like, that of an equal term.

    >>> import jax
    >>> from combinax.combinators import heads, linear, rms_norm
    >>> term = heads(2, linear(3)) @ rms_norm()
    >>> x = jnp.ones((4, 5))
    >>> y, seen = observe(term)(term.init(jax.random.key(0), x), x)
    >>> {path: value.shape for path, value in seen.items()}
    {'rms_norm': (4, 5), 'heads/linear': (2, 4, 3), 'heads': (4, 6)}
    """
    return Observed(as_term(term, "observe"))
