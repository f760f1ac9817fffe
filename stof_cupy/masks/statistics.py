"""What masks make a kernel do, counted from their 64x64 tiles without building its lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks.algebra import row_counts
from stof_cupy.masks.bitmap import TILE, popcount
from stof_cupy.masks.keylists import LONG
from stof_cupy.masks.layout import GROUP
from stof_cupy.masks.retile import extents, meetings
from stof_cupy.masks.schedule import ScheduleStats
from stof_cupy.masks.tiles import FULL, Int64s, Tiles, grid

__all__ = ["RowStats", "group_share", "row_stats", "tile_stats"]

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)  # of a byte


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
    masks: Sequence[Tiles], mask_of: Any, tile: tuple[int, int], packed: bool = False
) -> tuple[ScheduleStats, Int64s]:
    """Return `Schedule.stats` and `Schedule.lengths`; a tile has a multiple of 64 rows.

    Of tiles made of packed groups all count as part tiles, though one may turn out to be full.
    """
    times = np.bincount(np.ravel(mask_of), minlength=len(masks)).tolist()
    kept = visited = part = 0
    longest = np.zeros(-(-masks[0].shape[0] // tile[0]), np.int64)
    for each, count in zip(masks, times, strict=True):
        rows, full = (_packed if packed else _merged)(each, tile)
        kept += count * each.nnz
        visited += count * len(rows)
        part += count * int(len(full) - full.sum())
        lengths = np.bincount(rows, minlength=len(longest))
        longest = np.maximum(longest, -np.sort(-lengths))
    waste = 1 - kept / (visited * tile[0] * tile[1]) if visited else 0.0
    stats = ScheduleStats(kept, visited, part, waste, int(longest.max(initial=0)))
    longest.setflags(write=False)
    return stats, longest


class _Larger(NamedTuple):
    """Which 64x64 tiles meet which of another size.

    Attributes
    ----------
    rows : int64 array (larger tiles,)
        The query tile of each.
    listed, full : bool array (larger tiles,)
        Whether it keeps anything, and whether everything.
    source, where : int64 array (pairs,)
        The 64x64 tile, and the other one.
    shared : int64 array (pairs,)
        Bits of the groups of 8 columns that these have in common, the highest one of the first.
    """

    rows: Int64s
    listed: NDArray[np.bool_]
    full: NDArray[np.bool_]
    source: Int64s
    where: Int64s
    shared: Int64s


def _merged(tiles: Tiles, tile: tuple[int, int]) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return the query tile of each listed larger tile, and whether it is kept whole."""
    larger = _larger(tiles, tile)
    return larger.rows[larger.listed], larger.full[larger.listed]


def _larger(tiles: Tiles, tile: tuple[int, int]) -> _Larger:
    """Return where tiles of another width, or of whole 64x64 tiles, are."""
    if tile[1] % TILE:
        return _shifted(tiles, tile)
    down, across = tile[0] // TILE, tile[1] // TILE
    rows, cols = grid(tiles.shape)
    row, col = np.divmod(tiles.keys, max(cols, 1))
    every, full = np.arange(len(row)), tiles.bitmap_id == FULL
    whole = np.full(len(row), 255)
    if down == across == 1:
        return _Larger(row, np.ones_like(full), full, every, every, whole)
    wide = -(-cols // across)
    larger, where = np.unique(row // down * wide + col // across, return_inverse=True)
    kept = np.bincount(where, weights=full, minlength=len(larger))
    at_row, at_col = np.divmod(larger, max(wide, 1))
    inside = np.minimum(rows - at_row * down, down) * np.minimum(cols - at_col * across, across)
    return _Larger(at_row, np.ones(len(larger), bool), kept == inside, every, where, whole)


def _shifted(tiles: Tiles, tile: tuple[int, int]) -> _Larger:
    """Return the same of tiles that 64x64 tiles do not fit into, whose elements are counted."""
    met = meetings(tiles, tile, *np.divmod(tiles.keys, max(grid(tiles.shape)[1], 1)))
    wide = max(-(-tiles.shape[1] // tile[1]), 1)
    larger, where = np.unique(met.row * wide + met.col, return_inverse=True)
    left, right = (
        np.clip(edge * tile[1] - met.from_col * TILE, 0, TILE) // GROUP
        for edge in (met.col, met.col + 1)
    )
    counts = popcount(tiles.bitmaps.reshape(-1, TILE // GROUP, TILE // GROUP))
    below = np.zeros((len(counts) + 1, TILE // GROUP + 1), np.int64)
    below[:-1, 1:] = counts.cumsum(axis=1)
    ids = tiles.bitmap_id[met.source]
    until = extents(tiles.shape[1], TILE, met.from_col)
    inside = np.minimum(right * GROUP, until) - np.minimum(left * GROUP, until)
    inside *= extents(tiles.shape[0], TILE, met.from_row)
    both = np.where(ids == FULL, inside, below[ids, right] - below[ids, left])
    kept = np.bincount(where, both, len(larger))
    row, col = np.divmod(larger, wide)
    area = extents(tiles.shape[0], tile[0], row) * extents(tiles.shape[1], tile[1], col)
    shared = (255 >> left) & ~(255 >> right)
    return _Larger(row, kept > 0, kept == area, met.source, where, shared)


def _packed(tiles: Tiles, tile: tuple[int, int]) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return what `_merged` does of lists in which groups of 8 keys are packed."""
    larger = _larger(tiles, tile)
    used = np.packbits((tiles.bitmaps.reshape(-1, 8, TILE // 8) != 0).any(axis=2), axis=1)
    part = ~larger.full[larger.where]
    source = larger.source[part]
    row, col = np.divmod(tiles.keys[source], max(grid(tiles.shape)[1], 1))
    groups = np.append(used, np.uint8(255))[tiles.bitmap_id[source]]  # the last: of full tiles
    inside = np.clip(-(-(tiles.shape[1] - col * TILE) // 8), 0, 8)
    groups &= (255 << (8 - inside) & larger.shared[part]).astype(np.uint8)
    query = row // (tile[0] // TILE)
    place = query * grid(tiles.shape)[1] + col
    order = np.argsort(place, kind="stable")
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    joined = np.bitwise_or.reduceat(groups[order], first) if len(first) else groups[:0]
    rows = -(-tiles.shape[0] // tile[0])
    counts = np.bincount(query[order][first], _ONES[joined], rows).astype(np.int64)
    made = np.repeat(np.arange(rows), -(-counts * 8 // tile[1]))
    whole = larger.rows[larger.full]
    return np.append(made, whole), np.arange(len(made) + len(whole)) >= len(made)
