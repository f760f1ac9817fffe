"""The work lists of one mask: tiles of a kernel's size, those with a bitmap first.

Beyond the paper, keys can be packed: what is not a full tile is cut into groups of 8 keys, the
empty ones are left out, and the others of a query tile stand side by side in new tiles, wherever
they come from. Scattered columns then cost what they use. Eight rows of keys are the smallest piece
that a kernel copies without a change of its shared-memory layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.masks.bitmap import TILE, Words, popcount
from stof_cupy.masks.layout import GROUP
from stof_cupy.masks.retile import Grid, extents
from stof_cupy.masks.tiles import FULL, BitmapTable, Int32s, Int64s

__all__ = ["NO_GROUP", "WorkLists", "joined", "listed"]

NO_GROUP = -1
"""What a packed tile has in place of a group it has no more of."""

_CHUNK = 1024  # packed tiles whose bits are moved at a time


@dataclass(frozen=True, eq=False)
class WorkLists:
    """What `Schedule` holds, of one mask or of several; fields are described there.

    `bitmaps` is still uint64 ``(distinct, n / 8, m / 8)``.
    """

    row_ptr: Int64s
    full_ptr: Int64s
    cols: Int64s
    bitmap_id: Int32s
    bitmaps: Words
    groups: Int64s | None

    @property
    def lengths(self) -> Int64s:
        """Tiles of each query tile, int64 ``(..., query tiles)``."""
        return np.diff(self.row_ptr, axis=-1)


def listed(grid: Grid, *, packed: bool) -> WorkLists:
    """Return the work lists of a mask."""
    rows = -(-grid.shape[0] // grid.tile[0])
    full = grid.ids == FULL
    part_rows, part_cols, ids = grid.rows[~full], grid.cols[~full], grid.ids[~full]
    bitmaps, groups = grid.bitmaps, None
    if packed:
        part_rows, groups, ids, bitmaps = _packed(grid, part_rows, part_cols, ids)
        part_cols = np.arange(len(groups), dtype=np.int64)
    parts = np.bincount(part_rows, minlength=rows)
    fulls = np.bincount(grid.rows[full], minlength=rows)
    row_ptr = np.concatenate([[0], np.cumsum(parts + fulls)])
    order = np.lexsort(
        (
            np.repeat([0, 1], [len(part_rows), full.sum()]),
            np.concatenate([part_rows, grid.rows[full]]),
        )
    )
    bitmap_id = np.concatenate([ids, grid.ids[full]])[order]
    cols = np.concatenate([part_cols, grid.cols[full]])[order]
    return WorkLists(row_ptr, row_ptr[:-1] + parts, cols, bitmap_id, bitmaps, groups)


def _packed(
    grid: Grid, rows: Int64s, cols: Int64s, ids: Int32s
) -> tuple[Int64s, Int64s, Int32s, Words]:
    """Return the query tile, groups and bitmap of each packed tile, and the bitmaps."""
    per_tile = grid.tile[1] // GROUP
    which, j = (grid.bitmaps != 0).any(axis=2)[ids].nonzero()  # ascending rows, then keys
    row = rows[which]
    counts = np.bincount(row, minlength=-(-grid.shape[0] // grid.tile[0]))
    tiles = -(-counts // per_tile)
    within = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
    tile = (np.cumsum(tiles) - tiles)[row] + within // per_tile
    slot = within % per_tile
    groups = np.full((int(tiles.sum()), per_tile), NO_GROUP, np.int64)
    groups[tile, slot] = cols[which] * per_tile + j
    tile_rows = np.repeat(np.arange(len(tiles)), tiles)
    area = extents(grid.shape[0], grid.tile[0], tile_rows) * grid.tile[1]
    table = BitmapTable(grid.tile[0] * grid.tile[1] // TILE)
    packed_ids = np.full(len(groups), FULL, np.int32)
    for at in range(0, len(groups), _CHUNK):
        span = slice(*np.searchsorted(tile, (at, at + _CHUNK)))
        words = np.zeros((min(_CHUNK, len(groups) - at), *grid.bitmaps.shape[1:]), np.uint64)
        words[tile[span] - at, slot[span]] = grid.bitmaps[ids[which[span]], j[span]]
        flat = words.reshape(len(words), -1)
        part = np.flatnonzero(popcount(flat) < area[at : at + _CHUNK])
        packed_ids[at + part] = table.add(flat[part])
    return tile_rows, groups, packed_ids, table.words().reshape(-1, *grid.bitmaps.shape[1:])


def joined(lists: list[WorkLists]) -> WorkLists:
    """Return the lists of several masks one after the other, equal bitmaps stored once.

    Raises
    ------
    UnsupportedError
        If they list 2**31 tiles or more.
    """
    starts = np.cumsum([0, *(len(each.cols) for each in lists)])
    if starts[-1] >= 2**31:
        raise UnsupportedError(mismatch("masks", f"{starts[-1]} tiles", "fewer than 2**31"))
    inner = lists[0].bitmaps.shape[1:]
    table = BitmapTable(inner[0] * inner[1])
    ids, cols, groups = [], [], 0
    for each in lists:
        new = table.add(each.bitmaps.reshape(len(each.bitmaps), inner[0] * inner[1]))
        ids.append(np.where(each.bitmap_id == FULL, FULL, np.append(new, 0)[each.bitmap_id]))
        moved = each.cols.copy()
        if each.groups is not None:
            part = np.arange(len(moved)) < np.repeat(each.full_ptr, each.lengths)
            moved[part] += groups
            groups += len(each.groups)
        cols.append(moved)
    packed = [each.groups for each in lists if each.groups is not None]
    return WorkLists(
        np.stack([each.row_ptr + start for each, start in zip(lists, starts, strict=False)]),
        np.stack([each.full_ptr + start for each, start in zip(lists, starts, strict=False)]),
        np.concatenate(cols),
        np.concatenate(ids).astype(np.int32),
        table.words().reshape(-1, *inner),
        np.concatenate(packed) if packed else None,
    )
