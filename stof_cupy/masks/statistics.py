"""What masks make a kernel do, counted from their 64x64 tiles without building its lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stof_cupy.masks.algebra import row_counts
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.keylists import LONG
from stof_cupy.masks.schedule import ScheduleStats
from stof_cupy.masks.tiles import FULL, Int64s, Tiles, grid

__all__ = ["RowStats", "group_share", "row_stats", "tile_stats"]


@dataclass(frozen=True)
class RowStats:
    """What query rows keep, summed over the masks of all leading axes.

    Attributes
    ----------
    kept : int
        True elements.
    longest : int
        Keys of the row that keeps most.
    long_rows, long_kept : int
        Rows of more than `keylists.LONG` keys, and their elements.
    """

    kept: int
    longest: int
    long_rows: int
    long_kept: int


def row_stats(masks: Sequence[Tiles], mask_of: Any) -> RowStats:
    """Count what the rows of masks keep, each mask as often as `mask_of` names it."""
    times = np.bincount(np.ravel(mask_of), minlength=len(masks)).tolist()
    kept = longest = long_rows = long_kept = 0
    for each, count in zip(masks, times, strict=True):
        lengths = row_counts(each)
        above = lengths[lengths > LONG]
        kept += count * int(lengths.sum())
        longest = max(longest, int(lengths.max(initial=0)))
        long_rows += count * len(above)
        long_kept += count * int(above.sum())
    return RowStats(kept, longest, long_rows, long_kept)


def group_share(masks: Sequence[Tiles], mask_of: Any) -> float:
    """Return of the groups of 8 columns of part tiles the share that keeps anything.

    What packed lists (`Schedule.groups`) can save; each distinct mask counts once.
    """
    some = every = 0
    for each in masks:
        used = np.bincount(each.bitmap_id[each.bitmap_id != FULL], minlength=len(each.bitmaps))
        columns = each.bitmaps.reshape(-1, TILE // 8, TILE // 8) != 0
        some += int(used @ columns.any(axis=2).sum(axis=1))
        every += TILE // 8 * int(used.sum())
    return some / every if every else 1.0


def tile_stats(
    masks: Sequence[Tiles], mask_of: Any, tile: tuple[int, int]
) -> tuple[ScheduleStats, Int64s]:
    """Return `Schedule.stats` and `Schedule.lengths`; a tile's sides are multiples of 64."""
    times = np.bincount(np.ravel(mask_of), minlength=len(masks)).tolist()
    kept = visited = part = 0
    longest = np.zeros(-(-masks[0].shape[0] // tile[0]), np.int64)
    for each, count in zip(masks, times, strict=True):
        rows, full = _merged(each, tile)
        kept += count * each.nnz
        visited += count * len(rows)
        part += count * int(len(full) - full.sum())
        lengths = np.bincount(rows, minlength=len(longest))
        longest = np.maximum(longest, -np.sort(-lengths))
    waste = 1 - kept / (visited * tile[0] * tile[1]) if visited else 0.0
    stats = ScheduleStats(kept, visited, part, waste, int(longest.max(initial=0)))
    longest.setflags(write=False)
    return stats, longest


def _merged(tiles: Tiles, tile: tuple[int, int]) -> tuple[Int64s, Any]:
    """Return the query tile of each listed larger tile, and whether it is kept whole."""
    down, across = tile[0] // TILE, tile[1] // TILE
    rows, cols = grid(tiles.shape)
    row, col = np.divmod(tiles.keys, max(cols, 1))
    if down == across == 1:
        return row, tiles.bitmap_id == FULL
    wide = -(-cols // across)
    larger, where = np.unique(row // down * wide + col // across, return_inverse=True)
    full = np.bincount(where, weights=tiles.bitmap_id == FULL, minlength=len(larger))
    at_row, at_col = np.divmod(larger, max(wide, 1))
    inside = np.minimum(rows - at_row * down, down) * np.minimum(cols - at_col * across, across)
    return at_row, full == inside
