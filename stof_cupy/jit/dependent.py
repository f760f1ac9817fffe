"""Launches that overlap with the end of the kernel before them (programmatic dependent launch).

From sm_90 on a kernel may be launched while the one before it in the stream still runs, and wait on
the GPU for its end: what a launch costs is then hidden behind it. Every kernel of ours begins with
that wait (`jit.source.stub`) and lets the next one come only after it, so that no more than two are
there at a time and nothing is read or written before all that came earlier is done and visible.
(To let it come before the wait was slower: 0.402 ms for 0.383 through BERT-base at 1x128, H200.)

Kernels of a decoder's token do let it come before: products of few rows, and attention of one
token. Each still ends only after its own wait, so that all before have ended when one has. What a
kernel reads before it waits, weights and keys of earlier tokens, no kernel since the last one that
let the next come late may write.

CuPy cannot ask for it, so the driver is called by ctypes. Captured in a CUDA graph, the overlap
becomes part of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Protocol

import numpy as np

__all__ = ["CLUSTER_DIMENSION", "Attribute", "DependentLaunch", "Function", "LaunchConfig"]

CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_MAY_OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class Function(Protocol):
    """What CuPy's functions are for us: a ``CUfunction``, and how it is launched."""

    @property
    def ptr(self) -> int:
        """The driver's handle."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[np.void], shared_mem: int
    ) -> None:
        """Launch on CuPy's current stream."""


class Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", ctypes.c_uint64), ("value", ctypes.c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_mem", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint32),
    )


_OVERLAPPING = ctypes.pointer(Attribute(_MAY_OVERLAP, (1,)))


class DependentLaunch:
    """A loaded kernel of one parameter, called as CuPy's `Function` is.

    Parameters
    ----------
    function : cupy.cuda.Function
        It waits before it does anything.
    """

    def __init__(self, function: Function) -> None:
        from cupy.cuda import driver, get_current_stream

        self._function = function  # it keeps the module
        self.ptr = function.ptr
        self._stream, self._check = get_current_stream, driver.check_status

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[np.void], shared_mem: int
    ) -> None:
        """Launch on CuPy's current stream.

        Raises
        ------
        cupy.cuda.driver.CUDADriverError
            If the driver refuses.
        """
        (params,) = args
        stored = (ctypes.c_char * params.nbytes).from_buffer_copy(params.tobytes())
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(stored))
        config = LaunchConfig(
            (*grid, 1, 1)[:3],
            block,
            shared_mem,
            self._stream().ptr,
            _OVERLAPPING,
            1,
        )
        status = _launcher()(ctypes.byref(config), ctypes.c_void_p(self.ptr), pointers, None)
        if status:
            self._check(status)


@cache
def _launcher() -> Callable[..., int]:
    function: Callable[..., int] = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    return function
