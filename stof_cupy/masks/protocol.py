"""The methods of ``scipy.sparse.bsr_array`` that make sense for a boolean array that never changes.

Where scipy changes an array in place to make it canonical, nothing is to be done here: masks always
are canonical.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, mismatch
from stof_cupy.masks import algebra, convert, indexing
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.blocksize import ARRAY_BYTES, Blocks, check_blocksize, to_blocks
from stof_cupy.masks.tile_arrays import TileArrays
from stof_cupy.masks.tiles import Int32s, Int64s, Tiles

if TYPE_CHECKING:
    from stof_cupy.masks.bsr import BsrMask

__all__ = ["SparseProtocol"]

_FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")


class SparseProtocol(TileArrays):
    """What `BsrMask` shares with ``scipy.sparse.bsr_array``; see there for what is not said here.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> mask = masks.causal(300).tobsr()
    >>> mask[100:200, :150].shape, mask.T.nnz, mask.sum(axis=1)[:3], bool(mask[7, 8])
    ((100, 150), 45150, array([1, 2, 3]), False)
    """

    format = "bsr"
    ndim = 2
    dtype = np.dtype(np.bool_)
    has_canonical_format = True
    has_sorted_indices = True
    blocksize: tuple[int, int]

    def _like(self, tiles: Tiles) -> BsrMask:
        from stof_cupy.masks.bsr import BsrMask

        return BsrMask._of(tiles, self.blocksize)

    @cached_property
    def _blocks(self) -> Blocks:
        return to_blocks(self._tiles, self.blocksize)

    @property
    def data(self) -> NDArray[np.bool_]:
        """The blocks, bool (blocks, R, C), those at the edge padded; up to 1 GiB."""
        return self._blocks[0]

    @property
    def indices(self) -> Int32s:
        """int32 (blocks,): block column of each, ascending within a row of blocks."""
        return self._tiles.indices if self.blocksize == (TILE, TILE) else self._blocks[1]

    @property
    def indptr(self) -> Int32s:
        """int32 (block rows + 1,): blocks of row ``i`` are ``indptr[i]:indptr[i + 1]``."""
        return self._tiles.indptr if self.blocksize == (TILE, TILE) else self._blocks[2]

    @property
    def size(self) -> int:
        """Number of True elements; scipy's name for what is stored."""
        return self.nnz

    def toarray(self, order: Any = None, out: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        """Return the mask as a boolean array ``(queries, keys)``.

        Parameters
        ----------
        order : {"C", "F"}, optional
            Layout of the result.
        out : bool array (queries, keys), optional
            Where to write it.
        """
        array = convert.to_dense(self._tiles)
        if out is None:
            return np.asarray(array, order=order)
        if out.shape != self.shape:
            raise ShapeError(mismatch("out", out.shape, self.shape))
        if out.dtype != np.bool_:
            raise DTypeError(mismatch("out", f"dtype {out.dtype}", "dtype bool"))
        out[...] = array
        return out

    todense = toarray

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        elements = self.shape[0] * self.shape[1]
        if elements > ARRAY_BYTES:
            hint = "mask.tocsr() is the sparse form, mask.toarray() means it"
            raise UnsupportedError(mismatch("array", f"{elements} bytes", "at most 2**30", hint))
        if copy is False:
            raise ArgumentError(mismatch("copy", False, "True or None", "the elements are packed"))
        return self.toarray().astype(dtype or bool, copy=False)

    def tocsr(self, copy: bool = False) -> Any:
        """Return the mask as a canonical ``scipy.sparse.csr_array`` of bool."""
        return convert.to_csr(self._tiles)

    def tocsc(self, copy: bool = False) -> Any:
        """Return the mask as a canonical ``scipy.sparse.csc_array`` of bool."""
        return self.tocsr().tocsc()

    def tocoo(self, copy: bool = False) -> Any:
        """Return the mask as a canonical ``scipy.sparse.coo_array`` of bool."""
        return self.tocsr().tocoo()

    def tobsr(self, blocksize: tuple[int, int] | None = None, copy: bool = False) -> BsrMask:
        """Return the mask with its ``data``, ``indices`` and ``indptr`` in blocks of `blocksize`.

        ``scipy.sparse.bsr_array((m.data, m.indices, m.indptr), shape=m.shape)`` is scipy's own, if
        the shape is whole blocks.

        Parameters
        ----------
        blocksize : tuple of int, optional
            ``(R, C)``, any sizes; default: as it is.
        copy : bool
            Accepted for scipy's sake; masks share their tiles.

        Examples
        --------
        >>> from stof_cupy import masks
        >>> mask = masks.causal(6).tobsr().tobsr(blocksize=(2, 3))
        >>> mask.indptr, mask.indices, mask.data.shape
        (array([0, 1, 3, 5], dtype=int32), array([0, 0, 1, 0, 1], dtype=int32), (5, 2, 3))
        """
        from stof_cupy.masks.bsr import BsrMask

        size = self.blocksize if blocksize is None else check_blocksize(blocksize)
        return BsrMask._of(self._tiles, size)

    def asformat(self, format: str | None, copy: bool = False) -> Any:
        """Return the mask in a format of scipy by name; ``"bsr"`` and None are the mask itself.

        Raises
        ------
        ArgumentError
            If scipy has no such format.
        """
        if format in (None, "bsr"):
            return self
        if format not in _FORMATS:
            raise ArgumentError(mismatch("format", repr(format), f"one of {', '.join(_FORMATS)}"))
        return self.tocsr().asformat(format)

    def tocupyx(self, format: str = "csr") -> Any:
        """Return the mask as a ``cupyx.scipy.sparse`` matrix of bool on the current device.

        Parameters
        ----------
        format : {"csr", "csc", "coo"}
            Those of its formats that hold booleans.

        Raises
        ------
        ArgumentError
            If `format` is none of them.
        """
        if format not in ("csr", "csc", "coo"):
            raise ArgumentError(mismatch("format", repr(format), "'csr', 'csc' or 'coo'"))
        import cupy
        from cupyx.scipy import sparse

        host = self.asformat(format)
        if format == "coo":
            arrays = (cupy.asarray(host.data), (cupy.asarray(host.row), cupy.asarray(host.col)))
        else:
            arrays = tuple(map(cupy.asarray, (host.data, host.indices, host.indptr)))
        return getattr(sparse, f"{format}_matrix")(arrays, shape=self.shape)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Return the mask itself for bool, else a ``csr_array`` of `dtype` with ones."""
        return self if np.dtype(dtype) == np.bool_ else self.tocsr().astype(dtype)

    def copy(self) -> Any:
        """Return the mask; masks do not change, so nothing is copied."""
        return self

    def transpose(self, axes: Any = None, copy: bool = False) -> BsrMask:
        """Swap queries and keys.

        Parameters
        ----------
        axes : None or (1, 0)
            As in scipy.
        copy : bool
            Accepted for scipy's sake.
        """
        if axes not in (None, (1, 0)):
            raise ArgumentError(mismatch("axes", axes, "None or (1, 0)"))
        from stof_cupy.masks.bsr import BsrMask

        return BsrMask._of(algebra.transpose(self._tiles), self.blocksize[::-1])

    @property
    def T(self) -> BsrMask:  # noqa: N802 - scipy's name
        """The mask with queries and keys swapped."""
        return self.transpose()

    def __getitem__(self, key: Any) -> Any:
        found = indexing.select(self._tiles, key)
        return self._like(found) if isinstance(found, Tiles) else found

    def sum(self, axis: int | None = None) -> np.int64 | Int64s:
        """Count True elements: all, or per key (``axis=0``), or per query (``axis=1``), int64."""
        axis = indexing.axis_of(axis)
        if axis is None:
            total: np.int64 = np.int64(self.nnz)
            return total
        counts: Int64s = algebra.row_counts(self._tiles if axis else self.T._tiles)
        return counts

    count_nonzero = sum

    def any(self, axis: int | None = None) -> np.bool_ | NDArray[np.bool_]:
        """Whether an element is True: any at all, per key (``axis=0``) or per query (1)."""
        found: np.bool_ | NDArray[np.bool_] = self.sum(axis) > 0
        return found

    def all(self, axis: int | None = None) -> np.bool_ | NDArray[np.bool_]:
        """Whether every element is True: all of them, per key (``axis=0``) or per query (1)."""
        axis = indexing.axis_of(axis)
        queries, keys = self.shape
        expected = queries * keys if axis is None else (queries, keys)[axis]
        found: np.bool_ | NDArray[np.bool_] = self.sum(axis) == expected
        return found

    def diagonal(self, k: int = 0) -> NDArray[np.bool_]:
        """Return the elements ``[i, i + k]``, a boolean array; none if `k` is out of bounds."""
        first = max(-k, 0)
        rows = np.arange(first, max(first, min(self.shape[0], self.shape[1] - k)), dtype=np.int64)
        return algebra.lookup(self._tiles, rows, rows + k)

    def trace(self, offset: int = 0) -> np.int64:
        """Count the True elements of a diagonal."""
        total: np.int64 = np.int64(np.count_nonzero(self.diagonal(offset)))
        return total

    def nonzero(self) -> tuple[Int32s | Int64s, Int32s | Int64s]:
        """Return the queries and keys of the True elements, row by row."""
        coo = self.tocoo()
        return coo.row, coo.col

    def sort_indices(self) -> None:
        """Do nothing: indices always are sorted."""

    def sum_duplicates(self) -> None:
        """Do nothing: no tile is listed twice."""

    def eliminate_zeros(self) -> None:
        """Do nothing: no listed tile is empty."""

    def prune(self) -> None:
        """Do nothing: no array has room to spare."""

    def check_format(self, full_check: bool = True) -> None:
        """Raise MaskError unless the arrays are what the class says.

        Parameters
        ----------
        full_check : bool
            Accepted for scipy's sake; the check is always full.
        """
        self._tiles.check()
