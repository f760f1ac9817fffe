"""Padding in and out of a run, and results put where the caller wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stof_cupy.dtypes import is_cupy
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, mismatch
from stof_cupy.interop import import_array

__all__ = ["SMALL", "bucket", "clear_padding", "padded_to", "written"]

SMALL = 8192
"""Tokens of a run up to which it may be padded to a length that was recorded."""


def bucket(seq: int, most: int) -> int:
    """Return the length that runs of `seq` tokens are padded to: a multiple of 16, 32 or 64.

    Examples
    --------
    >>> [bucket(seq, 512) for seq in (1, 65, 300, 500, 511)]
    [16, 96, 320, 512, 512]
    """
    step = 16 if seq <= 64 else 32 if seq <= 256 else 64
    return max(min(-(-seq // step) * step, most), seq)


def padded_to(inputs: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """Return the inputs of a longer run, of which only the first tokens count."""
    xp = _namespace(inputs["ids"])
    padded = dict(inputs)
    batch, own = inputs["ids"].shape
    for name in ("ids", "token_types"):
        padded[name] = xp.zeros((batch, seq), inputs[name].dtype)
        padded[name][:, :own] = inputs[name]
    if inputs["lengths"] is None:
        padded["lengths"] = xp.full((batch,), own, np.int32)
    return padded


def clear_padding(inputs: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """Put 0 where there is padding; part of the run, so that it is recorded with it."""
    lengths, seq = inputs["lengths"], inputs["ids"].shape[1]
    xp = _namespace(lengths)
    kept = (xp.arange(seq, dtype=np.int32) < lengths[:, None])[:, :, None]
    for array in outputs.values():
        if array.ndim == 3 and array.shape[1] == seq:
            # As bits: NaN times 0 would not be 0, and 0 is 0 in every type.
            bits = array.view(f"u{array.itemsize}")
            bits *= kept
    return outputs


def written(hidden: Any, out: Any) -> Any:
    """Write a result to where the caller wants it."""
    to, _ = import_array(out, "out")
    if to.shape != hidden.shape:
        raise ShapeError(mismatch("out", to.shape, hidden.shape))
    if to.dtype != hidden.dtype:
        raise DTypeError(mismatch("out", to.dtype, hidden.dtype))
    if isinstance(to, np.ndarray):
        if not to.flags.writeable:
            raise ArgumentError(mismatch("out", "a read-only array", "one that can be written"))
        to[...] = hidden if isinstance(hidden, np.ndarray) else hidden.get()
    elif isinstance(hidden, np.ndarray):
        to.set(hidden)
    else:
        to[...] = hidden
    return out


def _namespace(array: Any) -> Any:
    """Return ``numpy`` or ``cupy``, whichever made `array`."""
    if not is_cupy(array):
        return np
    import cupy

    return cupy
