"""What is asked of a kernel: a case, and counts of its mask over all batches and heads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stof_cupy.jit.attention_kernels import PLAIN, TIGHT_NVRTC, ScoreKind
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device.built import BuiltMask, UploadedMask
from stof_cupy.masks.keylists import LONG
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.masks.statistics import RowStats
from stof_cupy.ops.attention_args import Problem

__all__ = ["Case", "Demand", "Given", "TileDemand"]


class Given(NamedTuple):
    """What of the arguments, beside sizes, mask and scores, a kernel may depend on.

    Attributes
    ----------
    boxes : bool
        Whether q, k, v and the output begin at multiples of 16 bytes, and their strides are such,
        and positive: what TMA copies.
    lengths : bool
        Whether there are ``kv_lengths``.
    negative : bool
        Whether the scale is.
    folded : int
        Bytes of the sum of ALiBi and an array of biases; 0 if there are not both.
    """

    boxes: bool = True
    lengths: bool = False
    negative: bool = False
    folded: int = 0


NOTHING_SPECIAL = Given()


@dataclass(frozen=True, eq=False)
class Case:
    """A problem under a mask on a GPU: what candidates are for.

    Attributes
    ----------
    problem : Problem
    mask : AnyMask or None
        From `attention_args.validate`.
    facts : DeviceFacts
    scores : ScoreKind
    nvrtc : tuple of int
        Release that kernels are compiled with: old ones do not find registers for all of them.
    given : Given
    """

    problem: Problem
    mask: AnyMask | None
    facts: DeviceFacts
    scores: ScoreKind = PLAIN
    nvrtc: tuple[int, int] = TIGHT_NVRTC
    given: Given = NOTHING_SPECIAL

    @cached_property
    def demand(self) -> Demand:
        """The counts."""
        return Demand(self.problem, self.mask)


@dataclass(frozen=True, eq=False)
class TileDemand:
    """What query tiles of one size list.

    Attributes
    ----------
    lengths : float array (query tiles,)
        Key tiles of each query tile of a head, longest first; the mean of all heads and batches.
    most : int array (query tiles,)
        How many there can be.
    part : float
        Share of the listed tiles that have a bitmap.
    waste : float
        Share of the listed tiles' elements that are not kept.
    """

    lengths: NDArray[np.float64]
    most: NDArray[np.int64]
    part: float
    waste: float = 0.0


@dataclass(frozen=True, eq=False)
class Demand:
    """Counts of a problem and its mask; those of a mask on the CPU are exact, and cached there.

    Of a mask that the GPU has built nothing is known without waiting for it but the capacity that
    it was given, or measured when it was first built: that many tiles are taken to be listed, part
    tiles to be half full, and query tiles to list from none to twice the mean.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> problem = Problem("float16", 2, 4, 4, 300, 300, 64, 64)
    >>> Demand(problem, masks.causal(300).tobsr()).tiles((128, 64)).lengths
    array([5., 4., 2.])
    """

    problem: Problem
    mask: AnyMask | None
    _tiles: dict[tuple[tuple[int, int], bool], TileDemand] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> Any:
        """The mask, on the CPU if it was copied from there."""
        return self.mask.to("cpu") if isinstance(self.mask, UploadedMask) else self.mask

    @property
    def places(self) -> int:
        """Heads of all batches."""
        return self.problem.batch * self.problem.heads

    @property
    def _distinct(self) -> int:
        """Places of the mask's leading axes."""
        return max(math.prod(getattr(self.source, "lead", ())), 1)

    @property
    def query_rows(self) -> int:
        """Over all batches and heads."""
        return self.places * self.problem.seq_q

    @property
    def elements(self) -> int:
        """What the distinct masks of one on the CPU keep."""
        return sum(each.nnz for each in getattr(self.source, "masks", (self.source,)))

    def visited(self, tile: tuple[int, int]) -> float:
        """Return the listed tiles of a size over all batches and heads."""
        return float(self.tiles(tile).lengths.sum()) * self.places

    def tiles(self, tile: tuple[int, int], *, packed: bool = False) -> TileDemand:
        """Return what tiles of a size ask for; packed ones of a mask that the CPU knows."""
        if (tile, packed) not in self._tiles:
            self._tiles[tile, packed] = self._counted(tile, packed)
        return self._tiles[tile, packed]

    def _counted(self, tile: tuple[int, int], packed: bool) -> TileDemand:
        p = self.problem
        rows, cols = -(-p.seq_q // tile[0]), -(-p.seq_k // tile[1])
        all_cols = np.full(rows, cols)
        if self.mask is None:
            return TileDemand(all_cols.astype(np.float64), all_cols, 0.0)
        if isinstance(self.mask, BuiltMask):
            listed, part = (n / self._distinct for n in self.mask.capacity)
            # Larger tiles hold some empty ones: as many as random blocks and bands have between. Of
            # smaller ones, every one of a full tile counts and half of those of a part tile.
            ratio = tile[0] * tile[1] / TILE**2
            visited = listed / ratio**0.5 if ratio >= 1 else (listed - part / 2) / ratio
            visited = min(visited, rows * cols)
            lengths = np.minimum(np.linspace(2 * visited / max(rows, 1), 0, rows), cols)
            lengths *= visited / max(lengths.sum(), 1e-9)
            return TileDemand(lengths, all_cols, min(part / max(visited, 1e-9), 1.0))
        stats = self.source.tile_stats(tile, packed)
        most = self.source.tile_lengths(tile, packed)
        mean = stats.visited / self._distinct / max(most.sum(), 1)
        part = stats.part / max(stats.visited, 1)
        return TileDemand(most * mean, most, part, stats.waste)

    def rows(self) -> RowStats:
        """Return what query rows keep, over all batches and heads."""
        p = self.problem
        if self.mask is None:
            every, long = self.query_rows * p.seq_k, p.seq_k > LONG
            return RowStats(every, p.seq_k, self.query_rows * long, every * long)
        times = self.places / self._distinct
        if isinstance(self.mask, BuiltMask):
            listed, part = (times * n for n in self.mask.capacity)
            kept = min((listed - part / 2) * TILE**2, self.query_rows * p.seq_k)
            longest = min(2 * kept / max(self.query_rows, 1), p.seq_k)
            return RowStats(int(kept), int(longest), 0, 0)
        stats: RowStats = self.source.row_stats()
        kept, long_rows, long_kept = (
            int(times * n) for n in (stats.kept, stats.long_rows, stats.long_kept)
        )
        return RowStats(kept, stats.longest, long_rows, long_kept)
