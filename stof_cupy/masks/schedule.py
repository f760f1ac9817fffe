"""A mask lowered to the work lists of a kernel."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device_schedule import DeviceSchedule, mask_strides
from stof_cupy.masks.layout import accumulator_words, check_tile, unneeded_halves
from stof_cupy.masks.retile import retile
from stof_cupy.masks.tiles import Int32s, Int64s, Tiles
from stof_cupy.masks.worklists import WorkLists, joined, listed

__all__ = ["Layout", "Schedule", "ScheduleStats"]

Layout = Literal["words", "accumulator"]
"""Bit order of a schedule's bitmaps, see `Schedule`."""


@dataclass(frozen=True)
class ScheduleStats:
    """What a schedule makes a kernel do, summed over the masks of all leading axes.

    Attributes
    ----------
    kept : int
        True elements, those that count.
    visited : int
        Tiles listed, each of them the schedule's tile of work.
    part : int
        Tiles among them that need a bitmap.
    waste : float
        Share of the visited elements that are not kept, 0 to 1.
    longest : int
        Tiles of the query tile that lists most.
    """

    kept: int
    visited: int
    part: int
    waste: float
    longest: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """Per query tile the key tiles to visit, those with a bitmap first, then full ones, ascending.

    A kernel walks the tiles of a row in one loop and branches at each on whether it has a bitmap;
    with part tiles first, that branch changes its way once in a row at most. A row that keeps a key
    lists at least one tile; one that keeps none is an empty row (output 0, LSE -inf) and may list
    tiles for its neighbours' sake.

    Of a mask with leading axes, the lists of all distinct masks stand one after the other:
    `row_ptr`, `full_ptr` and `order` have a leading axis, the mask's number, and `mask_of` says
    which mask a batch and head takes.

    Attributes
    ----------
    shape : tuple of int
        ``(queries, keys)`` in elements.
    tile : tuple of int
        Rows ``m`` and columns ``n`` of a tile.
    layout : {"words", "accumulator"}
        Order of the bits in `bitmaps`.
    row_ptr : int32 array ([masks,] query tiles + 1)
        Tiles of query tile ``i`` are ``row_ptr[i]:row_ptr[i + 1]``.
    full_ptr : int32 array ([masks,] query tiles)
        Where the full tiles of each query tile begin.
    cols : int32 array (tiles,)
        Key tiles; of a packed schedule, before `full_ptr`, rows of `groups` instead.
    bitmap_id : int32 array (tiles,)
        -1 for a tile kept whole, else a row of `bitmaps`. A full tile at the edge still needs the
        kernel's bounds check.
    bitmaps : array (distinct, ...)
        Distinct bitmaps. ``"words"``: uint64 ``(distinct, m * n / 64)``, the inner 8x8 tile at row
        block ``i``, column block ``j`` is word ``j * m / 8 + i``, bits as in
        `stof_cupy.masks.bitmap`. ``"accumulator"``: uint32 ``(distinct, m / 16, 32, words)``, see
        `stof_cupy.masks.layout`.
    order : int32 array ([masks,] query tiles)
        Query tiles, most listed tiles first, so that the longest do not start last.
    mask_of : int32 array (batch or 1, heads or 1)
        Number of the mask of each batch and head; see `mask_strides`.
    groups : int32 array (packed tiles, n / 8) or None
        Of a packed schedule: which groups of 8 keys, ascending, stand side by side in a tile; -1
        where it has no more.
    stats : ScheduleStats
        Kept elements, visited and part tiles, waste, longest row.
    """

    shape: tuple[int, int]
    tile: tuple[int, int]
    layout: Layout
    row_ptr: Int32s
    full_ptr: Int32s
    cols: Int32s
    bitmap_id: Int32s
    bitmaps: NDArray[Any]
    order: Int32s
    mask_of: Int32s
    groups: Int32s | None
    stats: ScheduleStats
    _devices: dict[int, DeviceSchedule] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(
        cls,
        masks: Tiles | Sequence[Tiles],
        mask_of: Any = 0,
        *,
        tile: tuple[int, int] = (TILE, TILE),
        layout: Layout = "words",
        packed: bool = False,
    ) -> Schedule:
        """Build the schedule of one mask, or of distinct masks with leading axes.

        Parameters
        ----------
        masks : Tiles or sequence of Tiles
            Of one shape.
        mask_of : integer array (heads or 1,) or (batch or 1, heads or 1)
            Which of them each batch and head takes.
        tile, layout, packed
            See `Scheduled.schedule`.

        Raises
        ------
        ArgumentError
            If there is no such tile or layout.
        ShapeError
            If there are more than two leading axes.
        UnsupportedError
            If the masks list 2**31 tiles or more.
        """
        tile = check_tile(tile)
        if layout not in ("words", "accumulator"):
            raise ArgumentError(mismatch("layout", repr(layout), "'words' or 'accumulator'"))
        numbers = np.asarray(mask_of, np.int32)
        if numbers.ndim > 2:
            hint = "leading axes are (batch, heads)"
            raise ShapeError(mismatch("mask", f"{numbers.ndim} leading axes", "at most 2", hint))
        numbers = numbers.reshape((1,) * (2 - numbers.ndim) + numbers.shape)
        every = [masks] if isinstance(masks, Tiles) else list(masks)
        lists = [listed(retile(each, tile), packed=packed) for each in every]
        work = lists[0] if isinstance(masks, Tiles) else joined(lists)
        bitmaps: NDArray[Any] = (
            accumulator_words(work.bitmaps)
            if layout == "accumulator"
            else work.bitmaps.reshape(len(work.bitmaps), tile[0] * tile[1] // TILE)
        )
        order = np.argsort(-work.lengths, axis=-1, kind="stable")
        return cls(
            shape=every[0].shape,
            tile=tile,
            layout=layout,
            row_ptr=_settled(work.row_ptr),
            full_ptr=_settled(work.full_ptr),
            cols=_settled(work.cols),
            bitmap_id=_settled(work.bitmap_id),
            bitmaps=_settled(bitmaps),
            order=_settled(order),
            mask_of=_settled(numbers),
            groups=None if work.groups is None else _settled(work.groups),
            stats=_stats(tile, [each.nnz for each in every], lists, numbers),
        )

    @cached_property
    def work(self) -> Int32s:
        """In `order`, all that is to know of a row, int32 ``([masks,] query tiles, 4)``.

        Query tile, and where its list begins, its full tiles begin and both end: for a kernel to
        read at once.
        """
        at = self.order.astype(np.int64)
        begin, full, end = (
            np.take_along_axis(x, at, axis=-1)
            for x in (self.row_ptr[..., :-1], self.full_ptr, self.row_ptr[..., 1:])
        )
        return _settled(np.stack([self.order, begin, full, end], axis=-1))

    @cached_property
    def halves(self) -> Int32s | None:
        """`cols`, and which halves of the tiles 64 queries do not need; of tiles of 128 keys alone.

        From bit 24 on of an int32 ``(tiles,)``: bit ``2 * g + h`` if queries ``64 * g`` to
        ``64 * g + 63`` of the tile keep none of the keys of half ``h``.
        """
        m, n = self.tile
        if self.layout != "accumulator" or n != 128 or m % 64 or m > 192 or self.groups is not None:
            return None
        without = np.append(unneeded_halves(self.bitmaps), 0)  # the last one: without a bitmap
        return _settled(self.cols + (without[self.bitmap_id] << 24))

    @cached_property
    def lengths(self) -> Int64s:
        """Key tiles of each place in `order`; of several masks, of the one that lists most."""
        lengths = np.atleast_2d(np.diff(self.row_ptr, axis=-1))
        longest: Int64s = -np.sort(-lengths.astype(np.int64), axis=-1).min(axis=0, initial=0)
        return longest

    def mask_strides(self, batch: int, heads: int) -> tuple[int, int]:
        """Return the strides of `mask_of`, in elements, for a kernel's batches and heads.

        The number of the mask of batch ``b`` and head ``h`` is element ``b * first + h * second``;
        a stride is 0 where one mask serves all.

        Raises
        ------
        ShapeError
            If the leading axes do not broadcast to ``(batch, heads)``.
        """
        return mask_strides(self.mask_of.shape, batch, heads)

    def on_device(self) -> DeviceSchedule:
        """Return the arrays on CuPy's current device, uploaded on the first call for it.

        The upload waits for its stream, so that every stream and thread may use the arrays; call it
        once before a stream capture.
        """
        import cupy

        device = cupy.cuda.Device().id
        with self._lock:
            if device not in self._devices:
                arrays = (getattr(self, name) for name in _ARRAYS)
                # Not from CuPy's pool, which hands a dropped array's memory on in the order of the
                # stream that it was made on, while kernels on other streams may yet have to read
                # it. Without the pool it is freed by cudaFree, which waits for the device.
                with cupy.cuda.using_allocator(None):
                    self._devices[device] = DeviceSchedule(
                        *(None if array is None else cupy.asarray(array) for array in arrays)
                    )
                cupy.cuda.get_current_stream().synchronize()
            return self._devices[device]


_ARRAYS = tuple(each.name for each in fields(DeviceSchedule) if each.name != "overflow")


def _settled(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array for kernels: signed integers as int32, read-only."""
    settled = np.ascontiguousarray(array, np.int32 if array.dtype.kind == "i" else array.dtype)
    settled.setflags(write=False)
    return settled


def _stats(
    tile: tuple[int, int], kept: list[int], lists: list[WorkLists], numbers: Int32s
) -> ScheduleStats:
    """Sum over the masks as often as they occur."""
    times: Int64s = np.bincount(numbers.ravel(), minlength=len(lists))
    total = int(times @ np.array(kept, np.int64))
    visited = int(times @ np.array([len(work.cols) for work in lists]))
    part = int(times @ np.array([np.count_nonzero(work.bitmap_id >= 0) for work in lists]))
    waste = 1 - total / (visited * tile[0] * tile[1]) if visited else 0.0
    longest = max((int(w.lengths.max(initial=0)) for w in lists), default=0)
    return ScheduleStats(total, visited, part, waste, longest)
