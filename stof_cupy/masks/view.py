"""A pattern seen through a window: what `Pattern.crop` and `Pattern.shift` return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stof_cupy.masks.band import Band
from stof_cupy.masks.bitmap import TILE, Words
from stof_cupy.masks.check import check_positions
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.runs import Runs, agreed
from stof_cupy.masks.tiles import Int64s, grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["View", "window"]


def window(
    operand: Pattern, origin: tuple[int, int], shape: tuple[int, int], label: str
) -> Pattern:
    """Return the mask of `shape` whose element (q, k) is element ``(q, k) + origin`` of `operand`.

    What lies outside of `operand` is False.
    """
    size = check_positions(shape)
    queries, keys = ((-at, whole - at) for at, whole in zip(origin, operand.shape, strict=True))
    frame = Band(
        size,
        "frame",
        query_start=queries[0],
        query_stop=queries[1],
        key_start=keys[0],
        key_stop=keys[1],
    )
    if frame.query_start == frame.query_stop:  # nothing of the operand is seen
        return frame._named(label)
    return (View(operand, origin, size) & frame)._named(label)


class View(Pattern):
    """The window without its frame: elements from outside of the operand may have any value."""

    def __init__(self, operand: Pattern, origin: tuple[int, int], shape: tuple[int, int]) -> None:
        super().__init__(shape, "view")
        self.operand, self.origin = operand, origin
        self.lead, self.needs_cuda = operand.lead, operand.needs_cuda
        # Tile (i, j) of the window begins at element `_inner` of tile (i, j) + `_outer`.
        (self._row, self._top), (self._col, self._left) = (divmod(at, TILE) for at in origin)

    def _classify(self) -> Runs:
        size = grid(self.shape)
        first, *others = (
            self.operand.runs.window(self._row + down, self._col + right, size)
            for down in range(1 + (self._top > 0))
            for right in range(1 + (self._left > 0))
        )
        for other in others:
            first = first.combine(other, agreed)
        return first

    def row_words(self, keys: Int64s) -> Words:
        """Return row words of tiles, see `Pattern.row_words`."""
        row, col = np.divmod(keys, grid(self.shape)[1])
        row, col = row + self._row, col + self._col
        if not self._top:
            return self._strip(row, col)
        above, below = self._strip(row, col), self._strip(row + 1, col)
        return np.concatenate([above[:, self._top :], below[:, : self._top]], axis=1)

    def _strip(self, row: Int64s, col: Int64s) -> Words:
        """Return row words of tiles at tile row `row` that begin inside tile column `col`."""
        words = self._tile(row, col)
        if not self._left:
            return words
        left = np.uint64(self._left)
        shifted: NDArray[np.uint64] = (words >> left) | (
            self._tile(row, col + 1) << (np.uint64(TILE) - left)
        )
        return shifted

    def _tile(self, row: Int64s, col: Int64s) -> Words:
        rows, cols = grid(self.operand.shape)
        key = np.clip(row, 0, rows - 1) * cols + np.clip(col, 0, cols - 1)
        return self.operand.row_words(key)
