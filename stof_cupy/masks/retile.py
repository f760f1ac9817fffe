"""The tiles of a mask merged and split into those of another size, in units of 8x8 inner tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stof_cupy.masks.bitmap import TILE, Words, popcount, tile_words
from stof_cupy.masks.layout import GROUP
from stof_cupy.masks.tiles import FULL, BitmapTable, Int32s, Int64s, Tiles, edge_rows

__all__ = ["Grid", "Meetings", "extents", "meetings", "retile"]

_INNER = TILE // GROUP
_CHUNK = 1024  # tiles whose bits are moved at a time: 8 MiB of words at most


@dataclass(frozen=True, eq=False)
class Grid:
    """Listed tiles of `tile` elements, row by row.

    Attributes
    ----------
    shape, tile : tuple of int
        Of the mask and of a tile, in elements.
    rows, cols : int64 arrays (tiles,)
        Where each is, in tiles.
    ids : int32 array (tiles,)
        `FULL`, or a row of `bitmaps`.
    bitmaps : uint64 array (distinct, n / 8, m / 8)
        Word ``[j, i]`` is the inner tile at row block ``i``, column block ``j``.
    """

    shape: tuple[int, int]
    tile: tuple[int, int]
    rows: Int64s
    cols: Int64s
    ids: Int32s
    bitmaps: Words


def extents(size: int, step: int, index: Int64s) -> Int64s:
    """Return how many of `size` positions lie in steps `index`."""
    inside: Int64s = np.clip(size - index * step, 0, step)
    return inside


def retile(tiles: Tiles, tile: tuple[int, int]) -> Grid:
    """Return the tiles of `tile` rows and columns, multiples of 8, that are not empty."""
    keys = tiles.keys
    across = max(-(-tiles.shape[1] // TILE), 1)
    if tile == (TILE, TILE):
        bitmaps = tiles.bitmaps.reshape(len(tiles.bitmaps), _INNER, _INNER)
        return Grid(tiles.shape, tile, *np.divmod(keys, across), tiles.bitmap_id, bitmaps)
    met = meetings(tiles, tile, *np.divmod(keys, across))
    cols = max(-(-tiles.shape[1] // tile[1]), 1)
    made, where = np.unique(met.row * cols + met.col, return_inverse=True)
    where = where.reshape(-1)
    kept = np.bincount(where, _kept(tiles, tile, met), len(made)).astype(np.int64)
    row, col = np.divmod(made, cols)
    area = extents(tiles.shape[0], tile[0], row) * extents(tiles.shape[1], tile[1], col)
    ids = np.full(len(made), FULL, np.int32)
    part = np.flatnonzero((kept > 0) & (kept < area))
    table = BitmapTable(tile[0] * tile[1] // TILE)
    order = np.argsort(where, kind="stable")
    ends = np.cumsum(np.bincount(where, minlength=len(made)))
    for at in range(0, len(part), _CHUNK):
        chosen = part[at : at + _CHUNK]
        words = np.zeros((len(chosen), tile[1] // GROUP, tile[0] // GROUP), np.uint64)
        counts = np.diff(ends, prepend=0)[chosen]
        local = np.repeat(np.arange(len(chosen)), counts)
        first = np.repeat(ends[chosen] - counts, counts)
        within = np.arange(len(local)) - np.repeat(np.cumsum(counts) - counts, counts)
        _move(tiles, tile, met.take(order[first + within]), words, local)
        ids[chosen] = table.add(words.reshape(len(chosen), -1))
    bitmaps = table.words().reshape(-1, tile[1] // GROUP, tile[0] // GROUP)
    listed = kept > 0
    return Grid(tiles.shape, tile, row[listed], col[listed], ids[listed], bitmaps)


@dataclass(frozen=True, eq=False)
class Meetings:
    """Which listed tile, at `from_row` and `from_col`, meets which new one, at `row` and `col`."""

    source: Int64s
    from_row: Int64s
    from_col: Int64s
    row: Int64s
    col: Int64s

    def take(self, index: Int64s) -> Meetings:
        """Return some of them."""
        arrays = (self.source, self.from_row, self.from_col, self.row, self.col)
        return Meetings(*(array[index] for array in arrays))


def meetings(tiles: Tiles, tile: tuple[int, int], rows: Int64s, cols: Int64s) -> Meetings:
    """Return where listed tiles, at `rows` and `cols`, meet tiles of `tile` rows and columns."""
    source, row, col = np.arange(len(rows), dtype=np.int64), rows, cols
    found = []
    for size, step, index in zip(tiles.shape, tile, (row, col), strict=True):
        first = index * TILE // step
        last = (np.minimum(index * TILE + TILE, size) - 1) // step
        found.append((first, last - first + 1))
    (row, down), (col, right) = found
    counts = down * right
    source = np.repeat(source, counts)
    nth = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    row, col = row[source] + nth // right[source], col[source] + nth % right[source]
    return Meetings(source, rows[source], cols[source], row, col)


def _kept(tiles: Tiles, tile: tuple[int, int], met: Meetings) -> Int64s:
    """Return how many True elements each meeting shares."""
    corners, sizes = [], []
    for size, step, index, source in (
        (tiles.shape[0], tile[0], met.row, met.from_row),
        (tiles.shape[1], tile[1], met.col, met.from_col),
    ):
        start = np.clip(index * step - source * TILE, 0, TILE)
        stop = np.clip(index * step + step - source * TILE, 0, TILE)
        corners.append((start // GROUP, stop // GROUP))
        inside = extents(size, TILE, source)
        sizes.append(np.minimum(stop, inside) - np.minimum(start, inside))
    kept: Int64s = sizes[0] * sizes[1]
    ids = tiles.bitmap_id[met.source]
    part = np.flatnonzero(ids != FULL)
    counts = popcount(tiles.bitmaps[:, :, None]).reshape(-1, _INNER, _INNER)
    below = np.zeros((len(counts), _INNER + 1, _INNER + 1), np.int64)
    below[:, 1:, 1:] = counts.cumsum(axis=1).cumsum(axis=2)
    (top, bottom), (left, right) = ((a[part], b[part]) for a, b in corners)
    at = ids[part]
    kept[part] = (
        below[at, right, bottom]
        - below[at, left, bottom]
        - below[at, right, top]
        + below[at, left, top]
    )
    return kept


def _move(tiles: Tiles, tile: tuple[int, int], met: Meetings, words: Words, local: Int64s) -> None:
    """Copy the inner tiles of each meeting to ``words[local]``."""
    ids = tiles.bitmap_id[met.source]
    across = -(-tiles.shape[1] // TILE)
    inner = tile_words(edge_rows(tiles.shape, met.from_row * across + met.from_col))
    inner[ids != FULL] = tiles.bitmaps[ids[ids != FULL]]
    steps = np.arange(_INNER)
    i, j = (
        (source * _INNER - index * (step // GROUP))[:, None] + steps
        for source, index, step in (
            (met.from_row, met.row, tile[0]),
            (met.from_col, met.col, tile[1]),
        )
    )
    here = ((j >= 0) & (j < words.shape[1]))[:, :, None] & ((i >= 0) & (i < words.shape[2]))[
        :, None
    ]
    which, from_j, from_i = here.nonzero()
    moved = inner.reshape(-1, _INNER, _INNER)[which, from_j, from_i]
    words[local[which], j[which, from_j], i[which, from_i]] = moved
