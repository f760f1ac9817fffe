"""What the NumPy attention visits: tiles of query rows with the runs of keys they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks import bitmap

if TYPE_CHECKING:
    from stof_cupy.masks import BsrMask

__all__ = ["SCORES", "RowTile", "TileLists"]

SCORES = 1 << 18
"""Scores held at a time (elements): 1 MiB of float32, so that a softmax's passes hit the cache."""


@dataclass(frozen=True)
class RowTile:
    """Query rows ``start:stop`` and the keys that any of them may see.

    `runs` are ranges of keys, ascending; their scores stand side by side. `parts` are the tiles
    that need their bitmap: where their first score column stands, and the bitmap's number.
    """

    start: int
    stop: int
    runs: tuple[tuple[int, int], ...]
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def keys(self) -> int:
        """Score columns of the tile."""
        return sum(stop - start for start, stop in self.runs)

    def before(self, length: int) -> list[tuple[slice, slice]]:
        """Return each run's keys before `length`, and the columns that their scores take.

        What is cut off are columns at the end.
        """
        column, placed = 0, []
        for start, stop in self.runs:
            stop = min(stop, length)
            if start < stop:
                placed.append((slice(start, stop), slice(column, column + stop - start)))
                column += stop - start
        return placed


class TileLists:
    """A mask, or none, lowered to row tiles.

    Parameters
    ----------
    mask : BsrMask or None
        None: every query sees every key.
    seq_q, seq_k : int
        Its shape.
    group : int
        Query heads that share keys, whose rows are computed together.

    Attributes
    ----------
    rows : list of RowTile
    widest : int
        Scores (elements) of the largest of them, of one query head.
    """

    def __init__(self, mask: BsrMask | None, seq_q: int, seq_k: int, group: int) -> None:
        self.rows = _dense(seq_q, seq_k, group) if mask is None else list(_listed(mask))
        self.widest = max(((tile.stop - tile.start) * tile.keys for tile in self.rows), default=0)
        self._denied = _denied(None if mask is None else mask.bitmaps)

    def hide(self, scores: NDArray[Any], tile: RowTile) -> None:
        """Put -inf where the bitmaps of a row tile deny, in its scores ``(heads, rows, columns)``.

        The scores may lack columns at the end.
        """
        rows = tile.stop - tile.start
        for column, number in tile.parts:
            block = scores[..., column : column + bitmap.TILE]
            np.copyto(block, -np.inf, where=self._denied(number)[:rows, : block.shape[-1]])


def _dense(seq_q: int, seq_k: int, group: int) -> list[RowTile]:
    """Cut the rows of a call without a mask."""
    rows = max(bitmap.TILE, SCORES // max(1, group * seq_k))
    runs = ((0, seq_k),)
    return [RowTile(i, min(i + rows, seq_q), runs) for i in range(0, seq_q, rows)]


def _listed(mask: BsrMask) -> Iterator[RowTile]:
    """Lower a mask to its row tiles."""
    size = bitmap.TILE
    seq_q, seq_k = mask.shape
    pointers = mask.load_row_ptr.tolist()
    for i in range(len(pointers) - 1):
        listed = slice(pointers[i], pointers[i + 1])
        columns, numbers = mask.load_col_idx[listed], mask.bitmap_id[listed]
        cuts = np.flatnonzero(np.diff(columns) != 1) + 1
        starts = columns[np.r_[0, cuts]] if len(columns) else columns
        stops = columns[np.r_[cuts - 1, len(columns) - 1]] + 1 if len(columns) else columns
        runs = [
            (start * size, min(stop * size, seq_k))
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        part = np.flatnonzero(numbers >= 0)
        parts = zip((part * size).tolist(), numbers[part].tolist(), strict=True)
        yield RowTile(i * size, min((i + 1) * size, seq_q), tuple(runs), tuple(parts))


def _denied(bitmaps: NDArray[np.uint64] | None) -> Callable[[int], NDArray[np.bool_]]:
    """Return a function from a bitmap's number to its (64, 64) tile, True where it denies."""
    words = np.empty((0, bitmap.TILE), np.uint64) if bitmaps is None else bitmaps

    @lru_cache(maxsize=256)
    def tile(number: int) -> NDArray[Any]:
        allowed: NDArray[np.bool_] = bitmap.unpack(words[number : number + 1])[0]
        return ~allowed

    return tile
