"""The leaves that pattern functions are made of."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks import runs
from stof_cupy.masks.band import interval_runs, interval_words
from stof_cupy.masks.bitmap import LOW_BITS, TILE, Words, pack_bits, row_words
from stof_cupy.masks.expression import Leaf
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import FULL, Int32s, Int64s, Tiles, check_count, grid

__all__ = ["Blocks", "Columns", "Diagonals", "Intervals", "Stored"]

_Array = TypeVar("_Array", bound=NDArray[Any])


def _frozen(array: _Array) -> _Array:
    array.setflags(write=False)
    return array


class Intervals(Leaf):
    """Query ``q`` sees keys ``[start[q], stop[q])``: documents, whole rows; see also `Band`.

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
        start, stop = np.clip(start, 0, keys), np.clip(stop, 0, keys)
        some = start < stop
        # An empty row, and a row beyond the last, starts at the end and stops at 0, which drops out
        # of every min and max below.
        self._start = np.full((rows, TILE), keys, np.int32)
        self._stop = np.zeros((rows, TILE), np.int32)
        self._start.reshape(-1)[:queries] = np.where(some, start, keys)
        self._stop.reshape(-1)[:queries] = np.where(some, stop, 0)

    def bounds(self) -> tuple[Int32s, Int32s]:
        """Return start and stop of every row, int32 ``(queries,)``, read-only.

        Both are from 0 to the number of keys. An empty row starts at that number and stops at 0, so
        that the extremes over some rows are those of their union and of what they have in common.

        Examples
        --------
        >>> start, stop = Intervals((3, 9), "", np.array([-2, 5, 8]), np.array([4, 5, 12])).bounds()
        >>> start, stop
        (array([0, 9, 8], dtype=int32), array([4, 0, 9], dtype=int32))
        """
        queries = self.shape[0]
        start, stop = self._start.reshape(-1)[:queries], self._stop.reshape(-1)[:queries]
        return _frozen(start), _frozen(stop)

    def _classify(self) -> Runs:
        rows = grid(self.shape)[0]
        queries, keys = self.shape
        hull = self._start.min(axis=1), self._stop.max(axis=1)
        # Rows beyond the last decide nothing about a full tile.
        inside = np.arange(rows * TILE).reshape(rows, TILE) < queries
        common = (
            np.max(self._start, axis=1, where=inside, initial=0),
            np.min(self._stop, axis=1, where=inside, initial=keys),
        )
        return interval_runs(self.shape, np.arange(rows, dtype=np.int64), hull, common)

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        return interval_words(self._start[rows], self._stop[rows], cols)


class Columns(Leaf):
    """Every query sees the flagged keys.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    flags : bool array (keys,)
        True for the keys that are seen.

    Attributes
    ----------
    words : uint64 array (key tiles,)
        The flags, read-only: key ``k`` is bit ``k % 64`` of word ``k // 64``. Bits beyond the last
        key are 0.
    """

    def __init__(self, shape: tuple[int, int], label: str, flags: NDArray[np.bool_]) -> None:
        super().__init__(shape, label)
        cols = grid(self.shape)[1]
        bits = np.zeros((cols, TILE), bool)
        bits.reshape(-1)[: self.shape[1]] = flags
        self.words: Final = _frozen(pack_bits(bits))

    def _classify(self) -> Runs:
        rows, cols = grid(self.shape)
        widths = np.minimum(self.shape[1] - np.arange(cols, dtype=np.int64) * TILE, TILE)
        full = self.words == LOW_BITS[widths]
        states = np.where(full, runs.FULL, np.where(self.words != 0, runs.PART, runs.EMPTY))
        return Runs.from_row((rows, cols), states.astype(np.uint8))

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        return np.broadcast_to(self.words[cols][:, None], (len(cols), TILE))


