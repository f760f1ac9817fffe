"""Checks of sizes and counts that callers give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, mismatch

__all__ = [
    "as_array",
    "as_dtype",
    "at_least",
    "check_out",
    "check_positions",
    "check_shape",
    "flag",
    "integers",
    "reaches",
]

_INTEGERS = (int, np.integer)  # a tuple: patterns are made in microseconds, and a union takes one
_POSITIONS = 2**26  # sums of positions fit an int32; a pattern that writes them out takes 5 GiB


def check_shape(shape: Sequence[Any], name: str = "shape") -> tuple[int, int]:
    """Return `shape` as two Python ints.

    Raises
    ------
    ShapeError
        Unless it is two integers from 0 to 2**31 - 1; positions are 32-bit on the device.

    Examples
    --------
    >>> check_shape((np.int64(3), 5))
    (3, 5)
    """
    try:
        sizes = tuple(shape)
    except TypeError:
        raise ShapeError(mismatch(name, repr(shape), "a tuple (queries, keys)")) from None
    if len(sizes) != 2 or not (_is_position(sizes[0]) and _is_position(sizes[1])):
        raise ShapeError(mismatch(name, sizes, "(queries, keys), each from 0 to 2**31 - 1"))
    return int(sizes[0]), int(sizes[1])


def check_positions(shape: Sequence[Any]) -> tuple[int, int]:
    """Return the shape of a pattern that counts positions, as two Python ints.

    Raises
    ------
    ShapeError
        As `check_shape`.
    UnsupportedError
        If a side is longer than 2**26, before anything of that size is made.
    """
    sizes = check_shape(shape)
    if max(sizes) > _POSITIONS:
        hint = "sums of positions have to fit an int32"
        raise UnsupportedError(mismatch("shape", sizes, "at most 2**26 queries and keys", hint))
    return sizes


def at_least(least: int, name: str, value: Any) -> int:
    """Return `value` as an int, or raise ArgumentError unless it is an integer ``>= least``."""
    if not _is_integer(value) or value < least:
        raise ArgumentError(mismatch(name, repr(value), f"an integer of at least {least}"))
    return int(value)


def flag(name: str, value: Any) -> bool:
    """Return `value` as a bool, or raise ArgumentError unless it is one, or 0 or 1."""
    if not (isinstance(value, np.bool_) or (_is_integer(value) and 0 <= value <= 1)):
        raise ArgumentError(mismatch(name, repr(value), "True or False"))
    return bool(value)


def reaches(window: Any) -> tuple[int, int]:
    """Return how far a window, an integer or a tuple ``(back, ahead)``, reaches to each side.

    Raises
    ------
    ArgumentError
        If it is neither, or negative.
    """
    both = window if isinstance(window, tuple) else (window, window)
    if len(both) != 2:
        raise ArgumentError(mismatch("window", repr(window), "an integer, or (back, ahead)"))
    back, ahead = (at_least(0, "window", reach) for reach in both)
    return back, ahead


def as_array(name: str, values: Any) -> NDArray[Any]:
    """Return `values` as a NumPy array.

    Raises
    ------
    DTypeError
        If they are a masked array, or lists of different lengths.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise DTypeError(mismatch(name, "a masked array", "a plain one", "its mask would be lost"))
    try:
        return np.asarray(values)
    except ValueError:
        raise DTypeError(mismatch(name, "lists of different lengths", "an array")) from None


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Return `dtype` as one of NumPy's, or raise DTypeError if there is no such."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        raise DTypeError(mismatch("dtype", repr(dtype), "a dtype of NumPy's")) from None
    return found


def check_out(out: Any, shape: tuple[int, ...], dtype: Any = None) -> None:
    """Check an array that results are written to.

    Raises
    ------
    DTypeError
        If it is no NumPy array, or not of `dtype` where that is given.
    ShapeError
        If it is not of `shape`.
    ArgumentError
        If it is read-only.
    """
    if not isinstance(out, np.ndarray):
        raise DTypeError(mismatch("out", type(out).__name__, "a NumPy array"))
    if out.shape != shape:
        raise ShapeError(mismatch("out", out.shape, shape))
    if dtype is not None and out.dtype != dtype:
        raise DTypeError(mismatch("out", f"dtype {out.dtype}", f"dtype {np.dtype(dtype)}"))
    if not out.flags.writeable:
        raise ArgumentError(mismatch("out", "a read-only array", "one that can be written"))


def integers(name: str, values: Any) -> NDArray[np.int64]:
    """Return `values` as an int64 array ``(n,)``.

    Raises
    ------
    DTypeError
        If they are not integers, or a masked array.
    ShapeError
        If they are not 1-D.
    ArgumentError
        If one does not fit int64.
    """
    array = as_array(name, values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise DTypeError(mismatch(name, f"dtype {array.dtype}", "integers"))
    if array.ndim != 1:
        raise ShapeError(mismatch(name, array.shape, "(n,), one axis"))
    if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
        raise ArgumentError(mismatch(name, array.max(), "integers below 2**63"))
    return array.astype(np.int64)


def _is_position(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < 2**31


def _is_integer(value: Any) -> bool:
    return isinstance(value, _INTEGERS)
