"""A mask lowered to a list of keys per query row: what a row-wise kernel reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.masks.convert import to_csr
from stof_cupy.masks.device_schedule import mask_strides
from stof_cupy.masks.tiles import Int32s, Tiles

__all__ = ["LONG", "MOST", "DeviceKeyLists", "KeyLists"]

LONG = 256
"""Keys of a row above which all warps of a CTA share it."""

MOST = 2**31 - 2**12
"""Elements that the lists have no room for: a kernel's index runs a few chunks beyond the last."""


@dataclass(frozen=True, eq=False)
class DeviceKeyLists:
    """The arrays of `KeyLists` as CuPy arrays of one device."""

    row_ptr: Any
    keys: Any
    order: Any
    mask_of: Any

    def mask_strides(self, batch: int, heads: int) -> tuple[int, int]:
        """Return the strides of `mask_of`, see `Schedule.mask_strides`."""
        return mask_strides(self.mask_of.shape, batch, heads)


@dataclass(frozen=True, eq=False)
class KeyLists:
    """Per query row the keys it keeps, ascending: a CSR matrix, or several one after another.

    A kept element takes 4 bytes here, and a tile of the mask 512 as a bitmap: below one element in
    32 this is the smaller form, and a row's keys are found without looking at tiles.

    Attributes
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    row_ptr : int32 array (masks, queries + 1)
        Keys of query row ``i`` of a mask are ``keys[row_ptr[mask, i]:row_ptr[mask, i + 1]]``.
    keys : int32 array (kept,)
    order : int32 array (masks, queries) or None
        Query rows, those of more than `LONG` keys first, longest first, then the others as they
        come, so that neighbours share the keys they load; None if no row is that long.
    long_rows : int
        How many rows of `order` are that long, in the mask that has most of them.
    longest : int
        Keys of the row that keeps most.
    mask_of : int32 array (batch or 1, heads or 1)
        As in `Schedule`.
    """

    shape: tuple[int, int]
    row_ptr: Int32s
    keys: Int32s
    order: Int32s | None
    long_rows: int
    longest: int
    mask_of: Int32s
    _devices: dict[int, DeviceKeyLists] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, masks: Tiles | Sequence[Tiles], mask_of: Any = 0) -> KeyLists:
        """Build the lists of one mask, or of distinct masks with leading axes.

        Raises
        ------
        UnsupportedError
            If they keep 2**31 - 4096 elements or more.

        Examples
        --------
        >>> from stof_cupy import masks
        >>> lists = masks.causal(3).tobsr().key_lists()
        >>> lists.row_ptr, lists.keys, lists.longest
        (array([[0, 1, 3, 6]], dtype=int32), array([0, 0, 1, 0, 1, 2], dtype=int32), 3)
        """
        every = [masks] if isinstance(masks, Tiles) else list(masks)
        total = sum(each.nnz for each in every)
        if total >= MOST:
            raise UnsupportedError(mismatch("masks", f"{total} kept elements", f"below {MOST}"))
        numbers = np.asarray(mask_of, np.int32)
        numbers = numbers.reshape((1,) * (2 - numbers.ndim) + numbers.shape)
        rows = [to_csr(each) for each in every]
        starts = np.cumsum([0, *(each.nnz for each in rows)])[:-1]
        row_ptr = np.stack([each.indptr + at for each, at in zip(rows, starts, strict=True)])
        lengths = np.diff(row_ptr, axis=-1)
        longest = int(lengths.max(initial=0))
        long_rows, order = int((lengths > LONG).sum(axis=-1).max(initial=0)), None
        if long_rows:
            ranked = np.argsort(-np.where(lengths > LONG, lengths, 0), axis=-1, kind="stable")
            order = _settled(ranked)
        keys = _settled(np.concatenate([each.indices for each in rows]))
        shape = every[0].shape
        return cls(shape, _settled(row_ptr), keys, order, long_rows, longest, _settled(numbers))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self.row_ptr, self.keys, self.order, self.mask_of)
        return sum(array.nbytes for array in arrays if array is not None)

    def on_device(self) -> DeviceKeyLists:
        """Return the arrays on CuPy's current device, as `Schedule.on_device`."""
        import cupy

        device = cupy.cuda.Device().id
        with self._lock:
            if device not in self._devices:
                arrays = (self.row_ptr, self.keys, self.order, self.mask_of)
                with cupy.cuda.using_allocator(None):  # see Schedule.on_device
                    self._devices[device] = DeviceKeyLists(
                        *(None if array is None else cupy.asarray(array) for array in arrays)
                    )
                cupy.cuda.get_current_stream().synchronize()
            return self._devices[device]


def _settled(array: Any) -> Int32s:
    settled: Int32s = np.ascontiguousarray(array, np.int32)
    settled.setflags(write=False)
    return settled
