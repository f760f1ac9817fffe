"""Reads the ``.bin`` files of ``torch.save``, in both their formats, without torch."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy.errors import CheckpointError, WeightError, mismatch
from stof_cupy.models.pickles import ByteStream, Storage, TensorRef, read_pickle

__all__ = ["open_torch"]

Array = np.ndarray[Any, Any]

_MAGIC = 0x1950A86A20F9469CFC6C
"""What the first of the legacy format's pickles says."""

_VERSION = 1001


def open_torch(path: Path) -> dict[str, Callable[[], Array]]:
    """Return, for the name of each tensor in a file, a function that returns it.

    The file is memory-mapped: a tensor is a read-only view of it.

    Parameters
    ----------
    path : Path
        A dict of tensors by ``torch.save``, as a zip archive or in the format before torch 1.6.

    Raises
    ------
    CheckpointError
        If it is damaged, compressed, or holds anything but tensors.
    """
    try:
        data = np.asarray(np.memmap(path, np.uint8, "r"))
    except (OSError, ValueError) as bad:
        raise CheckpointError(mismatch(str(path), f"unreadable ({bad})", "a torch file")) from bad
    zipped = data[:4].tobytes() == b"PK\x03\x04"
    top, storages = (_zip if zipped else _legacy)(path, data)
    if not isinstance(top, dict):
        raise CheckpointError(mismatch(str(path), f"a {type(top).__name__}", "a dict of tensors"))
    for name, tensor in top.items():
        if not isinstance(name, str) or not isinstance(tensor, TensorRef):
            got = f"{name!r}: a {type(tensor).__name__}"
            raise CheckpointError(mismatch(str(path), got, "tensors by their names"))
    return {name: partial(_view, name, tensor, storages) for name, tensor in top.items()}


def _view(name: str, tensor: TensorRef, storages: Mapping[str, Array]) -> Array:
    """Return the tensor as a view of its storage, once it is known to lie within it."""
    dtype = _dtype(tensor.storage.dtype)
    raw = storages.get(tensor.storage.key)
    size = tensor.storage.count * dtype.itemsize
    if raw is None or raw.size < size:
        got = "no storage" if raw is None else f"a storage of {raw.size} bytes"
        raise WeightError(mismatch(f"weight {name!r}", got, f"one of {size} bytes"))
    steps = zip(tensor.shape, tensor.strides, strict=True)
    last = tensor.offset + sum((n - 1) * step for n, step in steps)
    if 0 in tensor.shape:
        # NumPy counts the other axes all the same.
        if math.prod(n or 1 for n in tensor.shape) * dtype.itemsize >= 1 << 62:
            raise WeightError(mismatch(f"weight {name!r}", tensor.shape, "a shape that can be"))
        return np.zeros(tensor.shape, dtype)
    # A stride of 0 would make a large tensor of a small file.
    last = max(last, math.prod(tensor.shape) - 1)
    if last >= tensor.storage.count:
        expected = f"within a storage of {tensor.storage.count}"
        raise WeightError(mismatch(f"weight {name!r}", f"elements up to {last}", expected))
    elements = raw[:size].view(dtype)[tensor.offset :]
    # Of a single element the step says nothing, and may be anything.
    steps = zip(tensor.shape, tensor.strides, strict=True)
    strides = tuple(step * dtype.itemsize if n > 1 else 0 for n, step in steps)
    return np.lib.stride_tricks.as_strided(elements, tensor.shape, strides, writeable=False)


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def _zip(path: Path, data: Array) -> tuple[Any, dict[str, Array]]:
    """Return the value of ``data.pkl`` and the storages of a zip archive."""
    records: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                # Also what a zip bomb would need: nothing here is ever decompressed.
                if item.compress_type != zipfile.ZIP_STORED:
                    raise CheckpointError(
                        mismatch(f"{path}: {item.filename}", "compressed", "stored as it is")
                    )
                records[item.filename.partition("/")[2]] = _record(path, data, item)
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError) as bad:
        if isinstance(bad, CheckpointError):
            raise
        raise CheckpointError(mismatch(str(path), f"unreadable ({bad})", "a torch file")) from bad
    if "data.pkl" not in records:
        raise CheckpointError(mismatch(str(path), "no data.pkl", "a torch file"))
    order = records.get("byteorder")
    if order is not None and order.tobytes() != b"little":
        raise CheckpointError(mismatch(str(path), f"byte order {order.tobytes()!r}", "little"))
    top = read_pickle(ByteStream(records["data.pkl"]), str(path))
    return top, {name[5:]: raw for name, raw in records.items() if name.startswith("data/")}


def _record(path: Path, data: Array, item: zipfile.ZipInfo) -> Array:
    """Return the bytes of one member, where the file has them."""
    head = data[item.header_offset : item.header_offset + 30]
    if head.size < 30 or head[:4].tobytes() != b"PK\x03\x04":
        raise CheckpointError(mismatch(f"{path}: {item.filename}", "no header", "one"))
    name, extra = (int(n) for n in head[26:30].view("<u2"))
    start = item.header_offset + 30 + name + extra
    raw = data[start : start + item.file_size]
    if raw.size != item.file_size:
        got = f"{raw.size} of {item.file_size} bytes"
        raise CheckpointError(mismatch(f"{path}: {item.filename}", got, "all of them"))
    return raw


def _legacy(path: Path, data: Array) -> tuple[Any, dict[str, Array]]:
    """Return the value and the storages of the format before torch 1.6: pickles, then bytes."""
    stream = ByteStream(data)
    magic, version = (read_pickle(stream, str(path)) for _ in range(2))
    if magic != _MAGIC or version != _VERSION:
        raise CheckpointError(mismatch(str(path), "no torch file", "a torch file"))
    facts = read_pickle(stream, str(path))
    if not isinstance(facts, dict) or facts.get("little_endian") is not True:
        raise CheckpointError(mismatch(str(path), "another byte order", "little endian"))
    top, keys = (read_pickle(stream, str(path)) for _ in range(2))
    start = stream.tell()
    sizes = _item_sizes(top)
    storages = {}
    for key in keys if isinstance(keys, list) else [keys]:
        count = data[start : start + 8]
        # Its type first: hashing a small tuple of tuples may take for ever.
        known = isinstance(key, str) and key in sizes
        if not known or count.size < 8:
            got = "a storage that nothing reads" if count.size == 8 else "too few bytes"
            raise CheckpointError(mismatch(str(path), got, "the storages of its tensors"))
        end = start + 8 + int(count.view("<i8")[0]) * sizes[key]
        if not start + 8 <= end <= data.size:
            raise CheckpointError(mismatch(str(path), f"a storage up to {end}", data.size))
        storages[key] = data[start + 8 : end]
        start = end
    return top, storages


def _item_sizes(top: Any) -> dict[Any, int]:
    """Return the bytes of an element of each storage."""
    tensors = top.values() if isinstance(top, dict) else ()
    refs = [each.storage for each in tensors if isinstance(each, TensorRef)]
    return {each.key: _dtype(each.dtype).itemsize for each in refs if isinstance(each, Storage)}
