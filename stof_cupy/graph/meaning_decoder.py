"""What the operators of decoders mean; as `meaning`, dense NumPy in the dtype it is given."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stof_cupy.graph.meaning import gelu, gemm, merge_heads, split_heads

__all__ = [
    "gated",
    "kv_cache",
    "mul",
    "relu",
    "rms_norm",
    "rotary",
    "silu",
    "softcap",
    "take_rows",
    "turned_gemm",
]

Array: TypeAlias = "NDArray[Any]"


def rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
    """Return x / sqrt(mean(x^2) + eps) * weight, over the last axis."""
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight)


def mul(x: Array, y: Array) -> Array:
    """Return x * y."""
    return np.asarray(x * y)


def silu(x: Array) -> Array:
    """Return x / (1 + exp(-x))."""
    return np.asarray(x / (1 + np.exp(-x)))


def relu(x: Array) -> Array:
    """Return max(x, 0)."""
    return np.asarray(np.maximum(x, 0))


def gated(x: Array, y: Array, *, activation: str) -> Array:
    """Return activation(x) * y."""
    if activation.startswith("gelu"):
        return gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none") * y
    return np.asarray((silu if activation == "silu" else relu)(x) * y)


def softcap(x: Array, cap: Array) -> Array:
    """Return cap * tanh(x / cap)."""
    return np.asarray(cap * np.tanh(x / cap))


def rotary(
    x: Array, positions: Array, *, frequency: Any, interleaved: bool, magnitude: float
) -> Array:
    """Return x with pairs of elements turned by float32(position * frequency)."""
    half = len(frequency)
    angle = np.float32(positions)[:, None, :, None] * np.float32(frequency)
    c, s = np.cos(angle.astype(float)) * magnitude, np.sin(angle.astype(float)) * magnitude
    first, second = np.arange(half), np.arange(half) + half
    if interleaved:
        first, second = 2 * first, 2 * first + 1
    y = x.copy()
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., second] * c + x[..., first] * s
    return np.asarray(y)


def turned_gemm(
    x: Array,
    w: Array,
    positions: Array,
    bias: Array | None,
    statistics: Array | None = None,
    *,
    heads: int,
    head_dim: int,
    **how: Any,
) -> Array:
    """Return x @ w.T + bias, whose leading heads `rotary` turns."""
    y = gemm(x, w, bias, None, statistics)
    width = heads * head_dim
    turned = rotary(split_heads(y[..., :width], heads=heads), positions, **how)
    return np.concatenate([merge_heads(turned), y[..., width:]], axis=-1)


def kv_cache(x: Array, positions: Array, cache: Array | None, *, ring: bool = False) -> Array:
    """Return cache with x at positions, which may go round, or x where there is no cache."""
    if cache is None:
        return x
    y = cache.copy()
    for one, at, row in zip(y, positions, x, strict=True):
        one[:, at % y.shape[2] if ring else at] = row
    return np.asarray(y)


def take_rows(x: Array, rows: Array) -> Array:
    """Return the tokens of x (batch, seq, C) that are counted by rows, across the batch."""
    return np.asarray(x.reshape(-1, x.shape[-1])[rows])
