"""How a product is cut into work for the Hopper GEMM."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stof_cupy.jit.gemm_sm90 import Sm90Gemm
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_operand import DEPTH

__all__ = ["Plan", "steps_of"]


@dataclass(frozen=True)
class Plan:
    """How a problem is computed.

    Attributes
    ----------
    config : Sm90Gemm
    splits : int
        Into how many pieces K is cut at most, if the configuration splits.
    group : int
        Clusters of tiles along A that are worked on together; 0: for the least traffic from L2.
    stream : int
        0, or so many clusters that share all steps of the last tiles equally, wherever in a tile
        that cuts K (stream-K: Osama et al., arXiv 2301.03598), if the configuration splits. What
        comes before are whole tiles, the same number for each.
    """

    config: Sm90Gemm
    splits: int = 1
    group: int = 0
    stream: int = 0

    def whole(self, problem: Problem) -> int:
        """Return how many tiles of a stream are not cut."""
        tiles = math.prod(self.tiles(problem))
        return max(0, tiles // self.stream - 1) * self.stream

    def cut(self, problem: Problem) -> int:
        """Return how many tiles may be cut into pieces."""
        tiles = math.prod(self.tiles(problem))
        return tiles - self.whole(problem) if self.stream else tiles

    def share(self, problem: Problem) -> int:
        """Return how many steps of a stream each cluster does."""
        return -(-self.cut(problem) * steps_of(problem) // self.stream)

    def split_steps(self, problem: Problem) -> int:
        """Return the steps along K of a piece."""
        return -(-steps_of(problem) // self.splits)

    def pieces(self, problem: Problem) -> int:
        """Return into how many pieces K is cut at most.

        Examples
        --------
        >>> Plan(Sm90Gemm(128, 64, split=True), stream=5).pieces(Problem("float16", 8, 64, 64 * 12))
        5
        """
        if self.stream:
            return -(-(steps_of(problem) - 1) // self.share(problem)) + 1
        return -(-steps_of(problem) // self.split_steps(problem))

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Return the clusters of tiles along A, and the tiles along B, as the kernel has them."""
        rows, columns = problem.m, problem.columns
        if self.config.swapped:
            rows, columns = columns, rows
        high = self.config.m * self.config.cluster
        wide = self.config.n * max(1, self.config.across)
        return -(-rows // high), -(-columns // wide)

    def units(self, problem: Problem) -> int:
        """Return how many pieces of work there are for clusters; of a stream, the clusters."""
        pieces = 1 if self.config.joined > 1 else self.pieces(problem)
        return self.stream or math.prod(self.tiles(problem)) * pieces

    def raster(self, sm_count: int) -> int:
        """Return the clusters along A of a group; those of one wave are about square."""
        if self.group:
            return self.group
        clusters = sm_count // self.config.cluster
        high = self.config.m * self.config.cluster
        return max(1, round(math.sqrt(clusters * self.config.n / high)))


def steps_of(problem: Problem) -> int:
    """Return the steps along K of a tile."""
    return -(-problem.k // DEPTH)
