"""The constructor forms of ``scipy.sparse.bsr_array``, turned into tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, MaskError, ShapeError, mismatch
from stof_cupy.masks import convert
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.blocksize import from_blocks
from stof_cupy.masks.check import as_array, check_shape
from stof_cupy.masks.coerce import to_tiles
from stof_cupy.masks.protocol import SparseProtocol
from stof_cupy.masks.tiles import Tiles, assemble

__all__ = ["construct"]

_FORMS = "(M, N), (data, (row, col)) or (data, indices, indptr)"


def construct(
    arg: Any, shape: tuple[int, int] | None, cast: bool, name: str
) -> tuple[Tiles, tuple[int, int]]:
    """Return the tiles of `arg` and its blocksize, (64, 64) if it has none.

    Parameters
    ----------
    arg : object
        As `BsrMask` takes it.
    shape : tuple of int, optional
        Where `arg` leaves it open.
    cast : bool
        Whether a dense array of another type than bool is taken.
    name : str
        What errors call it.

    Raises
    ------
    MaskError, ShapeError, DTypeError, ArgumentError
        If `arg` cannot be a mask, or its arrays contradict each other.
    """
    if isinstance(arg, SparseProtocol):
        return arg._tiles, arg.blocksize
    if isinstance(arg, list):
        arg = as_array(name, arg)
    if isinstance(arg, tuple):
        return _from_tuple(arg, shape, name)
    if isinstance(arg, np.ndarray) and cast:
        arg = arg != 0
    block = arg.blocksize if getattr(arg, "format", None) == "bsr" else (TILE, TILE)
    return to_tiles(arg, name), (int(block[0]), int(block[1]))


def _from_tuple(
    arg: tuple[Any, ...], shape: tuple[int, int] | None, name: str
) -> tuple[Tiles, tuple[int, int]]:
    if len(arg) == 3:
        return from_blocks(*arg, shape, name)
    if len(arg) != 2:
        raise ArgumentError(mismatch(name, f"a tuple of {len(arg)}", _FORMS))
    if all(isinstance(size, int | np.integer) for size in arg):
        none = np.zeros(0, np.int64)
        words = np.zeros((0, TILE), np.uint64)
        return assemble(check_shape(arg, name), none, none.astype(np.int32), words), (TILE, TILE)
    return _from_coordinates(*arg, shape, name), (TILE, TILE)


def _from_coordinates(data: Any, coords: Any, shape: tuple[int, int] | None, name: str) -> Tiles:
    """Return the tiles of ``data[i]`` at ``(row[i], col[i])``; duplicates are summed."""
    from scipy.sparse import coo_array

    if len(coords) != 2:
        raise ArgumentError(mismatch(f"{name} coordinates", f"{len(coords)} arrays", "(row, col)"))
    row, col = (np.asarray(axis) for axis in coords)
    data = np.asarray(data)
    if not data.shape == row.shape == col.shape or data.ndim != 1:
        got = f"{data.shape}, {row.shape} and {col.shape}"
        raise ShapeError(mismatch(f"{name} data, row and col", got, "arrays (n,) of one length"))
    for axis, index, size in zip(("row", "col"), (row, col), shape or (None, None), strict=True):
        if index.size and index.dtype.kind not in "iu":
            raise MaskError(mismatch(f"{name} {axis}", f"dtype {index.dtype}", "integers"))
        if index.size and (index.min() < 0 or (size is not None and index.max() >= size)):
            got = f"{index.min()} to {index.max()}"
            end = "below 2**31" if size is None else f"at most {size - 1}"
            raise MaskError(mismatch(f"{name} {axis}", got, f"positions from 0, {end}"))
    covered = [int(axis.max()) + 1 if axis.size else 0 for axis in (row, col)]
    whole = check_shape(covered if shape is None else shape, name)
    coords = row.astype(np.int64), col.astype(np.int64)
    return convert.from_scipy(coo_array((data, coords), shape=whole))
