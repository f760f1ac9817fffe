"""The stored form of one 2-D mask: its listed 64x64 tiles, and their distinct bitmaps.

`assemble` is the only way in: it drops empty tiles, recognises full ones and stores equal bitmaps
once, so that equal masks have equal arrays whatever they were built from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import MaskError, UnsupportedError, mismatch
from stof_cupy.masks.bitmap import LOW_BITS, TILE, Words, popcount, tile_words
from stof_cupy.masks.check import check_shape

__all__ = ["FULL", "BitmapTable", "Tiles", "assemble", "check_count", "edge_rows", "grid"]

FULL = -1
"""The bitmap id of a tile whose in-bounds elements are all kept."""

_INT32_MAX = 2**31 - 1

_LISTED = 2**28
"""The most tiles a pattern may list: a full mask of 2**20 tokens, 2 GiB of stored arrays."""

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


def grid(shape: tuple[int, int]) -> tuple[int, int]:
    """Return how many tiles cover `shape`, ``(query tiles, key tiles)``.

    Examples
    --------
    >>> grid((64, 65))
    (1, 2)
    """
    return -(-shape[0] // TILE), -(-shape[1] // TILE)


def check_count(name: str, count: int) -> None:
    """Raise UnsupportedError if a pattern lists more than 2**28 tiles; called before it does."""
    if count > _LISTED:
        hint = "a tile is 64 x 64 elements"
        raise UnsupportedError(mismatch(name, f"{count} tiles", "at most 2**28", hint))


def _extents(shape: tuple[int, int], keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return how many rows and columns of tiles `keys` are in bounds."""
    rows, cols = np.divmod(keys, max(grid(shape)[1], 1))
    return np.minimum(shape[0] - rows * TILE, TILE), np.minimum(shape[1] - cols * TILE, TILE)


def edge_rows(shape: tuple[int, int], keys: Int64s) -> Words:
    """Return the row words ``(n, 64)`` of the in-bounds elements of tiles `keys`."""
    heights, widths = _extents(shape, keys)
    rows: Words = np.where(
        np.arange(TILE) < heights[:, None], LOW_BITS[widths][:, None], LOW_BITS[0]
    )
    return rows


