"""Equal masks found and kept once; masks of the leading axes of a dense array."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ShapeError, mismatch
from stof_cupy.masks.bsr import BsrMask
from stof_cupy.masks.coerce import array_tiles
from stof_cupy.masks.tiles import Int32s, Int64s, Tiles

__all__ = ["distinct", "split"]


def distinct(masks: Sequence[BsrMask], numbers: NDArray[Any]) -> tuple[tuple[BsrMask, ...], Int32s]:
    """Return the different masks that `numbers` names, in order of first use, and new numbers.

    All have the blocksize of the first, so that it makes no equal masks different.

    Canonical: equal masks have equal arrays, so that a digest of those is the mask's identity.
    """
    ids: dict[bytes, int] = {}
    kept: list[BsrMask] = []
    new = np.full(len(masks), -1, np.int32)
    flat, first = np.unique(numbers, return_index=True)
    for number in flat[np.argsort(first)]:
        mask = masks[number]
        new[number] = ids.setdefault(_digest(mask._tiles), len(ids))
        if new[number] == len(kept):
            size = kept[0].blocksize if kept else mask.blocksize
            kept.append(mask if mask.blocksize == size else mask.tobsr(size))
    found: Int32s = new[numbers]
    found.setflags(write=False)
    return tuple(kept), found


def _digest(tiles: Tiles) -> bytes:
    digest = blake2b(digest_size=32)
    for array in (tiles.indptr, tiles.indices, tiles.bitmap_id, tiles.bitmaps):
        digest.update(array.tobytes())
    return digest.digest()


def split(array: NDArray[Any], name: str) -> tuple[list[BsrMask], Int64s]:
    """Return the masks of a boolean array ``(*lead, queries, keys)``, and which is where.

    Axes that NumPy has broadcast are read once.

    Raises
    ------
    MaskError, ShapeError
        If `array` is not boolean, or has no leading axis.
    """
    if array.ndim < 3:
        raise ShapeError(mismatch(name, array.shape, "(..., queries, keys), one leading axis"))
    own = array[tuple(slice(0, 1) if not s else slice(None) for s in array.strides[:-2])]
    masks = [BsrMask._of(array_tiles(own[place], name)) for place in np.ndindex(own.shape[:-2])]
    numbers = np.arange(len(masks), dtype=np.int64).reshape(own.shape[:-2])
    return masks, np.broadcast_to(numbers, array.shape[:-2])
