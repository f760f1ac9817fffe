"""Words on a device from which the CTAs of a kernel draw their work."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from stof_cupy.errors import UnsupportedError, mismatch

__all__ = ["Counters", "Taken", "counters", "give_back", "taking"]


class Counters:
    """Zeros on the current device, from which kernels count their rows and which they leave zero.

    Two kernels that run at the same time must not share one. Launches take them in turn, so one
    comes again after 2**18 words have been given out. A launch that a stream captures may run at
    any time, so it takes one for good, or until its graph is gone: see `taking`.
    """

    _TURNS = 2**18
    _CAPTURED = 2**20

    def __init__(self) -> None:
        import cupy

        capturing = cupy.cuda.get_current_stream().is_capturing()
        try:
            # Not from CuPy's pool, which could be of a stream: the words are zeroed for all
            # streams. And now, on a stream of its own, as the current one may be capturing.
            with cupy.cuda.Stream(non_blocking=True) as stream, cupy.cuda.using_allocator(None):
                self._words = cupy.zeros(self._TURNS + self._CAPTURED, np.int32)
                stream.synchronize()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if not capturing:
                raise
            hint = f"run it once on this device before ({error})"
            expected = "a relaxed one, or none"
            raise UnsupportedError(
                mismatch("first call", "in a strict stream capture", expected, hint)
            ) from error
        self._lock = threading.Lock()
        self._turn, self._captured = 0, 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # captured ones, by count
        # Appended to by whoever drops a graph, the garbage collector too, so under no lock.
        self._returned: deque[tuple[int, int, Any]] = deque()

    def take(self, count: int = 1) -> int:
        """Return the address of `count` counters for one launch on the current stream."""
        import cupy

        with self._lock:
            if cupy.cuda.get_current_stream().is_capturing():
                index = self._for_graph(count)
            else:
                if self._turn + count > self._TURNS:
                    self._turn = 0
                index = self._turn
                self._turn += count
        return int(self._words.data.ptr) + 4 * index

    def _for_graph(self, count: int) -> int:
        count = 1 << (count - 1).bit_length()  # few sizes, so that one serves many launches
        if self._free[count]:
            index = self._free[count].pop()
        else:
            if self._captured + count > self._CAPTURED:
                got = f"more than {self._CAPTURED} counters"
                raise UnsupportedError(mismatch("captured launches", got, "fewer"))
            index = self._TURNS + self._captured
            self._captured += count
        taken = _taken.get()
        if taken is not None:
            taken.append(Taken(self, index, count))
        return index

    def _reclaim(self) -> None:
        """Let those be taken again whose graphs are gone and have run."""
        with self._lock:
            for _ in range(len(self._returned)):
                index, count, ran = self._returned.popleft()
                if ran is None or ran.done:
                    self._free[count].append(index)
                else:
                    self._returned.append((index, count, ran))


class Taken(NamedTuple):
    """Counters of a captured launch."""

    counters: Counters
    first: int
    size: int


_taken: ContextVar[list[Taken] | None] = ContextVar("_taken", default=None)


@contextmanager
def taking(device: int) -> Iterator[list[Taken]]:
    """Give what launches that this thread captures meanwhile take, for `give_back` to be told.

    Begun before the capture, in which no event may be asked whether it is done.
    """
    with _lock:
        made = _made.get(device)
    if made is not None:
        made._reclaim()
    taken: list[Taken] = []
    token = _taken.set(taken)
    try:
        yield taken
    except BaseException:
        give_back(taken, None)
        raise
    finally:
        _taken.reset(token)


def give_back(taken: list[Taken], ran: Any) -> None:
    """Let counters be taken again, after the event `ran` that follows their graph's last launch."""
    for each in taken:
        each.counters._returned.append((each.first, each.size, ran))


_lock = threading.Lock()
_made: dict[int, Counters] = {}


def counters(device: int) -> Counters:
    """Return the counters of the current device, whose number this is."""
    with _lock:
        if device not in _made:
            _made[device] = Counters()
        return _made[device]
