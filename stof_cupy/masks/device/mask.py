"""`DeviceMask`: a mask whose work lists are on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from stof_cupy.errors import ArgumentError, DeviceError, mismatch
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.check import at_least
from stof_cupy.masks.device import on_cuda
from stof_cupy.masks.device.leaf import StoredOnDevice
from stof_cupy.masks.device_schedule import DeviceSchedule
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.schedule import Layout
from stof_cupy.masks.tiles import check_count

__all__ = ["DeviceMask", "stated"]


class DeviceMask(ABC):
    """A mask on a GPU; made by ``pattern.to("cuda")`` or ``mask.to("cuda")``.

    `attention` takes it as it is. ``&``, ``|``, ``^`` and ``~`` make patterns of it, which
    ``.to("cuda")`` builds. Like other CuPy arrays, its lists belong to the stream that they were
    made on; before another stream uses them, it has to wait for that one. Where it was built there,
    each part tile has a bitmap of its own; only on the CPU are equal ones stored once.

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
    A mask whose documents change, rebuilt without waiting for the GPU:

    >>> import cupy  # doctest: +SKIP
    >>> from stof_cupy import masks
    >>> ids = cupy.zeros(8192, "int32")  # doctest: +SKIP
    >>> pattern = masks.document_ids(ids, causal=True)  # doctest: +SKIP
    >>> mask = pattern.to("cuda", tiles=8256, bitmaps=8256)  # doctest: +SKIP
    >>> ids[4096:] = 1  # doctest: +SKIP
    >>> mask.rebuild()  # doctest: +SKIP
    >>> mask.check()  # doctest: +SKIP
    (4160, 128)
    """

    __hash__ = None  # type: ignore[assignment]  # as of the masks on the CPU
    __array_ufunc__ = None  # `array & mask` must not loop over the elements of the array

    def __init__(self, shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
        self.shape, self.lead, self.device = shape, lead, _current()

    @property
    def sides(self) -> tuple[int, int]:
        """``(queries, keys)``."""
        return self.shape[-2], self.shape[-1]

    def schedule(
        self,
        tile: tuple[int, int] = (TILE, TILE),
        *,
        layout: Layout = "words",
        packed: bool = False,
        tiles: int | None = None,
        bitmaps: int | None = None,
    ) -> DeviceSchedule:
        """Return the work lists for one size of tiles; made on the first call, then kept.

        Parameters and errors are those of `BsrMask.schedule`, and of `Pattern.to` for what there is
        room for in lists of tiles that are not 64x64. Left out, that is counted, or, if a capacity
        was stated for the mask, it is what its lists can need at most. Where the mask was built on
        the GPU, sides of a tile are multiples of 64 and nothing is packed (UnsupportedError). Call
        it once before a stream capture.
        """
        sizes = (*tile,) if isinstance(tile, list) else tile
        with _on(self.device):
            return self._schedule(sizes, layout, packed, stated(tiles, bitmaps))

    def rebuild(self, *, asked: bool = False) -> None:
        """Build again, from what the CuPy arrays that the pattern names hold now.

        A DeviceMask that the pattern was made of is taken as it is; if that has changed, rebuild it
        first.

        Runs on the current stream; allocates nothing, waits for nothing and can be captured in a
        CUDA graph. What does not fit the capacity is reported by `check` and by `to`, and as long
        as it does not fit, attention under this mask gives NaN.

        Parameters
        ----------
        asked : bool
            Build only lists that `schedule` was asked for, by attention say. `check`, `to` and
            masks made of this one tell of what was built before, unless those are its lists.

        Raises
        ------
        ArgumentError
            If the mask was not built on the GPU, but copied there.
        """
        with _on(self.device):
            self._rebuild(asked)

    def check(self) -> tuple[int, int]:
        """Wait for the GPU and return how many tiles the mask lists, and part tiles among them.

        Raises
        ------
        MaskError
            If there is not room for so many, in these lists or those for another size of tiles, or
            if a mask that this one was made of did not fit its own.
        """
        with _on(self.device):
            return self._check()

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
        if on_cuda(device):
            return self
        with _on(self.device):
            self._check()
            return self._to_cpu()

    def rehearsed(self) -> DeviceMask:
        """Return what takes its place in a `jit.launch.rehearsal`.

        What is built there is not, and a mask keeps what was built.
        """
        return self

    @property
    @abstractmethod
    def capacity(self) -> tuple[int, int]:
        """Listed and part tiles of 64x64 elements that there is room for."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the GPU."""

    @abstractmethod
    def _schedule(
        self, tile: tuple[int, int], layout: Layout, packed: bool, room: tuple[int, int] | None
    ) -> DeviceSchedule: ...

    @abstractmethod
    def _rebuild(self, asked: bool) -> None: ...

    @abstractmethod
    def _check(self) -> tuple[int, int]: ...

    @abstractmethod
    def _to_cpu(self) -> Any: ...

    def _pattern(self) -> Pattern:
        return StoredOnDevice(self)

    def __and__(self, other: Any) -> Pattern:
        made: Pattern = self._pattern() & other
        return made

    def __or__(self, other: Any) -> Pattern:
        made: Pattern = self._pattern() | other
        return made

    def __xor__(self, other: Any) -> Pattern:
        made: Pattern = self._pattern() ^ other
        return made

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Pattern:
        return ~self._pattern()

    def __eq__(self, other: Any) -> bool:
        expected = "a ^ b, or a.to('cpu').equals(b)"
        raise ArgumentError(mismatch("==", "a mask on a GPU", expected))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise DeviceError(mismatch("array", "a mask on a GPU", "mask.to('cpu')"))

    def __copy__(self) -> DeviceMask:
        return self

    def __deepcopy__(self, memo: Any) -> DeviceMask:
        return self

    def __reduce__(self) -> Any:
        raise DeviceError(mismatch("pickle", "a mask on a GPU", "mask.to('cpu')"))

    def __bool__(self) -> bool:
        expected = "mask.check(), or mask.to('cpu').nnz"
        raise ArgumentError(mismatch("truth value", "a mask", expected))

    def __repr__(self) -> str:
        tiles, bitmaps = self.capacity
        room = f"room for {tiles} tiles, {bitmaps} of them part; {self.nbytes:,} bytes"
        return f"<DeviceMask {self.shape} on device {self.device}: {room}>"


def stated(tiles: int | None, bitmaps: int | None) -> tuple[int, int] | None:
    """Return a capacity, or None if there is none.

    Raises
    ------
    ArgumentError
        If one is given without the other, or is not a number of tiles.
    UnsupportedError
        If there are more than 2**28 tiles.
    """
    if tiles is None and bitmaps is None:
        return None
    if tiles is None or bitmaps is None:
        got = f"tiles={tiles}, bitmaps={bitmaps}"
        raise ArgumentError(mismatch("capacity", got, "both, or neither: it is counted then"))
    room = at_least(0, "tiles", tiles), at_least(0, "bitmaps", bitmaps)
    check_count("tiles", room[0])
    return room[0], min(room)  # no more part tiles than tiles


def _current() -> int:
    """Return the number of CuPy's current device."""
    try:
        from cupy.cuda import runtime

        return int(runtime.getDevice())
    except Exception as error:  # no CuPy, no driver or no GPU shows itself in many types
        hint = "without one, masks are built on the CPU: .tobsr()"
        expected = "an NVIDIA GPU, and CuPy for it"
        raise DeviceError(mismatch("device", "none that CuPy can use", expected, hint)) from error


def _on(device: int) -> Any:
    import cupy

    return cupy.cuda.Device(device)
