"""The NumPy backend of what decoders need; as in `cpu`, float32, rounded once at the output."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.ops.cpu import activated, computed_in, stored, summed, widened

__all__ = ["gated", "mul", "rms_norm", "rotary", "softcap", "unary"]

Array = NDArray[Any]


def rms_norm(
    x: Array,
    weight: Array,
    *,
    eps: float,
    residual: Array | None = None,
    sum_out: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Divide by the root mean square; see :func:`stof_cupy.ops.rms_norm.rms_norm`."""
    wide = summed(x, residual, sum_out)
    square = np.square(wide).mean(axis=-1, keepdims=True)
    result = wide / np.sqrt(square + float(eps))
    result *= widened(weight)
    return stored(result, x.dtype, out)


def rotary(
    x: Array,
    positions: Array,
    frequency: Array,
    *,
    interleaved: bool,
    magnitude: float,
    out: Array | None = None,
) -> Array:
    """Turn pairs of elements; see :func:`stof_cupy.ops.rotary.rotary`."""
    half = frequency.shape[0]
    # In float32, as the frameworks that made the weights do.
    angle = positions[:, None, :, None].astype(np.float32) * frequency
    cosine, sine = np.cos(angle) * np.float32(magnitude), np.sin(angle) * np.float32(magnitude)
    result = np.array(x, computed_in(x), order="C")
    turned = result[..., : 2 * half]
    parts: tuple[Any, Any] = (np.s_[..., :half], np.s_[..., half:])
    if interleaved:
        parts = (np.s_[..., ::2], np.s_[..., 1::2])
    a, b = turned[parts[0]].copy(), turned[parts[1]].copy()
    turned[parts[0]] = a * cosine - b * sine
    turned[parts[1]] = b * cosine + a * sine
    return stored(result, x.dtype, out)


def mul(x: Array, y: Array, *, out: Array | None = None) -> Array:
    """``x * y``, `y` broadcast over leading axes; see :func:`stof_cupy.ops.elementwise.mul`."""
    return stored(widened(x) * widened(y), x.dtype, out)


def gated(x: Array, y: Array, *, activation: str, out: Array | None = None) -> Array:
    """``activation(x) * y``; see :func:`stof_cupy.ops.elementwise.gated`."""
    result = activated(widened(x), activation)
    result *= widened(y)
    return stored(result, x.dtype, out)


def unary(x: Array, *, activation: str, out: Array | None = None) -> Array:
    """``activation(x)``; see :func:`stof_cupy.ops.elementwise.silu`."""
    return stored(activated(widened(x), activation), x.dtype, out)


def softcap(x: Array, cap: Array, *, out: Array | None = None) -> Array:
    """``cap * tanh(x / cap)``; see :func:`stof_cupy.ops.elementwise.softcap`."""
    wide = widened(cap)
    result = widened(x) / wide
    np.tanh(result, out=result)
    result *= wide
    return stored(result, x.dtype, out)
