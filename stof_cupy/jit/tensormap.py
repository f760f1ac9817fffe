"""Tensor maps: what a kernel of sm_90 needs to copy boxes of a tensor (TMA), as bytes.

The driver encodes them on the host; neither CuPy nor a stream takes part. They go to a kernel by
value, in a field of the kind :data:`stof_cupy.jit.spec.TENSOR_MAP`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from stof_cupy.errors import ArgumentError, DeviceError, mismatch

__all__ = ["fault", "layout", "tensor_map"]

_DTYPES = {"float16": (6, 2), "bfloat16": (9, 2), "float32": (7, 4), "uint8": (0, 1)}
"""The driver's number and the bytes of each element type."""

_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTION_128B = 2
_BYTES = 128
_ALIGNMENT = 128  # of the memory that the driver encodes into, since CUDA 13


@lru_cache(maxsize=4096)
def layout(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of an array's axes, fastest first, and the strides in bytes of all but that.

    The last axis has to be contiguous. The stride of an axis of one element never matters, so it is
    replaced by one that the driver accepts.

    Parameters
    ----------
    shape, strides : tuple of int
        Those of a CuPy or NumPy array.

    Examples
    --------
    >>> x = np.zeros((2, 1, 40, 64), np.float16)
    >>> layout(x.shape, x.strides)
    ((64, 40, 1, 2), (128, 5120, 5120))
    """
    dims, steps = shape[::-1], strides[-2::-1]
    real = [step for step, size in zip(steps, dims[1:], strict=True) if size > 1]
    any_step = max((16, *real))
    return dims, tuple(
        step if size > 1 else any_step for step, size in zip(steps, dims[1:], strict=True)
    )


def fault(
    address: int,
    dtype: str,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...] = (),
    *,
    swizzle: int = 128,
) -> str | None:
    """Return why there is no tensor map of these arguments, or None; see `tensor_map`.

    Examples
    --------
    >>> fault(4096, "float16", (36, 100), (72,), (64, 64))
    'strides: got (72,), expected positive multiples of 16 bytes below 2**40'
    """
    if dtype not in _DTYPES:
        return mismatch("dtype", dtype, f"one of {', '.join(_DTYPES)}")
    size = _DTYPES[dtype][1]
    if not 1 <= len(dims) <= 5 or len(strides) != len(dims) - 1:
        got = f"{len(dims)} dims and {len(strides)} strides"
        return mismatch("tensor", got, "1 to 5 axes, a stride of each but the first")
    if address <= 0 or address % 16:
        return mismatch("address", address, "a multiple of 16")
    if not all(1 <= dim <= 2**32 for dim in dims):
        return mismatch("dims", dims, "1 to 2**32 elements each")
    if not all(0 < step < 2**40 and step % 16 == 0 for step in strides):
        return mismatch("strides", strides, "positive multiples of 16 bytes below 2**40")
    if swizzle not in _SWIZZLES:
        return mismatch("swizzle", swizzle, f"one of {tuple(_SWIZZLES)}")
    if not box:
        return None
    if len(box) != len(dims) or not all(1 <= side <= 256 for side in box):
        return mismatch("box", box, f"{len(dims)} sides of 1 to 256 elements")
    width = box[0] * size
    if width % 16 or (swizzle and width > swizzle):
        most = f" up to {swizzle}" if swizzle else ""
        return mismatch("box", f"{width} bytes wide", f"a multiple of 16{most}")
    return None


@lru_cache(maxsize=4096)
def tensor_map(
    address: int,
    dtype: str,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    *,
    swizzle: int = 128,
) -> bytes:
    """Return the 128 bytes of a tensor map; those of the latest 4096 calls are kept.

    What a box has outside of the tensor is read as zero and not written.

    Parameters
    ----------
    address : int
        Of the first element, a multiple of 16.
    dtype : {"float16", "bfloat16", "float32", "uint8"}
        Of the elements.
    dims : tuple of int
        Sizes of the axes, the contiguous one first, 1 to 2**32 elements each.
    strides : tuple of int
        Of all axes but the first, in bytes: positive multiples of 16 below 2**40.
    box : tuple of int
        Sides of what is copied at a time, 1 to 256 elements each.
    swizzle : {0, 32, 64, 128}
        Bytes over which 16-byte chunks are permuted in shared memory; the box is at most that wide.

    Raises
    ------
    ArgumentError
        See `fault`.
    DeviceError
        If there is no driver that encodes tensor maps (CUDA 12), or it refuses.
    """
    wrong = fault(address, dtype, dims, strides, box, swizzle=swizzle)
    if wrong is not None:
        raise ArgumentError(wrong)
    rank = len(dims)
    room = np.zeros(_BYTES + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    status = _encoder()(
        ctypes.c_void_p(room.ctypes.data + start),
        ctypes.c_int(_DTYPES[dtype][0]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*dims),
        (ctypes.c_uint64 * max(rank - 1, 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        ctypes.c_int(0),  # not interleaved
        ctypes.c_int(_SWIZZLES[swizzle]),
        ctypes.c_int(_L2_PROMOTION_128B),
        ctypes.c_int(0),  # zeros outside
    )
    if status != 0:
        made = f"dims={dims}, strides={strides}, box={box}, swizzle={swizzle}"
        raise DeviceError(mismatch("cuTensorMapEncodeTiled", f"status {status} for {made}", 0))
    return room[start : start + _BYTES].tobytes()


@cache
def _encoder() -> Callable[..., int]:
    try:
        function: Callable[..., int] = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        expected = "libcuda.so.1 of CUDA 12 or newer"
        raise DeviceError(mismatch("driver", "no cuTensorMapEncodeTiled", expected)) from error
    return function
