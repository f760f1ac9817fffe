"""`DeviceMask`: a mask whose work lists are on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from stof_cupy.errors import ArgumentError, DeviceError, MissingDependencyError, mismatch
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device import on_cuda
from stof_cupy.masks.device.leaf import StoredOnDevice
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.schedule import DeviceSchedule, Layout

__all__ = ["DeviceMask"]


class DeviceMask(ABC):
    """A mask on a GPU; made by ``pattern.to("cuda")`` or ``mask.to("cuda")``.

    `attention` takes it as it is. ``&``, ``|``, ``^`` and ``~`` make patterns of it, which
    ``.to("cuda")`` builds. Like other CuPy arrays, its lists belong to the stream that they were
    made on; before another stream uses them, it has to wait for that one.

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
    ) -> DeviceSchedule:
        """Return the work lists for one size of tiles; made on the first call, then kept.

        Parameters and errors are those of `BsrMask.schedule`. Where the mask was built on the GPU,
        sides of a tile are multiples of 64 and nothing is packed (UnsupportedError). Call it once
        before a stream capture.
        """
        with _on(self.device):
            return self._schedule(tile, layout, packed)

    def rebuild(self) -> None:
        """Build again, from what the CuPy arrays that the pattern names hold now.

        Runs on the current stream; allocates nothing, waits for nothing and can be captured in a
        CUDA graph. What does not fit the capacity is reported by `check` and by `to`, and as long
        as it does not fit, attention under this mask gives NaN.

        Raises
        ------
        ArgumentError
            If the mask was not built on the GPU, but copied there.
        """
        with _on(self.device):
            self._rebuild()

    def check(self) -> tuple[int, int]:
        """Wait for the GPU and return how many tiles the mask lists, and part tiles among them.

        Raises
        ------
        MaskError
            If there is not room for so many.
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

    @property
    @abstractmethod
    def capacity(self) -> tuple[int, int]:
        """Listed and part tiles of 64x64 elements that there is room for."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the GPU."""

    @abstractmethod
    def _schedule(self, tile: tuple[int, int], layout: Layout, packed: bool) -> DeviceSchedule: ...

    @abstractmethod
    def _rebuild(self) -> None: ...

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

    def __bool__(self) -> bool:
        expected = "mask.check(), or mask.to('cpu').nnz"
        raise ArgumentError(mismatch("truth value", "a mask", expected))

    def __repr__(self) -> str:
        return f"<DeviceMask {self.shape} on device {self.device}>"


def _current() -> int:
    from stof_cupy.jit import device

    try:
        return device.current()
    except (DeviceError, MissingDependencyError) as error:
        hint = "without one, masks are built on the CPU: .tobsr()"
        expected = "an NVIDIA GPU, and CuPy for it"
        raise DeviceError(mismatch("device", "none that CuPy can use", expected, hint)) from error


def _on(device: int) -> Any:
    import cupy

    return cupy.cuda.Device(device)
