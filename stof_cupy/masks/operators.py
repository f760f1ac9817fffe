"""What ``&``, ``|``, ``^`` and ``~`` make of patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from stof_cupy.errors import ShapeError, mismatch
from stof_cupy.masks import runs
from stof_cupy.masks.bitmap import Words
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import Int64s

__all__ = ["Binary", "Not"]


class Binary(Pattern):
    """Elementwise ``&``, ``|`` or ``^`` of two patterns."""

    _OPERATIONS: ClassVar[dict[str, tuple[Callable[..., Any], Callable[..., Any]]]] = {
        "&": (np.minimum, np.bitwise_and),
        "|": (np.maximum, np.bitwise_or),
        "^": (runs.exclusive, np.bitwise_xor),
    }

    def __init__(self, left: Pattern, right: Pattern, symbol: str) -> None:
        if left.shape != right.shape:
            name = f"right operand of {symbol}"
            raise ShapeError(mismatch(name, right.shape, left.shape, "shapes must be equal"))
        super().__init__(left.shape, f"({left._label} {symbol} {right._label})")
        self.lead = left.lead if left.lead == right.lead else _broadcast(left, right, symbol)
        self.left, self.right, self.symbol = left, right, symbol
        self.needs_cuda = left.needs_cuda or right.needs_cuda
        self._states, self._bits = self._OPERATIONS[symbol]

    def _classify(self) -> Runs:
        return self.left.runs.combine(self.right.runs, self._states)

    def row_words(self, keys: Int64s) -> Words:
        """Return row words of tiles, see `Pattern.row_words`."""
        words: Words = self._bits(self.left.row_words(keys), self.right.row_words(keys))
        return words


def _broadcast(left: Pattern, right: Pattern, symbol: str) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(left.lead, right.lead)
    except ValueError:
        name, hint = f"right operand of {symbol}", "leading axes broadcast"
        raise ShapeError(mismatch(name, right.lead, left.lead, hint)) from None


class Not(Pattern):
    """Elementwise complement of a pattern."""

    def __init__(self, operand: Pattern) -> None:
        super().__init__(operand.shape, f"~{operand._label}")
        self.operand, self.lead = operand, operand.lead
        self.needs_cuda = operand.needs_cuda

    def _classify(self) -> Runs:
        return ~self.operand.runs

    def row_words(self, keys: Int64s) -> Words:
        """Return row words of tiles, see `Pattern.row_words`."""
        return ~self.operand.row_words(keys)
