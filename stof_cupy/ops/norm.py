"""Normalisation over the last axis."""

from __future__ import annotations

from typing import Any

from stof_cupy.jit import catalogue
from stof_cupy.ops._arrays import Array, device_dtype
from stof_cupy.ops.norm_rows import launch, validate

__all__ = ["layer_norm"]


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
    """Compute ``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis.

    Of ``x + residual`` if there is a residual: one pass over memory in place of two.

    Parameters
    ----------
    x : ndarray
        Shape ``(..., hidden)``; NumPy or CuPy. On CUDA float16 or bfloat16, on NumPy any float.
    weight, bias : ndarray
        Shape ``(hidden,)``, dtype of `x`.
    eps : float
        Added to the variance; positive.
    residual : ndarray, optional
        Added to `x` before; its shape and dtype. The sum is not rounded before it is normalised.
    sum_out : ndarray, optional
        Where to write ``x + residual``, which the next layer of a pre-norm stack adds to: as `out`.
    out : ndarray, optional
        Where to write the result: shape and dtype of `x`, contiguous last axis. It may be `x` or
        `residual` itself, as may `sum_out`, but not both the same.

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

    >>> x, y = np.float32([[1, 3]]), np.float32([[1, 1]])
    >>> layer_norm(y, one, 0 * one, eps=1e-12, residual=x, sum_out=x)
    array([[-1.,  1.]], dtype=float32)
    >>> x
    array([[2., 4.]], dtype=float32)
    """
    added = {"residual": residual, "sum_out": sum_out}
    where = validate(x, eps=eps, **added, out=out, weight=weight, bias=bias)
    if where == "numpy":
        from stof_cupy.ops import cpu

        return cpu.layer_norm(x, weight, bias, eps=eps, **added, out=out)
    return _launch(x, weight, bias, out, eps=eps, **added)


def _launch(x: Array, weight: Array, bias: Array, out: Array | None, **how: Any) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    with cupy.cuda.Device(x.device.id):
        spec = catalogue.layer_norm(device_dtype("x", x))
        if out is None:
            out = cupy.empty(x.shape, x.dtype)
        launch(spec, x, weight, bias, out, **how)
    return out
