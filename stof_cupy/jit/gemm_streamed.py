"""The Hopper GEMM of few rows whose weights stream through shared memory: its spec."""

from __future__ import annotations

from functools import cache

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.jit.spec import TENSOR_MAP, KernelSpec

__all__ = ["STREAMED_COLUMNS", "STREAMED_ROWS", "gemm_streamed", "has_room", "room_for"]

STREAMED_ROWS = (8, 16)
"""Rows of A that the kernel is compiled for."""

STREAMED_COLUMNS = 32
"""Most columns of B of a CTA."""

_WARPS = 8
_SMEM_PER_BLOCK = 233472 // 2 - 1024  # two on an SM; the system takes some of each
_SMEM_ALONE = _SMEM_PER_BLOCK + 128  # so that the other half has room for another kernel's
_STEP = 128  # bytes of a row, that are loaded at a time
_BARRIER = 8
_FEWEST = 2  # loads of a warp
_ATOM = 1024  # bytes that a swizzle goes over


def room_for(m: int, k: int) -> int:
    """Return the shared memory that `m` normalised rows and the norm's weight take.

    Examples
    --------
    >>> room_for(1, 2048), room_for(3, 576)
    (8192, 5120)
    """
    return -(-(m + 1) * -(-k // 64) * _STEP // _ATOM) * _ATOM


def has_room(rows: int, columns: int, room: int) -> bool:
    """Whether there is shared memory for loads of `columns` of B beside normalised rows."""
    return _buffers(rows, columns, room) >= _FEWEST


def _buffers(rows: int, columns: int, room: int) -> int:
    """Return how many loads each warp has under way."""
    left = _SMEM_PER_BLOCK - _sums(rows, columns) - room
    return left // (_WARPS * (_loaded(rows, columns, room) + _BARRIER))


def _loaded(rows: int, columns: int, room: int) -> int:
    """Return the bytes of a load."""
    return (columns if room else rows + columns) * _STEP


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
    room: int = 0,
    alone: bool = False,
    stays: bool = False,
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
    room : int
        From `room_for`: RMSNorm comes before the product.
    alone : bool
        Whether it takes more than half of an SM's shared memory, so that no SM has two CTAs of it.
    stays : bool
        Whether the grid may be narrower than the output, and CTAs go on with what is further on.

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
    buffers = _buffers(rows, of_b, room)
    if buffers < _FEWEST:
        expected = "less, that loads may be under way"
        raise UnsupportedError(mismatch("shared memory for normalised rows", room, expected))
    loaded = _WARPS * buffers * (_loaded(rows, of_b, room) + _BARRIER)
    least = _SMEM_ALONE if alone else 0
    numbers = f"{rows}, {columns}, {buffers}, {epilogue.type}, {str(bounded).lower()}"
    kind = f"{'_bounded' * bounded}{f'_normed{room // _ATOM}' if room else ''}{'_alone' * alone}"
    kind += "_stays" * stays
    return KernelSpec(
        name=f"gemm_streamed_{t}_{rows}x{columns}{kind}{epilogue.name}",
        header="gemm/streamed.cuh",
        type=f"stof::gemm::Streamed<stof::{t}, {numbers}, {room}, {least}, {str(stays).lower()}>",
        params=(
            *((name, TENSOR_MAP) for name in ("map_a", "map_b")),
            *((name, "u8") for name in ("c", "bias", "residual", "report", "a", "norm")),
            *((name, "i8") for name in ("residual_row", "c_row", "a_row")),
            *((name, "i4") for name in ("m", "n", "k", "pairs_residual")),
            *((name, "i4") for name in ("constant", "early", "once")),
            *((name, "f4") for name in ("scale", "eps")),
        ),
        threads=_WARPS * 32,
        smem_bytes=max(least, room + loaded + _sums(rows, of_b)),
        arch="90a",
        waits=True,
    )
