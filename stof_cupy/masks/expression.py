"""Patterns as expressions: leaves, ``&``, ``|``, ``^``, ``~``, and their lowering to tiles.

A leaf answers two questions. *Which tiles are empty, part, full?* by interval arithmetic over the
rows of a tile (`Runs`), and *what are the bits of this part tile?* (row words, see `bitmap`). The
operators combine the answers, so an expression is lowered in work and memory proportional to the
tiles it lists: a leaf is asked for bits only of tiles it does not settle itself, and a bounded
number at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.masks import runs
from stof_cupy.masks.bitmap import LOW_BITS, TILE, Words, tile_words
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import (
    FULL,
    BitmapTable,
    Int64s,
    Tiles,
    assemble,
    check_count,
    edge_rows,
    grid,
)

if TYPE_CHECKING:
    from stof_cupy.masks.bsr import BsrMask

__all__ = ["Leaf", "Pattern", "lower"]

_CHUNK = 2048  # tiles whose bits are built at a time: 1 MiB of words


class Pattern(ABC):
    """A mask as an expression, not yet lowered; made by the functions of `stof_cupy.masks`.

    Attributes
    ----------
    shape : tuple of int
        ``(queries, keys)``.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> window = masks.sliding_window(1000, window=100) & masks.causal(1000)
    >>> window
    <Pattern (1000, 1000): (sliding_window(window=100) & causal())>
    >>> window.tobsr()
    <BsrMask (1000, 1000): density 0.0959, 45 of 256 tiles (0 full, 45 part, 5 bitmaps)>
    """

    __array_ufunc__ = None  # `array & pattern` must not loop over the elements of the array

    def __init__(self, shape: tuple[int, int], label: str) -> None:
        self.shape = check_shape(shape)
        self._label = label

    @cached_property
    def runs(self) -> Runs:
        """States of all tiles, ``PART`` where only the elements can tell."""
        return self._classify()

    @abstractmethod
    def _classify(self) -> Runs: ...

    @abstractmethod
    def row_words(self, keys: Int64s) -> Words:
        """Return row words ``(n, 64)`` of tiles `keys`; bits out of bounds may have any value."""

    def tobsr(self) -> BsrMask:
        """Return the mask's tiles; lowered on the first call, kept for the next ones.

        Raises
        ------
        UnsupportedError
            If there are more than 2**28 of them, as many as a full mask of 2**20 tokens lists and
            2 GiB of stored arrays.
        """
        return self._bsr

    @cached_property
    def _bsr(self) -> BsrMask:
        from stof_cupy.masks.bsr import BsrMask

        return BsrMask(self)

    @property
    def nnz(self) -> int:
        """Number of True elements."""
        return self.tobsr().nnz

    def toarray(self) -> NDArray[np.bool_]:
        """Return the mask as a boolean array of its shape."""
        return self.tobsr().toarray()

    def __and__(self, other: Any) -> Pattern:
        return self._combined(other, "&")

    def __or__(self, other: Any) -> Pattern:
        return self._combined(other, "|")

    def __xor__(self, other: Any) -> Pattern:
        return self._combined(other, "^")

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def _combined(self, other: Any, symbol: str) -> Pattern:
        """Combine with anything `as_mask` takes; a `BsrMask` does it itself and stays one."""
        if isinstance(other, Pattern):
            return _Binary(self, other, symbol)
        from stof_cupy.masks.bsr import BsrMask, as_mask

        if isinstance(other, BsrMask):
            return NotImplemented  # type: ignore[no-any-return]
        return _Binary(self, as_mask(other, name="operand")._pattern, symbol)

    def __invert__(self) -> Pattern:
        return _Not(self)

    def __bool__(self) -> bool:
        hint = "`and`, `or` and `not` do not work element by element"
        raise ArgumentError(mismatch("truth value", "a pattern", "`&`, `|`, `~`, or .nnz", hint))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made again when it is asked for."""
        return {k: value for k, value in self.__dict__.items() if k not in ("runs", "_bsr")}

    def _named(self, label: str) -> Pattern:
        """Give a compound the name its user knows; called before anyone else holds it."""
        self._label = label
        return self

    def __repr__(self) -> str:
        return f"<Pattern {self.shape}: {self._label}>"


class _Binary(Pattern):
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
        self._left, self._right = left, right
        self._states, self._bits = self._OPERATIONS[symbol]

    def _classify(self) -> Runs:
        return self._left.runs.combine(self._right.runs, self._states)

    def row_words(self, keys: Int64s) -> Words:
        words: Words = self._bits(self._left.row_words(keys), self._right.row_words(keys))
        return words


class _Not(Pattern):
    """Elementwise complement of a pattern."""

    def __init__(self, operand: Pattern) -> None:
        super().__init__(operand.shape, f"~{operand._label}")
        self._operand = operand

    def _classify(self) -> Runs:
        return ~self._operand.runs

    def row_words(self, keys: Int64s) -> Words:
        return ~self._operand.row_words(keys)


class Leaf(Pattern):
    """A pattern that builds bits itself: a new family of masks is one subclass with two methods."""

    def row_words(self, keys: Int64s) -> Words:
        """Return row words ``(n, 64)`` of tiles `keys`, asking `_bits` for the part ones alone."""
        states = self.runs.at(keys)
        words = np.zeros((len(keys), TILE), np.uint64)
        words[states == runs.FULL] = LOW_BITS[TILE]
        part = states == runs.PART
        words[part] = self._bits(*np.divmod(keys[part], max(grid(self.shape)[1], 1)))
        return words

    @abstractmethod
    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        """Return row words of the part tiles at tile rows `rows` and tile columns `cols`."""


def lower(pattern: Pattern) -> Tiles:
    """Build the tiles of an expression.

    Raises
    ------
    UnsupportedError
        If it lists more than 2**28 tiles.
    """
    check_count(repr(pattern), pattern.runs.count())
    keys, states = pattern.runs.visited()
    ids = np.full(len(keys), FULL, np.int32)
    table = BitmapTable()
    part = np.flatnonzero(states == runs.PART)
    for at in range(0, len(part), _CHUNK):
        chosen = part[at : at + _CHUNK]
        words = pattern.row_words(keys[chosen]) & edge_rows(pattern.shape, keys[chosen])
        ids[chosen] = table.add(tile_words(words))
    return assemble(pattern.shape, keys, ids, table.words())
