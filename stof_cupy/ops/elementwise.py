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

__all__ = ["ACTIVATIONS", "add", "gated", "gelu", "mul", "relu", "silu", "softcap"]

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
"""What :func:`gated` takes."""


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
    if _check_pair(x, y, "y", out) == "numpy":
        from stof_cupy.ops import cpu

        return cpu.add(x, y, out=out)
    return _launch("add", x, y, out)


def mul(x: Array, y: Array, *, out: Array | None = None) -> Array:
    """Compute ``x * y``, where `y` repeats along leading axes of `x`; otherwise as :func:`add`.

    Examples
    --------
    >>> import numpy as np
    >>> mul(np.ones((2, 2), np.float32), np.float32([1, 2]))
    array([[1., 2.],
           [1., 2.]], dtype=float32)
    """
    if _check_pair(x, y, "y", out) == "numpy":
        from stof_cupy.ops import cpu_decoder

        return cpu_decoder.mul(x, y, out=out)
    return _launch("mul", x, y, out)


def gated(x: Array, y: Array, *, activation: str = "silu", out: Array | None = None) -> Array:
    """Compute ``activation(x) * y``, the two halves of a gated linear unit.

    Source: Shazeer, arXiv 2002.05202. Arrays and errors are those of :func:`add`; an `activation`
    that is not one of :data:`ACTIVATIONS` raises ArgumentError.

    Examples
    --------
    >>> import numpy as np
    >>> gated(np.float32([-1, 2]), np.float32([5, 5]), activation="relu")
    array([ 0., 10.], dtype=float32)
    """
    if activation not in ACTIVATIONS:
        expected = " or ".join(map(repr, ACTIVATIONS))
        raise ArgumentError(mismatch("activation", repr(activation), expected))
    if _check_pair(x, y, "y", out) == "numpy":
        from stof_cupy.ops import cpu_decoder

        return cpu_decoder.gated(x, y, activation=activation, out=out)
    return _launch(f"gated_{activation}", x, y, out)


def softcap(x: Array, cap: Array, *, out: Array | None = None) -> Array:
    """Compute ``cap * tanh(x / cap)``, where `cap` repeats along leading axes of `x`.

    Arrays and errors are those of :func:`add`; `cap` is positive.

    Examples
    --------
    >>> import numpy as np
    >>> softcap(np.float32([0, 1000]), np.float32([30, 30]))
    array([ 0., 30.], dtype=float32)
    """
    if _check_pair(x, cap, "cap", out) == "numpy":
        from stof_cupy.ops import cpu_decoder

        return cpu_decoder.softcap(x, cap, out=out)
    return _launch("softcap", x, cap, out)


def silu(x: Array, *, out: Array | None = None) -> Array:
    """Compute the sigmoid linear unit ``x / (1 + exp(-x))``; arrays and errors as :func:`gelu`.

    Examples
    --------
    >>> import numpy as np
    >>> float(silu(np.zeros(1, np.float32))[0])
    0.0
    """
    return _unary("silu", x, out)


def relu(x: Array, *, out: Array | None = None) -> Array:
    """Compute ``max(x, 0)``; arrays and errors as :func:`gelu`.

    Examples
    --------
    >>> import numpy as np
    >>> relu(np.float32([-1, 2]))
    array([0., 2.], dtype=float32)
    """
    return _unary("relu", x, out)


def _unary(activation: str, x: Array, out: Array | None) -> Array:
    where = backend(x=x, out=out)
    check_dtype("x", x)
    check_out(out, x.shape, x)
    check_no_overlap(out, x, x=x)
    if where == "numpy":
        from stof_cupy.ops import cpu_decoder

        return cpu_decoder.unary(x, activation=activation, out=out)
    return _launch(activation, x, None, out)


def _check_pair(x: Array, y: Array, name: str, out: Array | None) -> str:
    """Check the arrays of a binary operator; return the backend."""
    where = backend(**{"x": x, name: y, "out": out})
    check_dtype("x", x)
    check_dtype(name, y, x, "x")
    if y.ndim > x.ndim or tuple(y.shape) != tuple(x.shape[x.ndim - y.ndim :]):
        raise ShapeError(mismatch(name, tuple(y.shape), f"the last axes of x, {tuple(x.shape)}"))
    check_out(out, x.shape, x)
    check_no_overlap(out, x, **{"x": x, name: y if y is not x else None})
    return where


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
