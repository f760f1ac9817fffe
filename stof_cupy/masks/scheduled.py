"""What one mask and a stack of masks share: schedules, built once each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.keylists import KeyLists
from stof_cupy.masks.layout import check_tile
from stof_cupy.masks.schedule import Layout, Schedule, ScheduleStats
from stof_cupy.masks.statistics import RowStats, group_share, row_stats, tile_stats
from stof_cupy.masks.tiles import Int64s, Tiles

__all__ = ["Scheduled"]


class Scheduled:
    """Lowers masks to the work lists of kernels and keeps those."""

    def schedule(
        self,
        tile: tuple[int, int] = (TILE, TILE),
        *,
        layout: Layout = "words",
        packed: bool = False,
    ) -> Schedule:
        """Return the work lists; built on the first call, kept for the next ones.

        Parameters
        ----------
        tile : tuple of int
            Rows and columns of the kernel's tiles, multiples of 16 and of 8 up to 256: 64x64 tiles
            are merged and split.
        layout : {"words", "accumulator"}
            Bits in words of 8x8 elements, or where ``mma`` and ``wgmma`` leave the scores.
        packed : bool
            Put the groups of 8 keys of tiles that are not full side by side, without empty ones.

        Raises
        ------
        ArgumentError
            If there is no such tile or layout.
        ShapeError
            If there are more than two leading axes.
        UnsupportedError
            If the masks list 2**31 tiles or more.

        Examples
        --------
        >>> import numpy as np
        >>> from stof_cupy.masks import BsrMask
        >>> dense = np.zeros((2048, 2048), bool)
        >>> dense[:, ::100] = True  # 21 columns, in all 16 tiles of 128 keys
        >>> mask = BsrMask(dense)
        >>> [mask.schedule((128, 128), packed=packed).stats.longest for packed in (False, True)]
        [16, 2]
        """
        key = (*tile,) if isinstance(tile, tuple | list) else tile, layout, packed
        found: Schedule | None = self._schedules.get(key)
        if found is None:
            masks, mask_of = self._scheduled()
            built = Schedule.of(masks, mask_of, tile=tile, layout=layout, packed=packed)
            found = self._schedules.setdefault(key, built)  # of two threads, the first one's
        return found

    def key_lists(self) -> KeyLists:
        """Return the keys that each query row keeps; built on the first call, then kept.

        Raises
        ------
        UnsupportedError
            If the masks keep 2**31 - 4096 elements or more.
        """
        lists: KeyLists = self._kept("key_lists", KeyLists.of)
        return lists

    def row_stats(self) -> RowStats:
        """Return what the rows keep, without making lists; counted once."""
        stats: RowStats = self._kept("row_stats", row_stats)
        return stats

    def group_share(self) -> float:
        """Return `statistics.group_share`, counted once.

        Examples
        --------
        >>> import numpy as np
        >>> from stof_cupy import masks
        >>> keep = np.zeros((64, 128), bool)
        >>> keep[3, 5:9] = True
        >>> masks.BsrMask(keep).group_share()
        0.25
        """
        share: float = self._kept("group_share", group_share)
        return share

    def tile_stats(
        self, tile: tuple[int, int] = (TILE, TILE), packed: bool = False
    ) -> ScheduleStats:
        """Return ``schedule(tile).stats``, without lists where a tile has a multiple of 64 rows.

        Of packed groups all tiles count as part tiles then, though one may turn out to be full.

        Examples
        --------
        >>> from stof_cupy import masks
        >>> masks.causal(1000).tobsr().tile_stats((128, 64)).visited
        72
        """
        return self._tile_stats(tile, packed)[0]

    def tile_lengths(self, tile: tuple[int, int] = (TILE, TILE), packed: bool = False) -> Int64s:
        """Return ``schedule(tile).lengths``, as `tile_stats`: key tiles of query tiles, sorted.

        Examples
        --------
        >>> from stof_cupy import masks
        >>> masks.causal(300).tobsr().tile_lengths()
        array([5, 4, 3, 2, 1])
        """
        return self._tile_stats(tile, packed)[1]

    def _tile_stats(self, tile: tuple[int, int], packed: bool) -> tuple[ScheduleStats, Int64s]:
        tile = check_tile(tile)
        if tile[0] % TILE:
            schedule = self.schedule(tile, packed=packed)
            return schedule.stats, schedule.lengths
        found: tuple[ScheduleStats, Int64s] = self._kept(
            ("tile_stats", *tile, packed),
            lambda masks, mask_of: tile_stats(masks, mask_of, tile, packed),
        )
        return found

    def _kept(self, key: Any, make: Callable[[Sequence[Tiles], Any], Any]) -> Any:
        found = self._schedules.get(key)
        if found is None:
            masks, mask_of = self._scheduled()
            every = [masks] if isinstance(masks, Tiles) else list(masks)
            found = self._schedules.setdefault(key, make(every, mask_of))
        return found

    @abstractmethod
    def _scheduled(self) -> tuple[Tiles | Sequence[Tiles], Any]:
        """Return the tiles of each distinct mask, and which one each batch and head takes."""

    @cached_property
    def _schedules(self) -> dict[Any, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave schedules out of copies and pickles: they hold locks and device arrays."""
        return {name: value for name, value in vars(self).items() if name != "_schedules"}
