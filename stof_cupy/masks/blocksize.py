"""A mask in blocks of any R x C, as ``scipy.sparse.bsr_array`` has it, from and to 64x64 tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, MaskError, UnsupportedError, mismatch
from stof_cupy.masks import convert
from stof_cupy.masks.bitmap import TILE, row_words, unpack_bits
from stof_cupy.masks.check import as_array, check_shape
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
        Unless it is two integers from 1 to 2**31 - 1.
    """
    sizes = tuple(blocksize) if isinstance(blocksize, tuple | list) else ()
    known = all(isinstance(n, int | np.integer) and 0 < n < 2**31 for n in sizes)
    if len(sizes) != 2 or not known:
        expected = "(R, C), two integers from 1 to 2**31 - 1"
        raise ArgumentError(mismatch("blocksize", blocksize, expected))
    return int(sizes[0]), int(sizes[1])


def from_blocks(
    data: Any, indices: Any, indptr: Any, shape: tuple[int, int] | None, name: str
) -> tuple[Tiles, tuple[int, int]]:
    """Build tiles from the arrays of a ``bsr_array``, and return its blocksize too.

    Parameters
    ----------
    data : array (blocks, R, C)
        Booleans or numbers; duplicates are summed, then what is not zero is kept.
    indices, indptr : integer arrays
        Block columns in any order, and where each row of blocks starts.
    shape : tuple of int, optional
        In elements; need not be whole blocks. Default: what the blocks cover.

    Raises
    ------
    MaskError
        If the arrays contradict each other or `shape`.
    DTypeError, ShapeError
        If one is no array, or masked; if the blocks cover more than 2**31 - 1 positions.
    """
    from scipy.sparse import bsr_array

    data, indices, indptr = (
        as_array(f"{name}.{part}", array)
        for part, array in (("data", data), ("indices", indices), ("indptr", indptr))
    )
    _check_arrays(data, indices, indptr, name)
    size = check_blocksize(data.shape[1:])
    rows = len(indptr) - 1
    cols = int(indices.max()) + 1 if len(indices) else 0
    shape = check_shape((rows * size[0], cols * size[1]) if shape is None else shape)
    needed = -(-shape[0] // size[0]), -(-shape[1] // size[1])
    if rows != needed[0] or cols > needed[1]:
        got = f"{rows} rows and {cols} columns of blocks {size}"
        raise MaskError(mismatch(name, got, f"{needed[0]} and at most {needed[1]} for {shape}"))
    if not len(data):  # of blocks however large
        return convert.Lists().assemble(shape), size
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
    if data.dtype.kind not in "biufc":
        raise MaskError(mismatch(f"{at}.data", f"dtype {data.dtype}", "booleans or numbers"))
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
    if blocksize == (TILE, TILE):
        _check_bytes(len(tiles.indices), blocksize)
        words = edge_rows(tiles.shape, tiles.keys)
        part = tiles.bitmap_id != FULL
        words[part] = row_words(tiles.bitmaps[tiles.bitmap_id[part]])
        arrays = unpack_bits(words), tiles.indices, tiles.indptr
    else:
        arrays = _from_elements(tiles, blocksize)
    for array in arrays:
        array.setflags(write=False)
    return arrays


def _check_bytes(blocks: int, blocksize: tuple[int, int]) -> None:
    """Raise UnsupportedError if so many blocks are more than 1 GiB."""
    size = blocks * blocksize[0] * blocksize[1]
    if size > ARRAY_BYTES:
        hint = "mask.bitmaps is the packed form"
        raise UnsupportedError(mismatch("data", f"{size} bytes", "at most 2**30", hint))


def _from_elements(tiles: Tiles, blocksize: tuple[int, int]) -> Blocks:
    """Return the three arrays by way of CSR, the blocks counted before they are made."""
    _check_bytes(tiles.nnz, (1, 1))  # each element is a byte of a block
    csr = convert.to_csr(tiles)
    # What of a block lies beyond the mask is padded at the end: scipy has arrays as long as it.
    inner = min(blocksize[0], max(tiles.shape[0], 1)), min(blocksize[1], max(tiles.shape[1], 1))
    grid = -(-tiles.shape[0] // inner[0]), -(-tiles.shape[1] // inner[1])
    blocks = min(tiles.nnz, grid[0] * grid[1])
    if blocks * blocksize[0] * blocksize[1] > ARRAY_BYTES:  # if as many as there can be
        blocks = _count_blocks(csr, inner, grid)
    _check_bytes(blocks, blocksize)
    csr.resize((grid[0] * inner[0], grid[1] * inner[1]))
    bsr = csr.tobsr(inner)
    bsr.sort_indices()
    data = bsr.data
    if inner != blocksize:
        data = np.zeros((len(bsr.data), *blocksize), bool)
        data[:, : inner[0], : inner[1]] = bsr.data
    return data, bsr.indices.astype(np.int32), bsr.indptr.astype(np.int32)


def _count_blocks(csr: Any, size: tuple[int, int], grid: tuple[int, int]) -> int:
    """Return how many of the blocks that cover a CSR array hold an element."""
    from scipy.sparse import csr_array

    cols = csr.indices // size[1]
    first = np.ones(len(cols), bool)  # of the elements of a query that lie in one block
    first[1:] = cols[1:] != cols[:-1]
    first[csr.indptr[:-1][csr.indptr[:-1] < len(cols)]] = True
    kept = np.flatnonzero(first)
    # The blocks of all queries of a row of blocks, one after the other, are a row with duplicates.
    rows = np.minimum(np.arange(grid[0] + 1, dtype=np.int64) * size[0], csr.shape[0])
    indptr = np.searchsorted(kept, csr.indptr[rows])
    blocks = csr_array((np.ones(len(kept), bool), cols[kept], indptr), shape=grid)
    blocks.sum_duplicates()
    return int(blocks.nnz)
