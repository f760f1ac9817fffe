"""Normalisation over the last axis."""

from __future__ import annotations

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.jit import catalogue
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
    unit_last,
)

__all__ = ["layer_norm"]


def layer_norm(
    x: Array, weight: Array, bias: Array, *, eps: float, out: Array | None = None
) -> Array:
    """Compute ``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis.

    Parameters
    ----------
    x : ndarray
        Shape ``(..., hidden)``; NumPy or CuPy. On CUDA float16 or bfloat16, on NumPy any float.
    weight, bias : ndarray
        Shape ``(hidden,)``, dtype of `x`.
    eps : float
        Added to the variance; positive.
    out : ndarray, optional
        Where to write the result: shape and dtype of `x`, contiguous last axis. It may be `x`
        itself.

    Returns
    -------
    ndarray
        Shape and dtype of `x`; statistics are computed in float32 (NumPy: float32 or wider).

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.ones(2, np.float32)
    >>> layer_norm(np.float32([[1, 3]]), one, one, eps=1e-12)
    array([[0., 2.]], dtype=float32)
    """
    where = backend(x=x, weight=weight, bias=bias, out=out)
    check_dtype("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ShapeError(mismatch("x", tuple(x.shape), "(..., hidden) with hidden at least 1"))
    for name, y in (("weight", weight), ("bias", bias)):
        check_dtype(name, y, x, "x")
        check_shape(name, y, x.shape[-1:])
    check_out(out, x.shape, x)
    check_no_overlap(out, x, x=x, weight=weight, bias=bias)
    if not FLOAT32_TINY <= eps <= FLOAT32_MAX:
        raise ArgumentError(mismatch("eps", eps, "a positive number that float32 can hold"))
    if where == "numpy":
        from stof_cupy.ops import cpu

        return cpu.layer_norm(x, weight, bias, eps=eps, out=out)
    return _launch(x, weight, bias, eps, out)


def _launch(x: Array, weight: Array, bias: Array, eps: float, out: Array | None) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.launch import kernel

    device = x.device.id
    with cupy.cuda.Device(device):
        run = kernel(catalogue.layer_norm(device_dtype("x", x)), device)
        if out is None:
            out = cupy.empty(x.shape, x.dtype)
        if not out.size:
            return out
        hidden = x.shape[-1]
        rows, to = unit_last(x).reshape(-1, hidden), out.reshape(-1, hidden)
        weight, bias = unit_last(weight), unit_last(bias)
        x_row, out_row = (y.strides[0] // y.itemsize for y in (rows, to))
        params = run.pack(
            x=rows.data.ptr,
            weight=weight.data.ptr,
            bias=bias.data.ptr,
            out=to.data.ptr,
            x_row=x_row,
            out_row=out_row,
            rows=rows.shape[0],
            cols=hidden,
            wide=(
                aligned(rows, 16, x_row)
                and aligned(to, 16, out_row)
                and aligned(weight, 16)
                and aligned(bias, 16)
            ),
            eps=eps,
        )
        rows_per_block = run.spec.threads // 32  # a warp each
        run((-(-rows.shape[0] // rows_per_block),), params)
        if to.data.ptr != out.data.ptr:
            out[...] = to.reshape(out.shape)
    return out
