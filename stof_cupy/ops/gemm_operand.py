"""The matrices of a GEMM as tensor maps see them; what was found out is kept, for the next call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from stof_cupy.jit import tensormap
from stof_cupy.ops._arrays import Array, pointer
from stof_cupy.ops.gemm_stages import HeadsOf

__all__ = ["BLOCK", "DEPTH", "Matrix", "Operand", "axes", "axes_of_heads", "matrix", "operand"]

DEPTH = 64
"""What a step sums over."""

BLOCK = 64
"""Rows and columns of what is stored at a time."""

_BYTES = 2  # of an element


class Matrix(NamedTuple):
    """Where a matrix of 16-bit elements is; strides in bytes."""

    address: int
    rows: int
    cols: int
    row: int
    col: int

    @property
    def row_elements(self) -> int:
        """The stride of rows in elements."""
        return self.row // _BYTES


def matrix(x: Array) -> Matrix:
    """Return where an array of two axes is."""
    return Matrix(pointer(x), *x.shape, *x.strides)


def axes(x: Matrix) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the dims and strides of a matrix's tensor map, or None if there is none.

    Examples
    --------
    >>> axes(Matrix(4096, 100, 64, 128, 2)), axes(Matrix(4096, 100, 60, 120, 2))
    (((64, 100, 1, 1), (128, 128, 128)), None)
    """
    if x.rows == 0 or x.cols == 0 or (x.col != _BYTES and x.cols > 1):
        return None
    step = x.row if x.rows > 1 else 16
    dims, steps = (x.cols, x.rows, 1, 1), (step, step, step)
    return None if tensormap.fault(x.address, "float16", dims, steps) else (dims, steps)


def axes_of_heads(c: Matrix, heads: HeadsOf) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the dims and strides of the tensor map of a result that is heads, or None.

    What is stored at a time has to lie in one head, and in one sequence.
    """
    if heads.head_dim % BLOCK or (heads.batch > 1 and heads.seq % BLOCK):
        return None
    dims = (heads.head_dim, heads.seq, heads.heads, heads.batch)
    real = zip(dims[1:], (heads.step, heads.head_step, heads.batch_step), strict=True)
    steps = tuple(_BYTES * step if size > 1 else 16 for size, step in real)
    return None if tensormap.fault(c.address, "float16", dims, steps) else (dims, steps)


@dataclass(frozen=True)
class Operand:
    """A matrix of rows that are summed over.

    Attributes
    ----------
    address : int
    transposed : bool
        Whether it is contiguous along its rows, else along K.
    dims, strides : tuple of int
        Four sizes, contiguous axis first, and in bytes three strides. Of a folded one the rows of
        the two halves come in turn, 8 of each.
    """

    address: int
    transposed: bool
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    def box(self, rows: int, parts: int = 1) -> tuple[int, ...]:
        """Return what is loaded at a time of `rows` rows, by one of `parts` CTAs."""
        if self.transposed:
            return BLOCK, DEPTH // parts, 1, 1
        if self.dims[2] == 2:
            return DEPTH, 8, 2, rows // (16 * parts)
        return DEPTH, rows // parts, 1, 1


@lru_cache(maxsize=4096)
def operand(x: Matrix, halves: int = 1) -> Operand | None:
    """Return how the kernel loads a matrix ``(rows, K)``, or None if it cannot.

    One axis has to be contiguous, and the other's stride a multiple of 16 bytes.

    Parameters
    ----------
    x : Matrix
    halves : int
        2: the rows are two halves, to be folded.

    Examples
    --------
    >>> operand(Matrix(4096, 64, 100, 2, 128)).transposed
    True
    """
    found = axes(x)
    if found is not None and halves == 1:
        return Operand(x.address, False, *found)
    if found is not None and x.rows % 16 == 0:
        steps = (x.row, x.row * (x.rows // 2), x.row * 8)
        return Operand(x.address, False, (x.cols, 8, 2, x.rows // 16), steps)
    turned = axes(Matrix(x.address, x.cols, x.rows, x.col, x.row))
    if turned is not None and halves == 1:
        return Operand(x.address, True, *turned)
    return None
