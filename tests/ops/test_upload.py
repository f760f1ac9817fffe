"""Small arrays go up through pinned memory, which is not written to before it has been read."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.ops import _upload
from stof_cupy.ops._upload import _LEAST, _PLACES, uploaded
from stof_cupy.testing import rng


class Copies:
    """A CUDA that copies late: when it is asked to, or when an event is waited for."""

    def __init__(self) -> None:
        self.pending: list[tuple[Any, int, int]] = []
        self.sent = self.arrived = self.waits = 0
        self.device = 0

    def run(self) -> None:
        for to, source, nbytes in self.pending:
            ctypes.memmove(to.ctypes.data, source, nbytes)
        self.pending.clear()
        self.arrived = self.sent

    def cupy(self) -> Any:
        machine = self

        class Event:
            def __init__(self, disable_timing: bool) -> None:
                self.after = 0

            def record(self) -> None:
                self.after = machine.sent

            @property
            def done(self) -> bool:
                return machine.arrived >= self.after

            def synchronize(self) -> None:
                machine.waits += 1
                machine.run()

        def empty(shape: Any, dtype: Any) -> Any:
            host = np.full(shape, 7, dtype)

            def sent(at: int, nbytes: int) -> None:
                machine.pending.append((host, at, nbytes))
                machine.sent += 1

            return SimpleNamespace(host=host, data=SimpleNamespace(copy_from_host_async=sent))

        cuda = SimpleNamespace(
            alloc_pinned_memory=bytearray,
            Event=Event,
            runtime=SimpleNamespace(getDevice=lambda: machine.device),
        )
        return SimpleNamespace(cuda=cuda, empty=empty)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Copies:
    made = Copies()
    monkeypatch.setitem(sys.modules, "cupy", made.cupy())
    monkeypatch.setattr(_upload, "_rings", {})
    return made


def test_what_is_under_way_is_not_written_over(machine: Copies) -> None:
    numbers = rng(0).integers(0, 2**40, (3 * _PLACES, 100))
    there = []
    for row in numbers:
        source = row.copy()
        there.append(uploaded(source))
        source[:] = -1  # the caller's to write to at once
    assert machine.waits == 2
    machine.run()
    for got, want in zip(there, numbers, strict=True):
        assert got.host.tolist() == want.tolist()


def test_nothing_is_waited_for_that_has_gone_up(machine: Copies) -> None:
    for _ in range(3 * _PLACES):
        uploaded(np.arange(10))
        machine.run()
    assert not machine.waits and len(_upload._rings[0]) == _PLACES


def test_larger_ones_take_more_memory_and_wait_for_what_they_give_back(machine: Copies) -> None:
    for _ in range(_PLACES):
        uploaded(np.arange(10))
    large = rng(1).integers(0, 256, _LEAST + 1, np.uint8)
    there = uploaded(large)
    assert machine.waits == 1
    machine.run()
    assert there.host.tolist() == large.tolist()
    assert [place.nbytes for place in _upload._rings[0]] == [_LEAST] * 3 + [2 * _LEAST]


def test_each_device_has_its_own(machine: Copies) -> None:
    uploaded(np.arange(10))
    machine.device = 1
    uploaded(np.arange(10))
    assert [*_upload._rings] == [0, 1] and uploaded(np.zeros(0)).host.shape == (0,)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    numbers = rng(2).integers(0, 2**40, (200, 900))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    there = []
    for number, row in enumerate(numbers):
        with streams[number % 3]:
            there.append(uploaded(row.copy()))
    for stream in streams:
        stream.synchronize()
    for got, want in zip(there, numbers, strict=True):
        assert got.get().tolist() == want.tolist()
