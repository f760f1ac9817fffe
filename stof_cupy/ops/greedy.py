"""The best token of each sequence, written where the next run reads it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stof_cupy.errors import DTypeError, ShapeError, mismatch
from stof_cupy.jit.decoder_kernels import greedy as spec_of
from stof_cupy.ops._arrays import (
    Array,
    aligned,
    backend,
    check_dtype,
    check_shape,
    device_dtype,
    pointer,
    unit_last,
)
from stof_cupy.ops._counters import counters

__all__ = ["arguments", "blocks_of", "take_best"]

_BLOCK = 8192
"""Logits of a block of 1,024 threads."""

_MOST = 1024
"""Sequences that have several blocks: of more there are enough, and each needs a counter."""


def take_best(logits: Array, tokens: Array, positions: Array, lengths: Array) -> Array:
    """Write the token of the highest logit of each row, and count it; return the tokens.

    Nothing waits for the GPU: it is the last kernel of a token that a CUDA graph can hold.

    Parameters
    ----------
    logits : ndarray
        Shape ``(batch, vocabulary)``; NumPy or CuPy. On CUDA float16 or bfloat16, on NumPy any
        float. Of equal ones the first counts, and a NaN is above all.
    tokens : ndarray of int64
        Shape ``(batch,)``, contiguous, written to.
    positions, lengths : ndarray of int32
        Shape ``(batch,)``, contiguous; 1 is added.

    Returns
    -------
    ndarray
        `tokens`.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        If an argument does not fit; nothing has been written then.
    UnsupportedError
        If there is no kernel for the dtype.

    Examples
    --------
    >>> import numpy as np
    >>> tokens, at, lengths = np.zeros(1, np.int64), np.int32([4]), np.int32([5])
    >>> take_best(np.float32([[0, 3, 1, 3]]), tokens, at, lengths).tolist(), at.tolist()
    ([1], [5])
    """
    where = backend(logits=logits, tokens=tokens, positions=positions, lengths=lengths)
    check_dtype("logits", logits)
    check_shape("logits", logits, ("batch", "vocabulary"))
    if not logits.shape[1]:
        raise ShapeError(mismatch("logits", tuple(logits.shape), "at least one a row"))
    kinds = {"tokens": np.int64, "positions": np.int32, "lengths": np.int32}
    for (name, dtype), x in zip(kinds.items(), (tokens, positions, lengths), strict=True):
        check_shape(name, x, logits.shape[:1])
        if x.dtype != dtype or not x.flags.c_contiguous:
            expected = f"contiguous {np.dtype(dtype).name}"
            raise DTypeError(mismatch(name, x.dtype.name, expected))
    if where == "numpy":
        tokens[...] = logits.astype(np.float32, copy=False).argmax(axis=1)
        positions += 1
        lengths += 1
        return tokens
    return _launch(logits, tokens, positions, lengths)


def _launch(logits: Array, tokens: Array, positions: Array, lengths: Array) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.launch import kernel

    device = logits.device.id
    with cupy.cuda.Device(device):
        run = kernel(spec_of(device_dtype("logits", logits)), device)
        if tokens.size:
            given, each = unit_last(logits), blocks_of(*logits.shape)
            partial, counted = None, 0
            if each > 1:
                partial = cupy.empty((len(tokens), each), np.int64)
                counted = counters(device).take(len(tokens))
            kept = (partial, counted, each)
            blocks, fields = arguments(given, tokens, positions, lengths, *kept)
            run((blocks,), run.pack(**fields))
    return tokens


def blocks_of(sequences: int, vocabulary: int) -> int:
    """Return how many blocks look at a sequence's logits, eight a thread if there are several.

    Examples
    --------
    >>> blocks_of(1, 49152), blocks_of(2000, 49152)
    (6, 1)
    """
    return -(-vocabulary // _BLOCK) if sequences <= _MOST else 1


def arguments(
    logits: Array,
    tokens: Array,
    positions: Array,
    lengths: Array,
    partial: Array | None = None,
    counted: int = 0,
    blocks: int = 1,
) -> tuple[int, dict[str, Any]]:
    """Return the blocks and the kernel's parameters; `blocks` are those of a sequence."""
    row = logits.strides[0] // logits.itemsize
    return logits.shape[0] * blocks, {
        "logits": pointer(logits),
        "tokens": pointer(tokens),
        "positions": pointer(positions),
        "lengths": pointer(lengths),
        "partial": pointer(partial),
        "counters": counted,
        "row": row,
        "vocabulary": logits.shape[1],
        "wide": aligned(logits, 16, row),
        "blocks": blocks,
    }
