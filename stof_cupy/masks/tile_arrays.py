"""The arrays and sizes of a stored mask, under the paper's names."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks.bitmap import Words
from stof_cupy.masks.tiles import FULL, Int32s, Tiles

__all__ = ["TileArrays"]


class TileArrays:
    """Read-only views of `Tiles`; the part of `BsrMask` that holds no rule."""

    _tiles: Tiles

    @property
    def shape(self) -> tuple[int, int]:
        """``(queries, keys)``."""
        return self._tiles.shape

    @property
    def bitmap_id(self) -> Int32s:
        """int32 (tiles,): -1 for a full tile, else a row of `bitmaps`, for `load_col_idx`."""
        return self._tiles.bitmap_id

    @property
    def bitmaps(self) -> Words:
        """uint64 (distinct, 64): the words of each distinct part tile, see `BsrMask`."""
        return self._tiles.bitmaps

    @property
    def ntiles(self) -> int:
        """Number of listed tiles."""
        return len(self._tiles.indices)

    @property
    def nnz(self) -> int:
        """Number of True elements."""
        return self._tiles.nnz

    @property
    def density(self) -> float:
        """True elements over all elements; 0 for a mask without elements."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        tiles = self._tiles
        arrays = (tiles.indptr, tiles.indices, tiles.bitmap_id, tiles.bitmaps)
        return sum(array.nbytes for array in arrays)

    @property
    def load_row_ptr(self) -> Int32s:
        """Pointers over all listed tiles, int32 (query tiles + 1,)."""
        return self._tiles.indptr

    @property
    def load_col_idx(self) -> Int32s:
        """Columns of all listed tiles, int32, ascending within a query tile."""
        return self._tiles.indices

    @property
    def full_row_ptr(self) -> Int32s:
        """Pointers over the full tiles alone, int32 (query tiles + 1,)."""
        return self._pointers(self.bitmap_id == FULL)

    @property
    def full_col_idx(self) -> Int32s:
        """Columns of the full tiles, int32."""
        columns: Int32s = self.load_col_idx[self.bitmap_id == FULL]
        return columns

    @property
    def part_row_ptr(self) -> Int32s:
        """Pointers over the part tiles alone, int32 (query tiles + 1,)."""
        return self._pointers(self.bitmap_id != FULL)

    @property
    def part_col_idx(self) -> Int32s:
        """Columns of the part tiles, int32."""
        columns: Int32s = self.load_col_idx[self.bitmap_id != FULL]
        return columns

    def _pointers(self, chosen: NDArray[np.bool_]) -> Int32s:
        return np.concatenate([[0], np.cumsum(chosen)])[self.load_row_ptr].astype(np.int32)
