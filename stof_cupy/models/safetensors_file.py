"""Reads safetensors files; a tensor is a view of the memory-mapped file."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy.errors import CheckpointError, WeightError, mismatch
from stof_cupy.models.extras import require

__all__ = ["open_safetensors"]

Array = np.ndarray[Any, Any]

_DTYPES = {
    **{"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "BOOL": "bool"},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""Element types of safetensors that there is a NumPy type for."""


def open_safetensors(path: Path) -> dict[str, Callable[[], Array]]:
    """Return, for the name of each tensor in a file, a function that returns it.

    Raises
    ------
    CheckpointError
        If it is no valid safetensors file.
    MissingDependencyError
        Without the ``models`` extra.
    """
    safetensors = require("safetensors")
    try:
        # Checks the header: that the tensors lie within the file, and do not overlap.
        safetensors.safe_open(path, framework="numpy")
        data = np.asarray(np.memmap(path, np.uint8, "r"))
    except (safetensors.SafetensorError, OSError) as bad:
        raise CheckpointError(
            mismatch(str(path), f"unreadable ({bad})", "a safetensors file")
        ) from bad
    size = 8 + int(data[:8].view("<u8")[0])
    header = json.loads(data[8:size].tobytes())
    header.pop("__metadata__", None)
    return {name: partial(_view, name, facts, data[size:]) for name, facts in header.items()}


def _view(name: str, facts: dict[str, Any], data: Array) -> Array:
    kind = facts["dtype"]
    if kind not in _DTYPES:
        expected = f"one of {', '.join(_DTYPES)}"
        raise WeightError(mismatch(f"weight {name!r}", f"elements of type {kind}", expected))
    if kind == "BF16":
        # NumPy knows the type's name only once ml_dtypes has registered it.
        import ml_dtypes  # noqa: F401
    start, end = facts["data_offsets"]
    elements: Array = data[start:end].view(np.dtype(_DTYPES[kind]))
    try:
        tensor: Array = elements.reshape(facts["shape"])
    except ValueError as bad:  # too many axes, or of no elements too large ones
        expected = "a shape that NumPy has"
        raise WeightError(mismatch(f"weight {name!r}", facts["shape"], expected)) from bad
    return tensor
