"""Specs of what decoders need beside attention, GEMM and norms: rotary, the KV cache."""

from __future__ import annotations

from functools import cache

from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.jit.spec import KernelSpec

__all__ = [
    "FEW_ROWS",
    "SIXTEEN_ROWS",
    "gemm_few_rows",
    "gemm_sixteen_rows",
    "greedy",
    "kv_cache",
    "rotary",
]

_SHORT = {"float16": "f16", "bfloat16": "bf16"}
_AXES = ("batch", "head", "seq")

FEW_ROWS = (1, 2, 4)
"""Rows of A that `gemm_few_rows` is compiled for."""

SIXTEEN_ROWS = (8, 16)
"""Rows of A that `gemm_sixteen_rows` is compiled for."""

_ROWS_PARAMS = (
    *((name, "u8") for name in ("a", "b", "c", "bias", "residual")),
    *((f"{name}_row", "i8") for name in ("residual", "c", "a", "b")),
)


@cache
def gemm_few_rows(
    dtype: str,
    rows: int,
    slices: int,
    epilogue: EpilogueKind = PLAIN,
    *,
    normed: bool = False,
    constant: bool = False,
    room: int = 0,
) -> KernelSpec:
    """Return the GEMM of few rows.

    Parameters
    ----------
    slices : int
        Into how many warps K is cut: 1, 2 or 4.
    normed : bool
        Whether RMSNorm comes before it.
    constant : bool
        Whether B and the norm's weight are read before earlier kernels have ended, which do not
        write them.
    room : int
        Bytes of shared memory for the rows of A, and the norm's weight, that all warps read there.
    """
    t = _SHORT[dtype]
    arguments = f"stof::{t}, {rows}, {slices}, {epilogue.type}"
    if normed or constant or room:
        arguments += f", {str(normed).lower()}, {str(constant).lower()}, {room}"
    sums = rows * (epilogue.halves * 2 + normed)
    kind = f"{'_normed' * normed}{'_ahead' * constant}{f'_near{room}' if room else ''}"
    return KernelSpec(
        name=f"gemm_few_rows_{t}_{rows}x{slices}{kind}{epilogue.name}",
        header="gemm/few_rows.cuh",
        type=f"stof::gemm::FewRows<{arguments}>",
        params=(
            *_ROWS_PARAMS,
            ("norm", "u8"),
            *((name, "i4") for name in ("m", "n", "k", "pairs_residual")),
            ("scale", "f4"),
            ("eps", "f4"),
        ),
        threads=128,
        smem_bytes=room + (4 * sums * 4 if slices > 1 else 0),
        waits=True,
    )


@cache
def gemm_sixteen_rows(
    dtype: str, rows: int, slices: int, epilogue: EpilogueKind = PLAIN
) -> KernelSpec:
    """Return the GEMM of up to 8 or 16 rows; `slices` of K, up to 16, are a warp each."""
    t = _SHORT[dtype]
    warps = max(8, slices)
    return KernelSpec(
        name=f"gemm_sixteen_rows_{t}_{rows}x{slices}{epilogue.name}",
        header="gemm/sixteen_rows.cuh",
        type=f"stof::gemm::SixteenRows<stof::{t}, {rows}, {slices}, {epilogue.type}>",
        params=(
            *_ROWS_PARAMS,
            *((name, "i4") for name in ("m", "n", "k", "pairs_residual")),
            ("scale", "f4"),
        ),
        threads=warps * 32,
        smem_bytes=warps * (rows // 2) * 32 * 4 if slices > 1 else 0,
    )


@cache
def greedy(dtype: str) -> KernelSpec:
    """Return the choice of the best tokens, a block a sequence or several."""
    t = _SHORT[dtype]
    return KernelSpec(
        name=f"greedy_{t}",
        header="greedy.cuh",
        type=f"stof::Greedy<stof::{t}>",
        params=(
            *((name, "u8") for name in ("logits", "tokens", "positions", "lengths")),
            *((name, "u8") for name in ("partial", "counters")),
            ("row", "i8"),
            *((name, "i4") for name in ("vocabulary", "wide", "blocks")),
        ),
        threads=1024,
        smem_bytes=1024 // 32 * 8,
    )


@cache
def rotary(dtype: str, interleaved: bool) -> KernelSpec:
    """Return the rotary embedding of pairs of neighbours, or of elements half a head apart."""
    t = _SHORT[dtype]
    return KernelSpec(
        name=f"rotary_{t}{'_interleaved' * interleaved}",
        header="rotary.cuh",
        type=f"stof::Rotary<stof::{t}, {'true' if interleaved else 'false'}>",
        params=(
            *((name, "u8") for name in ("x", "positions", "frequency", "out")),
            *((f"{name}_{axis}", "i8") for name in ("x", "out") for axis in _AXES),
            *((name, "i8") for name in ("position_batch", "rows")),
            *((name, "i4") for name in ("heads", "seq", "half", "head_dim", "wide")),
            ("magnitude", "f4"),
        ),
        threads=128,
        smem_bytes=0,
    )


@cache
def kv_cache(dtype: str) -> KernelSpec:
    """Return what writes new keys or values, or both, at their positions of caches."""
    t = _SHORT[dtype]
    return KernelSpec(
        name=f"kv_cache_{t}",
        header="kv_cache.cuh",
        type=f"stof::KvCache<stof::{t}>",
        params=(
            *((name, "u8") for name in ("x", "values", "positions", "cache", "value_cache")),
            *((f"{name}_{axis}", "i8") for name in ("x", "values") for axis in _AXES),
            *((f"cache_{axis}", "i8") for axis in ("batch", "head", "key")),
            *((name, "i8") for name in ("position_batch", "rows")),
            *((name, "i4") for name in ("heads", "seq", "keys", "head_dim", "wide", "ring")),
        ),
        threads=128,
        smem_bytes=0,
    )
