"""The spec of what comes between a product that tells statistics and the next one."""

from __future__ import annotations

from functools import cache

from stof_cupy.jit.spec import KernelSpec

__all__ = ["merged_statistics"]


@cache
def merged_statistics() -> KernelSpec:
    """Return mean and inverse deviation of rows, from means and squares of each 64 columns."""
    return KernelSpec(
        name="merged_statistics",
        header="merged_statistics.cuh",
        type="stof::MergedStatistics",
        params=(
            *((name, "u8") for name in ("parts", "out")),
            ("rows", "i8"),
            *((name, "i4") for name in ("cols", "centred")),
            ("eps", "f4"),
        ),
        threads=128,
        smem_bytes=0,
    )
