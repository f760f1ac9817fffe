"""Sparse-Transformer inference on CuPy: any attention mask, kernels that skip what it skips.

>>> import stof_cupy
>>> stof_cupy.masks.sliding_window(512, window=64).nnz
61888

The names below are resolved when they are first used: importing the package needs neither CuPy nor
a GPU.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stof_cupy import errors, masks
    from stof_cupy.engine import TransformerEngine
    from stof_cupy.graph import Graph
    from stof_cupy.masks import BsrMask
    from stof_cupy.ops.attention import attention
    from stof_cupy.ops.attention_varlen import attention_varlen
    from stof_cupy.ops.epilogue import Epilogue, Normed, Rotary
    from stof_cupy.ops.gemm import gemm
    from stof_cupy.ops.gemm_gemm import gemm_gemm
    from stof_cupy.ops.gemm_norm import gemm_layer_norm, gemm_rms_norm
    from stof_cupy.ops.norm import layer_norm
    from stof_cupy.ops.relative_bias import RelativeBias
    from stof_cupy.ops.rms_norm import rms_norm
    from stof_cupy.runtime import Options, Program

__version__ = "0.1.0"

__all__ = [
    "BsrMask",
    "Epilogue",
    "Graph",
    "Normed",
    "Options",
    "Program",
    "RelativeBias",
    "Rotary",
    "TransformerEngine",
    "__version__",
    "attention",
    "attention_varlen",
    "errors",
    "gemm",
    "gemm_gemm",
    "gemm_layer_norm",
    "gemm_rms_norm",
    "layer_norm",
    "masks",
    "rms_norm",
]

_HOMES = {
    "BsrMask": "stof_cupy.masks",
    "Epilogue": "stof_cupy.ops.epilogue",
    "Graph": "stof_cupy.graph",
    "Normed": "stof_cupy.ops.epilogue",
    "Options": "stof_cupy.runtime",
    "Program": "stof_cupy.runtime",
    "RelativeBias": "stof_cupy.ops.relative_bias",
    "Rotary": "stof_cupy.ops.epilogue",
    "TransformerEngine": "stof_cupy.engine",
    "attention": "stof_cupy.ops.attention",
    "attention_varlen": "stof_cupy.ops.attention_varlen",
    "gemm": "stof_cupy.ops.gemm",
    "gemm_gemm": "stof_cupy.ops.gemm_gemm",
    "gemm_layer_norm": "stof_cupy.ops.gemm_norm",
    "gemm_rms_norm": "stof_cupy.ops.gemm_norm",
    "layer_norm": "stof_cupy.ops.norm",
    "rms_norm": "stof_cupy.ops.rms_norm",
}
"""Public name -> module that defines it."""

_MODULES = ("errors", "masks")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