class Diagonals(Leaf):
    """Query ``q`` sees key ``k`` if the difference ``k - q`` is flagged (a Toeplitz mask).

    A tile depends on its diagonal alone, so all of them are classified in one pass over the flags.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    flags : bool array (queries + keys - 1,)
        Entry ``k - q + queries - 1``; of any length if a side is 0.

    Attributes
    ----------
    words : uint64 array (query tiles + key tiles,)
        The flags, read-only: the difference ``d = k - q`` is bit ``n % 64`` of word ``n // 64``
        with ``n = d + 64 * query tiles``, which is 1 or more. All other bits are 0.
    """

    def __init__(self, shape: tuple[int, int], label: str, flags: NDArray[np.bool_]) -> None:
        super().__init__(shape, label)
        rows, cols = grid(self.shape)
        first = rows * TILE - self.shape[0] + 1  # entry 0 of a word: the difference -64 * rows
        bits = np.zeros(((rows + cols), TILE), bool)
        if rows and cols:
            bits.reshape(-1)[first : first + len(flags)] = flags
        self.words: Final = _frozen(pack_bits(bits))
        bits.reshape(-1)[:first] = True  # differences out of bounds leave a tile full
        bits.reshape(-1)[first + len(flags) :] = True
        self._full: NDArray[np.bool_] = np.stack([bits.all(axis=1), bits[:, 1:].all(axis=1)])

    def _classify(self) -> Runs:
        rows, cols = grid(self.shape)
        if not rows * cols:
            return Runs.from_row((rows, cols), np.zeros(cols, np.uint8))
        # Differences in a tile: a whole word, and all but the lowest bit of the word before.
        some = ((self.words[:-1] & ~LOW_BITS[1]) | self.words[1:]) != 0
        full = self._full[1, :-1] & self._full[0, 1:]
        states = np.where(full, runs.FULL, np.where(some, runs.PART, runs.EMPTY)).astype(np.uint8)
        diagonals = Runs.of((1, len(states)), np.arange(len(states), dtype=np.int64), states)
        low = np.arange(rows - 1, -1, -1, dtype=np.int64)
        return Runs.from_slices((rows, cols), diagonals, low, low + cols)

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        at = grid(self.shape)[0] + cols - rows
        words = np.empty((len(rows), TILE), np.uint64)
        words[:, 0] = self.words[at]
        shift = np.arange(1, TILE, dtype=np.uint64)
        before, after = self.words[at - 1, None], self.words[at, None]
        words[:, 1:] = (before >> (np.uint64(TILE) - shift)) | (after << shift)
        return words


class Blocks(Leaf):
    """Listed blocks of any size are kept whole.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    block_rows, block_cols : int64 arrays (n,)
        Block coordinates in units of `block`, each inside the shape; repeats are allowed.
    block : tuple of int
        Rows and columns of a block.

    Attributes
    ----------
    block : tuple of int
        As above.
    width : int
        Blocks side by side that cover the keys.
    listed : int64 array (n,)
        ``row * width + col`` of each block, ascending, without repeats; read-only.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        label: str,
        block_rows: Int64s,
        block_cols: Int64s,
        block: tuple[int, int],
    ) -> None:
        super().__init__(shape, label)
        self.block: Final = block
        self.width: Final = -(-self.shape[1] // block[1])
        self.listed: Final = _frozen(runs.merged(block_rows * self.width + block_cols))

    def _classify(self) -> Runs:
        rows, cols = grid(self.shape)
        block_rows, block_cols = np.divmod(self.listed, max(self.width, 1))
        top, bottom = self._extent(block_rows, 0)
        left, right = self._extent(block_cols, 1)
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

    def _extent(self, blocks: Int64s, axis: int) -> tuple[Int64s, Int64s]:
        size = self.block[axis]
        return blocks * size, np.minimum(blocks * size + size, self.shape[axis])

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        # A tile meets few blocks: look those up, then spread them over the elements.
        met_row, near_rows = self._met(rows, 0)
        met_col, near_cols = self._met(cols, 1)
        wanted = near_rows[:, :, None] * self.width + near_cols[:, None, :]
        at = np.minimum(np.searchsorted(self.listed, wanted), len(self.listed) - 1)
        kept = (self.listed[at] == wanted) & (near_cols < self.width)[:, None, :]
        tile = np.arange(len(rows))[:, None, None]
        return pack_bits(kept[tile, met_row[:, :, None], met_col[:, None, :]])

    def _met(self, tiles: Int64s, axis: int) -> tuple[Int64s, Int64s]:
        """Return for each element of a tile which block it is in, and those blocks."""
        size = self.block[axis]
        first = (tiles * TILE // size)[:, None]
        element = (tiles[:, None] * TILE + np.arange(TILE)) // size
        return element - first, first + np.arange((TILE - 1) // size + 2)


class Stored(Leaf):
    """A mask that has its tiles already, as an operand of an expression.

    Attributes
    ----------
    tiles : Tiles
        What it was made from.
    """

    def __init__(self, tiles: Tiles) -> None:
        super().__init__(tiles.shape, "mask")
        self._keys = tiles.keys
        self.tiles: Final = tiles

    def _classify(self) -> Runs:
        states = np.where(self.tiles.bitmap_id == FULL, runs.FULL, runs.PART).astype(np.uint8)
        return Runs.from_tiles(grid(self.shape), self._keys, states)

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        at = np.searchsorted(self._keys, rows * grid(self.shape)[1] + cols)
        return row_words(self.tiles.bitmaps[self.tiles.bitmap_id[at]])
