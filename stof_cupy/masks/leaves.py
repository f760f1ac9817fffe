"""The leaves that pattern functions are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks import runs
from stof_cupy.masks.bitmap import LOW_BITS, TILE, Words, pack_bits, row_words
from stof_cupy.masks.expression import Leaf
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import FULL, Int64s, Tiles, check_count, grid

__all__ = ["Blocks", "Columns", "Intervals", "Stored"]


class Intervals(Leaf):
    """Query ``q`` sees keys ``[start[q], stop[q])``: causal, windows, documents, whole rows.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    start, stop : integer arrays (queries,)
        Clipped to the keys there are; ``start >= stop`` is an empty row.
    """

    def __init__(self, shape: tuple[int, int], label: str, start: Int64s, stop: Int64s) -> None:
        super().__init__(shape, label)
        queries, keys = self.shape
        rows = grid(self.shape)[0]
        some = start < stop
        # An empty row, and a row beyond the last, starts at the end and stops at 0, which drops out
        # of every min and max below.
        self._start = np.full((rows, TILE), keys, np.int32)
        self._stop = np.zeros((rows, TILE), np.int32)
        self._start.reshape(-1)[:queries] = np.where(some, np.clip(start, 0, keys), keys)
        self._stop.reshape(-1)[:queries] = np.where(some, np.clip(stop, 0, keys), 0)

    def _classify(self) -> Runs:
        rows, cols = grid(self.shape)
        queries, keys = self.shape
        base = np.arange(rows, dtype=np.int64) * cols
        hull = self._start.min(axis=1) // TILE, -(-self._stop.max(axis=1) // TILE)
        # Rows beyond the last decide nothing about a full tile; neither do keys beyond the last.
        inside = np.arange(rows * TILE).reshape(rows, TILE) < queries
        common_stop = np.min(self._stop, axis=1, where=inside, initial=keys)
        common = (
            -(-np.max(self._start, axis=1, where=inside, initial=0) // TILE),
            np.where(common_stop == keys, cols, common_stop // TILE),
        )
        (may, must) = ((base + lo, base + np.maximum(lo, hi)) for lo, hi in (hull, common))
        return Runs.from_spans((rows, cols), may, must)

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        first = (cols * TILE)[:, None]
        start = LOW_BITS[np.clip(self._start[rows] - first, 0, TILE)]
        words: Words = LOW_BITS[np.clip(self._stop[rows] - first, 0, TILE)] & ~start
        return words


class Columns(Leaf):
    """Every query sees the flagged keys.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    flags : bool array (keys,)
        True for the keys that are seen.
    """

    def __init__(self, shape: tuple[int, int], label: str, flags: NDArray[np.bool_]) -> None:
        super().__init__(shape, label)
        cols = grid(self.shape)[1]
        bits = np.zeros((cols, TILE), bool)
        bits.reshape(-1)[: self.shape[1]] = flags
        self._words = pack_bits(bits)

    def _classify(self) -> Runs:
        rows, cols = grid(self.shape)
        widths = np.minimum(self.shape[1] - np.arange(cols, dtype=np.int64) * TILE, TILE)
        full = self._words == LOW_BITS[widths]
        states = np.where(full, runs.FULL, np.where(self._words != 0, runs.PART, runs.EMPTY))
        return Runs.from_row((rows, cols), states.astype(np.uint8))

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        return np.broadcast_to(self._words[cols][:, None], (len(cols), TILE))


class Blocks(Leaf):
    """Listed square blocks of any size are kept whole.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    block_rows, block_cols : int64 arrays (n,)
        Block coordinates in units of `block`, each inside the shape; repeats are allowed.
    block : int
        Rows and columns of a block.
    """

    def __init__(
        self, shape: tuple[int, int], label: str, block_rows: Int64s, block_cols: Int64s, block: int
    ) -> None:
        super().__init__(shape, label)
        self._block = block
        self._width = -(-self.shape[1] // block)
        self._listed = np.unique(block_rows * self._width + block_cols)

    def _classify(self) -> Runs:
        rows, cols = grid(self.shape)
        block_rows, block_cols = np.divmod(self._listed, max(self._width, 1))
        top, bottom = self._extent(block_rows, self.shape[0])
        left, right = self._extent(block_cols, self.shape[1])
        # One span per listed block and tile row that it touches.
        heights = -(-bottom // TILE) - top // TILE
        check_count("mask", int(heights.sum()))  # a span is a tile or more
        which = np.repeat(np.arange(len(heights)), heights)
        row = np.arange(len(which)) - (np.cumsum(heights) - heights)[which] + (top // TILE)[which]
        base, left, right = row * cols, left[which], right[which]
        may = base + left // TILE, base - (-right // TILE)
        last = np.where(right == self.shape[1], cols, right // TILE)
        whole = (top[which] <= row * TILE) & (
            np.minimum(row * TILE + TILE, self.shape[0]) <= bottom[which]
        )
        must_start = base - (-left // TILE)
        must = must_start, np.where(whole, np.maximum(must_start, base + last), must_start)
        return Runs.from_spans((rows, cols), may, must)

    def _extent(self, blocks: Int64s, size: int) -> tuple[Int64s, Int64s]:
        return blocks * self._block, np.minimum(blocks * self._block + self._block, size)

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        # A tile meets few blocks: look those up, then spread them over the elements.
        inner = np.arange(TILE, dtype=np.int64)
        near = np.arange((TILE - 1) // self._block + 2, dtype=np.int64)
        first_row, first_col = rows * TILE // self._block, cols * TILE // self._block
        met_rows, met_cols = (
            (first_row[:, None] + near)[:, :, None],
            (first_col[:, None] + near)[:, None, :],
        )
        wanted = met_rows * self._width + met_cols
        at = np.minimum(np.searchsorted(self._listed, wanted), len(self._listed) - 1)
        kept = (self._listed[at] == wanted) & (met_cols < self._width)
        row = (rows[:, None] * TILE + inner) // self._block - first_row[:, None]
        col = (cols[:, None] * TILE + inner) // self._block - first_col[:, None]
        tiles = kept[np.arange(len(rows))[:, None, None], row[:, :, None], col[:, None, :]]
        return pack_bits(tiles)


class Stored(Leaf):
    """A mask that has its tiles already, as an operand of an expression."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__(tiles.shape, "mask")
        self._keys, self._tiles = tiles.keys, tiles

    def _classify(self) -> Runs:
        states = np.where(self._tiles.bitmap_id == FULL, runs.FULL, runs.PART).astype(np.uint8)
        return Runs.from_tiles(grid(self.shape), self._keys, states)

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        at = np.searchsorted(self._keys, rows * grid(self.shape)[1] + cols)
        return row_words(self._tiles.bitmaps[self._tiles.bitmap_id[at]])
