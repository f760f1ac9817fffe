"""What a problem under a mask asks of a kernel: counts over all batches and heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device.built import BuiltMask, UploadedMask
from stof_cupy.masks.keylists import LONG
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.masks.statistics import RowStats
from stof_cupy.ops.attention_args import Problem

__all__ = ["Demand", "TileDemand"]


@dataclass(frozen=True)
class TileDemand:
    """Of the block-wise kernel with tiles of one size.

    Attributes
    ----------
    query_tiles : int
        Over all batches and heads.
    visited, part : float
        Listed tiles, and those with a bitmap.
    longest : float
        Tiles of the query tile that lists most.
    """

    query_tiles: int
    visited: float
    part: float
    longest: float


@dataclass(frozen=True)
class Demand:
    """Counts of a problem and its mask; those of a mask on the CPU are exact, and cached there.

    Of a mask that the GPU has built nothing is known without waiting for it but the capacity that
    it was given, or measured when it was first built: that many tiles are taken to be listed, part
    tiles to be half full, and query tiles to be uneven by a factor of two.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> problem = Problem("float16", 2, 4, 4, 1024, 1024, 64, 64)
    >>> Demand(problem, masks.causal(1024).tobsr()).tiles((128, 128))
    TileDemand(query_tiles=64, visited=288.0, part=64.0, longest=8)
    """

    problem: Problem
    mask: AnyMask | None

    @property
    def _source(self) -> Any:
        return self.mask.to("cpu") if isinstance(self.mask, UploadedMask) else self.mask

    @property
    def _times(self) -> float:
        """How many places (batch, head) share each place of the mask's leading axes."""
        lead = getattr(self._source, "lead", ())
        return self.problem.batch * self.problem.heads / max(math.prod(lead), 1)

    @property
    def query_rows(self) -> int:
        """Over all batches and heads."""
        return self.problem.batch * self.problem.heads * self.problem.seq_q

    def tiles(self, tile: tuple[int, int]) -> TileDemand:
        """Return what tiles of a size ask for."""
        p = self.problem
        rows, cols = -(-p.seq_q // tile[0]), -(-p.seq_k // tile[1])
        query_tiles = p.batch * p.heads * rows
        if self.mask is None:
            return TileDemand(query_tiles, query_tiles * cols, 0, cols)
        if isinstance(self.mask, BuiltMask):
            listed, part = (self._times * n for n in self.mask.capacity)
            # Larger tiles hold some empty ones: as many as random blocks and bands have between.
            larger = max(tile[0] * tile[1] / TILE**2, 1) ** 0.5
            visited = min(listed / larger, query_tiles * cols)
            mean = visited / max(query_tiles, 1)
            return TileDemand(query_tiles, visited, min(part, visited), min(2 * mean, cols))
        stats = self._source.tile_stats(tile)
        return TileDemand(
            query_tiles, self._times * stats.visited, self._times * stats.part, stats.longest
        )

    def rows(self) -> RowStats:
        """Return what query rows keep, over all batches and heads."""
        p = self.problem
        if self.mask is None:
            every, long = self.query_rows * p.seq_k, p.seq_k > LONG
            return RowStats(every, p.seq_k, self.query_rows * long, every * long)
        if isinstance(self.mask, BuiltMask):
            listed, part = (self._times * n for n in self.mask.capacity)
            kept = min((listed - part / 2) * TILE**2, self.query_rows * p.seq_k)
            longest = min(2 * kept / max(self.query_rows, 1), p.seq_k)
            return RowStats(int(kept), int(longest), 0, 0)
        stats: RowStats = self._source.row_stats()
        kept, long_rows, long_kept = (
            int(self._times * n) for n in (stats.kept, stats.long_rows, stats.long_kept)
        )
        return RowStats(kept, stats.longest, long_rows, long_kept)
