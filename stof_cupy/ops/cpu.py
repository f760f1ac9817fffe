"""The NumPy backend: the operators on the host, in float32; attention is in `cpu_attention`.

float16 and bfloat16 inputs are widened to float32 and rounded once, at the output; float64 stays
float64. Arguments have been validated by the public operators.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from stof_cupy.ops.epilogue import Epilogue

__all__ = [
    "activated",
    "add",
    "computed_in",
    "embedding",
    "gelu",
    "gemm",
    "layer_norm",
    "stored",
    "summed",
    "widened",
]

Array = NDArray[Any]


def gemm(
    a: Array, b: Array, *, epilogue: Epilogue | None = None, out: Array | None = None
) -> Array:
    """``activation(scale * a @ b + bias) + residual``; see :func:`stof_cupy.gemm`."""
    rows = widened(a).reshape(math.prod(a.shape[:-1]), a.shape[-1])
    # A transposed weight goes to BLAS as it is: copying it would cost a tenth of a layer's time.
    acc = rows @ (widened(b.T).T if b.T.flags.c_contiguous else widened(b))
    acc = acc.reshape(*a.shape[:-1], b.shape[-1])
    if epilogue is not None:
        if epilogue.scale is not None:
            acc *= epilogue.scale
        if epilogue.bias is not None:
            acc += widened(epilogue.bias)
        gate, rest = np.split(acc, 2, -1) if epilogue.gated else (acc, None)
        if epilogue.activation is not None:
            gate = activated(gate, epilogue.activation)
        acc = gate if rest is None else gate * rest
        if epilogue.residual is not None:
            acc += widened(epilogue.residual)
    return stored(acc, a.dtype, out)


def layer_norm(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    eps: float,
    residual: Array | None = None,
    sum_out: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Normalise the last axis; see :func:`stof_cupy.ops.norm.layer_norm`."""
    wide = summed(x, residual, sum_out)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    centred /= np.sqrt(variance + float(eps))
    centred *= widened(weight)
    centred += widened(bias)
    return stored(centred, x.dtype, out)


def summed(x: Array, residual: Array | None, sum_out: Array | None) -> Array:
    """``x + residual``, not rounded; `sum_out`, if given, gets it rounded."""
    if residual is None:
        return widened(x)
    total = widened(x) + widened(residual)
    if sum_out is not None:
        stored(total, x.dtype, sum_out)
    return total


def add(x: Array, y: Array, *, out: Array | None = None) -> Array:
    """``x + y``, `y` broadcast over leading axes; see :func:`stof_cupy.ops.elementwise.add`."""
    return stored(widened(x) + widened(y), x.dtype, out)


def gelu(x: Array, *, approximate: str = "none", out: Array | None = None) -> Array:
    """GELU, exact or by its tanh approximation; see :func:`stof_cupy.ops.elementwise.gelu`."""
    return stored(_gelu(widened(x), approximate), x.dtype, out)


def embedding(
    ids: Array,
    table: Array,
    *,
    position_table: Array | None = None,
    type_table: Array | None = None,
    token_types: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Sum of token, position and type rows; see :func:`stof_cupy.ops.embedding.embedding`."""
    acc = widened(table[ids])
    if position_table is not None:
        acc += widened(position_table[: ids.shape[-1]])
    if type_table is not None:
        acc += widened(type_table[token_types])
    return stored(acc, table.dtype, out)


def _gelu(x: Array, approximate: str) -> Array:
    """Return GELU as a new array of the type of `x`."""
    result: Array
    if approximate == "tanh":
        result = x * x
        result *= 0.044715
        result += 1
        result *= x
        result *= math.sqrt(2 / math.pi)
        np.tanh(result, out=result)
        result += 1
        result *= 0.5
    else:
        from scipy.special import ndtr

        result = ndtr(x)  # (1 + erf(x / sqrt 2)) / 2 without its cancellation at x << 0
    result *= x
    return result


def activated(x: Array, name: str) -> Array:
    """Return an activation of :data:`stof_cupy.ops.elementwise.ACTIVATIONS` as a new array."""
    if name in ("gelu", "gelu_tanh"):
        return _gelu(x, "tanh" if name == "gelu_tanh" else "none")
    if name == "relu":
        return np.asarray(np.maximum(x, 0))
    with np.errstate(over="ignore"):  # exp(-x) of x << 0 is inf, and x / inf is right
        result = np.exp(-x)
    result += 1
    return np.asarray(np.divide(x, result, out=result))


def widened(x: Array) -> Array:
    """Return `x` in the type it is computed in, and contiguous: BLAS does not take every stride."""
    return np.ascontiguousarray(x, computed_in(x))


def computed_in(x: Array) -> type[np.floating[Any]]:
    """Return the type that floats are computed in, whatever the order of their bytes."""
    return np.float64 if x.dtype.itemsize == 8 else np.float32


def stored(result: Array, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Round a result to the output's type, once."""
    with np.errstate(over="ignore"):  # float16 overflows to inf, as on the GPU
        if out is None:
            return result.astype(dtype, copy=False)
        out[...] = result
    return out
