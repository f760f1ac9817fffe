"""What every operator asks of its arrays before anything is computed or launched.

Operators take NumPy arrays (computed by :mod:`stof_cupy.ops.cpu`) or CuPy arrays (computed by the
kernels), never a mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import CUDA_FLOATS, dtype_name, is_cupy, is_float
from stof_cupy.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    mismatch,
)

__all__ = [
    "FLOAT32_MAX",
    "FLOAT32_TINY",
    "Array",
    "aligned",
    "backend",
    "check_dtype",
    "check_eps",
    "check_no_overlap",
    "check_out",
    "check_shape",
    "copied",
    "device_dtype",
    "empty_in_order_of",
    "is_cupy",
    "lasting",
    "memory_order",
    "permuted",
    "pointer",
    "real",
    "unit_last",
]

Array = Any
"""A NumPy or CuPy array; CuPy carries no type information."""


_NOT_PLAIN = (np.ma.MaskedArray, np.matrix)
"""Arrays whose masks would be lost, and that stay matrices, where NumPy even crashes."""


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
    first_name, first_kind, first_device = "", "", None
    for name, x in arrays.items():
        if x is None:
            continue
        if isinstance(x, np.ndarray) and not isinstance(x, _NOT_PLAIN):
            kind, device = "numpy", None
        elif is_cupy(x):
            kind, device = "cuda", x.device.id
        else:
            hint = "other arrays come in through stof_cupy.interop.import_array"
            if isinstance(x, np.matrix):
                hint = "numpy.asarray makes it one"
            raise DTypeError(mismatch(name, type(x).__name__, "a NumPy or CuPy array", hint))
        if not first_name:
            first_name, first_kind, first_device = name, kind, device
        elif kind != first_kind:
            raise DTypeError(
                mismatch(name, f"{kind} array", f"{first_kind} array like {first_name}")
            )
        elif device != first_device:
            expected = f"device {first_device} like {first_name}"
            raise DeviceError(mismatch(name, f"device {device}", expected))
    return first_kind


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
    if x is None:  # which `backend` passes over
        raise DTypeError(mismatch(name, None, "an array"))
    if not is_float(x.dtype):
        raise DTypeError(
            mismatch(name, dtype_name(x.dtype), "float16, bfloat16, float32 or float64")
        )
    if like is not None and x.dtype != like.dtype:
        got, expected = dtype_name(x.dtype), dtype_name(like.dtype)
        if got == expected:  # of other byte orders
            got, expected = x.dtype.str, like.dtype.str
        raise DTypeError(mismatch(name, got, f"{expected} like {like_name}"))


def real(name: str, value: Any, expected: str) -> float:
    """Return a number of any type, also of those that NumPy does not know, as a float."""
    try:
        # NumPy makes a float of a complex number, with a warning.
        if isinstance(value, bool | str | bytes | np.bool_ | np.ndarray | np.complexfloating):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        array = isinstance(value, np.ndarray)
        got = f"an array of shape {value.shape}" if array else repr(value)
        raise ArgumentError(mismatch(name, got, expected)) from None


def check_eps(eps: Any) -> None:
    """Raise ArgumentError unless `eps` is what a norm may add to a variance."""
    expected = "a positive number that float32 can hold"
    if not FLOAT32_TINY <= real("eps", eps, expected) <= FLOAT32_MAX:
        raise ArgumentError(mismatch("eps", eps, expected))


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


def check_out(out: Array | None, shape: Sequence[int], like: Array, *, name: str = "out") -> None:
    """Raise unless `out` is None or takes a result of `shape` and the dtype of `like`."""
    if out is None:
        return
    check_shape(name, out, tuple(shape))
    check_dtype(name, out, like, "the inputs")
    if not is_cupy(out) and not out.flags.writeable:
        raise ArgumentError(mismatch(name, "a read-only array", "one that can be written"))
    if not out.size or not out.ndim:
        return
    if out.strides[-1] != out.itemsize and out.shape[-1] > 1:
        got = f"last stride of {out.strides[-1]} bytes"
        raise ShapeError(mismatch(name, got, f"{out.itemsize} bytes (contiguous last axis)"))
    if any(step == 0 and size > 1 for step, size in zip(out.strides, out.shape, strict=True)):
        raise ShapeError(mismatch(name, f"strides {out.strides}", "memory for each element"))


def copied(x: Array) -> Array:
    """Return a copy; of a contiguous CuPy array at the memory's pace.

    CuPy copies bfloat16 two bytes a thread: 26 MB in 60 us where the memory takes 15.
    """
    if isinstance(x, np.ndarray) or not x.nbytes or not x.flags.c_contiguous:
        return x.copy()
    import cupy

    made = cupy.empty(x.shape, x.dtype)
    made.data.copy_from_device_async(x.data, x.nbytes)
    return made


def empty_in_order_of(x: Array, shape: Sequence[int]) -> Array:
    """Return an uninitialised array whose axes lie in memory in the order of those of `x`."""
    if is_cupy(x):
        import cupy as xp
    else:
        xp = np
    order = memory_order(x)
    empty = xp.empty([shape[axis] for axis in order], x.dtype)
    return permuted(empty, [order.index(axis) for axis in range(x.ndim)])


def memory_order(x: Array) -> list[int]:
    """Return the axes of `x` in the order in which they lie in memory, the last one last.

    Examples
    --------
    >>> memory_order(np.zeros((2, 3, 4, 5)).swapaxes(0, 1))
    [1, 0, 2, 3]
    """
    strides, last = x.strides, x.ndim - 1
    return [*sorted(range(last), key=lambda axis: -abs(strides[axis])), last]


def permuted(x: Array, axes: list[int]) -> Array:
    """Return ``x.transpose(axes)``, which of CuPy takes as long as a launch: only if it has to."""
    return x if axes == list(range(x.ndim)) else x.transpose(axes)


def lasting(host: NDArray[Any], device: int) -> Array:
    """Return a CuPy copy of a host array that any stream may read, a captured run's too.

    As long as it is not dropped, that is: whoever calls this keeps it for good.
    """
    import cupy

    # Not from CuPy's pool, for the reason given in `Schedule.on_device`.
    with cupy.cuda.Device(device), cupy.cuda.using_allocator(None):
        array = cupy.asarray(host)
        # Runs on other streams than the current one may read it.
        cupy.cuda.get_current_stream().synchronize()
        return array


def unit_last(x: Array) -> Array:
    """Return `x`, copied if elements of its last axis are not adjacent."""
    if x.shape[-1] > 1 and x.strides[-1] != x.itemsize:
        return x.copy(order="C")
    return x


def pointer(x: Array | None) -> int:
    """Return the address of an array's data; 0 for None."""
    if x is None:
        return 0
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr)


