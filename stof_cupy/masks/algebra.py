"""Tiles of transposed masks, of parts of them, and sums over their rows: none makes it dense."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks.bitmap import (
    LOW_BITS,
    TILE,
    Words,
    row_popcounts,
    row_words,
    tile_words,
    transpose_words,
)
from stof_cupy.masks.convert import Lists, strip_of
from stof_cupy.masks.tiles import (
    FULL,
    BitmapTable,
    Int64s,
    Tiles,
    assemble,
    edge_rows,
    grid,
)

__all__ = ["crop", "lookup", "row_counts", "take_rows", "transpose"]

_CHUNK = 2048  # tiles whose bits are moved at a time: 1 MiB of words


def transpose(tiles: Tiles) -> Tiles:
    """Swap queries and keys."""
    rows = np.repeat(np.arange(len(tiles.indptr) - 1, dtype=np.int64), np.diff(tiles.indptr))
    keys = tiles.indices * np.int64(len(tiles.indptr) - 1) + rows
    order = np.argsort(keys, kind="stable")
    bitmaps = transpose_words(tiles.bitmaps)
    return assemble(tiles.shape[::-1], keys[order], tiles.bitmap_id[order], bitmaps)


def lookup(tiles: Tiles, queries: Int64s, keys: Int64s) -> NDArray[np.bool_]:
    """Return the elements at `queries` and `keys`, both int64 ``(n,)`` and in bounds."""
    ids = _ids(tiles, tiles.keys, queries // TILE * grid(tiles.shape)[1] + keys // TILE)
    kept: NDArray[np.bool_] = ids == FULL
    part = np.flatnonzero(ids >= 0)
    row, col = queries[part] % TILE, keys[part] % TILE
    words = tiles.bitmaps[ids[part], (col >> 3) * 8 + (row >> 3)]
    kept[part] = (words >> ((row & 7) * 8 + (col & 7)).astype(np.uint64)) & np.uint64(1) != 0
    return kept


def _ids(tiles: Tiles, listed: Int64s, keys: Int64s) -> Int64s:
    """Return `FULL` or the bitmap of tiles `keys`, and ``FULL - 1`` for those not listed."""
    ids = np.full(len(keys), FULL - 1, np.int64)
    if len(listed):
        at = np.minimum(np.searchsorted(listed, keys), len(listed) - 1)
        found = listed[at] == keys
        ids[found] = tiles.bitmap_id[at[found]]
    return ids


def row_counts(tiles: Tiles) -> Int64s:
    """Return the True elements of each query, int64 ``(queries,)``."""
    queries, keys = tiles.shape
    of_bitmap = np.zeros((len(tiles.bitmaps), TILE), np.uint8)
    for at in range(0, len(of_bitmap), _CHUNK):
        of_bitmap[at : at + _CHUNK] = row_popcounts(tiles.bitmaps[at : at + _CHUNK])
    rows = grid(tiles.shape)[0]
    counts = np.zeros((rows, TILE), np.int64)
    for row in range(rows):
        listed = slice(tiles.indptr[row], tiles.indptr[row + 1])
        ids = tiles.bitmap_id[listed]
        full = tiles.indices[listed][ids == FULL].astype(np.int64)
        counts[row] = of_bitmap[ids[ids != FULL]].sum(axis=0, dtype=np.int64)
        counts[row] += np.minimum(keys - full * TILE, TILE).sum()
    return counts.reshape(-1)[:queries]


def take_rows(tiles: Tiles, index: Int64s) -> Tiles:
    """Return the tiles of the mask whose query ``i`` is query ``index[i]``; repeats are allowed."""
    shape = len(index), tiles.shape[1]
    rows, cols = grid(shape)
    lists = Lists()
    for row in range(rows):
        wanted = index[row * TILE : (row + 1) * TILE]
        strip = np.zeros((TILE, cols), np.uint64)
        for source in np.unique(wanted // TILE):
            at = np.flatnonzero(wanted // TILE == source)
            listed, words = strip_of(tiles, int(source))
            strip[np.ix_(at, listed)] = words[:, wanted[at] % TILE].T
        kept = np.flatnonzero(strip.any(axis=0))
        lists.add(row * np.int64(cols) + kept, np.ascontiguousarray(strip[:, kept].T))
    return lists.assemble(shape)


def crop(tiles: Tiles, queries: tuple[int, int], keys: tuple[int, int]) -> Tiles:
    """Return the tiles of rows ``[start, stop)`` of the queries and of the keys."""
    shape = max(queries[1] - queries[0], 0), max(keys[1] - keys[0], 0)
    origin = queries[0], keys[0]
    listed = tiles.keys
    made, kept = _met(tiles, listed, shape, origin)
    ids = np.full(len(made), FULL, np.int32)
    part = np.flatnonzero(~kept)
    table = BitmapTable()
    for at in range(0, len(part), _CHUNK):
        chosen = part[at : at + _CHUNK]
        words = _window(tiles, listed, shape, origin, made[chosen])
        ids[chosen] = table.add(tile_words(words & edge_rows(shape, made[chosen])))
    return assemble(shape, made, ids, table.words())


def _met(
    tiles: Tiles, listed: Int64s, shape: tuple[int, int], origin: tuple[int, int]
) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return the tiles of a crop that meet a listed tile, ascending, and which are full for sure.

    A tile of the crop meets up to four tiles of the mask; it is full for sure if full ones cover
    it.
    """
    cols = grid(shape)[1]
    row, col = np.divmod(listed, max(grid(tiles.shape)[1], 1))
    top, left = row * TILE - origin[0], col * TILE - origin[1]
    keys, areas = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    full = tiles.bitmap_id == FULL
    for down in range(1 + (origin[0] % TILE > 0)):
        for right in range(1 + (origin[1] % TILE > 0)):
            to_row, to_col = top // TILE + down, left // TILE + right
            height = _overlap(top, to_row, shape[0])
            width = _overlap(left, to_col, shape[1])
            meets = (height > 0) & (width > 0)
            keys.append((to_row * cols + to_col)[meets])
            areas.append((height * width * full)[meets])
    made, where = np.unique(np.concatenate(keys), return_inverse=True)
    covered = np.bincount(where.reshape(-1), np.concatenate(areas), len(made))
    heights = np.minimum(shape[0] - made // max(cols, 1) * TILE, TILE)
    widths = np.minimum(shape[1] - made % max(cols, 1) * TILE, TILE)
    return made, covered == heights * widths


def _overlap(start: Int64s, tile: Int64s, size: int) -> Int64s:
    """Return the elements that ``[start, start + 64)`` shares with `tile` of ``[0, size)``."""
    low = np.maximum(np.maximum(start, tile * TILE), 0)
    shared: Int64s = np.minimum(np.minimum(start, tile * TILE) + TILE, size) - low
    return shared


def _window(
    tiles: Tiles, listed: Int64s, shape: tuple[int, int], origin: tuple[int, int], keys: Int64s
) -> Words:
    """Return row words ``(n, 64)`` of tiles `keys` of the crop; bits out of bounds may be set."""
    row, col = np.divmod(keys, grid(shape)[1])
    (first_row, down), (first_col, right) = (divmod(start, TILE) for start in origin)
    cols = grid(tiles.shape)[1]
    words = np.zeros((len(keys), TILE), np.uint64)
    for i in range(1 + (down > 0)):
        for j in range(1 + (right > 0)):
            # Beyond the last column this is a tile of the next row, whose bits are out of bounds.
            source = (first_row + row + i) * cols + first_col + col + j
            bits = _row_words_at(tiles, _ids(tiles, listed, source))
            bits = bits << np.uint64(TILE - right) if j else bits >> np.uint64(right)
            if i:
                words[:, TILE - down :] |= bits[:, :down]
            else:
                words[:, : TILE - down] |= bits[:, down:]
    return words


def _row_words_at(tiles: Tiles, ids: Int64s) -> Words:
    words = np.zeros((len(ids), TILE), np.uint64)
    words[ids == FULL] = LOW_BITS[TILE]
    words[ids >= 0] = row_words(tiles.bitmaps[ids[ids >= 0]])
    return words
