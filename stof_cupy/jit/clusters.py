"""How many clusters of a kernel run at once: a GPU's groups of SMs do not divide by every size."""

from __future__ import annotations

import ctypes
from functools import cache

from stof_cupy.jit.dependent import LaunchConfig
from stof_cupy.jit.launch import Kernel

__all__ = ["active_clusters"]


@cache
def active_clusters(kernel: Kernel, device: int, sm_count: int) -> int:
    """Return how many clusters of a kernel with one CTA an SM are on a device at a time.

    A persistent kernel of more would do the last ones' share after all others are done.

    Parameters
    ----------
    kernel : Kernel
        Loaded on the current device, whose number is `device`.
    sm_count : int
        Where the driver does not say, all of the SMs are used.
    """
    spec = kernel.spec
    everywhere = max(1, sm_count // spec.cluster)
    if spec.cluster == 1:
        return everywhere
    grid = everywhere * spec.cluster
    launch = LaunchConfig((grid, 1, 1), (spec.threads, 1, 1), spec.smem_bytes)
    found = ctypes.c_int(0)
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters
        status = ask(ctypes.byref(found), ctypes.c_void_p(kernel.handle), ctypes.byref(launch))
    except (OSError, AttributeError):
        return everywhere
    return min(found.value, everywhere) if status == 0 and found.value > 0 else everywhere
