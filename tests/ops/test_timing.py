"""Times of replays, of a GPU and a host that are counters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.ops import _counters, attention_timing, gemm_timing
from stof_cupy.ops._counters import Taken
from stof_cupy.ops.epilogue import Epilogue, Normed

LAUNCH_US, START_US = 10.0, 20.0  # of a graph: the host's, and the GPU's before its first kernel
FLUSH_US = 80.0


class Machine:
    """A host that launches, and a GPU that is done later; microseconds."""

    def __init__(self) -> None:
        self.host = self.gpu = 0.0
        self.captured: float | None = None
        self.flushed: list[int] = []
        self.streams = 0  # that are current, beside the caller's

    def kernel(self, host: float, gpu: float) -> Callable[[], None]:
        def run() -> None:
            if self.captured is not None:
                self.captured += gpu
                return
            self.host += host
            self.gpu = max(self.gpu, self.host) + gpu

        return run

    def cupy(self) -> Any:
        machine = self

        class Stream:
            def __init__(self, *, non_blocking: bool) -> None: ...
            def __enter__(self) -> Stream:
                machine.streams += 1
                return self

            def __exit__(self, *_: object) -> None:
                machine.streams -= 1

            def synchronize(self) -> None:
                machine.host = max(machine.host, machine.gpu)

            def begin_capture(self) -> None:
                machine.captured = 0.0

            def end_capture(self) -> Any:
                spent, machine.captured = machine.captured, None

                def launch(stream: Stream) -> None:
                    machine.host += LAUNCH_US
                    machine.gpu = max(machine.gpu, machine.host) + START_US + (spent or 0.0)

                return SimpleNamespace(launch=launch)

        class Event:
            def record(self) -> None:
                self.at = machine.gpu = max(machine.gpu, machine.host)

            def synchronize(self) -> None:
                machine.host = max(machine.host, self.at)

        def elapsed(start: Event, end: Event) -> float:
            return (end.at - start.at) / 1e3

        def empty(size: int, dtype: Any) -> Any:
            assert not machine.streams, "memory that is kept for a stream that is gone soon"

            def fill(value: int) -> None:
                machine.gpu = max(machine.gpu, machine.host) + FLUSH_US
                machine.flushed.append(size)

            return SimpleNamespace(fill=fill)

        device = SimpleNamespace(id=0, synchronize=lambda: None)
        parts = {"Stream": Stream, "Event": Event, "get_elapsed_time": elapsed}
        return SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device, **parts), empty=empty)


def test_who_is_slow_on_the_host_is_not_slow_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # As two kernels with all their checks beside one that has been prepared (9.9 us beside 6.8 on
    # an H200): a graph of few runs is mostly its start.
    machine = Machine()
    monkeypatch.setitem(sys.modules, "cupy", machine.cupy())
    runs = [machine.kernel(host, 7.0) for host in (100.0, 5.0)]
    slow, quick = attention_timing.in_turn_us(runs)
    assert slow == pytest.approx(quick) and slow < 9.0
    assert attention_timing.graph_us(machine.kernel(100.0, 7.0)) < 9.0


def test_what_takes_long_is_in_its_graph_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    monkeypatch.setitem(sys.modules, "cupy", machine.cupy())
    assert attention_timing.in_turn_us([machine.kernel(5.0, 1000.0)]) == [1000.0 + START_US]
    assert attention_timing.in_turn_us([]) == []


def test_alone_each_comes_after_a_flush_and_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, rests = Machine(), []
    monkeypatch.setitem(sys.modules, "cupy", machine.cupy())
    monkeypatch.setattr(attention_timing.time, "sleep", rests.append)
    runs = [machine.kernel(5.0, us) for us in (300.0, 7.0)]
    slow, quick = attention_timing.alone_us(runs, 1 << 20, repeat=3)
    assert (slow, quick) == (300.0 + START_US, 7.0 + START_US)  # and nothing of the flush
    assert machine.flushed == [1 << 20] * 16 and len(rests) == 2  # before what is heavy


@pytest.mark.parametrize("l2_bytes", [0, 50 << 20])
def test_close_ways_are_told_apart_alone(l2_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = {"a": 32.3, "b": 33.8, "far": 40.0}
    alone = {"a": 42.0, "b": 35.0}
    asked = []

    def timed(runs: list[Any], nbytes: int) -> list[float]:
        asked.append(nbytes)
        return [alone[run()] for run in runs]

    monkeypatch.setattr(gemm_timing, "in_turn_us", lambda runs: [turn[run()] for run in runs])
    monkeypatch.setattr(gemm_timing, "alone_us", timed)
    times = gemm_timing._times({name: lambda n=name: n for name in turn}, l2_bytes)
    if not l2_bytes:  # what is read stays there, as in turn
        assert times == turn and not asked
        return
    assert times == pytest.approx({"a": 32.3 * 42 / 35, "b": 32.3, "far": 40.0})
    assert asked == [4 * l2_bytes]


@pytest.mark.parametrize(("rows", "nbytes", "cold"), [(65, 51, 100), (65, 50, 0), (64, 51, 0)])
def test_what_the_l2_keeps_is_not_timed_alone(rows: int, nbytes: int, cold: int) -> None:
    sets = [(np.zeros(nbytes - 2, np.int8), np.zeros(1, np.int8), np.zeros(1, np.int8))] * 2
    problem, facts = SimpleNamespace(m=rows), SimpleNamespace(l2_bytes=100)
    assert gemm_timing._cold(problem, sets, facts) == cold  # type: ignore[arg-type]


def test_a_fold_is_timed_after_the_statistics_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[Any] = []
    a, found, sums = np.ones((4, 8), np.float32), np.zeros((4, 2), np.float32), np.ones(3)

    def statistics(x: Any, *, eps: float, out: Any) -> None:
        order.append((x is a, out is found))

    def run() -> None:
        order.append("product")

    monkeypatch.setattr(gemm_timing, "row_statistics", statistics)
    gemm_timing._as_used(run, a, Epilogue(normed=Normed(found, sums)))()
    assert order == [(True, True), "product"]
    assert gemm_timing._as_used(run, a, Epilogue()) is run


def test_words_that_graphs_count_in_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, returned = Machine(), []
    monkeypatch.setitem(sys.modules, "cupy", machine.cupy())
    kept: Any = SimpleNamespace(_returned=returned, _reclaim=lambda: None)
    monkeypatch.setattr(_counters, "_made", {0: kept})
    kernel = machine.kernel(5.0, 1000.0)

    def run() -> None:
        taken = _counters._taken.get()
        if machine.captured is not None and taken is not None:
            taken.append(Taken(kept, 64, 8))
        kernel()

    attention_timing.graph_us(run)
    assert returned == [(64, 8, None)]
