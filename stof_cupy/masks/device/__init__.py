"""Masks built on a GPU: expressions evaluated by a kernel, lists that never leave the device.

Importing this package needs no CuPy. `lowering` turns a pattern into a program of leaves, `nodes`
packs that for the kernel, `lists` holds the buffers and launches, `mask` is what users see.
"""

from __future__ import annotations

from typing import Any

from stof_cupy.errors import ArgumentError, mismatch

__all__ = ["on_cuda"]


def on_cuda(device: Any) -> bool:
    """Whether `device`, ``"cuda"`` or ``"cpu"``, is the GPU.

    Raises
    ------
    ArgumentError
        If it is neither.
    """
    if device not in ("cuda", "cpu"):
        hint = "the GPU is CuPy's current device: `with cupy.cuda.Device(1):`"
        raise ArgumentError(mismatch("device", repr(device), "'cuda' or 'cpu'", hint))
    return bool(device == "cuda")
