"""What every operator asks of its arrays before anything is computed or launched.

Operators take NumPy arrays (computed by :mod:`stof_cupy.ops.cpu`) or CuPy arrays (computed by the
kernels), never a mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stof_cupy.dtypes import CUDA_FLOATS, dtype_name, is_float
from stof_cupy.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    mismatch,
)

__all__ = [
    "Array",
    "aligned",
    "backend",
    "check_dtype",
    "check_no_overlap",
    "check_out",
    "check_shape",
    "device_dtype",
    "is_cupy",
    "unit_last",
]

Array = Any
"""A NumPy or CuPy array; CuPy carries no type information."""


def is_cupy(x: Any) -> bool:
    """Whether `x` is a CuPy array, decided without importing CuPy."""
    return type(x).__module__.partition(".")[0] == "cupy" and hasattr(x, "__cuda_array_interface__")


def backend(**arrays: Array | None) -> str:
    """Return ``"numpy"`` or ``"cuda"``, whichever all given arrays belong to.

    Parameters
    ----------
    **arrays : ndarray or None
        The operator's array arguments by name; None is passed over.

    Raises
    ------
    DTypeError
        If one is no array, or NumPy and CuPy are mixed.
    DeviceError
        If CuPy arrays lie on different devices.
    """
    given = {name: x for name, x in arrays.items() if x is not None}
    kinds = {}
    for name, x in given.items():
        if isinstance(x, np.ndarray):
            kinds[name] = "numpy"
        elif is_cupy(x):
            kinds[name] = "cuda"
        else:
            hint = "other arrays come in through stof_cupy.interop.import_array"
            raise DTypeError(mismatch(name, type(x).__name__, "a NumPy or CuPy array", hint))
    first = next(iter(given))
    for name, kind in kinds.items():
        if kind != kinds[first]:
            raise DTypeError(mismatch(name, f"{kind} array", f"{kinds[first]} array like {first}"))
        if kind == "cuda" and given[name].device.id != given[first].device.id:
            got, expected = given[name].device.id, given[first].device.id
            raise DeviceError(mismatch(name, f"device {got}", f"device {expected} like {first}"))
    return kinds[first]


def check_shape(name: str, x: Array, expected: Sequence[int | str]) -> None:
    """Raise ShapeError unless `x` has the shape `expected`, where a string is any size by name."""
    shape = x.shape
    fits = len(shape) == len(expected)
    if fits:
        for have, want in zip(shape, expected, strict=True):
            if have != want and not isinstance(want, str):
                fits = False
    if not fits:
        shown = "(" + ", ".join(map(str, expected)) + ("," if len(expected) == 1 else "") + ")"
        raise ShapeError(mismatch(name, tuple(shape), shown))


def check_dtype(name: str, x: Array, like: Array | None = None, like_name: str = "") -> None:
    """Raise DTypeError unless `x` is a float array, of the dtype of `like` if that is given."""
    if not is_float(x.dtype):
        raise DTypeError(
            mismatch(name, dtype_name(x.dtype), "float16, bfloat16, float32 or float64")
        )
    if like is not None and x.dtype != like.dtype:
        expected = f"{dtype_name(like.dtype)} like {like_name}"
        raise DTypeError(mismatch(name, dtype_name(x.dtype), expected))


def device_dtype(name: str, x: Array) -> str:
    """Return the dtype name of a CuPy array that is about to meet a kernel.

    Raises
    ------
    UnsupportedError
        If the kernels do not compute in that type.
    """
    dtype = dtype_name(x.dtype)
    if dtype not in CUDA_FLOATS:
        raise UnsupportedError(mismatch(name, f"{dtype} on CUDA", " or ".join(CUDA_FLOATS)))
    return dtype


def check_out(out: Array | None, shape: Sequence[int], like: Array) -> None:
    """Raise unless `out` is None or takes a result of `shape` and the dtype of `like`."""
    if out is None:
        return
    check_shape("out", out, tuple(shape))
    check_dtype("out", out, like, "the inputs")
    if out.size and out.ndim and out.strides[-1] != out.itemsize and out.shape[-1] > 1:
        got = f"last stride of {out.strides[-1]} bytes"
        raise ShapeError(mismatch("out", got, f"{out.itemsize} bytes (contiguous last axis)"))


def unit_last(x: Array) -> Array:
    """Return `x`, copied if elements of its last axis are not adjacent."""
    if x.shape[-1] > 1 and x.strides[-1] != x.itemsize:
        return x.copy(order="C")
    return x


def aligned(x: Array, size: int, *strides: int) -> bool:
    """Whether a CuPy array's data and all `strides` (elements) are multiples of `size` bytes."""
    return x.data.ptr % size == 0 and all(s * x.itemsize % size == 0 for s in strides)


def check_no_overlap(out: Array, **inputs: Array | None) -> None:
    """Raise ArgumentError if `out` may share memory with an input, read while it is written."""
    if is_cupy(out):
        import cupy

        may_share_memory = cupy.may_share_memory
    else:
        may_share_memory = np.may_share_memory
    for name, x in inputs.items():
        if x is not None and may_share_memory(out, x):
            raise ArgumentError(mismatch("out", f"memory shared with {name}", "memory of its own"))
