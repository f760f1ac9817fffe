"""The buffers of one geometry of work lists, and the launches that fill them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, MaskError, UnsupportedError, mismatch
from stof_cupy.jit.launch import kernel
from stof_cupy.jit.mask_kernels import MASK_COLUMNS, mask_build, mask_order
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device.program import Program
from stof_cupy.masks.device_schedule import DeviceSchedule
from stof_cupy.masks.layout import check_tile
from stof_cupy.masks.schedule import Layout
from stof_cupy.masks.tiles import check_count

__all__ = ["Lists"]


_QUERIES = 2**26

_OPERAND = 2
"""What the kernel says of lists that were made from ones that were cut off (mask/build.cuh)."""

_KNOWN_BYTES = 1 << 22
"""Bytes, one for four tiles, that a first pass over all tiles may keep: up to 2**18 tokens."""


class Lists:
    """Work lists of a program for tiles of one size, on CuPy's current device.

    Parameters
    ----------
    program : Program
    shape : tuple of int
        ``(queries, keys)``.
    tile, layout
        As `Scheduled.schedule`; sides of a tile are multiples of 64.
    capacity : tuple of int, optional
        Listed tiles and part tiles that there is room for; None: counted first.

    Attributes
    ----------
    capacity : tuple of int
        As above.
    nbytes : int
        Bytes of all buffers.
    """

    def __init__(
        self,
        program: Program,
        shape: tuple[int, int],
        tile: tuple[int, int],
        layout: Layout,
        capacity: tuple[int, int] | None,
    ) -> None:
        import cupy

        self._tile = _check(tile, layout, shape)
        self._program, self._shape = program, shape
        self._masks = masks = math.prod(program.lead)
        self._rows = -(-shape[0] // self._tile[0])
        device = cupy.cuda.runtime.getDevice()
        formulas = (program.formulas, program.kinds) if program.formulas else ()
        self._build = kernel(mask_build(self._tile, layout == "accumulator", *formulas), device)
        self._order = kernel(mask_order(), device)
        every = masks * self._rows
        small = _Memory(16 * every + 8 * (every + 1) + 4 * (4 + 3 * every + 2 * masks))
        work = small.reserve((masks, self._rows, 4), np.int32)  # read 16 bytes at a time
        progress = small.reserve((every + 1,), np.uint64)
        self._totals = small.reserve((4,), np.int32)  # tiles, bitmaps, overflow
        row_ptr = small.reserve((masks, self._rows + 1), np.int32)
        full_ptr = small.reserve((masks, self._rows), np.int32)
        order = small.reserve((masks, self._rows), np.int32)
        # One mask is number 0 of all; of more the numbers are written once.
        self._cleared = small.start, small.used + 4 * (masks == 1)
        mask_of = small.reserve(program.lead, np.int32)
        if masks > 1:
            mask_of.array()[...] = cupy.arange(masks, dtype=np.int32).reshape(program.lead)
        self._pointers = {
            "progress": progress.address,
            "row_ptr": row_ptr.address,
            "full_ptr": full_ptr.address,
            "totals": self._totals.address,
        }
        known = None
        if capacity is None:
            known = self._measure()
            capacity = self.totals()
            check_count("mask", capacity[0])
        self.capacity = capacity
        large, listed = _for_tiles(self._tile, layout, *capacity)
        addresses = {name: each.address for name, each in listed.items()}
        self._packed = self._params(capacity, **addresses)
        self._order_packed = self._order.pack(
            row_ptr=row_ptr.address,
            full_ptr=full_ptr.address,
            order=order.address,
            work=work.address,
            rows=self._rows,
        )
        self._reserved = {
            "row_ptr": row_ptr,
            "full_ptr": full_ptr,
            **listed,
            "order": order,
            "work": work,
            "mask_of": mask_of,
        }
        self.nbytes = small.size + large.size
        if known is None:
            self.build()
        else:
            self._launch(self._params(capacity, **addresses, known=known.ptr))

    @cached_property
    def schedule(self) -> DeviceSchedule:
        """What kernels read."""
        arrays = {name: each.array() for name, each in self._reserved.items()}
        return DeviceSchedule(**arrays, groups=None, overflow=self._totals.array()[2:3])

    def build(self, *, prepare: bool = True) -> None:
        """Fill the lists on the current stream.

        `prepare`: also what lists of all sizes are made of, which others may have done already.
        """
        if prepare:
            self._prepare()
        self._launch(self._packed)

    def _measure(self) -> Any:
        """Count what there is to list; return what is known of each tile then, or None."""
        import cupy

        columns = -(-self._shape[1] // self._tile[1])
        size = 8 * self._masks * self._rows * -(-columns // 32)
        found = cupy.cuda.alloc(size) if size <= _KNOWN_BYTES else None
        self._prepare()
        self._launch_build(self._params((0, 0), 0, 0, 0, found=0 if found is None else found.ptr))
        return found

    def _launch(self, params: np.void) -> None:
        self._launch_build(params)
        blocks = -(-self._rows // self._order.spec.threads)
        self._order((self._masks * blocks,), self._order_packed)

    def _prepare(self) -> None:
        for step in self._program.prepare:
            step()

    def _launch_build(self, params: np.void) -> None:
        start, size = self._cleared
        start.memset_async(0, size)
        self._build((self._masks * self._rows,), params)

    def _params(
        self,
        capacity: tuple[int, int],
        cols: int,
        bitmap_id: int,
        bitmaps: int,
        *,
        found: int = 0,
        known: int = 0,
    ) -> np.void:
        return self._build.pack(
            program=self._program.packed,
            node_count=self._program.count,
            masks=self._masks,
            lead_inner=self._program.lead[1],
            queries=self._shape[0],
            keys=self._shape[1],
            cols=cols,
            bitmap_id=bitmap_id,
            bitmaps=bitmaps,
            tile_capacity=capacity[0],
            bitmap_capacity=capacity[1],
            found=found,
            known=known,
            **self._pointers,
        )

    def totals(self) -> tuple[int, int]:
        """Return how many tiles and bitmaps the mask lists; waits for the current stream."""
        tiles, bitmaps = self._totals.array()[:2].get().tolist()
        return tiles, bitmaps

    def check(self) -> tuple[int, int]:
        """Return `totals`, or raise MaskError if the lists are not to be used."""
        *needed, wrong = self._totals.array()[:3].get().tolist()
        if wrong == _OPERAND:
            hint = "its own check() says what it needs"
            raise MaskError(mismatch("mask", "one that did not fit", "operands that fit", hint))
        if wrong:
            size = "x".join(map(str, self._tile))
            got = f"{needed[0]} tiles of {size}, {needed[1]} bitmaps"
            expected = f"at most {self.capacity[0]} tiles and {self.capacity[1]} bitmaps"
            hint = "state a larger capacity: .to('cuda', tiles=, bitmaps=)"
            raise MaskError(mismatch("mask", got, expected, hint))
        return needed[0], needed[1]


@dataclass(frozen=True)
class _Reserved:
    """Where an array is; making a CuPy array of it costs a microsecond, so that is put off."""

    pointer: Any
    shape: tuple[int, ...]
    dtype: Any

    @property
    def address(self) -> int:
        return int(self.pointer.ptr)

    def array(self) -> Any:
        import cupy

        return cupy.ndarray(self.shape, self.dtype, self.pointer)


class _Memory:
    """Room for arrays in one allocation, which takes less time than one each."""

    def __init__(self, size: int) -> None:
        import cupy

        self.size, self.used = size, 0
        self.start = cupy.cuda.alloc(size)

    def reserve(self, shape: tuple[int, ...], dtype: Any) -> _Reserved:
        """Return the next array; those of wide elements come first, so that all are aligned."""
        reserved = _Reserved(self.start + self.used, shape, dtype)
        self.used += math.prod(shape) * np.dtype(dtype).itemsize
        return reserved


def _for_tiles(
    tile: tuple[int, int], layout: Layout, tiles: int, part: int
) -> tuple[_Memory, dict[str, _Reserved]]:
    """Return room for listed tiles, part of which have a bitmap, and its arrays by name."""
    rows, cols = tile
    memory = _Memory(part * rows * cols // 8 + 8 * tiles)
    if layout == "accumulator":
        bitmaps = memory.reserve((part, rows // 16, 32, cols // TILE), np.uint32)
    else:
        bitmaps = memory.reserve((part, rows * cols // TILE), np.uint64)
    columns, bitmap_id = (memory.reserve((tiles,), np.int32) for _ in range(2))
    return memory, {"cols": columns, "bitmap_id": bitmap_id, "bitmaps": bitmaps}


def _check(tile: tuple[int, int], layout: Layout, shape: tuple[int, int]) -> tuple[int, int]:
    """Return the tile, if the kernel builds lists of it for a mask of `shape`."""
    rows, cols = check_tile(tile)
    if layout not in ("words", "accumulator"):
        raise ArgumentError(mismatch("layout", repr(layout), "'words' or 'accumulator'"))
    if rows % TILE or cols % TILE:
        hint = "on the CPU tiles may be smaller"
        raise UnsupportedError(mismatch("tile", tile, "multiples of 64", hint))
    if -(-shape[1] // cols) > MASK_COLUMNS:
        expected = f"at most {MASK_COLUMNS * cols}"
        raise UnsupportedError(mismatch("keys of a mask on CUDA", shape[1], expected))
    if shape[0] > _QUERIES:
        raise UnsupportedError(mismatch("queries of a mask on CUDA", shape[0], "at most 2**26"))
    return rows, cols
