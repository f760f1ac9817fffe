"""A dense boolean array as a pattern."""

from __future__ import annotations

from typing import Any

import numpy as np

from stof_cupy.dtypes import is_cupy
from stof_cupy.errors import ArgumentError, DTypeError, MaskError, ShapeError, mismatch
from stof_cupy.masks.coerce import array_tiles
from stof_cupy.masks.device.leaf import DenseArray
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Stored

__all__ = ["dense", "dense_on_device"]


def dense(array: Any) -> Pattern:
    """Query ``q`` sees key ``k`` if ``array[q, k]``.

    Parameters
    ----------
    array : bool array (queries, keys)
        NumPy: its tiles are made at once. CuPy: of any strides, with up to two leading axes; what
        it holds is read when the mask is built on the GPU, and again by `DeviceMask.rebuild`.

    Raises
    ------
    MaskError
        If it is not boolean.
    ShapeError, ArgumentError
        If it has another number of axes, or a leading one of size 0.
    DTypeError
        If it is neither a NumPy nor a CuPy array.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> (dense(np.ones((4, 4), bool)) & masks.causal(4)).nnz
    10
    """
    if is_cupy(array):
        return dense_on_device(array, "array")
    if not isinstance(array, np.ndarray):
        raise DTypeError(mismatch("array", type(array).__name__, "a NumPy or CuPy array"))
    return Stored(array_tiles(array, "array"))._named(f"dense(<{array.shape}>)")


def dense_on_device(array: Any, name: str) -> DenseArray:
    """Return a CuPy array as a pattern; raises as `dense`, which calls it `name`."""
    if not 2 <= array.ndim <= 4:
        raise ShapeError(mismatch(name, array.shape, "(*lead, queries, keys), lead up to two"))
    if array.dtype != np.bool_:
        hint = "True = may attend: `array != 0`"
        raise MaskError(mismatch(name, f"dtype {array.dtype}", "dtype bool", hint))
    if 0 in array.shape[:-2]:
        raise ArgumentError(mismatch(name, f"leading axes {array.shape[:-2]}", "some"))
    return DenseArray(array)
