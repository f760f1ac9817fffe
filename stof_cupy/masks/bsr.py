"""`BsrMask`: a boolean attention mask of 64x64 tiles, with the manners of scipy.sparse."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.masks.bitmap import TILE, Words
from stof_cupy.masks.blocksize import check_blocksize
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.coerce import array_tiles, require_shape, scipy_tiles, to_tiles
from stof_cupy.masks.construct import construct
from stof_cupy.masks.device import on_cuda
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Stored
from stof_cupy.masks.lower import lower
from stof_cupy.masks.protocol import SparseProtocol
from stof_cupy.masks.scheduled import Scheduled
from stof_cupy.masks.tiles import FULL, Int32s, Tiles, grid

if TYPE_CHECKING:
    from stof_cupy.masks.device.mask import DeviceMask

__all__ = ["BsrMask", "as_mask", "leads"]


class BsrMask(SparseProtocol, Scheduled):
    """Which keys each query may attend to, as block sparse rows of 64x64 tiles.

    The format of STOF (arXiv 2506.06095, section 4.2.1). A tile is empty (not listed), full (listed
    without a bitmap) or part (listed with 64 words of 64 bits); equal bitmaps are stored once. True
    means "may attend". Masks do not change; their arrays are read-only.

    Parameters
    ----------
    arg : array, sparse matrix, BsrMask, Pattern, or tuple
        A boolean array ``(queries, keys)``; anything `as_mask` takes; or one of the tuples of
        ``scipy.sparse.bsr_array``: ``(M, N)``, ``(data, (row, col))``, ``(data, indices, indptr)``.
    shape : tuple of int, optional
        ``(queries, keys)``: checked against `arg`, needed where a tuple leaves it open.
    dtype : bool, optional
        If named, a dense array of another type is taken too: what is not 0 is True.
    copy : bool
        Accepted for scipy's sake; nothing is shared with the caller's arrays.
    blocksize : tuple of int, optional
        ``(R, C)`` of `data`, `indices` and `indptr`, any sizes; the shape need not be whole blocks.
        Default: that of `arg` if it has blocks, else 64x64. Kernels see 64x64 tiles either way.

    Attributes
    ----------
    indptr : int32 array (block rows + 1,)
        Blocks of row ``i`` are ``indptr[i]:indptr[i + 1]``.
    indices : int32 array (blocks,)
        Block column of each, ascending within a row.
    data : bool array (blocks, R, C)
        Made when asked for.
    load_row_ptr, load_col_idx : int32 arrays (query tiles + 1,), (tiles,)
        The same as `indptr` and `indices` for the 64x64 tiles.
    bitmap_id : int32 array (tiles,)
        -1 for a full tile, else a row of `bitmaps`.
    bitmaps : uint64 array (distinct, 64)
        Word ``j * 8 + i`` is the 8x8 inner tile at row block ``i``, column block ``j``; its element
        ``(r, c)`` is bit ``r * 8 + c``.

    Raises
    ------
    MaskError
        If an array is not boolean, a tuple none of these, or an index beyond the shape.
    ShapeError
        If it is not 2-D, or not of `shape`.
    DTypeError
        If `arg` is none of the above, or a masked array.

    Examples
    --------
    >>> mask = BsrMask(np.tri(130, dtype=bool))
    >>> mask
    <BsrMask (130, 130): density 0.504; tiles: 3 full, 3 part, 3 empty; 2 bitmaps, 1,088 bytes>
    >>> (mask & ~mask).nnz
    0
    """

    __hash__ = None  # type: ignore[assignment]  # `==` is elementwise
    __array_ufunc__ = None  # `array & mask` must not loop over the elements of the array

    def __init__(
        self,
        arg: Any,
        shape: tuple[int, int] | None = None,
        dtype: Any = None,
        copy: bool = False,
        blocksize: tuple[int, int] | None = None,
    ) -> None:
        if dtype is not None and np.dtype(dtype) != np.bool_:
            raise ArgumentError(mismatch("dtype", dtype, "bool", "a mask has no other"))
        if blocksize is not None:
            blocksize = check_blocksize(blocksize)
        self._tiles, self.blocksize = construct(arg, shape, dtype is not None, "mask")
        self.blocksize = blocksize or self.blocksize
        require_shape(self.shape, shape, "mask")

    @classmethod
    def _of(cls, tiles: Tiles, blocksize: tuple[int, int] = (TILE, TILE)) -> BsrMask:
        mask = cls.__new__(cls)
        mask._tiles, mask.blocksize = tiles, blocksize
        return mask

    @classmethod
    def from_dense(cls, array: NDArray[np.bool_]) -> BsrMask:
        """Build a mask from a boolean array ``(queries, keys)``.

        Raises
        ------
        MaskError, ShapeError
            If `array` is not boolean, or not 2-D.
        """
        return cls._of(array_tiles(np.asanyarray(array), "array"))

    @classmethod
    def from_scipy(cls, matrix: Any) -> BsrMask:
        """Build a mask from a scipy.sparse matrix or array of any format.

        What is not zero once duplicates are summed, as scipy does, is True.

        Examples
        --------
        >>> import scipy.sparse as sp
        >>> BsrMask.from_scipy(sp.csr_array([[0, 2, 1], [0, 0, 3]])).nnz
        3
        """
        return cls._of(scipy_tiles(matrix, "matrix"))

    @classmethod
    def from_tiles(
        cls,
        shape: tuple[int, int],
        indptr: Int32s,
        indices: Int32s,
        bitmap_id: Int32s,
        bitmaps: Words,
    ) -> BsrMask:
        """Build a mask from its own arrays, checked and copied.

        Raises
        ------
        MaskError
            If an invariant of the format does not hold.
        """
        tiles = Tiles(
            check_shape(shape),
            indptr=np.array(indptr),
            indices=np.array(indices),
            bitmap_id=np.array(bitmap_id),
            bitmaps=np.array(bitmaps),
        )
        tiles.check()
        return cls._of(tiles)

    def equals(self, other: Any) -> bool:
        """Whether `other`, anything `as_mask` takes, has the same shape and the same elements.

        Examples
        --------
        >>> mask = BsrMask(np.eye(70, dtype=bool))
        >>> mask.equals(np.eye(70, dtype=bool)), mask.equals(np.eye(71, dtype=bool))
        (True, False)
        """
        a, b = self._tiles, as_mask(other, name="other")._tiles
        return a.shape == b.shape and all(  # canonical: equal masks have equal arrays
            np.array_equal(getattr(a, name), getattr(b, name))
            for name in ("indptr", "indices", "bitmap_id", "bitmaps")
        )

    @cached_property
    def _pattern(self) -> Pattern:
        return Stored(self._tiles)

    def __and__(self, other: Any) -> BsrMask:
        return NotImplemented if leads(other) else self._lower(self._pattern & _operand(other))

    def __or__(self, other: Any) -> BsrMask:
        return NotImplemented if leads(other) else self._lower(self._pattern | _operand(other))

    def __xor__(self, other: Any) -> BsrMask:
        return NotImplemented if leads(other) else self._lower(self._pattern ^ _operand(other))

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__
    multiply, minimum, maximum = __and__, __and__, __or__

    def __invert__(self) -> BsrMask:
        return self._lower(~self._pattern)

    def __eq__(self, other: Any) -> BsrMask:  # type: ignore[override]
        return NotImplemented if leads(other) else ~(self ^ other)

    def __ne__(self, other: Any) -> BsrMask:  # type: ignore[override]
        return NotImplemented if leads(other) else self ^ other

    def _lower(self, pattern: Pattern) -> BsrMask:
        return self._like(lower(pattern))

    def __bool__(self) -> bool:
        hint = "`==` compares element by element, as in scipy"
        raise ArgumentError(mismatch("truth value", "a mask", "a.equals(b), or mask.nnz", hint))

    def _scheduled(self) -> tuple[Tiles, int]:
        return self._tiles, 0

    def to(self, device: str) -> BsrMask | DeviceMask:
        """Return the mask on a device: itself for ``"cpu"``, a copy for ``"cuda"``.

        Raises
        ------
        ArgumentError, DeviceError
            If there is no such device, or no GPU.
        """
        from stof_cupy.masks.device.built import UploadedMask

        return UploadedMask(self) if on_cuda(device) else self

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the tiles, or the elements of a region: `stof_cupy.masks.plot`."""
        from stof_cupy.masks.drawing import plot

        return plot(self, ax, **options)

    def __repr__(self) -> str:
        rows, cols = grid(self.shape)
        full = int((self.bitmap_id == FULL).sum())
        tiles = f"{full} full, {self.ntiles - full} part, {rows * cols - self.ntiles} empty"
        stored = f"{len(self.bitmaps)} bitmaps, {self.nbytes:,} bytes"
        return f"<BsrMask {self.shape}: density {self.density:.3g}; tiles: {tiles}; {stored}>"


