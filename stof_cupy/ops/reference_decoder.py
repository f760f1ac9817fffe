"""The oracle of what decoders need; as `reference`, dense and in float64. For tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stof_cupy.ops.reference import Exact, gelu, rounder

__all__ = ["activated", "gated", "mul", "rms_norm", "rotary", "softcap"]


def activated(x: ArrayLike, *, activation: str, precision: str | None = None) -> Exact:
    """``"silu"``, ``"relu"``, ``"gelu"`` or ``"gelu_tanh"`` of x.

    Examples
    --------
    >>> activated([-1.0, 1.0], activation="relu")
    array([0., 1.])
    """
    rounded = rounder(precision)
    x = rounded(x)
    if activation.startswith("gelu"):
        how = "tanh" if activation == "gelu_tanh" else "none"
        return gelu(x, approximate=how, precision=precision)
    return rounded(np.where(x > 0, x, 0) if activation == "relu" else x / (1 + np.exp(-x)))


def gated(x: ArrayLike, y: ArrayLike, *, activation: str, precision: str | None = None) -> Exact:
    """``activation(x) * y``.

    Examples
    --------
    >>> gated([-1.0, 1.0], [2.0, 2.0], activation="relu")
    array([0., 2.])
    """
    rounded = rounder(precision)
    return rounded(activated(rounded(x), activation=activation) * rounded(y))


def mul(x: ArrayLike, y: ArrayLike, *, precision: str | None = None) -> Exact:
    """``x * y``.

    Examples
    --------
    >>> mul([1.0, 2.0], 0.5)
    array([0.5, 1. ])
    """
    rounded = rounder(precision)
    return rounded(rounded(x) * rounded(y))


def softcap(x: ArrayLike, cap: ArrayLike, *, precision: str | None = None) -> Exact:
    """``cap * tanh(x / cap)``.

    Examples
    --------
    >>> softcap([0.0, 900.0], 3.0)
    array([0., 3.])
    """
    rounded = rounder(precision)
    return rounded(rounded(cap) * np.tanh(rounded(x) / rounded(cap)))


def rms_norm(x: ArrayLike, weight: ArrayLike, *, eps: float, precision: str | None = None) -> Exact:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis.

    Examples
    --------
    >>> rms_norm([[3.0, -3.0]], [1.0, 2.0], eps=0.0)
    array([[ 1., -2.]])
    """
    rounded = rounder(precision)
    x = rounded(x)
    square = (x**2).mean(axis=-1, keepdims=True)
    return rounded(x / np.sqrt(square + eps) * rounded(weight))


def rotary(
    x: ArrayLike,
    positions: ArrayLike,
    frequency: ArrayLike,
    *,
    interleaved: bool = False,
    magnitude: float = 1.0,
    precision: str | None = None,
) -> Exact:
    """Turn pairs of the elements of x (batch, heads, seq, head_dim), as complex numbers.

    The angle ``position * frequency`` is float32, as everybody has it.

    Examples
    --------
    >>> rotary([[[[1.0, 2.0]]]], [[1]], [np.pi]).round(6)
    array([[[[-1., -2.]]]])
    """
    rounded = rounder(precision)
    out = rounded(x).copy()
    half = len(np.asarray(frequency))
    angle = np.asarray(positions, np.float32)[..., None] * np.asarray(frequency, np.float32)
    turn = magnitude * np.exp(1j * angle.astype(np.float64))[:, None]
    step: Any = np.s_[: 2 * half : 2], np.s_[1 : 2 * half : 2]
    if not interleaved:
        step = np.s_[:half], np.s_[half : 2 * half]
    turned = (out[..., step[0]] + 1j * out[..., step[1]]) * turn
    out[..., step[0]], out[..., step[1]] = turned.real, turned.imag
    return rounded(out)
