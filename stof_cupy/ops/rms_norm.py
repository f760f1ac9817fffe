"""RMSNorm: the last axis divided by the root of its mean square."""

from __future__ import annotations

from typing import Any

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.jit.decoder_kernels import rms_norm as spec_of
from stof_cupy.ops._arrays import (
    FLOAT32_MAX,
    FLOAT32_TINY,
    Array,
    aligned,
    backend,
    check_dtype,
    check_no_overlap,
    check_out,
    check_shape,
    device_dtype,
    empty_in_order_of,
    pointer,
    unit_last,
)

__all__ = ["arguments", "rms_norm"]


def rms_norm(x: Array, weight: Array, *, eps: float, out: Array | None = None) -> Array:
    """Compute ``x / sqrt(mean(x^2) + eps) * weight`` over the last axis.

    Source: Zhang and Sennrich, arXiv 1910.07467.

    Parameters
    ----------
    x : ndarray
        Shape ``(..., hidden)``; NumPy or CuPy. On CUDA float16 or bfloat16, on NumPy any float. Any
        strides: heads that are a view of one projection are not copied.
    weight : ndarray
        Shape ``(hidden,)``, dtype of `x`.
    eps : float
        Added to the mean square; positive.
    out : ndarray, optional
        Where to write the result: shape and dtype of `x`, contiguous last axis. It may be `x`
        itself.

    Returns
    -------
    ndarray
        Shape and dtype of `x`, axes laid out in memory in the order of `x`'s; the mean square is
        computed in float32 (NumPy: float32 or wider).

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> rms_norm(np.float32([[3, 3]]), np.float32([1, 2]), eps=1e-12)
    array([[1., 2.]], dtype=float32)
    """
    where = backend(x=x, weight=weight, out=out)
    check_dtype("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ShapeError(mismatch("x", tuple(x.shape), "(..., hidden) with hidden at least 1"))
    check_dtype("weight", weight, x, "x")
    check_shape("weight", weight, x.shape[-1:])
    check_out(out, x.shape, x)
    check_no_overlap(out, x, x=x, weight=weight)
    if not FLOAT32_TINY <= eps <= FLOAT32_MAX:
        raise ArgumentError(mismatch("eps", eps, "a positive number that float32 can hold"))
    if where == "numpy":
        from stof_cupy.ops import cpu_decoder

        return cpu_decoder.rms_norm(x, weight, eps=eps, out=out)
    return _launch(x, weight, eps, out)


def _launch(x: Array, weight: Array, eps: float, out: Array | None) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.launch import kernel

    device = x.device.id
    with cupy.cuda.Device(device):
        run = kernel(spec_of(device_dtype("x", x)), device)
        if out is None:
            out = empty_in_order_of(x, x.shape)
        if not out.size:
            return out
        rows, weight = _rows(unit_last(x), x), unit_last(weight)
        to = _rows(out, x)
        blocks, fields = arguments(rows, weight, to, eps)
        run((blocks,), run.pack(**fields))
        if pointer(to) != pointer(out):
            out[...] = to.reshape([x.shape[a] for a in _order(x)]).transpose(_back(x))
    return out


def arguments(rows: Array, weight: Array, to: Array, eps: float) -> tuple[int, dict[str, Any]]:
    """Return the blocks and the kernel's parameters for matrices with contiguous rows."""
    x_row, out_row = (y.strides[0] // y.itemsize for y in (rows, to))
    fields = {
        "x": pointer(rows),
        "weight": pointer(weight),
        "out": pointer(to),
        "x_row": x_row,
        "out_row": out_row,
        "rows": rows.shape[0],
        "cols": rows.shape[1],
        "wide": aligned(rows, 16, x_row) and aligned(to, 16, out_row) and aligned(weight, 16),
        "eps": eps,
    }
    return -(-rows.shape[0] // 4), fields  # a warp each


def _order(x: Array) -> list[int]:
    """Return the axes of `x` in the order in which they lie in memory, the last one last."""
    return [*sorted(range(x.ndim - 1), key=lambda axis: -abs(x.strides[axis])), x.ndim - 1]


def _back(x: Array) -> list[int]:
    order = _order(x)
    return [order.index(axis) for axis in range(x.ndim)]


def _rows(y: Array, x: Array) -> Array:
    """Return `y` as a matrix, its rows in the order of the memory of `x`; a view if they can be."""
    return y.transpose(_order(x)).reshape(-1, x.shape[-1])
