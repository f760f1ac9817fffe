"""A device without a GPU: what is recorded is run again, into the arrays of the first time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class FakeRecording:
    def __init__(self, run: Callable[[], Any], result: Any, nbytes: int) -> None:
        self._run, self._result, self.nbytes = run, result, nbytes
        self._busy = threading.Lock()
        self.replays = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise AssertionError("two threads use one recording")
        try:
            yield
        finally:
            self._busy.release()

    def replay(self) -> None:
        assert self._busy.locked()
        self.replays += 1
        for name, array in self._run().items():
            self._result[name][...] = array


class FakeRecorder:
    def __init__(self, nbytes: int = 100, fails: Exception | None = None) -> None:
        self.made: list[FakeRecording] = []
        self.nbytes, self.fails = nbytes, fails

    def record(self, run: Callable[[], Any]) -> tuple[FakeRecording, Any]:
        if self.fails is not None:
            raise self.fails
        result = run()
        for array in result.values():
            array[...] = 0  # nothing is in it before the first replay
        self.made.append(FakeRecording(run, result, self.nbytes))
        return self.made[-1], result
