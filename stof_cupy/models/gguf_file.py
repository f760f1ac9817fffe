"""Reads GGUF files: the header here, with every count bounded; quantised blocks through ``gguf``.

The layout is that of the published specification (version 2 and 3, little endian).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy.errors import CheckpointError, UnsupportedError, WeightError, mismatch
from stof_cupy.models.extras import require

__all__ = ["GgufFile", "open_gguf"]

Array = np.ndarray[Any, Any]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"}
_SCALARS |= {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_MOST_FIELDS = 1 << 16
_MOST_ITEMS = 1 << 22
_MOST_DIMS = 4
"""Bounds far above what models have, so that a damaged count costs no time and no memory."""

_PLAIN = {0: "<f4", 1: "<f2", 28: "<f8"}
"""Element types that are read as they are, by their number in the file."""


@dataclass(frozen=True)
class GgufFile:
    """A parsed file.

    Attributes
    ----------
    fields : dict of str to object
        The metadata: numbers, strings, and lists of them.
    tensors : dict of str to callable
        What returns each tensor, float, in the axis order of NumPy.
    """

    fields: dict[str, Any]
    tensors: dict[str, Callable[[], Array]]


class _Cursor:
    """A place in the bytes of a header."""

    def __init__(self, path: Path, data: Array) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, size: int) -> Array:
        raw = self.data[self.at : self.at + size]
        if raw.size != size:
            got = f"{self.data.size} bytes, cut short"
            raise CheckpointError(mismatch(str(self.path), got, "a whole GGUF file"))
        self.at += size
        return raw

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")).tobytes())[0]

    def count(self, most: int, what: str) -> int:
        value = int(self.number("Q"))
        if value > most:
            raise CheckpointError(mismatch(f"{self.path}: {what}", value, f"at most {most}"))
        return value

    def string(self) -> str:
        size = self.count(self.data.size, "length of a string")
        return self.take(size).tobytes().decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise CheckpointError(mismatch(f"{self.path}: type of a field", kind, "0 to 12"))
        inner = self.number("I")
        items = self.count(_MOST_ITEMS, "items of a list")
        if inner == _STRING:
            return [self.string() for _ in range(items)]
        if inner not in _SCALARS:
            raise CheckpointError(mismatch(f"{self.path}: a list", f"type {inner}", "no nesting"))
        dtype = np.dtype(f"<{_SCALARS[inner]}")
        return self.take(items * dtype.itemsize).view(dtype).tolist()


def open_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file; a tensor is dequantised when it is asked for.

    Raises
    ------
    CheckpointError
        If it is damaged or of another version.
    MissingDependencyError
        Without the ``models`` extra.
    """
    gguf = require("gguf")
    try:
        data = np.asarray(np.memmap(path, np.uint8, "r"))
    except (OSError, ValueError) as bad:
        raise CheckpointError(mismatch(str(path), f"unreadable ({bad})", "a GGUF file")) from bad
    cursor = _Cursor(path, data)
    if cursor.take(4).tobytes() != b"GGUF":
        raise CheckpointError(mismatch(str(path), "another kind of file", "a GGUF file"))
    version = cursor.number("I")
    if version not in (2, 3):
        expected = "2 or 3, little endian"
        raise CheckpointError(mismatch(f"{path}: version", version, expected))
    tensor_count = cursor.count(_MOST_FIELDS, "number of tensors")
    fields: dict[str, Any] = {}
    for _ in range(cursor.count(_MOST_FIELDS, "number of fields")):
        name = cursor.string()
        fields[name] = cursor.value(cursor.number("I"))
    facts = [_tensor_facts(cursor) for _ in range(tensor_count)]
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise CheckpointError(mismatch(f"{path}: alignment", alignment, "a power of two"))
    start = -(-cursor.at // alignment) * alignment
    body = data[start:]
    tensors = {
        name: _reader(gguf, path, body, name, shape, kind, offset)
        for name, shape, kind, offset in facts
    }
    return GgufFile(fields, tensors)


def _tensor_facts(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return name, shape in the order of NumPy, type and offset of the next tensor."""
    name = cursor.string()
    dims = int(cursor.number("I"))
    if dims > _MOST_DIMS:
        expected = f"at most {_MOST_DIMS}"
        raise CheckpointError(mismatch(f"{cursor.path}: axes of {name!r}", dims, expected))
    shape = tuple(int(cursor.number("Q")) for _ in range(dims))[::-1]
    return name, shape, int(cursor.number("I")), int(cursor.number("Q"))


def _reader(
    gguf: Any, path: Path, body: Array, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> Callable[[], Array]:
    """Return what reads a tensor, once its bytes are known to be there."""
    what = f"{path}: weight {name!r}"
    try:
        type_ = gguf.GGMLQuantizationType(kind)
    except ValueError:
        raise UnsupportedError(mismatch(what, f"type {kind}", "one that gguf knows")) from None
    block, size = gguf.GGML_QUANT_SIZES[type_]
    if not math.prod(shape) or (shape or (1,))[-1] % block:
        expected = f"a last axis divisible by {block}, the block of {type_.name}, and no axis of 0"
        raise CheckpointError(mismatch(what, shape, expected))
    raw = body[offset : offset + math.prod(shape) // block * size]
    if raw.size != math.prod(shape) // block * size:
        raise CheckpointError(mismatch(what, f"{raw.size} bytes, cut short", "all of it"))
    if kind in _PLAIN:
        return partial(_plain, raw, _PLAIN[kind], shape)
    return partial(_dequantised, gguf, what, raw, type_, shape)


def _plain(raw: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    array: Array = raw.view(dtype).reshape(shape)
    return array


def _dequantised(gguf: Any, what: str, raw: Array, type_: Any, shape: tuple[int, ...]) -> Array:
    rows = raw.reshape(*shape[:-1], -1)
    try:
        values: Array = gguf.quants.dequantize(rows, type_)
    except NotImplementedError:
        expected = "a type that the gguf package dequantises"
        raise UnsupportedError(mismatch(what, type_.name, expected)) from None
    if values.shape != shape:
        raise WeightError(mismatch(what, values.shape, shape))
    return values
