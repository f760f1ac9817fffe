"""Kernels compiled at run time: spec -> stub -> NVRTC -> cubin -> cache -> ``cupy.RawModule``.

Importing this package needs neither CuPy, NVRTC nor a GPU, and compiling needs only NVRTC.
``python -m stof_cupy.jit`` compiles everything in the catalogue.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Cubin": "compile",
    "DeviceFacts": "device",
    "Kernel": "launch",
    "KernelSpec": "spec",
    "Store": "cache",
    "compile_cubin": "compile",
    "facts": "device",
    "is_available": "device",
    "kernel": "launch",
    "loaded": "launch",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
