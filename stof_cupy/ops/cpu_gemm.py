"""Products on NumPy whose epilogue does more than change elements; as in `cpu`, rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.ops.cpu import activated, stored, widened
from stof_cupy.ops.epilogue import SLAB, Epilogue
from stof_cupy.ops.gemm_args import as_rows
from stof_cupy.ops.gemm_stages import result_shape, turn_after

__all__ = ["gemm"]

Array = NDArray[Any]


def gemm(a: Array, b: Array, epilogue: Epilogue, out: Array | None) -> Array:
    """``activation(turned(scale * normed(a @ b) + bias)) + residual``; see `stof_cupy.gemm`."""
    acc = as_rows(widened(a)) @ widened(b)
    if epilogue.normed is not None:
        mean, scale = epilogue.normed.statistics.T[:, :, None].astype(acc.dtype)
        acc = (acc - mean * epilogue.normed.sums) * scale
    if epilogue.scale is not None:
        acc *= epilogue.scale
    if epilogue.bias is not None:
        acc += widened(epilogue.bias)
    if epilogue.rotary is not None:
        turn_after(epilogue.rotary, acc)
    gate, rest = np.split(acc, 2, -1) if epilogue.gated else (acc, None)
    if epilogue.activation is not None:
        gate = activated(gate, epilogue.activation)
    acc = gate if rest is None else gate * rest
    if epilogue.residual is not None:
        acc = acc + widened(epilogue.residual).reshape(acc.shape)
    if epilogue.statistics is not None:
        tell_statistics(acc.astype(a.dtype), epilogue.statistics)
    shape = result_shape(a, acc.shape[1], epilogue)
    if epilogue.heads is None:
        return stored(acc.reshape(shape), a.dtype, out)
    batch, heads, seq, head_dim = shape
    return stored(acc.reshape(batch, seq, heads, head_dim).swapaxes(1, 2), a.dtype, out)


def tell_statistics(rows: Array, out: Array) -> None:
    """Write mean and sum of squared distances of each 64 columns."""
    for i in range(out.shape[1]):
        part = widened(rows[:, i * SLAB : (i + 1) * SLAB])
        out[:, i, 0] = part.mean(axis=1)
        out[:, i, 1] = np.square(part - part.mean(axis=1, keepdims=True)).sum(axis=1)
