"""Masks in ``.npz`` files: their own arrays, or scipy's. Nothing is pickled either way."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from os import PathLike
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, MaskError, mismatch
from stof_cupy.masks.blocksize import check_blocksize
from stof_cupy.masks.bsr import BsrMask
from stof_cupy.masks.check import check_shape
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

    Examples
    --------
    >>> import io
    >>> from stof_cupy import masks
    >>> file = io.BytesIO()
    >>> masks.save_npz(file, masks.causal(100).tobsr())
    >>> masks.load_npz(io.BytesIO(file.getvalue())).nnz
    5050
    """
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
    FileNotFoundError
        If there is none.
    """
    start = None if isinstance(file, str | PathLike) else file.tell()
    try:
        with np.load(file, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise MaskError(mismatch("file", file, "an .npz file of arrays", str(error))) from error
    if "stof_mask" in arrays:
        return _masks_of(arrays)
    from scipy import sparse

    if not isinstance(file, str | PathLike):
        file.seek(start or 0)
    try:
        return BsrMask(sparse.load_npz(file))
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        hint = "or of scipy.sparse.save_npz"
        raise MaskError(mismatch("file", sorted(arrays), "arrays of save_npz", hint)) from error


def _masks_of(arrays: Mapping[str, NDArray[Any]]) -> BsrMask | MaskStack:
    """Build masks from checked arrays."""
    if arrays["stof_mask"] != _VERSION:
        raise MaskError(mismatch("file", f"version {arrays['stof_mask']}", f"version {_VERSION}"))
    numbers = arrays.get("mask_of")
    try:
        shape = check_shape(arrays["shape"].tolist())
        size = check_blocksize(arrays["blocksize"].tolist())
        count = 1 if numbers is None else int(numbers.max()) + 1
        every = [Tiles(shape, *(arrays[f"{name}_{i}"] for name in _ARRAYS)) for i in range(count)]
    except (KeyError, TypeError, ValueError) as error:
        raise MaskError(
            mismatch("file", "other arrays", "those of save_npz", str(error))
        ) from error
    for tiles in every:
        tiles.check()
    masks = [BsrMask._of(tiles, size) for tiles in every]
    return masks[0] if numbers is None else MaskStack(masks, numbers)
