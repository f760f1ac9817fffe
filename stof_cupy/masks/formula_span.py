"""Formulas over boxes of positions: spans of what an expression may be, by interval arithmetic.

`cuda/mask/formula.cuh` has the same rules for one box; tests/masks/test_formula_cuda.py holds the
two together. Truth is a span too: [1, 1] is certain, [0, 0] impossible, [0, 1] unknown, and and, or
and not of Kleene's logic are minimum, maximum and complement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stof_cupy.masks.formula_kinds import HIGHEST, LOWEST

__all__ = ["MAYBE", "REAL", "Span", "combined", "point", "span", "truth"]

Array = Any


@dataclass(frozen=True)
class Span:
    """Integers from `low` to `high`, or any double.

    Attributes
    ----------
    low, high : int64 arrays
        One for each box, or without axes.
    opaque : bool array
        Whether a smaller box would not be told apart any better: it is about contents of arrays.
        It only ever spares work.
    real : bool
        A double, of which nothing is known.
    """

    low: Array
    high: Array
    opaque: Array
    real: bool = False

    @property
    def settled(self) -> Array:
        """Where the value is known."""
        return self.low == self.high


def span(low: Array, high: Array, opaque: Array = False, real: bool = False) -> Span:
    """Return a span of int64 arrays; opaque only where it is not settled."""
    low, high = np.asarray(low, np.int64), np.asarray(high, np.int64)
    return Span(low, high, np.asarray(opaque) & (low != high), real)


def point(value: int) -> Span:
    """Return the span of one value."""
    return span(value, value)


MAYBE = span(0, 1, True)
REAL = span(LOWEST, HIGHEST, True, real=True)


def _any(*spans: Span) -> Array:
    opaque = spans[0].opaque
    for other in spans[1:]:
        opaque = opaque | other.opaque
    return opaque


def _made(known: Array, low: Array, high: Array, *of: Span) -> Span:
    """Return ``[low, high]`` where that is `known`, elsewhere anything."""
    return span(np.where(known, low, LOWEST), np.where(known, high, HIGHEST), _any(*of))


def _fits(a: Span, most: int) -> Array:
    return (a.low >= -most) & (a.high <= most)


def _corners(operation: Callable[[Array, Array], Array], a: Span, b: Span) -> tuple[Array, Array]:
    """Return the least and largest result of an operation that is monotone in both operands."""
    ends = [operation(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = ends[0], ends[0]
    for end in ends[1:]:
        low, high = np.minimum(low, end), np.maximum(high, end)
    return low, high


def _toward_zero(a: Array, b: Array) -> Array:
    """Divide integers above `LOWEST` by divisors that are not 0."""
    return (a - np.fmod(a, b)) // b


def _add(a: Span, b: Span) -> Span:
    known = _fits(a, 2**62 - 1) & _fits(b, 2**62 - 1)
    return _made(known, a.low + b.low, a.high + b.high, a, b)


def _neg(a: Span) -> Span:
    return _made(a.low > LOWEST, -a.high, -a.low, a)


def _sub(a: Span, b: Span) -> Span:
    known = _fits(a, 2**62 - 1) & _fits(b, 2**62 - 1)
    return _made(known, a.low - b.high, a.high - b.low, a, b)


def _mul(a: Span, b: Span) -> Span:
    known = _fits(a, 2**31) & _fits(b, 2**31)
    return _made(known, *_corners(np.multiply, a, b), a, b)


def _quot(a: Span, b: Span) -> Span:
    crosses = (b.low <= 0) & (b.high >= 0)
    most = np.maximum(a.high, -a.low)
    ordered = (a.low >= 0) & (b.low >= 0)
    sides = span(np.where(crosses, 1, b.low), np.where(crosses, 1, b.high))
    low, high = _corners(_toward_zero, span(np.maximum(a.low, LOWEST + 1), a.high), sides)
    low = np.where(crosses, np.where(ordered, 0, -most), low)
    return _made(a.low > LOWEST, low, np.where(crosses, most, high), a, b)


def _rem(a: Span, b: Span) -> Span:
    most = np.maximum(np.where(b.high > 0, b.high - 1, 0), np.where(b.low < 0, ~b.low, 0))
    low = np.where(a.low < 0, np.maximum(a.low, -most), 0)
    high = np.where(a.high > 0, np.minimum(a.high, most), 0)
    by = np.where(b.low > 0, b.low, 1)
    # One multiple of the divisor lies at or below all of them.
    tight = b.settled & (b.low > 0) & (a.low >= 0) & (a.low // by == a.high // by)
    return span(np.where(tight, a.low % by, low), np.where(tight, a.high % by, high), _any(a, b))


def _count(n: Span) -> Span:
    """Return the counts that a shift takes from `n`."""
    inside = (n.low >= 0) & (n.high <= 63)
    low = np.where(n.settled, n.low & 63, np.where(inside, n.low, 0))
    return span(low, np.where(n.settled, low, np.where(inside, n.high, 63)))


def _shl(a: Span, n: Span) -> Span:
    by = _count(n)
    known = _fits(a, 2**31) & (by.high <= 31)
    factor = span(1 << np.minimum(by.low, 31), 1 << np.minimum(by.high, 31))
    return _made(known, *_corners(np.multiply, a, factor), a, n)


def _shr(a: Span, n: Span) -> Span:
    low, high = _corners(np.right_shift, a, _count(n))
    return span(low, high, _any(a, n))


def _ones(a: Span, b: Span) -> Array:
    """Return the least ``2**n - 1`` so that both are in ``[-2**n, 2**n - 1]``."""
    most = np.maximum(np.maximum(a.high, ~a.low), np.maximum(b.high, ~b.low))
    for shift in (1, 2, 4, 8, 16, 32):
        most = most | most >> shift
    return most


def _bits(operation: Callable[[Array, Array], Array], a: Span, b: Span) -> Span:
    """Return the span of a bitwise operator from those of its operands."""
    ones, exact = _ones(a, b), a.settled & b.settled
    natural = (a.low >= 0) & (b.low >= 0)
    low, high = np.where(natural, 0, ~ones), ones
    if operation is np.bitwise_and:
        low = np.where((a.low >= 0) | (b.low >= 0), 0, low)
        high = np.where(a.low >= 0, np.minimum(high, a.high), high)
        high = np.where(b.low >= 0, np.minimum(high, b.high), high)
    elif operation is np.bitwise_or:
        low = np.where(natural, np.maximum(a.low, b.low), low)
    value = operation(a.low, b.low)
    opaque = _any(a, b)
    if operation is not np.bitwise_xor:  # `&` and `|` of conditions are as good as `&&` and `||`
        flags = (a.low >= 0) & (a.high <= 1) & (b.low >= 0) & (b.high <= 1)
        opaque = np.where(flags, _stuck(a, b), opaque)
    return span(np.where(exact, value, low), np.where(exact, value, high), opaque)


def _inv(a: Span) -> Span:
    return span(~a.high, ~a.low, a.opaque)


def _magnitude(a: Span) -> Span:
    low = np.maximum(np.maximum(a.low, -a.high), 0)
    return _made(a.low > LOWEST, low, np.maximum(a.high, -a.low), a)


def _least(a: Span, b: Span) -> Span:
    return span(np.minimum(a.low, b.low), np.minimum(a.high, b.high), _any(a, b))


def _most(a: Span, b: Span) -> Span:
    return span(np.maximum(a.low, b.low), np.maximum(a.high, b.high), _any(a, b))


def _lt(a: Span, b: Span) -> Span:
    return span(a.high < b.low, a.low < b.high, _any(a, b))


def _le(a: Span, b: Span) -> Span:
    return span(a.high <= b.low, a.low <= b.high, _any(a, b))


def _eq(a: Span, b: Span) -> Span:
    certain = a.settled & b.settled & (a.low == b.low)
    return span(certain, (a.low <= b.high) & (b.low <= a.high), _any(a, b))


def truth(a: Span) -> Span:
    """Return the span of ``a != 0``."""
    if a.real:
        return MAYBE
    return span((a.low > 0) | (a.high < 0), (a.low != 0) | (a.high != 0), a.opaque)


def _none(a: Span) -> Span:
    return span(1 - a.high, 1 - a.low, a.opaque)


def _stuck(*spans: Span) -> Array:
    """Where no smaller box would settle any of them."""
    stuck = spans[0].opaque | spans[0].settled
    for other in spans[1:]:
        stuck = stuck & (other.opaque | other.settled)
    return stuck


def _both(a: Span, b: Span) -> Span:
    return span(np.minimum(a.low, b.low), np.minimum(a.high, b.high), _stuck(a, b))


def _either(a: Span, b: Span) -> Span:
    return span(np.maximum(a.low, b.low), np.maximum(a.high, b.high), _stuck(a, b))


def _choose(c: Span, a: Span, b: Span) -> Span:
    yes, no = c.low > 0, c.high == 0
    low = np.where(yes, a.low, np.where(no, b.low, np.minimum(a.low, b.low)))
    high = np.where(yes, a.high, np.where(no, b.high, np.maximum(a.high, b.high)))
    opaque = np.where(yes, a.opaque, np.where(no, b.opaque, _stuck(c, a, b)))
    return span(low, high, opaque)


_INTEGERS: dict[str, Callable[..., Span]] = {
    **{"+": _add, "-": _sub, "*": _mul, "/": _quot, "%": _rem, "<<": _shl, ">>": _shr},
    "&": lambda a, b: _bits(np.bitwise_and, a, b),
    "|": lambda a, b: _bits(np.bitwise_or, a, b),
    "^": lambda a, b: _bits(np.bitwise_xor, a, b),
    **{"+x": lambda a: a, "-x": _neg, "~": _inv, "abs": _magnitude, "min": _least, "max": _most},
}
_COMPARISONS: dict[str, Callable[..., Span]] = {
    **{"<": _lt, "<=": _le, "==": _eq},
    ">": lambda a, b: _lt(b, a),
    ">=": lambda a, b: _le(b, a),
    "!=": lambda a, b: _none(_eq(a, b)),
}
_LOGIC: dict[str, Callable[..., Span]] = {"!": _none, "&&": _both, "||": _either}


def combined(symbol: str, args: tuple[Span, ...]) -> Span:
    """Return the span of an operator's results."""
    if symbol in _LOGIC:
        return _LOGIC[symbol](*map(truth, args))
    if symbol == "?:":
        return REAL if args[1].real or args[2].real else _choose(truth(args[0]), *args[1:])
    if symbol in _COMPARISONS:
        return MAYBE if any(a.real for a in args) else _COMPARISONS[symbol](*args)
    return REAL if any(a.real for a in args) else _INTEGERS[symbol](*args)
