"""Masks with leading axes: one per batch, per head or both, equal ones stored once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import (
    ArgumentError,
    DTypeError,
    OutOfBoundsError,
    ShapeError,
    mismatch,
)
from stof_cupy.masks.array_like import ArrayLike
from stof_cupy.masks.bsr import BsrMask, as_mask, leads
from stof_cupy.masks.check import as_array
from stof_cupy.masks.device import on_cuda
from stof_cupy.masks.distinct import distinct, split
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.indexing import expand
from stof_cupy.masks.scheduled import Scheduled
from stof_cupy.masks.tiles import Int32s, Tiles

if TYPE_CHECKING:
    from stof_cupy.masks.device.mask import DeviceMask

__all__ = ["MaskStack"]


class MaskStack(ArrayLike, Scheduled):
    """An array of masks, indexed like a NumPy array ``(*lead, queries, keys)``; made by `stack`.

    Leading axes are those of attention, ``(batch, heads)``, and broadcast: ``(batch, 1)`` is a mask
    per batch, ``(1, heads)`` or ``(heads,)`` one per head. Equal masks are one `BsrMask`, and all
    have the ``blocksize`` of the first. Stacks do not change.

    Parameters
    ----------
    masks : sequence of BsrMask
        Of one shape.
    mask_of : integer array (*lead)
        Which of them each place has.

    Attributes
    ----------
    masks : tuple of BsrMask
        The distinct ones, in order of first use.
    mask_of : int32 array (*lead)
        Which of them each place has; read-only.

    Raises
    ------
    ArgumentError
        If `mask_of` has no leading axis or no place, or names no mask.
    ShapeError, DTypeError
        If the masks differ in shape, or one is no `BsrMask`.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> heads = [masks.causal(100), masks.sliding_window(100, window=8), masks.causal(100)]
    >>> stacked = masks.stack(heads)
    >>> stacked
    <MaskStack (3, 100, 100): density 0.391, 2 distinct masks>
    >>> stacked.mask_of, stacked[1].nnz, (stacked & ~stacked).nnz
    (array([0, 1, 0], dtype=int32), 1628, 0)
    """

    __hash__ = None  # type: ignore[assignment]  # `==` is elementwise
    __array_ufunc__ = None  # `array & stack` must not loop over the elements of the array

    dtype = np.dtype(np.bool_)

    def __init__(self, masks: Sequence[BsrMask], mask_of: Any) -> None:
        numbers = as_array("mask_of", mask_of)
        for mask in masks:
            if not isinstance(mask, BsrMask):
                got = "a Pattern" if isinstance(mask, Pattern) else type(mask).__name__
                hint = "masks.stack takes patterns and arrays"
                raise DTypeError(mismatch("masks", got, "BsrMasks", hint))
        if not numbers.ndim:
            raise ArgumentError(mismatch("mask_of", numbers, "one leading axis at least"))
        if not numbers.size:
            raise ArgumentError(mismatch("masks", f"leading axes {numbers.shape}", "some mask"))
        if numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= len(masks):
            raise ArgumentError(
                mismatch("mask_of", numbers, f"integers from 0 to {len(masks) - 1}")
            )
        for mask in masks:
            if mask.shape != masks[0].shape:
                raise ShapeError(mismatch("masks", mask.shape, masks[0].shape, "all of one shape"))
        self.masks, self.mask_of = distinct(masks, numbers)

    @classmethod
    def from_dense(cls, array: NDArray[np.bool_]) -> MaskStack:
        """Build a stack from a boolean array ``(*lead, queries, keys)``.

        Raises
        ------
        MaskError, ShapeError
            If `array` is not boolean, or has no leading axis.
        """
        plain = array if isinstance(array, np.ndarray) else as_array("array", array)
        return cls(*split(plain, "array"))

    @property
    def lead(self) -> tuple[int, ...]:
        """Sizes of the leading axes."""
        return self.mask_of.shape

    @property
    def shape(self) -> tuple[int, ...]:
        """``(*lead, queries, keys)``."""
        return (*self.lead, *self.masks[0].shape)

    @property
    def ndim(self) -> int:
        """Number of axes, queries and keys included."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """Number of True elements over all leading axes."""
        counts = np.bincount(self.mask_of.ravel(), minlength=len(self.masks))
        return sum(int(n) * mask.nnz for n, mask in zip(counts, self.masks, strict=True))

    @property
    def density(self) -> float:
        """True elements over all elements; 0 for masks without elements."""
        return self.nnz / max(self.mask_of.size * self.shape[-2] * self.shape[-1], 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        return self.mask_of.nbytes + sum(mask.nbytes for mask in self.masks)

    def to(self, device: str) -> MaskStack | DeviceMask:
        """Return the masks on a device: themselves for ``"cpu"``, a copy for ``"cuda"``.

        Raises
        ------
        ArgumentError, DeviceError
            If there is no such device, or no GPU.
        """
        from stof_cupy.masks.device.built import UploadedMask

        return UploadedMask(self) if on_cuda(device) else self

    def toarray(self) -> NDArray[np.bool_]:
        """Return the masks as a boolean array ``(*lead, queries, keys)``."""
        distinct = np.stack([mask.toarray() for mask in self.masks])
        array: NDArray[np.bool_] = distinct[self.mask_of]
        return array

    def __len__(self) -> int:
        return self.lead[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """Index leading axes as NumPy does, and queries and keys with slices.

        Returns
        -------
        BsrMask, MaskStack, or what indexing a BsrMask gives
            A mask where every leading axis is taken by an integer.
        """
        new = sum(entry is None for entry in (key if isinstance(key, tuple) else (key,)))
        entries = expand(key, self.ndim + new)
        inner = entries[len(entries) - 2 :]
        try:
            numbers = self.mask_of[entries[:-2]]
        except (IndexError, ValueError) as error:
            expected = f"an index of leading axes {self.lead}"
            raise OutOfBoundsError(mismatch("index", key, expected, str(error))) from None
        if np.ndim(numbers) == 0:
            mask = self.masks[int(numbers)]
            return mask if inner == (slice(None), slice(None)) else mask[inner]
        if not all(isinstance(entry, slice) for entry in inner):
            hint = "index the leading axes down to one mask first"
            raise ArgumentError(mismatch("index of queries and keys", inner, "slices", hint))
        return self._map(lambda mask: mask[inner], numbers)

    def reshape(self, *lead: Any) -> MaskStack:
        """Return the masks with other leading axes, as NumPy's ``reshape`` of `mask_of`.

        Parameters
        ----------
        *lead : int, or a tuple of int
            Sizes; -1 is what is left for one.

        Raises
        ------
        ShapeError
            If they are not as many masks.
        """
        sizes = lead[0] if len(lead) == 1 else lead
        try:
            numbers = self.mask_of.reshape(sizes)
        except (TypeError, ValueError, OverflowError):
            raise ShapeError(mismatch("lead", sizes, f"{self.mask_of.size} masks")) from None
        return MaskStack(self.masks, numbers)

    def transpose(self) -> MaskStack:
        """Swap queries and keys; leading axes stay where they are."""
        return self._map(lambda mask: mask.T, self.mask_of)

    @property
    def T(self) -> MaskStack:  # noqa: N802 - NumPy's name
        """The masks with queries and keys swapped."""
        return self.transpose()

    def copy(self) -> MaskStack:
        """Return the stack; stacks do not change, so nothing is copied."""
        return self

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Raise ShapeError: a picture is of one mask, ``stack[batch, head].plot()``."""
        return as_mask(self).plot(ax, **options)

    def _counts(self, axes: tuple[int, ...]) -> Any:
        inner = tuple(axis - len(self.lead) for axis in axes if axis >= len(self.lead))
        if not inner:  # elements remain, as many as a dense mask has
            return np.asarray(self).sum(axis=axes)
        counts = np.stack([mask._counts(inner) for mask in self.masks])
        return counts[self.mask_of].sum(axis=tuple(a for a in axes if a < len(self.lead)))

    def _map(self, change: Callable[[BsrMask], BsrMask], numbers: Int32s) -> MaskStack:
        """Change each distinct mask that `numbers` names, once."""
        used, places = np.unique(numbers, return_inverse=True)
        return MaskStack([change(self.masks[i]) for i in used], places.reshape(numbers.shape))

    def equals(self, other: Any) -> bool:
        """Whether `other`, a stack or boolean array, has the same shape and the same elements."""
        stacked = other if isinstance(other, MaskStack) else MaskStack.from_dense(other)
        return self.shape == stacked.shape and all(
            self.masks[i].equals(stacked.masks[j])
            for i, j in {*zip(self.mask_of.flat, stacked.mask_of.flat, strict=True)}
        )

    def _combine(self, other: Any, operation: Callable[[Any, Any], Any]) -> Any:
        """Apply an operator of two masks once to each pair that meets; leading axes broadcast."""
        if not isinstance(other, MaskStack):
            if leads(other):
                return NotImplemented  # what is on a GPU makes a pattern of both
            if isinstance(other, np.ndarray) and other.ndim > 2:
                other = MaskStack(*split(other, "operand"))
            else:
                one = other if isinstance(other, Pattern) else as_mask(other, name="operand")
                return self._map(lambda mask: operation(mask, one), self.mask_of)
        try:
            left, right = np.broadcast_arrays(self.mask_of, other.mask_of)
        except ValueError:
            hint = "leading axes broadcast"
            raise ShapeError(mismatch("operand", other.shape, self.shape, hint)) from None
        pairs, places = np.unique(
            np.stack([left.ravel(), right.ravel()]), axis=1, return_inverse=True
        )
        made = [operation(self.masks[i], other.masks[j]) for i, j in pairs.T]
        return MaskStack(made, places.reshape(left.shape))

    def __and__(self, other: Any) -> Any:
        return self._combine(other, operator.and_)

    def __or__(self, other: Any) -> Any:
        return self._combine(other, operator.or_)

    def __xor__(self, other: Any) -> Any:
        return self._combine(other, operator.xor)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> MaskStack:
        return self._map(lambda mask: ~mask, self.mask_of)

    def __eq__(self, other: Any) -> Any:
        differing = self._combine(other, operator.xor)
        return differing if differing is NotImplemented else ~differing

    def __ne__(self, other: Any) -> Any:
        return self._combine(other, operator.xor)

    def __bool__(self) -> bool:
        hint = "`==` compares element by element"
        raise ArgumentError(mismatch("truth value", "masks", "a.equals(b), or masks.nnz", hint))

    def _scheduled(self) -> tuple[list[Tiles], Int32s]:
        return [mask._tiles for mask in self.masks], self.mask_of

    def __repr__(self) -> str:
        count = f"{len(self.masks)} distinct mask{'s' * (len(self.masks) > 1)}"
        return f"<MaskStack {self.shape}: density {self.density:.3g}, {count}>"
