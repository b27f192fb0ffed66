"""Interval arithmetic (Moore 1966): rules for JAX's elementwise primitives on bounds of arrays.

    [1, 3] - [0, 2]  =  [1 - 2, 3 - 0]  =  [-1, 3]

Each rule bounds the result of one primitive in its integer dtype. Where the result may wrap around,
its bounds are those of the dtype. Booleans are ordered, False before True; bounds of them are the
three values of Kleene (1938).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from .span import End, Options, Span, ends, is_signed, is_true, is_whole, larger, namespace, smaller
from .three_valued import Truths

__all__ = ["INTEGERS", "ORDERED", "exact", "floor_divide", "remainder"]


def hull(*values: End) -> Span:
    """The smallest span that holds all values."""
    return Span(reduce(smaller, values), reduce(larger, values))


# Integers


def add(a: Span, b: Span) -> Span:
    low, high = a.lo + b.lo, a.hi + b.hi
    wraps = [wrong_sum(*ends) for ends in ((a.lo, b.lo, low), (a.hi, b.hi, high))]
    return Span(low, high).where(~(wraps[0] | wraps[1]))


def wrong_sum(a: End, b: End, total: End) -> Truths:
    """Whether the sum a + b = total wrapped around."""
    return ((a ^ total) & (b ^ total)) < 0 if is_signed(a.dtype) else total < a


def sub(a: Span, b: Span) -> Span:
    low, high = a.lo - b.hi, a.hi - b.lo
    wraps = [wrong_sum(*ends) for ends in ((low, b.hi, a.lo), (high, b.lo, a.hi))]
    return Span(low, high).where(~(wraps[0] | wraps[1]))


def zero(a: Span) -> Span:
    return Span.point(np.zeros((1,) * a.lo.ndim, a.dtype))


def neg(a: Span) -> Span:
    return sub(zero(a), a)


def absolute(a: Span) -> Span:
    if not is_signed(a.dtype):
        return a
    least = larger(larger(a.lo, -a.hi), a.dtype.type(0))
    return Span(least, larger(abs(a.lo), abs(a.hi))).where(a.lo > ends(a.dtype)[0])


def mul(a: Span, b: Span) -> Span:
    if a is b:
        a = b = absolute(a)
    pairs = [(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    # Float products cannot wrap around. The factor 1 - 2**-10 leaves room for their rounding.
    limit = 2.0 ** (8 * a.dtype.itemsize - is_signed(a.dtype)) * (1 - 2**-10)
    sizes = [abs(x.astype(np.float32) * y.astype(np.float32)) for x, y in pairs]
    return hull(*(x * y for x, y in pairs)).where(reduce(larger, sizes) < np.float32(limit))


def power(a: Span, *, y: int) -> Span:
    size = absolute(a)
    factors = [size] * y if y % 2 == 0 else [a, *[size] * (y - 1)]
    return reduce(lambda x, z: mul(x, Span(z.lo, z.hi)), factors)


def quotient(a: Span, b: Span, divide: Callable[[End, End], End]) -> Span:
    """a / b for b > 0: the bounds are among the quotients of the bounds."""
    one = b.dtype.type(1)
    if a.known and b.known:
        return Span.point(divide(a.lo, larger(b.lo, one))).where(b.lo > 0)
    divisors = larger(b.lo, one), larger(b.hi, one)
    return hull(*(divide(x, y) for x in (a.lo, a.hi) for y in divisors)).where(b.lo > 0)


def truncated(a: End, b: End) -> End:
    """a / b for b > 0, rounded towards 0."""
    whole = a // b
    return whole + ((a < 0) & (whole * b != a)).astype(a.dtype)


def div(a: Span, b: Span) -> Span:
    return quotient(a, b, truncated)


def floor_divide(a: Span, b: Span) -> Span:
    return quotient(a, b, operator.floordiv)


def rest(a: Span, b: Span, divide: Callable[[End, End], End], least: End, most: End) -> Span:
    """The remainder of a / b for b > 0, which grows with a as long as the quotient is constant.

    Elsewhere it lies in [least, most]: [5, 6] % 4 is [1, 2], and [3, 5] % 4 is [0, 3].
    """
    divisor = larger(b.lo, b.dtype.type(1))
    low, high = divide(a.lo, divisor), divide(a.hi, divisor)
    if a.known and b.known:
        return Span.point(a.lo - low * divisor).where(b.lo > 0)
    choose = namespace(a.lo, a.hi, b.lo, b.hi).where
    one = (b.lo == b.hi) & (low == high)
    low, high = a.lo - low * divisor, a.hi - high * divisor
    return Span(choose(one, low, least), choose(one, high, most)).where(b.lo > 0)


def remainder(a: Span, b: Span) -> Span:
    """a % b for b > 0, rounded down: never negative."""
    return rest(a, b, operator.floordiv, b.dtype.type(0), b.hi - b.dtype.type(1))


def rem(a: Span, b: Span) -> Span:
    """The remainder of a / b for b > 0, rounded towards 0: it has the sign of a."""
    choose, nothing = namespace(a.lo, a.hi, b.hi).where, b.dtype.type(0)
    most = b.hi - b.dtype.type(1)
    least, most = choose(a.lo < 0, -most, nothing), choose(a.hi > 0, most, nothing)
    return rest(a, b, truncated, least, most)


# Bits


def differing(a: Span) -> End:
    """The bits in which numbers of a span may differ: the highest in which its bounds do, and all
    lower ones."""
    bits, shift = a.lo ^ a.hi, 1
    while shift < 8 * a.dtype.itemsize:
        bits, shift = bits | (bits >> a.dtype.type(shift)), 2 * shift
    return bits


def of_bits(ones: End, unknown: End) -> Span:
    """The span of the numbers with the bits `ones` set and the bits `unknown` set or not."""
    return Span(ones & ~unknown, ones | unknown).where(unknown >= 0)  # the sign bit is known


def bits_and(a: Span, b: Span) -> Span:
    if a.dtype == np.bool_:
        return Span(a.lo & b.lo, a.hi & b.hi)
    left, right = differing(a), differing(b)
    may, must = (a.hi | left) & (b.hi | right), (a.lo & ~left) & (b.lo & ~right)
    return of_bits(must, may & ~must)


def bits_not(a: Span) -> Span:
    return Span(~a.hi, ~a.lo)


def bits_or(a: Span, b: Span) -> Span:
    return bits_not(bits_and(bits_not(a), bits_not(b)))


def bits_xor(a: Span, b: Span) -> Span:
    if a.dtype == np.bool_:
        return ne(a, b)
    unknown = differing(a) | differing(b)
    return of_bits((a.lo ^ b.lo) & ~unknown, unknown)


def shift(a: Span, b: Span, move: Callable[[End, End], End]) -> Span:
    last = b.dtype.type(8 * b.dtype.itemsize - 1)
    steps = [end.clip(0, last) for end in (b.lo, b.hi)]
    values = hull(*(move(x, y) for x in (a.lo, a.hi) for y in steps))
    return values.where((b.lo >= 0) & (b.hi <= last))


def shift_left(a: Span, b: Span) -> Span:
    moved = shift(a, b, operator.lshift)
    most = b.hi.clip(0, b.dtype.type(8 * b.dtype.itemsize - 1))
    kept = [(end << most) >> most == end for end in (a.lo, a.hi)]
    return moved.where(kept[0] & kept[1])


def shift_right(a: Span, b: Span) -> Span:
    return shift(a, b, operator.rshift)


# Order, choice and types


def eq(a: Span, b: Span) -> Span:
    return Span((a.lo >= b.hi) & (a.hi <= b.lo), (a.lo <= b.hi) & (a.hi >= b.lo))


def ne(a: Span, b: Span) -> Span:
    return bits_not(eq(a, b))


def lt(a: Span, b: Span) -> Span:
    return Span(a.hi < b.lo, a.lo < b.hi)


def le(a: Span, b: Span) -> Span:
    return Span(a.hi <= b.lo, a.lo <= b.hi)


def minimum(a: Span, b: Span) -> Span:
    return Span(smaller(a.lo, b.lo), smaller(a.hi, b.hi))


def maximum(a: Span, b: Span) -> Span:
    return Span(larger(a.lo, b.lo), larger(a.hi, b.hi))


def select(which: Span, *cases: Span) -> Span:
    low, high = reduce(smaller, [c.lo for c in cases]), reduce(larger, [c.hi for c in cases])
    if which.dtype != np.bool_:
        return Span(low, high)
    choose, (no, yes) = namespace(which.lo, which.hi, low, high).where, cases
    return Span(
        choose(which.lo, yes.lo, choose(which.hi, low, no.lo)),
        choose(which.lo, yes.hi, choose(which.hi, high, no.hi)),
    )


def convert(a: Span, *, new_dtype: DTypeLike) -> Span | None:
    old, new = a.dtype, np.dtype(new_dtype)
    if new == np.bool_:
        return ne(a, zero(a))
    spans = a.each(lambda end: end.astype(new))
    if not is_whole(new) or old == np.bool_:
        return spans if is_whole(old) else None
    if not is_whole(old):
        return None
    (low, high), (least, most) = ends(old), map(int, ends(new))
    low, high = old.type(max(int(low), least)), old.type(min(int(high), most))
    return spans.where((a.lo >= low) & (a.hi <= high))


def exact(name: str, options: Options, *arrays: End) -> End | None:
    """The result of a primitive on known integers; None if only JAX computes it."""
    if name == "convert_element_type":
        new = np.dtype(options["new_dtype"])
        return arrays[0] != 0 if new == np.bool_ else arrays[0].astype(new)
    if name == "select_n" and arrays[0].dtype == np.bool_:
        return namespace(*arrays).where(arrays[0], arrays[2], arrays[1])
    if name == "integer_pow":
        return arrays[0] ** options["y"]
    if name in BY_POSITIVE and is_true(arrays[1] > 0):
        return BY_POSITIVE[name](*arrays)
    if name == "shift_right_logical" and not is_true(arrays[0] >= 0):
        return None
    if name in SHIFTS and is_true((arrays[1] >= 0) & (arrays[1] < 8 * arrays[1].dtype.itemsize)):
        return SHIFTS[name](*arrays)
    return EXACT[name](*arrays) if name in EXACT else None


EXACT: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.invert,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "max": larger, "min": smaller, "abs": abs,
    "square": lambda a: a * a, "sign": lambda a: namespace(a).sign(a),
    "clamp": lambda low, a, high: smaller(larger(low, a), high),
}  # fmt: skip
BY_POSITIVE = {"div": truncated, "rem": lambda a, b: a - truncated(a, b) * b}
SHIFTS = {
    "shift_left": operator.lshift,
    "shift_right_arithmetic": operator.rshift,
    "shift_right_logical": operator.rshift,
}

INTEGERS: dict[str, Callable[..., Span]] = {
    "add": add, "sub": sub, "mul": mul, "neg": neg, "abs": absolute, "div": div, "rem": rem,
    "integer_pow": power, "square": lambda a: mul(a, a), "and": bits_and, "or": bits_or,
    "xor": bits_xor, "not": bits_not, "shift_left": shift_left, "select_n": select,
    "shift_right_arithmetic": shift_right, "sign": lambda a: a.each(namespace(a.lo, a.hi).sign),
    "shift_right_logical": lambda a, b: shift_right(a, b).where(a.lo >= 0),
}  # fmt: skip
"""Rules for integers and booleans. Floats are rounded, and may be NaN."""

ORDERED: dict[str, Callable[..., Span | None]] = {
    "eq": eq, "ne": ne, "lt": lt, "le": le, "gt": lambda a, b: lt(b, a),
    "ge": lambda a, b: le(b, a), "max": maximum, "min": minimum, "convert_element_type": convert,
    "clamp": lambda low, a, high: minimum(maximum(low, a), high),
}  # fmt: skip
"""Rules for all ordered dtypes."""