class BitmapTable:
    """Distinct bitmaps in order of first appearance.

    A dictionary of 512-byte keys: a pattern has few distinct bitmaps, and hashing them is several
    times faster than sorting.

    Parameters
    ----------
    words : int
        Words of a bitmap.
    """

    def __init__(self, words: int = TILE) -> None:
        self._ids: dict[bytes, int] = {}
        self._words = words

    def add(self, words: Words) -> Int32s:
        """Return the ids of bitmaps, uint64 ``(n, words)``, adding those not seen before."""
        ids = self._ids
        size = self._words * words.itemsize
        data = words.tobytes()
        chunks = (data[at : at + size] for at in range(0, len(data), size))
        return np.fromiter((ids.setdefault(c, len(ids)) for c in chunks), np.int32, len(words))

    def words(self) -> Words:
        """Return the distinct bitmaps ``(n, words)``."""
        flat = np.frombuffer(b"".join(self._ids), np.uint64)
        return flat.reshape(len(self._ids), self._words)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Arrays of one mask, read-only and canonical.

    Attributes
    ----------
    shape : tuple of int
        ``(queries, keys)`` in elements.
    indptr : int32 array (query tiles + 1,)
        Tiles of query tile ``i`` are ``indptr[i]:indptr[i + 1]``.
    indices : int32 array (tiles,)
        Key tile of each listed tile, ascending within a query tile.
    bitmap_id : int32 array (tiles,)
        `FULL`, or a row of `bitmaps`.
    bitmaps : uint64 array (distinct, 64)
        Distinct bitmaps in order of first appearance; bits out of bounds are 0.
    """

    shape: tuple[int, int]
    indptr: Int32s
    indices: Int32s
    bitmap_id: Int32s
    bitmaps: Words

    def __post_init__(self) -> None:
        for array in (self.indptr, self.indices, self.bitmap_id, self.bitmaps):
            array.setflags(write=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Go through the constructor: a copied or unpickled array is writable again."""
        return Tiles, (self.shape, self.indptr, self.indices, self.bitmap_id, self.bitmaps)

    @property
    def keys(self) -> Int64s:
        """``tile row * tiles per row + tile column`` of each listed tile, int64 ascending."""
        rows = np.repeat(np.arange(len(self.indptr) - 1, dtype=np.int64), np.diff(self.indptr))
        return rows * grid(self.shape)[1] + self.indices

    @cached_property
    def nnz(self) -> int:
        """Number of True elements."""
        keys, full = self.keys, self.bitmap_id == FULL
        heights, widths = _extents(self.shape, keys[full])
        kept = popcount(self.bitmaps)[self.bitmap_id[~full]]
        return int((heights * widths).sum() + kept.sum())

    def check(self) -> None:
        """Raise MaskError unless every invariant of the format holds."""
        rows, cols = grid(check_shape(self.shape))
        count, distinct = self.indices.size, self.bitmaps.size // TILE
        for name, array, dtype, shape in (
            ("indptr", self.indptr, np.int32, (rows + 1,)),
            ("indices", self.indices, np.int32, (count,)),
            ("bitmap_id", self.bitmap_id, np.int32, (count,)),
            ("bitmaps", self.bitmaps, np.uint64, (distinct, TILE)),
        ):
            if array.dtype != dtype or array.shape != shape:
                got = f"{array.dtype} {array.shape}"
                raise MaskError(
                    mismatch(name, got, f"{np.dtype(dtype)} {shape}", f"the mask is {self.shape}")
                )
        self._check_lists(cols)
        keys = self.keys
        at_edge = (keys % max(cols, 1) == cols - 1) | (keys >= (rows - 1) * cols)
        edge = at_edge & (self.bitmap_id != FULL)
        inside = tile_words(edge_rows(self.shape, keys[edge]))
        if (self.bitmaps[self.bitmap_id[edge]] & ~inside).any():
            got = "bits set beyond the mask's shape"
            raise MaskError(mismatch("bitmaps", got, f"zeros beyond {self.shape}"))
        again = assemble(self.shape, keys, self.bitmap_id, self.bitmaps)
        if not (np.array_equal(again.bitmap_id, self.bitmap_id) and len(again.bitmaps) == distinct):
            got = "an empty, full, repeated or unused bitmap"
            raise MaskError(
                mismatch("bitmaps", got, "distinct ones of part tiles, in order of first use")
            )

    def _check_lists(self, cols: int) -> None:
        """Raise MaskError unless the lists are ascending and in range."""
        count, distinct = len(self.indices), len(self.bitmaps)
        if self.indptr[0] != 0 or self.indptr[-1] != count or (np.diff(self.indptr) < 0).any():
            raise MaskError(
                mismatch("indptr", self.indptr, f"rising from 0 to {count}, the listed tiles")
            )
        if ((self.indices < 0) | (self.indices >= cols)).any():
            raise MaskError(mismatch("indices", self.indices, f"key tiles from 0 to {cols - 1}"))
        if (np.diff(self.keys) <= 0).any():
            raise MaskError(mismatch("indices", self.indices, "ascending, each once, in every row"))
        if ((self.bitmap_id < FULL) | (self.bitmap_id >= distinct)).any():
            raise MaskError(
                mismatch("bitmap_id", self.bitmap_id, f"-1 or a row of {distinct} bitmaps")
            )


def assemble(shape: tuple[int, int], keys: Int64s, ids: Int32s, bitmaps: Words) -> Tiles:
    """Build canonical `Tiles` from listed tiles.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)`` in elements.
    keys : int64 array (n,)
        ``tile row * tiles per row + tile column``, strictly ascending.
    ids : int32 array (n,)
        `FULL` or a row of `bitmaps`.
    bitmaps : uint64 array (m, 64)
        Stored-order bitmaps, zero out of bounds; may repeat, be empty or be full.
    """
    rows, cols = grid(shape)
    if len(keys) > _INT32_MAX:
        raise UnsupportedError(mismatch("mask", f"{len(keys)} tiles", "fewer than 2**31"))
    full = ids == FULL
    part = np.flatnonzero(~full)
    heights, widths = _extents(shape, keys[part])
    kept = popcount(bitmaps)[ids[part]]
    full[part[kept == heights * widths]] = True
    partly = part[(kept > 0) & ~full[part]]

    new_ids = np.full(len(keys), FULL, np.int32)
    new_ids[partly], distinct = _relabel(ids[partly], bitmaps)
    listed = full
    listed[partly] = True
    keys, new_ids = (keys, new_ids) if listed.all() else (keys[listed], new_ids[listed])
    indptr = np.searchsorted(keys, np.arange(rows + 1, dtype=np.int64) * cols).astype(np.int32)
    return Tiles(shape, indptr, (keys % max(cols, 1)).astype(np.int32), new_ids, distinct)


def _relabel(ids: Int32s, bitmaps: Words) -> tuple[Int32s, Words]:
    """Return new ids, by first appearance, of the used bitmaps, and those bitmaps."""
    used, first = np.unique(ids, return_index=True)
    used = used[np.argsort(first, kind="stable")]
    table = BitmapTable()
    lookup = np.zeros(len(bitmaps), np.int32)
    lookup[used] = table.add(bitmaps[used])
    return lookup[ids], table.words()
