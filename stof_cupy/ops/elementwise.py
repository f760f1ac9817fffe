"""Operators on one element at a time; in a fused graph most are part of a GEMM's epilogue."""

from __future__ import annotations

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.jit import catalogue
from stof_cupy.ops._arrays import (
    Array,
    aligned,
    backend,
    check_dtype,
    check_no_overlap,
    check_out,
    device_dtype,
    pointer,
)

__all__ = ["add", "gelu"]


def add(x: Array, y: Array, *, out: Array | None = None) -> Array:
    """Compute ``x + y``, where `y` repeats along leading axes of `x`.

    Parameters
    ----------
    x : ndarray
        Any shape; NumPy or CuPy. On CUDA float16 or bfloat16, on NumPy any float.
    y : ndarray
        Shape equal to the last axes of `x` (a bias, or an array like `x`), dtype of `x`.
    out : ndarray, optional
        Where to write the result: shape and dtype of `x`, contiguous last axis. It may be `x`
        itself.

    Returns
    -------
    ndarray
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> add(np.zeros((2, 3), np.float32), np.float32([1, 2, 3]))
    array([[1., 2., 3.],
           [1., 2., 3.]], dtype=float32)
    """
    where = backend(x=x, y=y, out=out)
    check_dtype("x", x)
    check_dtype("y", y, x, "x")
    if y.ndim > x.ndim or tuple(y.shape) != tuple(x.shape[x.ndim - y.ndim :]):
        raise ShapeError(mismatch("y", tuple(y.shape), f"the last axes of x, {tuple(x.shape)}"))
    check_out(out, x.shape, x)
    check_no_overlap(out, x, x=x, y=y if y is not x else None)
    if where == "numpy":
        from stof_cupy.ops import cpu

        return cpu.add(x, y, out=out)
    return _launch("add", x, y, out)


def gelu(x: Array, *, approximate: str = "none", out: Array | None = None) -> Array:
    """Compute the Gaussian error linear unit ``x * Phi(x)``.

    Parameters
    ----------
    x : ndarray
        Any shape; NumPy or CuPy. On CUDA float16 or bfloat16, on NumPy any float.
    approximate : {"none", "tanh"}
        With the exact distribution function Phi, or its tanh approximation.
    out : ndarray, optional
        Where to write the result: shape and dtype of `x`, contiguous last axis. It may be `x`
        itself.

    Returns
    -------
    ndarray
        Shape and dtype of `x`.

    Raises
    ------
    ArgumentError, ShapeError, DTypeError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> float(gelu(np.zeros(1, np.float32))[0])
    0.0
    """
    if approximate not in ("none", "tanh"):
        raise ArgumentError(mismatch("approximate", repr(approximate), "'none' or 'tanh'"))
    where = backend(x=x, out=out)
    check_dtype("x", x)
    check_out(out, x.shape, x)
    check_no_overlap(out, x, x=x)
    if where == "numpy":
        from stof_cupy.ops import cpu

        return cpu.gelu(x, approximate=approximate, out=out)
    return _launch("gelu" if approximate == "none" else "gelu_tanh", x, None, out)


def _launch(op: str, x: Array, y: Array | None, out: Array | None) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.launch import kernel

    device = x.device.id
    with cupy.cuda.Device(device):
        run = kernel(catalogue.elementwise(device_dtype("x", x), op), device)
        if out is None:
            out = cupy.empty(x.shape, x.dtype)
        if not out.size:
            return out
        to = out if out.flags.c_contiguous else cupy.empty(x.shape, x.dtype)
        x = cupy.ascontiguousarray(x)
        y = None if y is None else cupy.ascontiguousarray(y)
        period = 1 if y is None else y.size
        wide = aligned(x, 16) and aligned(to, 16)
        params = run.pack(
            x=x.data.ptr,
            y=pointer(y),
            out=to.data.ptr,
            count=x.size,
            period=period,
            wide=wide and (y is None or (aligned(y, 16) and period % 8 == 0)),
        )
        elements_per_block = run.spec.threads * 8
        run((-(-x.size // elements_per_block),), params)
        if to is not out:
            out[...] = to
    return out
