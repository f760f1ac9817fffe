"""The methods of ``scipy.sparse.bsr_array`` that make sense for a boolean array that never changes.

Where scipy changes an array in place to make it canonical, nothing is to be done here: masks always
are canonical.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks import algebra, convert, indexing
from stof_cupy.masks.array_like import ArrayLike, axes_of
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.blocksize import Blocks, check_blocksize, to_blocks
from stof_cupy.masks.check import as_dtype, check_out
from stof_cupy.masks.tile_arrays import TileArrays
from stof_cupy.masks.tiles import Int32s, Int64s, Tiles

if TYPE_CHECKING:
    from stof_cupy.masks.bsr import BsrMask

__all__ = ["SparseProtocol"]

_FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")


class SparseProtocol(TileArrays, ArrayLike):
    """What `BsrMask` shares with ``scipy.sparse.bsr_array``; see there for what is not said here.

    Left out are arithmetic (``+ - * / @``, ``dot``, ``power``, and functions such as ``sqrt``);
    ``max``, ``min``, ``argmax``, ``argmin``, ``mean``; what changes an array (``mask[...] =``,
    ``setdiag``, ``resize``); ``reshape``; ``todia``, ``todok``, ``tolil`` (``asformat`` has them).
    ``mask.tocsr()`` has all of it.

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

        Raises
        ------
        ShapeError, DTypeError
            If `out` is of another shape or dtype, or no array.
        ArgumentError
            If `out` is read-only, or `order` no layout.
        """
        known = order is None or (isinstance(order, str) and order in ("C", "F"))
        if not known:
            raise ArgumentError(mismatch("order", repr(order), "'C', 'F' or None"))
        if out is None:
            return np.asarray(convert.to_dense(self._tiles), order=order)
        check_out(out, self.shape, np.bool_)
        out[...] = convert.to_dense(self._tiles)
        return out

    todense = toarray

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
        if format is None or (isinstance(format, str) and format == "bsr"):
            return self
        if not isinstance(format, str) or format not in _FORMATS:
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
        if not isinstance(format, str) or format not in ("csr", "csc", "coo"):
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
        wanted = as_dtype(dtype)
        return self if wanted == np.bool_ else self.tocsr().astype(wanted)

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

        Raises
        ------
        ArgumentError
            If `axes` is something else.
        """
        given = axes.tolist() if isinstance(axes, np.ndarray) else axes
        given = tuple(given) if isinstance(given, list) else given
        if given is not None and axes_of(given, 2, "axes") != (1, 0):
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

    def _counts(self, axes: tuple[int, ...]) -> np.int64 | Int64s:
        if len(axes) == 2:
            total: np.int64 = np.int64(self.nnz)
            return total
        return algebra.row_counts(self._tiles if axes == (1,) else self.T._tiles)

    def diagonal(self, k: int = 0) -> NDArray[np.bool_]:
        """Return the elements ``[i, i + k]``, a boolean array; none if `k` is out of bounds.

        Raises
        ------
        ArgumentError
            If `k` is not an integer.
        """
        if not isinstance(k, int | np.integer):
            raise ArgumentError(mismatch("k", repr(k), "an integer"))
        queries, keys = self.shape
        start = min(max(int(k), -queries), keys)  # a number beyond the mask need not fit an int64
        first = max(-start, 0)
        rows = np.arange(first, max(first, min(queries, keys - start)), dtype=np.int64)
        return algebra.lookup(self._tiles, rows, rows + start)

    def trace(self, offset: int = 0) -> np.int64:
        """Count the True elements of a diagonal, see `diagonal`."""
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
