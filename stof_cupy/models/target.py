"""Where a model runs and in which type: chosen once, checked once, asked for arrays ever after."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stof_cupy import env
from stof_cupy.dtypes import compute_dtype
from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.interop import to_device
from stof_cupy.jit import device as gpu
from stof_cupy.models import gpu_float

__all__ = ["Target"]

_BACKENDS = ("auto", "cuda", "numpy")


@dataclass(frozen=True)
class Target:
    """A backend, the float type of weights and results, and a device.

    Attributes
    ----------
    backend : {"cuda", "numpy"}
    dtype : {"float16", "bfloat16", "float32"}
    device : int or None
        The CUDA device; None on NumPy.
    """

    backend: str
    dtype: str
    device: int | None = None

    @classmethod
    def choose(cls, backend: str = "auto", dtype: Any = None, device: int | None = None) -> Target:
        """Turn what was asked for into what there is; see :class:`stof_cupy.TransformerEngine`.

        Raises
        ------
        ArgumentError, DTypeError
            If one of the three is not a value it can have.
        UnsupportedError
            If it is float32 on CUDA, or a GPU before sm_80.
        DeviceError, MissingDependencyError
            If CUDA is asked for and there is no such device, or no CuPy.

        Examples
        --------
        >>> Target.choose("numpy")
        Target(backend='numpy', dtype='float32', device=None)
        """
        backend = _backend(backend)
        if device is not None and (isinstance(device, bool) or not isinstance(device, int)):
            expected = "the number of a CUDA device, or None"
            raise ArgumentError(mismatch("device", repr(device), expected))
        dtype = compute_dtype(dtype, backend)
        if backend == "numpy":
            if device is not None:
                raise ArgumentError(mismatch("device", device, "None with backend 'numpy'"))
            return cls(backend, dtype)
        # The facts come first: they raise the right error without CuPy, a GPU, or one that is new
        # enough.
        gpu.facts(device)
        return cls(backend, dtype, gpu.current() if device is None else device)

    def of_family(self, config: Mapping[str, Any]) -> Target:
        """Return it with the type that a family is computed in where nobody asks for another.

        Raises
        ------
        ConfigError, UnsupportedError
            As :func:`stof_cupy.models.build`.

        Examples
        --------
        >>> Target("cuda", "float16", 0).of_family({"model_type": "t5"}).dtype
        'bfloat16'
        """
        return self if self.device is None else replace(self, dtype=gpu_float(config))

    @property
    def xp(self) -> Any:
        """The array module, ``numpy`` or ``cupy``."""
        return np if self.device is None else _cupy()

    def active(self) -> AbstractContextManager[Any]:
        """Return a context in which CuPy's current device is this one."""
        return nullcontext() if self.device is None else _cupy().cuda.Device(self.device)

    def put(self, array: Any) -> Any:
        """Return a NumPy or CuPy array as one of this target."""
        return _host(array) if self.device is None else to_device(array, self.device)

    def __str__(self) -> str:
        """Return it for people, e.g. ``"CUDA device 0, float16"``."""
        if self.device is not None:
            return f"CUDA device {self.device}, {self.dtype}"
        computed = "" if self.dtype == "float32" else " (computed in float32)"
        return f"NumPy, {self.dtype}{computed}"


def _host(array: Any) -> np.ndarray[Any, Any]:
    host: np.ndarray[Any, Any] = array if isinstance(array, np.ndarray) else array.get()
    return host


def _cupy() -> Any:
    import cupy

    return cupy


def _backend(name: str) -> str:
    expected = " or ".join(map(repr, _BACKENDS))
    if name not in _BACKENDS:
        raise ArgumentError(mismatch("backend", repr(name), expected))
    if name == "auto":
        name = env.BACKEND.get()
        if name not in _BACKENDS:
            raise ArgumentError(mismatch(env.BACKEND.name, repr(name), expected))
    if name == "auto":
        return "cuda" if gpu.is_available() else "numpy"
    return name
