"""The Hopper GEMM of few rows whose weights stream through shared memory: its spec."""

from __future__ import annotations

from functools import cache

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.jit.spec import TENSOR_MAP, KernelSpec

__all__ = ["STREAMED_COLUMNS", "STREAMED_ROWS", "gemm_streamed"]

STREAMED_ROWS = (8, 16)
"""Rows of A that the kernel is compiled for."""

STREAMED_COLUMNS = 32
"""Most columns of B of a CTA."""

_WARPS = 8
_SMEM_PER_BLOCK = 233472 // 2 - 1024  # two on an SM; the system takes some of each
_SMEM_ALONE = _SMEM_PER_BLOCK + 128  # so that the other half has room for another kernel's
_STEP = 128  # bytes of a row, that are loaded at a time
_BARRIER = 8


def _buffers(rows: int, columns: int) -> int:
    """Return how many loads each warp has under way."""
    left = _SMEM_PER_BLOCK - _sums(rows, columns)
    return left // (_WARPS * ((rows + columns) * _STEP + _BARRIER))


def _sums(rows: int, columns: int) -> int:
    """Return the bytes of all warps' sums."""
    return _WARPS * rows * columns * 4


@cache
def gemm_streamed(
    dtype: str,
    rows: int,
    columns: int,
    epilogue: EpilogueKind = PLAIN,
    *,
    bounded: bool = False,
    alone: bool = False,
) -> KernelSpec:
    """Return the GEMM of up to 8 or 16 rows for ``"float16"`` or ``"bfloat16"``.

    Parameters
    ----------
    rows : int
        Of :data:`STREAMED_ROWS`.
    columns : int
        Of the output, that a CTA computes: a multiple of 8, half as many of a gated one.
    bounded : bool
        Whether waits that take a second are reported and end in a fault: for finding hangs.
    alone : bool
        Whether it takes more than half of an SM's shared memory, so that no SM has two CTAs of it.

    Raises
    ------
    UnsupportedError
        If there is no such kernel.
    """
    of_b = columns * epilogue.halves
    if rows not in STREAMED_ROWS or columns % 8 or not 0 < of_b <= STREAMED_COLUMNS:
        expected = f"of {STREAMED_ROWS}, and a multiple of 8 up to {STREAMED_COLUMNS} of B"
        raise UnsupportedError(mismatch("rows and columns", (rows, columns), expected))
    t = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    buffers = _buffers(rows, of_b)
    loaded = _WARPS * buffers * ((rows + of_b) * _STEP + _BARRIER)
    least = _SMEM_ALONE if alone else 0
    numbers = f"{rows}, {columns}, {buffers}, {epilogue.type}, {str(bounded).lower()}"
    kind = "_bounded" * bounded + "_alone" * alone
    return KernelSpec(
        name=f"gemm_streamed_{t}_{rows}x{columns}{kind}{epilogue.name}",
        header="gemm/streamed.cuh",
        type=f"stof::gemm::Streamed<stof::{t}, {numbers}, {least}>",
        params=(
            *((name, TENSOR_MAP) for name in ("map_a", "map_b")),
            *((name, "u8") for name in ("c", "bias", "residual", "report")),
            *((name, "i8") for name in ("residual_row", "c_row")),
            *((name, "i4") for name in ("m", "n", "k", "pairs_residual", "constant")),
            ("scale", "f4"),
        ),
        threads=_WARPS * 32,
        smem_bytes=max(least, loaded + _sums(rows, of_b)),
        arch="90a",
        waits=True,
    )