def as_mask(obj: Any, shape: tuple[int, int] | None = None, name: str = "mask") -> BsrMask:
    """Return `obj` as a `BsrMask`.

    Parameters
    ----------
    obj : BsrMask, Pattern, bool array (queries, keys), or scipy.sparse matrix
        A BsrMask is returned as it is; a pattern is lowered once and keeps its tiles.
    shape : tuple of int, optional
        The ``(queries, keys)`` it must have.
    name : str
        What errors call it.

    Raises
    ------
    MaskError, ShapeError, DTypeError
        If it is not boolean; not 2-D or not of `shape`; or nothing that can be a mask.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> as_mask(masks.causal(128), (128, 128)).nnz
    8256
    """
    if isinstance(obj, Pattern):
        mask = obj.tobsr()
    else:
        mask = obj if isinstance(obj, BsrMask) else BsrMask._of(_tiles(obj, name))
    require_shape(mask.shape, shape, name)
    return mask


def _tiles(obj: Any, name: str) -> Tiles:
    if leads(obj) and not isinstance(obj, Pattern):
        got = f"{type(obj).__name__} {obj.shape}"
        hint = "stack[batch, head] is one, and so is what .to('cpu') brings from a GPU"
        raise ShapeError(mismatch(name, got, "one mask (queries, keys) on the CPU", hint))
    return obj._tiles if isinstance(obj, BsrMask) else to_tiles(obj, name)


def leads(obj: Any) -> bool:
    """Whether the operators of `obj` serve: a stack of masks, or what is on a GPU."""
    from stof_cupy.masks.device.mask import DeviceMask
    from stof_cupy.masks.mask_stack import MaskStack

    on_gpu = isinstance(obj, DeviceMask) or (isinstance(obj, Pattern) and obj.needs_cuda)
    return on_gpu or isinstance(obj, MaskStack)


def as_leaf(obj: Any) -> Pattern:
    """Return a BsrMask, MaskStack or DeviceMask as an operand of a pattern."""
    from stof_cupy.masks.device.leaf import Stacked, StoredOnDevice
    from stof_cupy.masks.mask_stack import MaskStack

    if isinstance(obj, BsrMask):
        return obj._pattern
    return Stacked(obj) if isinstance(obj, MaskStack) else StoredOnDevice(obj)


def _operand(obj: Any) -> Pattern:
    """Return an operand of `BsrMask` as an expression, so that only the result is lowered."""
    return obj if isinstance(obj, Pattern) else as_mask(obj, name="operand")._pattern
