"""A mask lowered to the work lists of a kernel."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stof_cupy.masks.bitmap import TILE, Words
from stof_cupy.masks.tiles import FULL, Int32s, Tiles

__all__ = ["DeviceSchedule", "Schedule", "ScheduleStats"]


@dataclass(frozen=True)
class ScheduleStats:
    """What a schedule makes a kernel do.

    Attributes
    ----------
    kept : int
        True elements, those that count.
    visited : int
        Tiles listed, each 64x64 elements of work.
    part : int
        Tiles among them that need a bitmap.
    waste : float
        Share of the visited elements that are not kept, 0 to 1.
    """

    kept: int
    visited: int
    part: int
    waste: float


@dataclass(frozen=True, eq=False)
class DeviceSchedule:
    """The arrays of a `Schedule` as CuPy arrays of one device."""

    row_ptr: Any
    cols: Any
    bitmap_id: Any
    bitmaps: Any
    order: Any


@dataclass(frozen=True, eq=False)
class Schedule:
    """Per query tile the key tiles to visit, part tiles first, then full ones, each ascending.

    A kernel walks the tiles of a row in one loop and branches at each on whether it has a bitmap;
    with part tiles first, that branch changes its way once in a row at most. A row that keeps a key
    lists at least one tile; one that keeps none is an empty row (output 0, LSE -inf) and may list
    tiles for its neighbours' sake.

    Attributes
    ----------
    shape : tuple of int
        ``(queries, keys)`` in elements.
    row_ptr : int32 array (query tiles + 1,)
        Tiles of query tile ``i`` are ``row_ptr[i]:row_ptr[i + 1]``.
    cols : int32 array (tiles,)
        Key tiles.
    bitmap_id : int32 array (tiles,)
        -1 for a full tile, else a row of `bitmaps`. A full tile at the edge still needs the
        kernel's bounds check.
    bitmaps : uint64 array (distinct, 64)
        Distinct bitmaps; word and bit order in `stof_cupy.masks.bitmap`.
    order : int32 array (query tiles,)
        Query tiles, most listed tiles first, so that the longest do not start last.
    stats : ScheduleStats
        Kept elements, visited and part tiles, waste.
    """

    shape: tuple[int, int]
    row_ptr: Int32s
    cols: Int32s
    bitmap_id: Int32s
    bitmaps: Words
    order: Int32s
    stats: ScheduleStats
    _devices: dict[int, DeviceSchedule] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, tiles: Tiles) -> Schedule:
        """Build the schedule of a mask."""
        full = tiles.bitmap_id == FULL
        row = np.repeat(np.arange(len(tiles.indptr) - 1), np.diff(tiles.indptr))
        listed = np.lexsort((full, row))  # stable: columns stay ascending
        order = np.argsort(-np.diff(tiles.indptr), kind="stable").astype(np.int32)
        visited = len(listed)
        waste = 1 - tiles.nnz / (visited * TILE * TILE) if visited else 0.0
        stats = ScheduleStats(tiles.nnz, visited, visited - int(full.sum()), waste)
        cols, bitmap_id = tiles.indices[listed], tiles.bitmap_id[listed]
        for array in (cols, bitmap_id, order):
            array.setflags(write=False)
        return cls(tiles.shape, tiles.indptr, cols, bitmap_id, tiles.bitmaps, order, stats)

    def on_device(self) -> DeviceSchedule:
        """Return the arrays on CuPy's current device, uploaded on the first call for it.

        The upload waits for its stream, so that every stream and thread may use the arrays; call it
        once before a stream capture.
        """
        import cupy

        device = cupy.cuda.Device().id
        with self._lock:
            if device not in self._devices:
                arrays = (self.row_ptr, self.cols, self.bitmap_id, self.bitmaps, self.order)
                # Not from CuPy's pool, which hands a dropped array's memory on in the order of the
                # stream that it was made on, while kernels on other streams may yet have to read
                # it. Without the pool it is freed by cudaFree, which waits for the device.
                with cupy.cuda.using_allocator(None):
                    self._devices[device] = DeviceSchedule(*map(cupy.asarray, arrays))
                cupy.cuda.get_current_stream().synchronize()
            return self._devices[device]
