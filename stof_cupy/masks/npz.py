"""Masks in ``.npz`` files: their own arrays, or scipy's. Nothing is pickled either way."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, DTypeError, MaskError, mismatch
from stof_cupy.masks.blocksize import check_blocksize
from stof_cupy.masks.bsr import BsrMask
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.mask_stack import MaskStack
from stof_cupy.masks.tiles import Tiles

__all__ = ["load_npz", "save_npz"]

File = str | PathLike[str] | IO[bytes]

_VERSION = 1
_ARRAYS = ("indptr", "indices", "bitmap_id", "bitmaps")


def save_npz(
    file: File,
    mask: BsrMask | MaskStack,
    *,
    format: Literal["bitmap", "scipy"] = "bitmap",
    compressed: bool = True,
) -> None:
    """Write a mask, or a stack of masks, to a file.

    Parameters
    ----------
    file : str, path or binary file
        ``.npz`` is added to a name without it, as NumPy does.
    mask : BsrMask or MaskStack
        A stack is written with each distinct mask once.
    format : {"bitmap", "scipy"}
        Tiles and bitmaps as they are stored; or what ``scipy.sparse.load_npz`` reads, one index per
        True element, for a single mask.
    compressed : bool
        Whether to compress the arrays.

    Raises
    ------
    ArgumentError
        If there is no such format, or a stack is to be written in scipy's.
    DTypeError
        If `mask` is neither, or `file` is none.

    Examples
    --------
    >>> import io
    >>> from stof_cupy import masks
    >>> file = io.BytesIO()
    >>> masks.save_npz(file, masks.causal(100).tobsr())
    >>> masks.load_npz(io.BytesIO(file.getvalue())).nnz
    5050
    """
    _check_file(file, "write")
    if not isinstance(mask, BsrMask | MaskStack):
        got = "a Pattern" if isinstance(mask, Pattern) else type(mask).__name__
        hint = "pattern.tobsr(), as_mask(array) or device_mask.to('cpu') is one"
        raise DTypeError(mismatch("mask", got, "a BsrMask or MaskStack", hint))
    if format == "scipy":
        if not isinstance(mask, BsrMask):
            hint = "format='bitmap' takes stacks"
            raise ArgumentError(mismatch("mask", type(mask).__name__, "a BsrMask", hint))
        from scipy import sparse

        sparse.save_npz(file, mask.tocsr(), compressed=compressed)
        return
    if format != "bitmap":
        raise ArgumentError(mismatch("format", repr(format), "'bitmap' or 'scipy'"))
    every = mask.masks if isinstance(mask, MaskStack) else (mask,)
    arrays: dict[str, Any] = {
        "stof_mask": _VERSION,
        "shape": np.array(every[0].shape, np.int64),
        "blocksize": np.array(every[0].blocksize, np.int64),
    }
    if isinstance(mask, MaskStack):
        arrays["mask_of"] = mask.mask_of
    for number, each in enumerate(every):
        arrays |= {f"{name}_{number}": getattr(each._tiles, name) for name in _ARRAYS}
    (np.savez_compressed if compressed else np.savez)(file, **arrays)


def load_npz(file: File) -> BsrMask | MaskStack:
    """Read what `save_npz`, or ``scipy.sparse.save_npz``, has written.

    Raises
    ------
    MaskError
        If the file is neither, is damaged, or its arrays are not those of a mask.
    DTypeError
        If `file` is none.
    FileNotFoundError
        If there is none of that name.
    """
    _check_file(file, "read")
    if isinstance(file, str | PathLike):
        with Path(file).open("rb") as opened:
            return _load(opened, file)
    return _load(file, file)


def _check_file(file: Any, method: str) -> None:
    if not isinstance(file, str | PathLike) and not hasattr(file, method):
        raise DTypeError(mismatch("file", type(file).__name__, "a path or a binary file"))


def _load(file: IO[bytes], name: Any) -> BsrMask | MaskStack:
    start = file.tell()
    try:
        arrays = _arrays(file)
        if "stof_mask" in arrays:
            return _masks_of(arrays)
        from scipy import sparse

        file.seek(start)
        return BsrMask(sparse.load_npz(file))
    except MaskError:
        raise
    # Whatever libraries make of damaged bytes: zlib.error, MemoryError, SyntaxError, and more.
    except Exception as error:
        expected = "an .npz file of save_npz, or of scipy.sparse.save_npz"
        raise MaskError(mismatch("file", name, expected, str(error))) from error


def _arrays(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    loaded = np.load(file, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        raise MaskError(mismatch("file", "an .npy file, one array", "an .npz file"))
    with loaded:
        return {name: loaded[name] for name in loaded.files}


def _masks_of(arrays: Mapping[str, NDArray[Any]]) -> BsrMask | MaskStack:
    """Build masks from checked arrays."""
    version = arrays["stof_mask"].tolist()
    if version != _VERSION:
        raise MaskError(mismatch("file", f"version {version}", f"version {_VERSION}"))
    numbers = arrays.get("mask_of")
    shape = check_shape(arrays["shape"].tolist())
    size = check_blocksize(arrays["blocksize"].tolist())
    count = 1 if numbers is None else int(numbers.max()) + 1
    every = [Tiles(shape, *(arrays[f"{name}_{i}"] for name in _ARRAYS)) for i in range(count)]
    for tiles in every:
        tiles.check()
    masks = [BsrMask._of(tiles, size) for tiles in every]
    return masks[0] if numbers is None else MaskStack(masks, numbers)
