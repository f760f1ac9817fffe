"""Words on a device from which the CTAs of a kernel draw their work."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np

from stof_cupy.errors import UnsupportedError, mismatch

__all__ = ["Counters", "counters"]


class Counters:
    """Zeros on the current device, from which kernels count their rows and which they leave zero.

    Two kernels that run at the same time must not share one. Launches take them in turn, so one
    comes again after 2**18 words have been given out. A launch that a stream captures may run at
    any time, so it takes one for good.
    """

    _TURNS = 2**18
    _CAPTURED = 2**20

    def __init__(self) -> None:
        import cupy

        if cupy.cuda.get_current_stream().is_capturing():
            hint = "call attention once on this device before"
            raise UnsupportedError(mismatch("first call", "in a stream capture", "eager", hint))
        # Not from CuPy's pool, which could be of a stream: the words are zeroed for all streams.
        with cupy.cuda.using_allocator(None):
            self._words = cupy.zeros(self._TURNS + self._CAPTURED, np.int32)
        cupy.cuda.get_current_stream().synchronize()
        self._lock = threading.Lock()
        self._turn, self._captured = 0, 0

    def take(self, count: int = 1) -> int:
        """Return the address of `count` counters for one launch on the current stream."""
        import cupy

        with self._lock:
            if cupy.cuda.get_current_stream().is_capturing():
                index = self._captured
                if index + count > self._CAPTURED:
                    got = f"more than {self._CAPTURED} counters"
                    raise UnsupportedError(mismatch("captured launches", got, "fewer"))
                self._captured += count
                index += self._TURNS
            else:
                if self._turn + count > self._TURNS:
                    self._turn = 0
                index = self._turn
                self._turn += count
        return int(self._words.data.ptr) + 4 * index


_lock = threading.Lock()


def counters(device: int) -> Counters:
    """Return the counters of the current device, whose number this is."""
    with _lock:
        return _of(device)


@cache
def _of(device: int) -> Counters:
    return Counters()
