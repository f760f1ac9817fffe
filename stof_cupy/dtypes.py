"""The float types by their field-standard names, their NumPy dtypes, and whose an array is.

bfloat16 is `ml_dtypes.bfloat16`, imported only when it is asked for.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from stof_cupy.errors import DTypeError, UnsupportedError, mismatch

__all__ = [
    "CUDA_FLOATS",
    "DEFAULT_FLOAT",
    "FLOATS",
    "as_dtype",
    "compute_dtype",
    "dtype_name",
    "is_cupy",
    "is_float",
]

FLOATS = ("float16", "bfloat16", "float32")
"""Float types an engine can be asked to compute in."""

DEFAULT_FLOAT = MappingProxyType({"numpy": "float32", "cuda": "float16"})
"""What each backend computes in unless told otherwise."""

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


def compute_dtype(dtype: Any, backend: str) -> str:
    """Return the name of the type that a backend is asked to compute in.

    Parameters
    ----------
    dtype : str or dtype or None
        One of :data:`FLOATS`; None is the backend's default of :data:`DEFAULT_FLOAT`.
    backend : {"numpy", "cuda"}
        NumPy takes all of them, as types of the result: it computes in float32.

    Raises
    ------
    DTypeError
        If `dtype` is none of :data:`FLOATS`.
    UnsupportedError
        If the kernels do not compute in it.

    Examples
    --------
    >>> compute_dtype(None, "cuda"), compute_dtype(np.float32, "numpy")
    ('float16', 'float32')
    """
    if dtype is None:
        return DEFAULT_FLOAT[backend]
    if not isinstance(dtype, str):
        with suppress(TypeError):  # what is no dtype is refused below, by its repr
            dtype = dtype_name(dtype)
    if dtype not in FLOATS:
        raise DTypeError(mismatch("dtype", repr(dtype), " or ".join(map(repr, FLOATS))))
    if backend == "cuda" and dtype not in CUDA_FLOATS:
        got, expected = f"{dtype!r} with backend 'cuda'", " or ".join(map(repr, CUDA_FLOATS))
        hint = "backend='numpy' computes in float32"
        raise UnsupportedError(mismatch("dtype", got, expected, hint))
    return str(dtype)


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


def is_cupy(x: Any) -> bool:
    """Whether `x` is a CuPy array, decided without importing CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)
