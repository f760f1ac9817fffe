"""Checks of sizes and counts that callers give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, mismatch

__all__ = ["at_least", "check_shape", "integers"]


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
    sizes = tuple(shape)
    if len(sizes) != 2 or not all(_is_integer(n) and 0 <= n < 2**31 for n in sizes):
        raise ShapeError(mismatch(name, sizes, "(queries, keys), each from 0 to 2**31 - 1"))
    return int(sizes[0]), int(sizes[1])


def at_least(least: int, name: str, value: Any) -> int:
    """Return `value` as an int, or raise ArgumentError unless it is an integer ``>= least``."""
    if not _is_integer(value) or value < least:
        raise ArgumentError(mismatch(name, repr(value), f"an integer of at least {least}"))
    return int(value)


def integers(name: str, values: Any) -> NDArray[np.int64]:
    """Return `values` as an int64 array ``(n,)``, or raise DTypeError unless they are integers."""
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise DTypeError(mismatch(name, f"dtype {array.dtype}", "integers"))
    return array.astype(np.int64).ravel()


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer)