def aligned(x: Array, size: int, *strides: int) -> bool:
    """Whether an array's data and all `strides` (elements) are multiples of `size` bytes."""
    return pointer(x) % size == 0 and all(s * x.itemsize % size == 0 for s in strides)


def check_no_overlap(
    out: Array | None, in_place: Array | None = None, name: str = "out", /, **inputs: Any
) -> None:
    """Raise ArgumentError if `out` may share memory with an input that is read while it is written.

    Parameters
    ----------
    out : ndarray or None
        Where the result goes.
    in_place : ndarray, optional
        An input that `out` may be identical to: each element is read before it is written. Not if
        it is another input as well, which is read elsewhere.
    name : str
        What `out` is called.
    **inputs : ndarray or None
        All inputs by name, `in_place` among them.
    """
    if out is None:
        return
    if is_cupy(out):
        import cupy as xp
    else:
        xp = np
    alone = sum(x is in_place for x in inputs.values()) == 1
    for each, x in inputs.items():
        if x is None or (alone and x is in_place and _identical(x, out)):
            continue
        if xp.may_share_memory(out, x):
            raise ArgumentError(mismatch(name, f"memory possibly shared with {each}", "its own"))


def _identical(x: Array, y: Array) -> bool:
    if x.shape != y.shape or x.strides != y.strides:
        return False
    if is_cupy(x):
        return bool(x.data.ptr == y.data.ptr)
    return bool(x.ctypes.data == y.ctypes.data)


FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOAT32_TINY = float(np.finfo(np.float32).tiny)
