"""What the kernel of cuda/packing.cuh does, on memory of the host: its table read once more."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from stof_cupy.jit.packing_kernel import COPIES, NARROWED, POSITION, SEQUENCE

_WIDTH = {kind: width for width, kind in COPIES.items()}


def packed(grid: tuple[int, ...], params: Any) -> None:
    """Do what a launch would."""
    table, size, count = (int(params[name]) for name in ("table", "size", "sequences"))
    words = _memory(table, 8 * (count + grid[1] * (3 + 2 * count))).view(np.int64)
    lengths = np.diff(words[:count], prepend=0)
    tokens = int(lengths.sum())
    for column in words[count:].reshape(grid[1], 3 + 2 * count):
        out, kind, pieces = column[:3].tolist()
        assert size * pieces <= grid[0] * 256
        nbytes = pieces * _WIDTH.get(kind, 4)
        rows = _memory(out, size * nbytes).reshape(size, nbytes)
        rows[tokens:] = 0xFF if kind == SEQUENCE else 0
        if kind == POSITION:
            whole: Any = np.concatenate([np.arange(n) for n in lengths])
            rows[:tokens] = whole.astype(np.int32).view(np.uint8).reshape(tokens, 4)
        elif kind == SEQUENCE:
            whole = np.repeat(np.arange(count), lengths)
            rows[:tokens] = whole.astype(np.int32).view(np.uint8).reshape(tokens, 4)
        else:
            read = 8 if kind == NARROWED else nbytes
            stop = 0
            for length, first, step in zip(lengths, *column[3:].reshape(2, count), strict=True):
                start, stop = stop, stop + length
                if first == 0 or length == 0:
                    rows[start:stop] = 0
                    continue
                one = _memory(int(table - first if first < 0 else first), read)
                each = np.lib.stride_tricks.as_strided(one, (length, read), (step, 1))
                if kind == NARROWED:
                    each = np.ascontiguousarray(each).view(np.int64)
                    known = (each >= 0) & (each < 2**31)
                    each = np.where(known, each, -1).astype(np.int32).view(np.uint8)
                rows[start:stop] = each


def _memory(address: int, nbytes: int) -> Any:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)
