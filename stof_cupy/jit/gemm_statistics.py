"""Specs of what comes between a product and the norm that the next one applies."""

from __future__ import annotations

from functools import cache

from stof_cupy.jit.spec import KernelSpec

__all__ = ["merged_statistics", "row_statistics"]

_SHORT = {"float16": "f16", "bfloat16": "bf16"}


@cache
def row_statistics(dtype: str) -> KernelSpec:
    """Return mean and inverse deviation of rows, one warp a row."""
    t = _SHORT[dtype]
    return KernelSpec(
        name=f"row_statistics_{t}",
        header="row_statistics.cuh",
        type=f"stof::RowStatistics<stof::{t}>",
        params=(
            *((name, "u8") for name in ("x", "out")),
            *((name, "i8") for name in ("x_row", "rows")),
            *((name, "i4") for name in ("cols", "wide", "centred")),
            ("eps", "f4"),
        ),
        threads=128,
        smem_bytes=0,
    )


@cache
def merged_statistics() -> KernelSpec:
    """Return the same from means and squares of each 64 columns."""
    return KernelSpec(
        name="merged_statistics",
        header="row_statistics.cuh",
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
