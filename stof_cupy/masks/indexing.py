"""``mask[...]``: what an index means, in scipy.sparse's terms, and which way it is answered."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError, mismatch
from stof_cupy.masks import algebra, convert
from stof_cupy.masks.check import as_array
from stof_cupy.masks.tiles import Int64s, Tiles

__all__ = ["expand", "select"]


def expand(key: Any, ndim: int) -> tuple[Any, ...]:
    """Return an index as one entry per axis, ``...`` and left-out axes filled in.

    Raises
    ------
    ArgumentError
        If it has more entries than axes, or two ``...``.
    """
    entries = key if isinstance(key, tuple) else (key,)
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    given = len(entries) - len(dots)
    if len(dots) > 1 or given > ndim:
        raise ArgumentError(mismatch("index", key, f"at most {ndim} entries and one ..."))
    at = dots[0] if dots else given
    fill = (slice(None),) * (ndim - given)
    return (*entries[:at], *fill, *entries[at + len(dots) :])


def select(tiles: Tiles, key: Any) -> Tiles | NDArray[np.bool_] | np.bool_:
    """Return ``mask[key]``.

    Slices with step 1 move tiles; other slices and index arrays gather rows of bits. An integer
    drops its axis, so that what is left is an array, or an element.

    Raises
    ------
    OutOfBoundsError, ArgumentError, DTypeError, ShapeError
        If the index is beyond the mask, or not one that scipy would take.
    """
    rows, cols = (
        _entry(entry, size, axis)
        for entry, size, axis in zip(expand(key, 2), tiles.shape, ("queries", "keys"), strict=True)
    )
    if isinstance(rows, np.ndarray) and isinstance(cols, np.ndarray):
        return _points(tiles, rows, cols)
    if isinstance(rows, int) and isinstance(cols, int):
        element: np.bool_ = algebra.lookup(tiles, np.array([rows]), np.array([cols]))[0]
        return element
    found = _take(tiles, _span(rows, "queries"), _span(cols, "keys"))
    if isinstance(rows, int) or isinstance(cols, int):
        return convert.to_dense(found).ravel()
    return found


def _span(entry: int | slice | range | Int64s, axis: str) -> slice | Int64s:
    """Return one axis as a range of positions with step 1, or as positions ``(n,)``."""
    if isinstance(entry, int):
        return slice(entry, entry + 1)
    if isinstance(entry, range):
        return np.arange(entry.start, entry.stop, entry.step, dtype=np.int64)
    if isinstance(entry, np.ndarray) and entry.ndim != 1:
        hint = "np.ix_ selects rows and columns"
        raise ShapeError(mismatch(f"index of {axis}", entry.shape, "one axis", hint))
    return entry


def _take(tiles: Tiles, rows: slice | Int64s, cols: slice | Int64s) -> Tiles:
    """Return some rows and columns: crop what is a plain range, then gather the rest."""
    plain = [
        (axis.start, axis.stop) if isinstance(axis, slice) else (0, size)
        for axis, size in zip((rows, cols), tiles.shape, strict=True)
    ]
    if plain != [(0, size) for size in tiles.shape]:
        tiles = algebra.crop(tiles, plain[0], plain[1])
    if isinstance(rows, np.ndarray):
        tiles = algebra.take_rows(tiles, rows)
    if isinstance(cols, np.ndarray):
        tiles = algebra.transpose(algebra.take_rows(algebra.transpose(tiles), cols))
    return tiles


def _points(tiles: Tiles, rows: Int64s, cols: Int64s) -> Tiles | NDArray[np.bool_]:
    """Return elements pairwise, or, for ``mask[np.ix_(rows, cols)]``, the outer selection."""
    if rows.shape[1:] == (1,) and cols.ndim == 2 and cols.shape[0] == 1:
        return _take(tiles, rows.ravel(), cols.ravel())
    try:
        rows, cols = np.broadcast_arrays(rows, cols)
    except ValueError:
        raise ShapeError(
            mismatch("index", f"{rows.shape} and {cols.shape}", "arrays that broadcast")
        ) from None
    return algebra.lookup(tiles, rows.ravel(), cols.ravel()).reshape(rows.shape)


def _entry(entry: Any, size: int, axis: str) -> int | slice | range | Int64s:
    """Return one axis of an index: an integer, a range (a slice if its step is 1), positions."""
    if isinstance(entry, slice):
        for part in (entry.start, entry.stop, entry.step):
            if part is not None and not isinstance(part, int | np.integer):
                raise DTypeError(mismatch(f"index of {axis}", entry, "a slice of integers"))
        if entry.step == 0:
            raise ArgumentError(mismatch(f"index of {axis}", entry, "a step that is not 0"))
        span = range(*entry.indices(size))
        if span.step == 1:
            return slice(span.start, max(span.start, span.stop))
        return span
    if isinstance(entry, int | np.integer) and not isinstance(entry, bool):
        return int(_positions(np.array([entry]), size, axis)[0])
    array = as_array(f"index of {axis}", entry)
    if array.dtype == np.bool_ and array.ndim:
        if array.shape != (size,):
            raise ShapeError(mismatch(f"index of {axis}", array.shape, (size,), "one per position"))
        return np.flatnonzero(array)
    if array.ndim == 0 or (array.size and array.dtype.kind not in "iu"):
        got = type(entry).__name__ if array.ndim == 0 else f"dtype {array.dtype}"
        expected = "integers, slices, or arrays of integers or booleans"
        raise DTypeError(mismatch(f"index of {axis}", got, expected))
    return _positions(array, size, axis)


def _positions(index: NDArray[Any], size: int, axis: str) -> Int64s:
    """Return indices counted from the front, or raise OutOfBoundsError."""
    wrong = (index < -size) | (index >= size)
    if wrong.any():
        got = int(index[wrong].flat[0])
        raise OutOfBoundsError(mismatch(f"index of {axis}", got, f"from {-size} to {size - 1}"))
    index = index.astype(np.int64)  # not before: a uint64 might wrap into the range
    return np.where(index < 0, index + size, index)
