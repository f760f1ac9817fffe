"""A norm before a product, applied after it: no normalised rows are ever written.

``layer_norm(x) @ w.T + bias`` with weights g and shift s of the norm is

    (x @ v.T - mean * sums) / deviation + c    with v = w * g, sums of v's rows, c = bias + w @ s

and of an RMSNorm the same without the mean. The sums are those of v as it is rounded, or the mean
would not cancel. Rows whose mean is far beyond their deviation lose digits as in any one-pass sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stof_cupy.dtypes import dtype_name, is_cupy
from stof_cupy.errors import ArgumentError, DeviceError, DTypeError, ShapeError, mismatch
from stof_cupy.jit import catalogue, gemm_statistics
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops._arrays import (
    Array,
    backend,
    check_dtype,
    check_eps,
    check_no_overlap,
    check_shape,
    device_dtype,
    pointer,
    unit_last,
)
from stof_cupy.ops.epilogue import SLAB
from stof_cupy.ops.gemm_args import as_rows
from stof_cupy.ops.norm_rows import arguments

__all__ = ["Folded", "fold_norm", "merged_statistics", "row_statistics"]


class Folded(NamedTuple):
    """What a norm becomes.

    Attributes
    ----------
    weight : ndarray (N, K)
        In place of ``w``, its type.
    sums : float32 ndarray (N,)
        For `Normed`.
    bias : ndarray (N,) or None
        In place of the bias; None if there is none to add.
    """

    weight: Any
    sums: Any
    bias: Any


def fold_norm(w: Any, weight: Any, shift: Any | None = None, bias: Any | None = None) -> Folded:
    """Multiply the weights of a norm into those of the product after it, once, on the host.

    Parameters
    ----------
    w : numpy.ndarray (N, K)
    weight : numpy.ndarray (K,)
        Of the norm.
    shift : numpy.ndarray (K,), optional
        Of a LayerNorm.
    bias : numpy.ndarray (N,), optional
        Of the product.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        If they do not fit, or are not NumPy's or of floats.

    Examples
    --------
    >>> x, w = np.float32([[1, 3]]), np.float32([[1, 1], [0, 1]])
    >>> v = fold_norm(w, np.float32([1, 2]))
    >>> mean, scale = row_statistics(x, eps=1e-12).T
    >>> (x @ v.weight.T - mean * v.sums) * scale  # layer_norm(x) is -1, 2
    array([[1., 2.]], dtype=float32)
    """
    where = backend(w=w, weight=weight, shift=shift, bias=bias)
    if where != "numpy":
        raise DeviceError(mismatch("w", f"an array on {where}", "one on the host"))
    check_dtype("w", w)
    check_shape("w", w, ("N", "K"))
    rows, k = w.shape
    check_dtype("weight", weight)
    for name, y, size in (("weight", weight, k), ("shift", shift, k), ("bias", bias, rows)):
        if y is not None:
            check_dtype(name, y)
            check_shape(name, y, (size,))
    wide = w.astype(np.float64)
    folded = (wide * weight.astype(np.float64)).astype(w.dtype)
    added = None
    if shift is not None or bias is not None:
        added = np.zeros(rows)
        added += 0 if shift is None else wide @ shift.astype(np.float64)
        added += 0 if bias is None else bias.astype(np.float64)
        added = added.astype(w.dtype)
    return Folded(folded, folded.astype(np.float64).sum(axis=1).astype(np.float32), added)


def row_statistics(
    x: Array, *, eps: float, centred: bool = True, out: Array | None = None
) -> Array:
    """Return mean and ``1 / sqrt(variance + eps)`` of each row, for `Normed`.

    Parameters
    ----------
    x : ndarray
        Shape ``(..., K)``; NumPy or CuPy. On CUDA float16 or bfloat16, on NumPy any float.
    eps : float
        Added to the variance; positive.
    centred : bool
        False: the mean counts as zero, as in an RMSNorm.
    out : float32 ndarray, optional
        ``(rows, 2)``, contiguous; it must not overlap `x`.

    Returns
    -------
    float32 ndarray (rows, 2)

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError, UnsupportedError
        If an argument does not fit.

    Examples
    --------
    >>> row_statistics(np.float32([[1, 3]]), eps=1e-12)
    array([[2., 1.]], dtype=float32)
    """
    where = backend(x=x, out=out)
    check_dtype("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ShapeError(mismatch("x", tuple(x.shape), "(..., K) with K at least 1"))
    count = int(np.prod(x.shape[:-1], dtype=np.int64))
    _check(eps, out, count, x=x)
    if where == "numpy":
        wide = x.reshape(count, x.shape[-1]).astype(np.float64)
        mean = wide.mean(axis=1) if centred else np.zeros(count)
        squares = np.square(wide - mean[:, None]).mean(axis=1)
        return _stored(mean, squares, eps, out)
    rows = as_rows(unit_last(x))
    blocks, fields = arguments(rows, None, None, None, eps=eps, told=True)
    spec = catalogue.row_statistics(device_dtype("x", x), centred=centred)
    return _launch(spec, blocks, rows, out, fields)


def merged_statistics(
    parts: Array, columns: int, *, eps: float, centred: bool = True, out: Array | None = None
) -> Array:
    """Return what `row_statistics` would, from the statistics that a product told.

    Parameters
    ----------
    parts : float32 ndarray
        ``(rows, ceil(columns / 64), 2)``, contiguous: see ``Epilogue.statistics``.
    columns : int
        Of the rows.
    eps, centred, out
        As in `row_statistics`.

    Examples
    --------
    >>> merged_statistics(np.float32([[[2, 2]]]), 2, eps=1e-12)  # of 1 and 3
    array([[2., 1.]], dtype=float32)
    """
    where = backend(parts=parts, out=out)
    check_dtype("parts", parts)
    if parts.dtype != np.float32:
        raise DTypeError(mismatch("parts", dtype_name(parts.dtype), "float32"))
    whole = isinstance(columns, int | np.integer) and not isinstance(columns, bool)
    if not whole or columns < 1:
        raise ArgumentError(mismatch("columns", repr(columns), "a positive integer"))
    check_shape("parts", parts, ("rows", -(-columns // SLAB), 2))
    if not parts.flags.c_contiguous:
        raise ArgumentError(mismatch("parts", f"strides {parts.strides}", "a contiguous array"))
    _check(eps, out, len(parts), parts=parts)
    if where == "numpy":
        sizes = np.minimum(SLAB, columns - SLAB * np.arange(parts.shape[1]))
        means, squares = np.moveaxis(parts.astype(np.float64), 2, 0)
        mean = (means * sizes).sum(axis=1) / columns if centred else np.zeros(len(parts))
        squares = (squares + np.square(means - mean[:, None]) * sizes).sum(axis=1)
        return _stored(mean, squares / columns, eps, out)
    spec = gemm_statistics.merged_statistics()
    fields: dict[str, Any] = {"parts": pointer(parts), "rows": len(parts), "cols": columns}
    fields |= {"centred": centred, "eps": eps}
    return _launch(spec, -(-len(parts) // (spec.threads // 32)), parts, out, fields)


def _check(eps: float, out: Array | None, rows: int, **read: Array) -> None:
    check_eps(eps)
    if out is None:
        return
    check_shape("out", out, (rows, 2))
    if out.dtype != np.float32:
        got = out.dtype.name if out.dtype.isnative else out.dtype.str
        raise DTypeError(mismatch("out", got, "float32"))
    if not out.flags.c_contiguous:
        raise ArgumentError(mismatch("out", f"strides {out.strides}", "a contiguous array"))
    if not is_cupy(out) and not out.flags.writeable:
        raise ArgumentError(mismatch("out", "a read-only array", "one that can be written"))
    check_no_overlap(out, **read)


def _stored(mean: Any, variance: Any, eps: float, out: Array | None) -> Array:
    found = np.stack([mean, 1 / np.sqrt(variance + float(eps))], axis=1).astype(np.float32)
    if out is None:
        return found
    out[...] = found
    return out


def _launch(
    spec: KernelSpec, blocks: int, x: Array, out: Array | None, fields: dict[str, Any]
) -> Array:
    """Run a kernel on the device of `x` and CuPy's current stream, for each row of it."""
    import cupy

    from stof_cupy.jit.launch import kernel

    with cupy.cuda.Device(x.device.id):
        run = kernel(spec, x.device.id)
        if out is None:
            out = cupy.empty((len(x), 2), np.float32)
        run((blocks,), run.pack(**fields | {"out": pointer(out)}))
    return out
