"""`BsrMask`: a boolean attention mask of 64x64 tiles, with the manners of scipy.sparse."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, MaskError, UnsupportedError, mismatch
from stof_cupy.masks import convert
from stof_cupy.masks.bitmap import TILE, Words
from stof_cupy.masks.check import check_shape
from stof_cupy.masks.coerce import array_tiles, require_shape, scipy_tiles, to_tiles
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.leaves import Stored
from stof_cupy.masks.schedule import Schedule
from stof_cupy.masks.tile_arrays import TileArrays
from stof_cupy.masks.tiles import FULL, Int32s, Tiles, grid

__all__ = ["BsrMask", "as_mask"]

_ARRAY_BYTES = 2**30  # the most that np.asarray(mask) makes without being asked twice


class BsrMask(TileArrays):
    """Which keys each query may attend to, as block sparse rows of 64x64 tiles.

    The format of STOF (arXiv 2506.06095, section 4.2.1). A tile is empty (not listed), full (listed
    without a bitmap) or part (listed with 64 words of 64 bits); equal bitmaps are stored once. True
    means "may attend". Masks do not change; their arrays are read-only.

    Parameters
    ----------
    arg : array, scipy.sparse matrix, BsrMask, Pattern, or tuple
        A boolean array ``(queries, keys)``; anything `as_mask` takes; or one of the tuples of
        ``scipy.sparse.bsr_array``: ``(M, N)``, ``(data, (row, col))``, ``(data, indices, indptr)``.
    shape : tuple of int, optional
        ``(queries, keys)``: checked against `arg`, needed where a tuple leaves it open.

    Attributes
    ----------
    indptr : int32 array (query tiles + 1,)
        Tiles of query tile ``i`` are ``indptr[i]:indptr[i + 1]``.
    indices : int32 array (tiles,)
        Key tile of each, ascending within a query tile.
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
    <BsrMask (130, 130): density 0.504, 6 of 9 tiles (3 full, 3 part, 2 bitmaps)>
    >>> (mask & ~mask).nnz
    0
    """

    __hash__ = None  # type: ignore[assignment]  # `==` is elementwise
    __array_ufunc__ = None  # `array & mask` must not loop over the elements of the array

    format = "bsr"
    ndim = 2
    dtype = np.dtype(np.bool_)
    blocksize = (TILE, TILE)

    def __init__(self, arg: Any, shape: tuple[int, int] | None = None) -> None:
        if isinstance(arg, tuple):
            from scipy.sparse import bsr_array

            try:
                arg = bsr_array(arg, shape=shape)
            except (OverflowError, TypeError, ValueError) as error:
                forms = "(M, N), (data, (row, col)) or (data, indices, indptr)"
                raise MaskError(mismatch("mask", "a tuple", forms, f"scipy: {error}")) from error
        self._tiles = _tiles(arg, "mask")
        require_shape(self.shape, shape, "mask")

    @classmethod
    def _of(cls, tiles: Tiles) -> BsrMask:
        mask = cls.__new__(cls)
        mask._tiles = tiles
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

    def toarray(self) -> NDArray[np.bool_]:
        """Return the mask as a boolean array ``(queries, keys)``."""
        return convert.to_dense(self._tiles)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        elements = self.shape[0] * self.shape[1]
        if elements > _ARRAY_BYTES:
            hint = "mask.tocsr() is the sparse form, mask.toarray() means it"
            raise UnsupportedError(mismatch("array", f"{elements} bytes", "at most 2**30", hint))
        if copy is False:
            raise ArgumentError(mismatch("copy", False, "True or None", "the elements are packed"))
        return self.toarray().astype(dtype or bool, copy=False)

    def tocsr(self) -> Any:
        """Return the mask as a canonical ``scipy.sparse.csr_array`` of bool."""
        return convert.to_csr(self._tiles)

    def copy(self) -> BsrMask:
        """Return the mask; masks do not change, so nothing is copied."""
        return self

    def check_format(self, full_check: bool = True) -> None:
        """Raise MaskError unless the arrays are what the class says.

        Parameters
        ----------
        full_check : bool
            Accepted for scipy's sake; the check is always full.
        """
        self._tiles.check()

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
        return BsrMask(self._pattern & _operand(other))

    def __or__(self, other: Any) -> BsrMask:
        return BsrMask(self._pattern | _operand(other))

    def __xor__(self, other: Any) -> BsrMask:
        return BsrMask(self._pattern ^ _operand(other))

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> BsrMask:
        return BsrMask(~self._pattern)

    def __eq__(self, other: Any) -> BsrMask:  # type: ignore[override]
        return BsrMask(~(self._pattern ^ _operand(other)))

    def __ne__(self, other: Any) -> BsrMask:  # type: ignore[override]
        return BsrMask(self._pattern ^ _operand(other))

    def __bool__(self) -> bool:
        hint = "`==` compares element by element, as in scipy"
        raise ArgumentError(mismatch("truth value", "a mask", "a.equals(b), or mask.nnz", hint))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the caches: a schedule holds a lock and device arrays."""
        return {"_tiles": self._tiles}

    def schedule(self) -> Schedule:
        """Return the work lists of this mask; built on the first call, kept for the next ones."""
        return self._schedule

    @cached_property
    def _schedule(self) -> Schedule:
        return Schedule.of(self._tiles)

    def __repr__(self) -> str:
        rows, cols = grid(self.shape)
        full = int((self.bitmap_id == FULL).sum())
        tiles = f"{full} full, {self.ntiles - full} part, {len(self.bitmaps)} bitmaps"
        listed = f"{self.ntiles} of {rows * cols} tiles"
        return f"<BsrMask {self.shape}: density {self.density:.3g}, {listed} ({tiles})>"


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
    return obj._tiles if isinstance(obj, BsrMask) else to_tiles(obj, name)


def _operand(obj: Any) -> Pattern:
    """Return an operand of `BsrMask` as an expression, so that only the result is lowered."""
    return obj if isinstance(obj, Pattern) else as_mask(obj, name="operand")._pattern
