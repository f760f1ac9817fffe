"""Sequences that lie anywhere, put one after another on the GPU: one upload and one launch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import DTypeError, ShapeError, mismatch
from stof_cupy.jit.packing_kernel import COPIES, NARROWED, POSITION, SEQUENCE, THREADS, packing
from stof_cupy.ops._arrays import Array
from stof_cupy.ops._upload import uploaded

__all__ = ["Column", "Table", "pack"]

_ALIGNED = 16
"""Bytes that the kernel copies at a time, at most."""

_HEADER = 3
"""Numbers of a column before those of its sequences."""


class Column(NamedTuple):
    """Rows, one a token, and where they go.

    Attributes
    ----------
    rows : ndarray, or sequence of ndarray or None
        Of all sequences ``(tokens, ...)``, or an array ``(length, ...)`` for each, all of one
        width; NumPy's, or CuPy's of the current device. None where a sequence has no tokens.
    out : cupy.ndarray
        ``(1, size, ...)``, contiguous; zeros follow the tokens. One of int32 takes integers of 64
        bits too, and those below 0 or above 2**31 - 1 become -1.
    again : cupy.ndarray, optional
        Takes the same, and is as `out` is.
    """

    rows: Array | Sequence[Array | None]
    out: Array
    again: Array | None = None


def pack(
    lengths: Sequence[int],
    columns: Sequence[Column],
    *,
    positions: Array | None = None,
    numbers: Sequence[Array] = (),
) -> None:
    """Write sequences one after another, on CuPy's current device and stream.

    Parameters
    ----------
    lengths : sequence of int
    columns : sequence of Column
    positions : cupy.ndarray of int32, optional
        Takes where each token stands in its sequence.
    numbers : sequence of cupy.ndarray of int32
        Each takes the number of each token's sequence, and -1 behind the tokens.

    Raises
    ------
    ShapeError, DTypeError
        If rows do not fit the lengths, each other or where they go; nothing has been written then.
    """
    import cupy

    from stof_cupy.jit.launch import kernel

    count = len(columns) + sum(column.again is not None for column in columns)
    table = Table(lengths, count + len(numbers) + (positions is not None))
    for column in columns:
        table.add(column)
    for out in numbers:
        table.add_counted(SEQUENCE, out)
    if positions is not None:
        table.add_counted(POSITION, positions)
    grid, sizes = table.launch()
    numbers_there = uploaded(table.numbers())
    run = kernel(packing(), cupy.cuda.runtime.getDevice())
    run(grid, run.pack(table=numbers_there.data.ptr, **sizes))


class Table:
    """What the kernel reads, made on the host; see cuda/packing.cuh.

    Parameters
    ----------
    lengths : sequence of int
    columns : int
        How many are going to be added.
    """

    def __init__(self, lengths: Sequence[int], columns: int) -> None:
        self._lengths = [*lengths]
        stops = [*accumulate(lengths)]
        self._tokens = stops[-1] if stops else 0
        self._column = _HEADER + 2 * len(lengths)
        words = len(lengths) + columns * self._column
        self._words = np.zeros(words + words % 2, np.int64)
        self._words[: len(lengths)] = stops
        self._at = len(lengths)
        self._nbytes = self._words.nbytes
        self._carried: list[tuple[int, NDArray[Any]]] = []  # of the host; they go up behind it
        self._kept: list[Array] = []  # copies, which are there until the launch
        self._sizes: set[int] = set()
        self._pieces = 1

    def add_counted(self, kind: int, out: Array) -> None:
        """Add an array for which no rows are read."""
        if out.dtype != np.int32:
            raise DTypeError(mismatch("out", out.dtype, "int32"))
        self._add(out, kind, 1)

    def add(self, column: Column) -> None:
        """Add rows.

        Raises
        ------
        ShapeError, DTypeError
            As `pack`.
        """
        rows, out, again = column
        together = hasattr(rows, "dtype")
        every: Any = [rows] if together else rows
        dtypes = {row.dtype for row in every if row is not None}
        widths = {*map(_width_of_integers, dtypes)}
        narrowed = out.dtype == np.int32 and widths == {8}
        same = dtypes <= {out.dtype} or widths == {_width_of_integers(out.dtype)} != {0}
        if not narrowed and not same:
            got = ", ".join(sorted(map(str, dtypes)))
            raise DTypeError(mismatch("rows", got, f"{out.dtype} as what they are put into"))
        place = self._words[self._at + _HEADER : self._at + self._column].reshape(2, -1)
        put = self._place_together if together else self._place_each
        put(rows, tuple(out.shape[2:]), place)
        kind, pieces = NARROWED, 1
        if not narrowed:
            nbytes = prod(out.shape[2:]) * out.itemsize
            bits = int(np.bitwise_or.reduce(place, axis=None)) | out.data.ptr | nbytes | _ALIGNED
            bits |= 0 if again is None else again.data.ptr
            piece = bits & -bits  # by which all of them can be divided
            kind, pieces = COPIES[piece], nbytes // piece
        self._add(out, kind, pieces)
        if again is not None:
            self._words[self._at + _HEADER : self._at + self._column].reshape(2, -1)[:] = place
            self._add(again, kind, pieces)

    def numbers(self) -> NDArray[Any]:
        """Return what goes up, once all columns are there; to an address divisible by 16."""
        if not self._carried:
            return self._words
        whole = np.zeros(self._nbytes, np.uint8)
        for at, array in [(0, self._words), *self._carried]:
            whole[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
        return whole

    def launch(self) -> tuple[tuple[int, int], dict[str, int]]:
        """Return the blocks, and the kernel's parameters beside the address of `numbers`.

        Raises
        ------
        ShapeError
            If the columns are of other sizes, or too short.
        """
        if len(self._sizes) != 1 or min(self._sizes) < self._tokens:
            expected = f"one number of rows, at least {self._tokens}"
            raise ShapeError(mismatch("out", sorted(self._sizes), expected))
        (size,) = self._sizes
        blocks = -(-size * self._pieces // THREADS)
        columns = (self._at - len(self._lengths)) // self._column
        return (blocks, columns), {"size": size, "sequences": len(self._lengths)}

    def _add(self, out: Array, kind: int, pieces: int) -> None:
        self._words[self._at : self._at + _HEADER] = out.data.ptr, kind, pieces
        self._at += self._column
        self._pieces = max(self._pieces, pieces)
        self._sizes.add(out.shape[1] if out.ndim > 1 else len(out))

    def _starts(self) -> NDArray[np.int64]:
        return self._words[: len(self._lengths)] - np.asarray(self._lengths, np.int64)

    def _place_together(self, rows: Array, rest: tuple[int, ...], place: NDArray[Any]) -> None:
        """Write where each sequence is of an array of all."""
        if rows.shape != (self._tokens, *rest):
            raise ShapeError(mismatch("rows", rows.shape, (self._tokens, *rest)))
        if not isinstance(rows, np.ndarray):
            rows = self._with_whole_rows(rows)
            step = rows.strides[0]
            place[0] = rows.data.ptr + self._starts() * step
        elif rows.strides[0] == 0 < self._tokens:  # one row for all goes up once, zeros never
            step = 0
            one = np.ascontiguousarray(rows[:1])
            place[0] = -self._carry(one) if any(one.tobytes()) else 0
        else:
            rows = np.ascontiguousarray(rows)
            step = rows.strides[0]
            place[0] = -(self._carry(rows) + self._starts() * step)
        place[1] = step

    def _place_each(
        self, rows: Sequence[Array | None], rest: tuple[int, ...], place: NDArray[Any]
    ) -> None:
        """Write where each sequence is of arrays of their own."""
        if len(rows) != len(self._lengths):
            expected = f"{len(self._lengths)}, as there are lengths"
            raise ShapeError(mismatch("rows", f"{len(rows)} sequences", expected))
        if not rest and self._place_arrays(rows, place):
            return
        first, step = [], []
        ndim = 1 + len(rest)
        for row, length in zip(rows, self._lengths, strict=True):
            if row is None and not length:
                first.append(0)
                step.append(0)
                continue
            fits = row is not None and len(row) == length and row.ndim == ndim
            if row is None or not fits or (rest and row.shape[1:] != rest):
                got = None if row is None else row.shape
                raise ShapeError(mismatch("rows", got, (length, *rest)))
            if isinstance(row, np.ndarray):
                row = np.ascontiguousarray(row)
                first.append(-self._carry(row))
            else:
                row = self._with_whole_rows(row) if rest else row
                first.append(row.data.ptr)
            step.append(row.strides[0])
        place[0], place[1] = first, step

    def _place_arrays(self, rows: Sequence[Any], place: NDArray[Any]) -> bool:
        """Do the same for 1-D arrays on the GPU, if all are: as a rule, and there are many."""
        if any(issubclass(kind, (np.ndarray, type(None))) for kind in {*map(type, rows)}):
            return False
        if {row.ndim for row in rows} != {1} or [len(row) for row in rows] != self._lengths:
            return False
        place[0] = [row.data.ptr for row in rows]
        place[1] = [row.strides[0] for row in rows]
        return True

    def _carry(self, array: NDArray[Any]) -> int:
        """Take an array of the host along; return its distance from the first number."""
        at = self._nbytes
        self._carried.append((at, array))
        self._nbytes += -(-array.nbytes // _ALIGNED) * _ALIGNED
        return at

    def _with_whole_rows(self, rows: Array) -> Array:
        """Return rows each of which is contiguous, however far from each other."""
        nbytes = rows.itemsize
        for size, stride in zip(rows.shape[:0:-1], rows.strides[:0:-1], strict=True):
            if size != 1 and stride != nbytes:
                import cupy

                rows = cupy.ascontiguousarray(rows)
                self._kept.append(rows)
                break
            nbytes *= size
        return rows


def _width_of_integers(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize if dtype.kind in "iu" else 0
