"""Formulas on NumPy: integers are int64 and wrap, floats are float64, conditions are bool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stof_cupy.dtypes import dtype_name
from stof_cupy.masks.formula_kinds import DTYPES, plain
from stof_cupy.masks.formula_parse import Op, Read

__all__ = ["Values", "truth"]

Array = Any


def truth(x: Array) -> Array:
    """Return where `x` is not 0; NaN is not."""
    return x if x.dtype == np.bool_ else x != 0


def _integer(x: Array) -> Array:
    return x.astype(np.int64) if x.dtype == np.bool_ else x


def _common(*args: Array) -> list[Array]:
    """Convert as C does: to double if one is, else to int64."""
    if any(x.dtype == np.float64 for x in args):
        return [x.astype(np.float64) for x in args]
    return [_integer(x) for x in args]


def _quotient(a: Array, b: Array) -> Array:
    """Divide; integers towards zero, and by zero to 0."""
    if a.dtype == np.float64:
        return a / b
    divisor = np.where(b == 0, 1, b)
    # INT64_MIN / -1 wraps, as a negation does.
    inexact = np.where(divisor == -1, -a, (a - np.fmod(a, divisor)) // divisor)
    return np.where(b == 0, 0, inexact)


def _remainder(a: Array, b: Array) -> Array:
    """Return what `_quotient` leaves, of the sign of `a`; 0 for a divisor of 0."""
    return np.where((b == 0) | (b == -1), 0, np.fmod(a, np.where((b == 0) | (b == -1), 1, b)))


_COMMON: dict[str, Callable[..., Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": _quotient,
    "%": _remainder,
    "<<": lambda a, n: np.left_shift(a, n & 63),
    ">>": lambda a, n: np.right_shift(a, n & 63),
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "~": np.bitwise_not,
    "+x": np.positive,
    "-x": np.negative,
    "abs": lambda a: np.where(a < 0, -a, a),
    "min": lambda a, b: np.where(b < a, b, a),
    "max": lambda a, b: np.where(a < b, b, a),
}
_TRUTH: dict[str, Callable[..., Array]] = {
    "!": np.logical_not,
    "&&": np.logical_and,
    "||": np.logical_or,
}


class Values:
    """The reading of a formula that computes it.

    Parameters
    ----------
    i, j : int64 arrays
        Positions; their shapes broadcast.
    values : mapping
        Arrays and scalars by name.
    """

    def __init__(self, i: Array, j: Array, values: Mapping[str, Any]) -> None:
        self._values = values
        self._positions = {"i": i, "j": j}

    def number(self, value: int | float) -> Array:
        """Return a literal as an array without axes."""
        return np.asarray(value, np.float64 if isinstance(value, float) else np.int64)

    def name(self, name: str) -> Array:
        """Return positions, or a scalar."""
        if name in self._positions:
            return self._positions[name]
        return self.number(plain(self._values[name]))

    def read(self, node: Read, index: Array) -> Array:
        """Return elements, 0 where the index is out of bounds."""
        array, at = self._values[node.name], _integer(index)
        stored = DTYPES[dtype_name(array.dtype)]
        wide = np.float64 if stored.real else np.int64
        if not len(array):
            return np.zeros(at.shape, wide)
        read = array[np.clip(at, 0, len(array) - 1)].astype(wide)
        return np.where((at >= 0) & (at < len(array)), read, 0)

    def op(self, node: Op, args: tuple[Array, ...]) -> Array:
        """Return what an operator gives for all elements."""
        if node.symbol == "?:":
            return np.where(truth(args[0]), *_common(*args[1:]))
        if node.symbol in _TRUTH:
            return _TRUTH[node.symbol](*map(truth, args))
        if node.symbol in ("&", "|", "^") and all(x.dtype == np.bool_ for x in args):
            return _COMMON[node.symbol](*args)
        return _COMMON[node.symbol](*_common(*args))
