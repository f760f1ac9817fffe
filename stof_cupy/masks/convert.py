"""Tiles from and to dense boolean arrays and scipy.sparse, in bounded chunks of elements."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import MaskError, mismatch
from stof_cupy.masks.bitmap import TILE, Words, pack_bits, row_words, tile_words, unpack_bits
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.tiles import (
    FULL,
    BitmapTable,
    Int32s,
    Int64s,
    Tiles,
    assemble,
    edge_rows,
    grid,
)

__all__ = ["Lists", "from_dense", "from_scipy", "strip_of", "to_csr", "to_dense"]

_CHUNK = 1 << 20  # sparse elements converted at a time


def from_dense(array: NDArray[np.bool_]) -> Tiles:
    """Build tiles from a boolean array ``(queries, keys)``."""
    shape = check_shape(array.shape, "array")
    rows, cols = grid(shape)
    strip = np.zeros((TILE, cols * TILE), bool)
    lists = Lists()
    for row in range(rows):
        part = array[row * TILE : (row + 1) * TILE]
        strip[: len(part), : shape[1]] = part
        strip[len(part) :] = False
        words = pack_bits(strip.reshape(TILE, cols, TILE)).T
        listed = np.flatnonzero(words.any(axis=1))
        lists.add(row * cols + listed, words[listed])
    return lists.assemble(shape)


def from_scipy(matrix: Any) -> Tiles:
    """Build tiles from a scipy.sparse matrix or array of any format and index type.

    Duplicates are summed first, as scipy does; whatever is then not zero is kept.

    Raises
    ------
    MaskError
        If an index lies beyond the shape, or the arrays contradict each other.
    """
    shape = check_shape(matrix.shape, "matrix")
    csr = _checked(matrix).tocsr(copy=True)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    rows, cols = grid(shape)
    ends = csr.indptr[np.minimum(np.arange(1, rows + 1) * TILE, shape[0])].astype(np.int64)
    lists = Lists()
    row = start = 0
    while row < rows:
        # As many whole rows of tiles as a chunk holds, at least one.
        after = max(row + 1, int(np.searchsorted(ends, start + _CHUNK, side="right")))
        stop = int(ends[after - 1])
        per_row = np.diff(csr.indptr[row * TILE : min(after * TILE, shape[0]) + 1])
        queries = np.repeat(
            np.arange(row * TILE, row * TILE + len(per_row), dtype=np.int64), per_row
        )
        lists.add(*_scatter(queries, csr.indices[start:stop].astype(np.int64), cols))
        row, start = after, stop
    return lists.assemble(shape)


def _checked(matrix: Any) -> Any:
    """Return `matrix`, or it as COO, its indices checked: scipy trusts them in a conversion."""
    from scipy.sparse import coo_array

    try:
        if hasattr(matrix, "check_format"):  # CSR, CSC, BSR
            copy.copy(matrix).check_format(full_check=True)  # which may replace arrays of its own
            return matrix
        coo = matrix.tocoo(copy=False)
        return coo_array((coo.data, (coo.row, coo.col)), shape=coo.shape)
    except ValueError as error:
        expected = f"indices inside {matrix.shape}"
        raise MaskError(mismatch("matrix", f"invalid arrays ({error})", expected)) from error


def _scatter(queries: Int64s, keys: Int64s, cols: int) -> tuple[Int64s, Words]:
    """Return the tiles, ascending, and row words of distinct elements in row-major order."""
    tile = queries // TILE * cols + keys // TILE
    slot = tile * TILE + queries % TILE  # one row word
    order = np.argsort(slot, kind="stable")
    slots, first = np.unique(slot[order], return_index=True)
    bits = np.uint64(1) << (keys[order] % TILE).astype(np.uint64)
    tiles, place = np.unique(slots // TILE, return_inverse=True)
    words = np.zeros((len(tiles), TILE), np.uint64)
    if len(slots):
        words[place, slots % TILE] = np.bitwise_or.reduceat(bits, first)
    return tiles, words


class Lists:
    """Tiles gathered in ascending order, chunk by chunk."""

    def __init__(self) -> None:
        self._keys: list[Int64s] = []
        self._ids: list[Int32s] = []
        self._table = BitmapTable()

    def add(self, keys: Int64s, rows: Words) -> None:
        """Append tiles `keys`, int64 ``(n,)``, and their row words ``(n, 64)``."""
        self._keys.append(keys)
        self._ids.append(self._table.add(tile_words(rows)))

    def assemble(self, shape: tuple[int, int]) -> Tiles:
        """Return the tiles added so far as those of a mask of `shape`."""
        keys = np.concatenate([np.zeros(0, np.int64), *self._keys])
        ids = np.concatenate([np.zeros(0, np.int32), *self._ids])
        return assemble(shape, keys, ids, self._table.words())


def strip_of(tiles: Tiles, row: int) -> tuple[Int32s, Words]:
    """Return tile columns ``(n,)`` and row words ``(n, 64)`` of one row of tiles."""
    listed = slice(tiles.indptr[row], tiles.indptr[row + 1])
    cols, ids = tiles.indices[listed], tiles.bitmap_id[listed]
    words = edge_rows(tiles.shape, row * grid(tiles.shape)[1] + cols.astype(np.int64))
    words[ids != FULL] = row_words(tiles.bitmaps[ids[ids != FULL]])
    return cols, words


def to_dense(tiles: Tiles) -> NDArray[np.bool_]:
    """Return a boolean array of the mask's shape."""
    rows, cols = grid(tiles.shape)
    array = np.empty(tiles.shape, bool)
    for row in range(rows):
        strip = np.zeros((TILE, cols), np.uint64)
        listed, words = strip_of(tiles, row)
        strip[:, listed] = words.T
        part = array[row * TILE : (row + 1) * TILE]
        part[...] = unpack_bits(strip).reshape(TILE, cols * TILE)[: len(part), : tiles.shape[1]]
    return array


def to_csr(tiles: Tiles) -> Any:
    """Return a canonical ``scipy.sparse.csr_array`` of bool."""
    from scipy.sparse import csr_array

    queries = tiles.shape[0]
    index = np.int32 if tiles.nnz < 2**31 else np.int64
    indices = np.empty(tiles.nnz, index)
    counts = np.zeros(grid(tiles.shape)[0] * TILE, np.int64)
    at = 0
    for row in range(grid(tiles.shape)[0]):
        listed, words = strip_of(tiles, row)
        query, tile = words.T.nonzero()  # only words with a bit are unpacked
        word, col = unpack_bits(words[tile, query]).nonzero()
        indices[at : at + len(col)] = listed[tile[word]] * index(TILE) + col
        counts[row * TILE : (row + 1) * TILE] = np.bincount(query[word], minlength=TILE)
        at += len(col)
    indptr = np.concatenate([[0], np.cumsum(counts)[:queries]]).astype(index)
    return csr_array((np.ones(tiles.nnz, bool), indices, indptr), shape=tiles.shape)
