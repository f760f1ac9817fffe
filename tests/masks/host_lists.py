"""Work lists that the kernels of masks build on the CPU (`on_host`), and what they should be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stof_cupy.jit.mask_kernels import mask_build, mask_order
from stof_cupy.masks import BsrMask
from stof_cupy.masks.device.program import Program
from stof_cupy.masks.schedule import Layout, Schedule
from tests.masks import on_host

POISON, GUARD = 0xA5, 512
OWN, ALL_OF = 1 << 62, 2 << 62
"""Flags of progress: what is counted is of one row of tiles, or of those before it too."""


class Memory:
    """Arrays of which every byte, and those around them, are known until something writes them."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._blocks.append(np.full(size + 2 * GUARD, POISON, np.uint8))
        return self._blocks[-1][GUARD : GUARD + size].view(dtype).reshape(shape)

    def check(self) -> None:
        for block in self._blocks:
            assert (block[:GUARD] == POISON).all(), "written before an array"
            assert (block[-GUARD:] == POISON).all(), "written beyond an array"


def untouched(array: np.ndarray) -> bool:
    return bool((np.ascontiguousarray(array).view(np.uint8) == POISON).all())


@dataclass
class Job:
    """A program with a geometry and room for what it lists.

    Attributes
    ----------
    program, shape, tile, layout
        As of `stof_cupy.masks.device.lists.Lists`.
    capacity : tuple of int
        Tiles and bitmaps there is room for.
    """

    program: Program
    shape: tuple[int, int]
    tile: tuple[int, int]
    layout: Layout
    capacity: tuple[int, int]
    memory: Memory = field(default_factory=Memory)

    def __post_init__(self) -> None:
        self.masks = math.prod(self.program.lead)
        self.rows = -(-self.shape[0] // self.tile[0])
        tiles, bitmaps = self.capacity
        array = self.memory.array
        self.progress = array((self.masks * self.rows + 1,), np.uint64)
        self.row_ptr = array((self.masks, self.rows + 1), np.int32)
        self.full_ptr = array((self.masks, self.rows), np.int32)
        self.order = array((self.masks, self.rows), np.int32)
        self.cols, self.bitmap_id = (array((tiles,), np.int32) for _ in range(2))
        self.bitmaps = array((bitmaps, math.prod(self.tile) // 64), np.uint64)
        self.totals = array((3,), np.int32)
        self.progress[:] = 0

    def build(self, ctas: int | None = None, *, found: int = 0, known: int = 0, **how: int) -> Job:
        """Run the kernel: of all rows of tiles, or of `ctas` more."""
        program, named = self.program, {}
        if program.formulas:
            named = {"formulas": program.formulas, "kinds": program.kinds}
        outputs = ("progress", "row_ptr", "full_ptr", "cols", "bitmap_id", "bitmaps", "totals")
        on_host.launch(
            mask_build(self.tile, self.layout == "accumulator", **named),
            (self.masks * self.rows if ctas is None else ctas, 1),
            **how,
            **{name: getattr(self, name).ctypes.data for name in outputs},
            program=program.packed,
            node_count=program.count,
            masks=self.masks,
            lead_inner=program.lead[1],
            queries=self.shape[0],
            keys=self.shape[1],
            tile_capacity=self.capacity[0],
            bitmap_capacity=self.capacity[1],
            found=found,
            known=known,
        )
        self.memory.check()
        return self


def ranked(row_ptr: np.ndarray, full_ptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Run the kernel that orders the rows of each mask, `row_ptr` int32 ``(masks, rows + 1)``.

    Returns `order` and `work` as in a schedule.
    """
    memory, spec = Memory(), mask_order()
    masks, rows = row_ptr.shape[0], row_ptr.shape[1] - 1
    order = memory.array((masks, rows), np.int32)
    work = memory.array((masks, rows, 4), np.int32)
    arrays = {"row_ptr": row_ptr, "full_ptr": full_ptr, "order": order, "work": work}
    addresses = {name: array.ctypes.data for name, array in arrays.items()}
    on_host.launch(spec, (masks * -(-rows // spec.threads), 1), rows=rows, **addresses)
    memory.check()
    return order, work


def reference(masks: Sequence[BsrMask], tile: tuple[int, int], layout: Layout) -> Schedule:
    """Return what the CPU lists for the masks of all leading axes."""
    if len(masks) == 1:
        return masks[0].schedule(tile, layout=layout)
    tiles = [mask._tiles for mask in masks]
    return Schedule.of(tiles, np.arange(len(masks)), tile=tile, layout=layout)


def needed(lists: Schedule) -> tuple[int, int]:
    """Return the tiles and bitmaps that there must be room for."""
    return len(lists.cols), int((lists.bitmap_id >= 0).sum())


def check(job: Job, lists: Schedule) -> None:
    """The job has built the lists of the CPU, as far as it has room, and nothing else."""
    (room, bitmap_room), (tiles, bitmaps) = job.capacity, needed(lists)
    overflow = tiles > room or bitmaps > bitmap_room
    assert job.totals.tolist() == [tiles, bitmaps, overflow]
    row_ptr = np.minimum(lists.row_ptr.reshape(job.row_ptr.shape), room)
    np.testing.assert_array_equal(job.row_ptr, row_ptr)
    full_ptr = np.minimum(lists.full_ptr.reshape(job.full_ptr.shape), room)
    np.testing.assert_array_equal(job.full_ptr, full_ptr)

    listed, part = min(tiles, room), lists.bitmap_id >= 0
    own = np.cumsum(part) - 1  # the CPU stores equal bitmaps once
    np.testing.assert_array_equal(job.cols[:listed], lists.cols[:listed])
    numbers = np.where(part, np.minimum(own, bitmap_room - 1), -1)
    np.testing.assert_array_equal(job.bitmap_id[:listed], numbers[:listed])
    assert untouched(job.cols[listed:]) and untouched(job.bitmap_id[listed:])

    written = np.flatnonzero(part[:listed])[:bitmap_room]
    count, *rest = lists.bitmaps.shape
    words = lists.bitmaps.reshape(count, math.prod(rest)).view(np.uint64)
    expected = words[lists.bitmap_id[written]]
    np.testing.assert_array_equal(job.bitmaps[: len(written)], expected)
    assert untouched(job.bitmaps[len(written) :])

    order = np.argsort(-np.diff(row_ptr), axis=-1, kind="stable")
    found, work = ranked(job.row_ptr, job.full_ptr)
    np.testing.assert_array_equal(found, order)
    if not overflow:
        np.testing.assert_array_equal(order, lists.order.reshape(order.shape))
        np.testing.assert_array_equal(work, lists.work.reshape(work.shape))
    done = progress(ALL_OF, *(np.cumsum(each, dtype=np.uint64) for each in counts(lists)))
    np.testing.assert_array_equal(job.progress, np.append(done, np.uint64(len(done))))


def counts(lists: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Return the tiles and the bitmaps of every row of tiles, of all masks."""
    row_ptr, full_ptr = (np.atleast_2d(each) for each in (lists.row_ptr, lists.full_ptr))
    tiles, bitmaps = np.diff(row_ptr), full_ptr - row_ptr[:, :-1]
    return tiles.ravel(), bitmaps.ravel()


def progress(flag: int, tiles: np.ndarray, bitmaps: np.ndarray) -> np.ndarray:
    """Return what rows of tiles tell each other."""
    tiles, bitmaps = (each.astype(np.uint64) for each in (tiles, bitmaps))
    return np.uint64(flag) | tiles << np.uint64(31) | bitmaps
