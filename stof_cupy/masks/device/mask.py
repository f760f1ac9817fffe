"""`DeviceMask`: a mask whose work lists are on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, DeviceError, UnsupportedError, mismatch
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.bsr import BsrMask
from stof_cupy.masks.check import at_least
from stof_cupy.masks.device import on_cuda
from stof_cupy.masks.device.leaf import StoredOnDevice
from stof_cupy.masks.device.lists import Lists
from stof_cupy.masks.device.lowering import program_of
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.mask_stack import MaskStack
from stof_cupy.masks.schedule import DeviceSchedule, Layout
from stof_cupy.masks.tiles import FULL, Tiles, assemble, grid

__all__ = ["BuiltMask", "DeviceMask", "UploadedMask", "built", "uploaded"]


class DeviceMask(ABC):
    """A mask on a GPU; made by ``pattern.to("cuda")`` or ``mask.to("cuda")``.

    `attention` takes it as it is. ``&``, ``|``, ``^`` and ``~`` make patterns of it, which
    ``.to("cuda")`` builds. Like other CuPy arrays its lists belong to the stream that they were
    made on: on another one, wait for that first.

    Attributes
    ----------
    shape : tuple of int
        ``(*lead, queries, keys)``.
    lead : tuple of int
        Leading axes, ``(batch, heads)`` or fewer.
    device : int
        Number of the GPU.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> mask = masks.causal(8192).to("cuda")  # doctest: +SKIP
    >>> mask  # doctest: +SKIP
    <DeviceMask (8192, 8192) on device 0>
    """

    __hash__ = None  # type: ignore[assignment]  # as of the masks on the CPU
    __array_ufunc__ = None  # `array & mask` must not loop over the elements of the array

    shape: tuple[int, ...]
    lead: tuple[int, ...]
    device: int

    @abstractmethod
    def schedule(
        self,
        tile: tuple[int, int] = (TILE, TILE),
        *,
        layout: Layout = "words",
        packed: bool = False,
    ) -> DeviceSchedule:
        """Return the work lists of one geometry; made on the first call, kept for the next ones.

        Parameters and errors are those of `BsrMask.schedule`. Of a mask that was built on the GPU,
        sides of a tile are multiples of 64, and nothing is packed (UnsupportedError).
        """

    @abstractmethod
    def check(self) -> tuple[int, int]:
        """Wait for the GPU and return how many tiles, and part tiles, the mask lists.

        Raises
        ------
        MaskError
            If that is more than the stated capacity.
        """

    @abstractmethod
    def to(self, device: str) -> Any:
        """Return the mask on a device.

        Parameters
        ----------
        device : {"cpu", "cuda"}
            On the CPU, a BsrMask, or a MaskStack if there are leading axes; waits for the GPU. On
            CUDA, this mask.

        Raises
        ------
        ArgumentError
            If there is no such device.
        MaskError
            See `check`.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the GPU."""

    def __and__(self, other: Any) -> Pattern:
        return StoredOnDevice(self) & other

    def __or__(self, other: Any) -> Pattern:
        return StoredOnDevice(self) | other

    def __xor__(self, other: Any) -> Pattern:
        return StoredOnDevice(self) ^ other

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Pattern:
        return ~StoredOnDevice(self)

    def __bool__(self) -> bool:
        raise ArgumentError(mismatch("truth value", "a mask", "mask.check(), or mask.to('cpu').nnz"))

    def __repr__(self) -> str:
        return f"<DeviceMask {self.shape} on device {self.device}>"


class UploadedMask(DeviceMask):
    """A mask of the CPU, copied."""

    def __init__(self, source: BsrMask | MaskStack) -> None:
        self.shape, self.lead = source.shape, getattr(source, "lead", ())
        self.device, self._source = _current(), source
        self.schedule()

    def schedule(
        self,
        tile: tuple[int, int] = (TILE, TILE),
        *,
        layout: Layout = "words",
        packed: bool = False,
    ) -> DeviceSchedule:
        with _on(self.device):
            return self._source.schedule(tile, layout=layout, packed=packed).on_device()

    def check(self) -> tuple[int, int]:
        stats = self._source.schedule().stats
        return stats.visited, stats.part

    def to(self, device: str) -> Any:
        return self if on_cuda(device) else self._source

    @property
    def nbytes(self) -> int:
        return self.schedule().nbytes


class BuiltMask(DeviceMask):
    """A mask that the GPU has built from a pattern, and can build again.

    Parameters
    ----------
    pattern : Pattern
    capacity : tuple of int or None
        Listed and part tiles of 64x64 elements that there is room for, over all leading axes.
    """

    def __init__(self, pattern: Pattern, capacity: tuple[int, int] | None) -> None:
        self.lead, self.device = pattern.lead, _current()
        self.shape = (*pattern.lead, *pattern.shape)
        self._pattern, self._stated = pattern, capacity
        self._program = program_of(pattern)
        self._lists: dict[tuple[tuple[int, int], Layout], Lists] = {}
        self.schedule()

    def schedule(
        self,
        tile: tuple[int, int] = (TILE, TILE),
        *,
        layout: Layout = "words",
        packed: bool = False,
    ) -> DeviceSchedule:
        if packed:
            hint = "mask.to('cpu').schedule(packed=True) packs"
            raise UnsupportedError(mismatch("packed", True, "False on CUDA", hint))
        found = self._lists.get((tile, layout))
        if found is None:
            capacity = self._stated
            if capacity is not None and tile != (TILE, TILE):
                # A larger tile holds a listed one; it may be a part tile though all in it are full.
                capacity = (capacity[0], capacity[0])
            with _on(self.device):
                found = Lists(self._program, self.shape[-2:], tile, layout, capacity)
            self._lists[tile, layout] = found
        return found.schedule

    @property
    def capacity(self) -> tuple[int, int]:
        """Listed and part tiles of 64x64 elements that there is room for."""
        return self._lists[(TILE, TILE), "words"].capacity

    def rebuild(self) -> None:
        """Build again, from what the CuPy arrays that the pattern names hold now.

        Runs on the current stream; allocates nothing, waits for nothing and can be captured in a
        CUDA graph. What does not fit the capacity is reported by `check` and by `to`, and until it
        fits again attention under this mask gives NaN.
        """
        with _on(self.device):
            for lists in self._lists.values():
                lists.build()

    def check(self) -> tuple[int, int]:
        with _on(self.device):
            return [lists.check() for lists in self._lists.values()][0]

    def to(self, device: str) -> Any:
        if on_cuda(device):
            return self
        self.check()
        with _on(self.device):
            found = _downloaded(self.schedule(), self.shape[-2:])
        if not self.lead:
            return found[0]
        return MaskStack(found, np.arange(len(found)).reshape(self.lead))

    @property
    def nbytes(self) -> int:
        return sum(lists.nbytes for lists in self._lists.values())


def built(pattern: Pattern, tiles: int | None, bitmaps: int | None) -> BuiltMask:
    """Build a pattern on CuPy's current device; see `Pattern.to`."""
    if (tiles is None) != (bitmaps is None):
        got = f"tiles={tiles}, bitmaps={bitmaps}"
        raise ArgumentError(mismatch("capacity", got, "both, or neither: it is counted then"))
    if tiles is None or bitmaps is None:
        return BuiltMask(pattern, None)
    return BuiltMask(pattern, (at_least(0, "tiles", tiles), at_least(0, "bitmaps", bitmaps)))


def uploaded(mask: BsrMask | MaskStack) -> UploadedMask:
    """Copy a mask to CuPy's current device."""
    return UploadedMask(mask)


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
        tiles: Tiles = assemble(shape, keys[order], ids[chosen][order], bitmaps)
        found.append(BsrMask._of(tiles))
    return found


def _current() -> int:
    from stof_cupy.jit import device

    if not device.is_available():
        hint = "without one, masks are built on the CPU: .tobsr()"
        raise DeviceError(mismatch("device", "no GPU, or no CuPy for it", "an NVIDIA GPU", hint))
    return device.current()


def _on(device: int) -> Any:
    import cupy

    return cupy.cuda.Device(device)
