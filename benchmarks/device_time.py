"""Device time of a call by replaying its CUDA graph, the same way for CuPy's and torch's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

LAUNCHES = 20  # of a small call in one graph
SPENT_MS = 60.0  # about, on one measurement
FLUSH_BYTES = 2**28
LONG_MS, REST_S = 0.1, 0.15
"""What draws much power is timed after a rest: a GPU that was busy before runs slower for it."""


class DeviceTime(NamedTuple):
    """Quantiles over replays, ms a call; whether the host was left out; how many replays."""

    p20: float
    p50: float
    p80: float
    graph: bool
    rounds: int


def ours(run: Callable[[], Any], *, small: bool) -> DeviceTime:
    """Time what launches on CuPy's current stream."""
    import cupy

    def captured(launches: int) -> Callable[[], Any]:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            for _ in range(launches):
                run()
        finally:
            graph = stream.end_capture()
        return lambda: graph.launch(stream)

    with cupy.cuda.Stream(non_blocking=True) as stream:
        flush = cupy.empty(FLUSH_BYTES, np.int8)  # first: it takes no memory that a run gave back
        run()
        stream.synchronize()
        return _timed(captured, run, small, cupy.cuda.Event, lambda: flush.fill(0), _between)


def theirs(run: Callable[[], Any], *, small: bool) -> DeviceTime:
    """Time what launches on torch's current stream."""
    import torch

    def captured(launches: int) -> Callable[[], Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(launches):
                run()
        return graph.replay

    def event() -> Any:
        return torch.cuda.Event(enable_timing=True)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            run()
        stream.synchronize()
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        return _timed(captured, run, small, event, flush.zero_, _torch_between)


def _timed(
    captured: Callable[[int], Callable[[], Any]],
    run: Callable[[], Any],
    small: bool,
    event: Callable[[], Any],
    flush: Callable[[], Any],
    between: Callable[[Any, Any], float],
) -> DeviceTime:
    """Replay a graph of one call, L2 flushed before it, or of many small ones."""
    launches, graph = (LAUNCHES if small else 1), True
    try:
        replay = captured(launches)
    except Exception:  # what cannot be captured is timed with its host's time, which is said
        replay, launches, graph = run, 1, False
    first = [event(), event()]
    for _ in range(2):
        first[0].record()
        replay()
        first[1].record()
        first[1].synchronize()
    each = max(between(*first), 1e-3)
    if each > LONG_MS:
        time.sleep(REST_S)
    pairs = [(event(), event()) for _ in range(int(np.clip(SPENT_MS / (each + 0.1), 5, 40)))]
    for start, end in pairs:
        if not small:
            flush()
        start.record()
        replay()
        end.record()
    pairs[-1][1].synchronize()
    times = [between(*pair) / launches for pair in pairs]
    return DeviceTime(*(float(x) for x in np.percentile(times, (20, 50, 80))), graph, len(times))


def _between(start: Any, end: Any) -> float:
    import cupy

    return float(cupy.cuda.get_elapsed_time(start, end))


def _torch_between(start: Any, end: Any) -> float:
    return float(start.elapsed_time(end))
