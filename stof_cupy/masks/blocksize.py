"""A mask in blocks of any R x C, as ``scipy.sparse.bsr_array`` has it, from and to 64x64 tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, MaskError, UnsupportedError, mismatch
from stof_cupy.masks import convert
from stof_cupy.masks.bitmap import TILE, row_words, unpack_bits
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.tiles import FULL, Int32s, Tiles, edge_rows

__all__ = ["ARRAY_BYTES", "check_blocksize", "from_blocks", "to_blocks"]

ARRAY_BYTES = 2**30
"""The most that an array of all elements takes without being asked for by ``toarray()``."""

Blocks = tuple[NDArray[np.bool_], Int32s, Int32s]


def check_blocksize(blocksize: Any) -> tuple[int, int]:
    """Return `blocksize` as two Python ints.

    Raises
    ------
    ArgumentError
        Unless it is two integers of at least 1.
    """
    sizes = tuple(blocksize) if isinstance(blocksize, tuple | list) else ()
    if len(sizes) != 2 or not all(isinstance(n, int | np.integer) and n > 0 for n in sizes):
        raise ArgumentError(mismatch("blocksize", blocksize, "(R, C), two integers of at least 1"))
    return int(sizes[0]), int(sizes[1])


def from_blocks(
    data: Any, indices: Any, indptr: Any, shape: tuple[int, int] | None, name: str
) -> tuple[Tiles, tuple[int, int]]:
    """Build tiles from the arrays of a ``bsr_array``, and return its blocksize too.

    Parameters
    ----------
    data : array (blocks, R, C)
        Any dtype; duplicates are summed, then what is not zero is kept.
    indices, indptr : integer arrays
        Block columns in any order, and where each row of blocks starts.
    shape : tuple of int, optional
        In elements; need not be whole blocks. Default: what the blocks cover.

    Raises
    ------
    MaskError
        If the arrays contradict each other or `shape`.
    """
    from scipy.sparse import bsr_array

    data, indices, indptr = np.asarray(data), np.asarray(indices), np.asarray(indptr)
    _check_arrays(data, indices, indptr, name)
    size = check_blocksize(data.shape[1:])
    rows = len(indptr) - 1
    cols = int(indices.max()) + 1 if len(indices) else 0
    shape = (rows * size[0], cols * size[1]) if shape is None else check_shape(shape)
    needed = -(-shape[0] // size[0]), -(-shape[1] // size[1])
    if rows != needed[0] or cols > needed[1]:
        got = f"{rows} rows and {cols} columns of blocks {size}"
        raise MaskError(mismatch(name, got, f"{needed[0]} and at most {needed[1]} for {shape}"))
    padded = needed[0] * size[0], needed[1] * size[1]
    csr = bsr_array((data, indices, indptr), shape=padded).tocsr()
    csr.sum_duplicates()
    csr.eliminate_zeros()
    if (csr.indices >= shape[1]).any() or csr.indptr[-1] != csr.indptr[shape[0]]:
        raise MaskError(mismatch(f"{name}.data", "True beyond the shape", f"zeros beyond {shape}"))
    csr.resize(shape)
    return convert.from_scipy(csr), size


def _check_arrays(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], at: str) -> None:
    """Raise MaskError unless the arrays are those of a BSR mask, blocks in any order."""
    if data.ndim != 3 or 0 in data.shape[1:]:
        raise MaskError(mismatch(f"{at}.data", data.shape, "(blocks, R, C), R and C at least 1"))
    for name, array in (("indices", indices), ("indptr", indptr)):
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            got = f"{array.dtype} {array.shape}"
            raise MaskError(mismatch(f"{at}.{name}", got, "integers (n,)"))
    if len(indices) != len(data):
        raise MaskError(mismatch(f"{at}.indices", len(indices), f"{len(data)}, one per block"))
    if not len(indptr) or indptr[0] or indptr[-1] != len(data) or (np.diff(indptr) < 0).any():
        raise MaskError(mismatch(f"{at}.indptr", indptr, f"rising from 0 to {len(data)}"))
    if len(indices) and indices.min() < 0:
        raise MaskError(mismatch(f"{at}.indices", int(indices.min()), "block columns from 0"))


def to_blocks(tiles: Tiles, blocksize: tuple[int, int]) -> Blocks:
    """Return ``data (blocks, R, C)``, ``indices`` and ``indptr``, canonical and read-only.

    Blocks at the edge are padded with False.

    Raises
    ------
    UnsupportedError
        If `data` would take more than 1 GiB.
    """
    elements = tiles.nnz if blocksize != (TILE, TILE) else len(tiles.indices) * TILE * TILE
    if elements > ARRAY_BYTES:
        hint = "mask.bitmaps is the packed form"
        raise UnsupportedError(mismatch("data", f"{elements} bytes", "at most 2**30", hint))
    if blocksize == (TILE, TILE):
        words = edge_rows(tiles.shape, tiles.keys)
        part = tiles.bitmap_id != FULL
        words[part] = row_words(tiles.bitmaps[tiles.bitmap_id[part]])
        arrays = unpack_bits(words), tiles.indices, tiles.indptr
    else:
        csr = convert.to_csr(tiles)
        rows, cols = (
            -(-n // block) * block for n, block in zip(tiles.shape, blocksize, strict=True)
        )
        csr.resize((rows, cols))
        bsr = csr.tobsr(blocksize)
        bsr.sort_indices()
        arrays = bsr.data, bsr.indices.astype(np.int32), bsr.indptr.astype(np.int32)
    for array in arrays:
        array.setflags(write=False)
    return arrays
