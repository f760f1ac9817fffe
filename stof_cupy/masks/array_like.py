"""What masks share with NumPy's arrays: sums over axes, and being one when asked for."""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, UnsupportedError, mismatch
from stof_cupy.masks.blocksize import ARRAY_BYTES
from stof_cupy.masks.check import as_dtype, check_out

__all__ = ["ArrayLike", "axes_of"]


class ArrayLike:
    """One mask or a stack of masks, as ``numpy.asarray``, ``numpy.sum`` and the like see it.

    Examples
    --------
    >>> import numpy as np
    >>> from stof_cupy import masks
    >>> mask = masks.causal(4).tobsr()
    >>> int(np.sum(mask)), mask.sum(axis=1), mask.sum(axis=0, dtype=np.float32), bool(np.all(mask))
    (10, array([1, 2, 3, 4]), array([4., 3., 2., 1.], dtype=float32), False)
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Sizes of all axes."""

    @abstractmethod
    def toarray(self) -> NDArray[np.bool_]:
        """Return a boolean array of the shape."""

    @abstractmethod
    def _counts(self, axes: tuple[int, ...]) -> Any:
        """Return the number of True elements over `axes`, int64."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        size = prod(self.shape)
        if size > ARRAY_BYTES:
            hint = "toarray() means it, and tocsr() of one mask is the sparse form"
            raise UnsupportedError(mismatch("array", f"{size} bytes", "at most 2**30", hint))
        if copy is False:
            raise ArgumentError(mismatch("copy", False, "True or None", "the elements are packed"))
        return self.toarray().astype(dtype or bool, copy=False)

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Count True elements.

        Parameters
        ----------
        axis : int or tuple of int, optional
            Over which axes; default all. Of one mask, 0 counts per key and 1 per query.
        dtype : dtype, optional
            Of the result, default int64.
        out : array, optional
            Where to write it, in the array's own dtype.

        Raises
        ------
        ArgumentError
            If there is no such axis, one is named twice, or `out` is read-only.
        ShapeError, DTypeError
            If `out` is not of the result's shape, or no array; if there is no such dtype.
        """
        return _delivered(self._counts(axes_of(axis, len(self.shape))), dtype, out)

    def count_nonzero(self, axis: Any = None) -> Any:
        """Count True elements, see `sum`."""
        return self.sum(axis)

    def any(self, axis: Any = None, out: Any = None) -> Any:
        """Whether an element is True: any at all, or any along the axes, see `sum`."""
        return _delivered(self._counts(axes_of(axis, len(self.shape))) > 0, None, out)

    def all(self, axis: Any = None, out: Any = None) -> Any:
        """Whether every element is True: all of them, or all along the axes, see `sum`."""
        axes = axes_of(axis, len(self.shape))
        return _delivered(self._counts(axes) == prod(self.shape[a] for a in axes), None, out)


def axes_of(axis: Any, ndim: int, name: str = "axis") -> tuple[int, ...]:
    """Return axes counted from the front: all for None, else those that `axis` names.

    Raises
    ------
    ArgumentError
        Unless it is None, an axis, or a tuple of some, each once.

    Examples
    --------
    >>> axes_of((-1, 0), 3), axes_of(None, 2)
    ((2, 0), (0, 1))
    """
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    known = all(isinstance(a, int | np.integer) and -ndim <= a < ndim for a in given)
    axes = tuple(int(a) % ndim for a in given) if known else ()
    if not axes or len({*axes}) < len(axes):
        expected = f"None, or axes from {-ndim} to {ndim - 1}, each once"
        raise ArgumentError(mismatch(name, repr(axis), expected))
    return axes


def _delivered(values: Any, dtype: Any, out: Any) -> Any:
    """Return `values` as `dtype`, or `out` with them in it."""
    if dtype is not None:
        values = np.asarray(values).astype(as_dtype(dtype))[()]
    if out is None:
        return values
    check_out(out, np.shape(values))
    out[...] = values
    return out
