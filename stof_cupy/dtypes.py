"""The float types by their field-standard names, and their NumPy dtypes.

bfloat16 is `ml_dtypes.bfloat16`, imported only when it is asked for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from stof_cupy.errors import DTypeError, mismatch

__all__ = ["CUDA_FLOATS", "FLOATS", "as_dtype", "dtype_name", "is_float"]

FLOATS = ("float16", "bfloat16", "float32")
"""Float types an engine can be asked to compute in."""

CUDA_FLOATS = ("float16", "bfloat16")
"""Those of :data:`FLOATS` that the CUDA kernels take."""


def as_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of ``"float16"``, ``"bfloat16"`` or ``"float32"``.

    Raises
    ------
    DTypeError
        If `name` is none of the three.
    """
    if name == "bfloat16":
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    if name not in FLOATS:
        raise DTypeError(mismatch("dtype", repr(name), " or ".join(map(repr, FLOATS))))
    return np.dtype(name)


@cache  # NumPy makes the name anew each time, which costs as much as a launch
def dtype_name(dtype: Any) -> str:
    """Return the name of a NumPy, CuPy or ml_dtypes dtype, e.g. ``"bfloat16"``.

    Examples
    --------
    >>> dtype_name(np.float16), dtype_name(as_dtype("bfloat16"))
    ('float16', 'bfloat16')
    """
    return str(np.dtype(dtype).name)


def is_float(dtype: Any) -> bool:
    """Whether `dtype` is a float of at most 64 bits, bfloat16 included."""
    return dtype_name(dtype) in (*FLOATS, "float64")
