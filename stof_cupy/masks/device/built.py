"""The two ways to a mask on a GPU: built there from a pattern, or copied there."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, UnsupportedError, mismatch
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.bsr import BsrMask
from stof_cupy.masks.device.lists import Lists
from stof_cupy.masks.device.lowering import program_of
from stof_cupy.masks.device.mask import DeviceMask, stated
from stof_cupy.masks.device.program import Program
from stof_cupy.masks.device_schedule import DeviceSchedule
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.layout import check_tile
from stof_cupy.masks.mask_stack import MaskStack
from stof_cupy.masks.schedule import Layout
from stof_cupy.masks.tiles import FULL, assemble, grid

__all__ = ["BuiltMask", "UploadedMask", "built"]


def built(pattern: Pattern, tiles: int | None = None, bitmaps: int | None = None) -> BuiltMask:
    """Build a pattern on CuPy's current device; see `Pattern.to`."""
    whole = (*pattern.lead, *pattern.shape)
    return BuiltMask(whole, pattern.lead, program_of(pattern), stated(tiles, bitmaps))


class BuiltMask(DeviceMask):
    """A mask that the GPU has built from a pattern, and can build again.

    Parameters
    ----------
    shape, lead : tuple of int
        See `DeviceMask`.
    program : Program
        The pattern's.
    room : tuple of int or None
        The capacity; None: as much as there is to list now.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        lead: tuple[int, ...],
        program: Program,
        room: tuple[int, int] | None,
    ) -> None:
        super().__init__(shape, lead)
        self._room, self._program = room, program
        self._lock = threading.Lock()
        self._lists: dict[tuple[tuple[int, int], Layout], Lists] = {}
        self._asked: set[tuple[tuple[int, int], Layout]] = set()
        self._left_out = False  # whether the last rebuild did not build `_first`
        self._first = self._made((TILE, TILE), "words", room)

    def _made(self, tile: tuple[int, int], layout: Layout, room: tuple[int, int] | None) -> Lists:
        with self._lock:
            found = self._lists.get((tile, layout))
            if found is None:
                found = Lists(self._program, self.sides, tile, layout, room)
                self._lists[tile, layout] = found
            return found

    def _schedule(
        self, tile: tuple[int, int], layout: Layout, packed: bool, room: tuple[int, int] | None
    ) -> DeviceSchedule:
        if packed:
            hint = "mask.to('cpu').schedule(packed=True) packs"
            raise UnsupportedError(mismatch("packed", True, "False on CUDA", hint))
        tile = check_tile(tile)
        if room is None and self._room is not None:
            # A larger tile holds a listed one; it can be a part tile though those in it are full.
            rows, cols = (-(-side // size) for side, size in zip(self.sides, tile, strict=True))
            most = min(self._room[0], math.prod(self.lead) * rows * cols)
            room = most, self._room[1] if tile == (TILE, TILE) else most
        lists = self._made(tile, layout, room)
        self._asked.add((tile, layout))
        if lists is self._first and self._left_out:
            lists.build()
            self._left_out = False  # not before: other threads do not read them till then
        return lists.schedule

    def _rebuild(self, asked: bool) -> None:
        every = tuple(self._lists.items())
        if asked:
            every = tuple(item for item in every if item[0] in self._asked)
        for number, (_, lists) in enumerate(every):
            lists.build(prepare=number == 0)
        self._left_out = all(lists is not self._first for _, lists in every)

    def rehearsed(self) -> BuiltMask:
        """Return one of the same capacity that asks for the same kernels, see `DeviceMask`."""
        program = replace(self._program, prepare=())
        return BuiltMask(self.shape, self.lead, program, self.capacity)

    def _check(self) -> tuple[int, int]:
        for lists in tuple(self._lists.values()):
            lists.check()
        return self._first.totals()

    def _to_cpu(self) -> Any:
        found = _downloaded(self._first.schedule, self.sides)
        if not self.lead:
            return found[0]
        return MaskStack(found, np.arange(len(found)).reshape(self.lead))

    @property
    def capacity(self) -> tuple[int, int]:
        """Listed and part tiles of 64x64 elements that there is room for."""
        return self._first.capacity

    @property
    def nbytes(self) -> int:
        """Bytes on the GPU."""
        return sum(lists.nbytes for lists in tuple(self._lists.values()))


class UploadedMask(DeviceMask):
    """A mask of the CPU, copied."""

    def __init__(self, source: BsrMask | MaskStack) -> None:
        super().__init__(source.shape, source.lead if isinstance(source, MaskStack) else ())
        self._source = source
        self._first = self._schedule((TILE, TILE), "words", False, None)

    def _schedule(
        self, tile: tuple[int, int], layout: Layout, packed: bool, room: tuple[int, int] | None
    ) -> DeviceSchedule:
        return self._source.schedule(tile, layout=layout, packed=packed).on_device()

    def _rebuild(self, asked: bool) -> None:
        hint = "pattern.to('cuda') is built there"
        raise ArgumentError(mismatch("mask", "a copy", "one that the GPU has built", hint))

    def _check(self) -> tuple[int, int]:
        return self.capacity

    def _to_cpu(self) -> Any:
        return self._source

    @property
    def capacity(self) -> tuple[int, int]:
        """Listed and part tiles of 64x64 elements that there are."""
        return len(self._first.cols), int((self._source.schedule().bitmap_id != FULL).sum())

    @property
    def nbytes(self) -> int:
        """Bytes on the GPU."""
        return self._first.nbytes


def _downloaded(lists: DeviceSchedule, shape: tuple[int, int]) -> list[BsrMask]:
    """Return the masks of 64x64 lists; waits for the current stream."""
    row_ptr = lists.row_ptr.get().astype(np.int64)
    total = int(row_ptr.max(initial=0))
    cols, ids = lists.cols[:total].get(), lists.bitmap_id[:total].get()
    bitmaps = lists.bitmaps[: int(ids.max(initial=FULL)) + 1].get()
    found = []
    for pointers in row_ptr:
        chosen = slice(pointers[0], pointers[-1])
        rows = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
        keys = rows * grid(shape)[1] + cols[chosen]
        order = np.argsort(keys)
        tiles = assemble(shape, keys[order], ids[chosen][order], bitmaps)
        found.append(BsrMask._of(tiles))
    return found
