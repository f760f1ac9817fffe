"""Host arrays that a program needs on the device, sent in one copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Offset", "Uploads"]

_ALIGN = 16

_STAGED = 1 << 16
"""Bytes up to which a driver copies from pageable memory without waiting for the stream."""


@dataclass(frozen=True)
class Offset:
    """Where an array will be in the buffer, in bytes."""

    bytes: int


@dataclass
class Uploads:
    """Arrays laid one after the other."""

    _pieces: list[NDArray[Any]] = field(default_factory=list)
    _size: int = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, array: NDArray[Any]) -> Offset:
        """Take an array; its address is known once all are there, see `address`."""
        at = Offset(self._size)
        self._pieces.append(np.ascontiguousarray(array))
        self._size += -(-array.nbytes // _ALIGN) * _ALIGN
        return at

    def finish(self) -> tuple[int, Any]:
        """Copy all to CuPy's current device; return the address of the buffer, and the buffer."""
        if not self._size:
            return 0, None
        import cupy

        together = np.empty(self._size, np.uint8)
        at = 0
        for piece in self._pieces:
            together[at : at + piece.nbytes] = piece.reshape(-1).view(np.uint8)
            at += -(-piece.nbytes // _ALIGN) * _ALIGN
        if self._size > _STAGED:  # through CuPy's pinned memory
            array = cupy.asarray(together)
            return int(array.data.ptr), array
        buffer = cupy.cuda.alloc(self._size)
        buffer.copy_from_host_async(together.ctypes.data, self._size)
        return int(buffer.ptr), (buffer, together)

    @staticmethod
    def address(base: int, value: Any) -> Any:
        """Return `value`, or the address it stands for in a buffer at `base`."""
        return base + value.bytes if isinstance(value, Offset) else value
