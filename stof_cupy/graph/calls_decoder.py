"""How the operators of decoders are run, on NumPy and on CuPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from stof_cupy.graph.frequencies import Frequencies, array_of
from stof_cupy.graph.turned import turned_gemm
from stof_cupy.ops import rotary
from stof_cupy.ops._arrays import is_cupy
from stof_cupy.ops.elementwise import gated, mul, relu, silu, softcap
from stof_cupy.ops.embedding import embedding
from stof_cupy.ops.kv_cache import write_cache
from stof_cupy.ops.rms_norm import rms_norm

__all__ = ["DECODER_CALLS"]

Array: TypeAlias = Any


def _rotary(
    x: Array, positions: Array, *, frequency: Frequencies, interleaved: bool, magnitude: float
) -> Array:
    steps = array_of(frequency, x.device.id if is_cupy(x) else None)
    return rotary.rotary(x, positions, steps, interleaved=interleaved, magnitude=magnitude)


def _kv_cache(x: Array, positions: Array, cache: Array | None, *, ring: bool) -> Array:
    return x if cache is None else write_cache(x, cache, positions, ring=ring)


def _take_rows(x: Array, rows: Array) -> Array:
    return embedding(rows, x.reshape(-1, x.shape[-1]))


DECODER_CALLS: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "rms_norm": rms_norm,
        "mul": mul,
        "silu": silu,
        "relu": relu,
        "gated": gated,
        "softcap": softcap,
        "rotary": _rotary,
        "kv_cache": _kv_cache,
        "take_rows": _take_rows,
        "turned_gemm": turned_gemm,
    }
)
"""As `executor.CALLS`, of which it is a part."""
