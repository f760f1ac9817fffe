"""Two products in one kernel: how rows and what lies between them are tiled, and the spec."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.jit.spec import KernelSpec

__all__ = ["PAIR_TILES", "PairTile", "gemm_pair"]

_N, _K, _STAGES = 128, 32, 3  # of a slice, as the kernel has them


@dataclass(frozen=True)
class PairTile:
    """What a CTA works on.

    Attributes
    ----------
    m : int
        Rows of A.
    hidden : int
        Columns between the products that there is room for.
    warp_m, warp_n : int
        What a warp computes at a time of 128 columns.
    """

    m: int
    hidden: int
    warp_m: int
    warp_n: int

    @property
    def threads(self) -> int:
        """Threads of the CTA."""
        return self.m // self.warp_m * (_N // self.warp_n) * 32

    @property
    def smem_bytes(self) -> int:
        """Shared memory of the CTA."""
        return 2 * (self.m * self.hidden + _STAGES * (self.m + _N) * _K)


PAIR_TILES = (PairTile(64, 256, 32, 64), PairTile(64, 512, 32, 64), PairTile(32, 1024, 32, 32))
"""Rows of a CTA share what it reads of the weights, so that fewer rows for a wider inside cost."""


@cache
def gemm_pair(
    dtype: str, tile: PairTile, between: EpilogueKind = PLAIN, epilogue: EpilogueKind = PLAIN
) -> KernelSpec:
    """Return the two products on mma.sync, `between` them and after them what epilogues do."""
    t = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    sizes = map(str, (tile.m, tile.hidden, tile.warp_m, tile.warp_n))
    arguments = [f"stof::{t}", *sizes, between.type, epilogue.type]
    pointers = ("a", "b", "d", "c", "bias_b", "bias_d", "residual")
    return KernelSpec(
        name=f"gemm_pair_{t}_{tile.m}x{tile.hidden}{between.name}_then{epilogue.name}",
        header="gemm/sm80_pair.cuh",
        type=f"stof::gemm::Sm80Pair<{', '.join(arguments)}>",
        params=(
            *((name, "u8") for name in pointers),
            *((name, "i8") for name in ("residual_row", "c_row", "a_row", "b_row", "d_row")),
            *((name, "i4") for name in ("m", "n", "k", "hidden", "pairs_c", "pairs_residual")),
            *((name, "f4") for name in ("scale_b", "scale_d")),
        ),
        threads=tile.threads,
        smem_bytes=tile.smem_bytes,
    )
