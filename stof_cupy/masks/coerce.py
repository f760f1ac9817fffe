"""Tiles of anything that can be a mask, and the errors for what cannot."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import DTypeError, MaskError, ShapeError, mismatch
from stof_cupy.masks import convert
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.lower import lower
from stof_cupy.masks.tiles import Tiles

__all__ = ["array_tiles", "require_shape", "scipy_tiles", "to_tiles"]


def to_tiles(obj: Any, name: str) -> Tiles:
    """Return the tiles of a pattern, a boolean array or a scipy.sparse matrix.

    Raises
    ------
    MaskError, ShapeError
        If an array is not boolean, or not 2-D.
    DTypeError
        If `obj` is none of these, or a masked array.
    """
    if isinstance(obj, Pattern):
        return lower(obj)
    if isinstance(obj, np.ndarray):
        return array_tiles(obj, name)
    hint = ""
    if isinstance(obj, str):
        hint = f"masks.from_spec({obj!r}, seq) makes a pattern of a text"
    elif isinstance(obj, (list, tuple)):
        hint = "numpy.array(mask, bool) makes an array"
    expected = "a BsrMask, a pattern, a boolean NumPy array or a scipy.sparse matrix"
    return scipy_tiles(obj, name, expected, hint)


def array_tiles(array: NDArray[Any], name: str) -> Tiles:
    """Return the tiles of a boolean array ``(queries, keys)``; raises as `to_tiles` does."""
    if isinstance(array, np.ma.MaskedArray):
        hint = "its mask would be lost: array.filled(value)"
        raise DTypeError(mismatch(name, "a masked array", "a plain one", hint))
    if array.ndim != 2:
        hint = "masks.stack makes masks with leading axes"
        raise ShapeError(mismatch(name, array.shape, "(queries, keys)", hint))
    if array.dtype != np.bool_:
        hint = "True = may attend: `array != 0`, or `array == 0` for an additive mask of 0 and -inf"
        raise MaskError(mismatch(name, f"dtype {array.dtype}", "dtype bool", hint))
    return convert.from_dense(array)


def scipy_tiles(
    obj: Any, name: str, expected: str = "a scipy.sparse matrix or array", hint: str = ""
) -> Tiles:
    """Return the tiles of a sparse matrix of scipy or cupyx; raises as `to_tiles` does."""
    # Such an object cannot exist before its module is loaded, so this never loads it.
    for module in ("scipy.sparse", "cupyx.scipy.sparse"):
        sparse = sys.modules.get(module)
        if sparse is not None and sparse.issparse(obj):
            if obj.ndim != 2:
                raise ShapeError(mismatch(name, obj.shape, "(queries, keys)"))
            return convert.from_scipy(obj.get() if module.startswith("cupyx") else obj)
    raise DTypeError(mismatch(name, type(obj).__name__, expected, hint))


def require_shape(got: tuple[int, int], expected: tuple[int, ...] | None, name: str) -> None:
    """Raise ShapeError unless `got` is `expected`, or nothing is expected."""
    if expected is not None and got != check_shape(expected):
        raise ShapeError(mismatch(name, got, tuple(expected), "shapes are (queries, keys)"))
