"""RMSNorm: the last axis divided by the root of its mean square."""

from __future__ import annotations

from typing import Any

from stof_cupy.jit import catalogue
from stof_cupy.ops._arrays import Array, device_dtype, empty_in_order_of
from stof_cupy.ops.norm_rows import launch, validate

__all__ = ["rms_norm"]


def rms_norm(
    x: Array,
    weight: Array,
    *,
    eps: float,
    residual: Array | None = None,
    sum_out: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Compute ``x / sqrt(mean(x^2) + eps) * weight`` over the last axis.

    Of ``x + residual`` if there is a residual: one pass over memory in place of two.

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

    >>> x, y = np.float32([[1, 2]]), np.float32([[2, 1]])
    >>> rms_norm(y, np.float32([1, 2]), eps=1e-12, residual=x, sum_out=x)
    array([[1., 2.]], dtype=float32)
    >>> x
    array([[3., 3.]], dtype=float32)
    """
    added = {"residual": residual, "sum_out": sum_out}
    where = validate(x, eps=eps, **added, out=out, weight=weight)
    if where == "numpy":
        from stof_cupy.ops import cpu_decoder

        return cpu_decoder.rms_norm(x, weight, eps=eps, **added, out=out)
    return _launch(x, weight, out, eps=eps, **added)


def _launch(x: Array, weight: Array, out: Array | None, **how: Any) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    with cupy.cuda.Device(x.device.id):
        spec = catalogue.rms_norm(device_dtype("x", x))
        if out is None:
            out = empty_in_order_of(x, x.shape)
        launch(spec, x, weight, None, out, **how)
    return out
