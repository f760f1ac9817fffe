"""How many clusters run at once: a GPU's groups of SMs do not divide by every size."""

from __future__ import annotations

import ctypes

from stof_cupy.jit.dependent import CLUSTER_DIMENSION, Attribute, LaunchConfig

__all__ = ["MOST", "active_clusters"]

MOST = 8
"""CTAs of a cluster that every GPU with clusters takes."""

_NOTHING = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n"
_DYNAMIC_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def active_clusters(sm_count: int, smem_bytes: int) -> tuple[int, ...]:
    """Ask how many clusters of 1, 2, ... `MOST` CTAs are on CuPy's current device at a time.

    Parameters
    ----------
    sm_count : int
    smem_bytes : int
        Of a CTA that has an SM to itself.

    Returns
    -------
    tuple of int
        Empty where the driver does not say; 0 for a size that a small share of a GPU cannot hold.
    """
    from cupy.cuda.function import Module

    try:
        module = Module()
        module.load(_NOTHING)
        function = ctypes.c_void_p(module.get_function("nothing").ptr)
        library = ctypes.CDLL("libcuda.so.1")
        if library.cuFuncSetAttribute(function, _DYNAMIC_SHARED_MEMORY, ctypes.c_int(smem_bytes)):
            return ()
        ask = library.cuOccupancyMaxActiveClusters
    except (OSError, AttributeError, RuntimeError):
        return ()
    counts = [sm_count]
    for size in range(2, MOST + 1):
        attribute = ctypes.pointer(Attribute(CLUSTER_DIMENSION, (size, 1, 1)))
        grid = (sm_count // size * size, 1, 1)
        launch = LaunchConfig(grid, (128, 1, 1), smem_bytes, None, attribute, 1)
        found = ctypes.c_int(0)
        if ask(ctypes.byref(found), function, ctypes.byref(launch)):
            return ()
        counts.append(found.value)
    return tuple(counts)
