"""Records runs as CUDA graphs, with CuPy."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stof_cupy.graph.recorder import Recording
from stof_cupy.ops._counters import Taken, give_back, taking

__all__ = ["CudaRecorder"]


class CudaRecorder:
    """Records CUDA graphs; see `recorder.Recorder`.

    Memory that a recorded run allocates comes from a pool of its own, which nobody else draws from,
    so that its addresses stay good.

    Parameters
    ----------
    device : int
    """

    def __init__(self, device: int) -> None:
        self._device = device

    def record(self, run: Callable[[], Any]) -> tuple[Recording, Any]:
        """Run once, so that kernels are compiled and masks uploaded, then record."""
        import cupy

        with cupy.cuda.Device(self._device):
            pool = cupy.cuda.MemoryPool()
            stream = cupy.cuda.Stream(non_blocking=True)
            stream.wait_event(cupy.cuda.get_current_stream().record())
            with stream, cupy.cuda.using_allocator(pool.malloc):
                run()
                stream.synchronize()
                with taking(self._device) as taken:
                    # Relaxed: the pool may have to grow once more.
                    stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
                    try:
                        result = run()
                    finally:
                        graph = stream.end_capture()
            graph.upload(stream)
            stream.synchronize()
            return _CudaRecording(_Held(graph, pool, stream, taken)), result

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return the time of a run as a graph, without what the host adds: a `bench.Stopwatch`."""
        import cupy

        recording, _ = self.record(run)
        with cupy.cuda.Device(self._device):
            stream = cupy.cuda.get_current_stream()

            def timed(repeat: int) -> float:
                start, end = cupy.cuda.Event(), cupy.cuda.Event()
                start.record()
                for _ in range(repeat):
                    recording.replay()
                end.record()
                stream.synchronize()
                return float(cupy.cuda.get_elapsed_time(start, end)) / repeat / 1e3

            timed(1)
            repeat = min(max(int(_ENOUGH / max(timed(1), 1e-9)), 1), 20)
            return min(timed(repeat) for _ in range(3))


_ENOUGH = 0.01
"""Seconds that replays are timed for at a time."""


@dataclass
class _Held:
    """What a recording is made of.

    It outlives the recording by a moment. Were it the recording's alone, and that part of a cycle,
    Python would finalise all of it in any order: the event, which then is no more and may not be
    asked, before the counters are given back with it.
    """

    graph: Any
    pool: Any
    stream: Any  # the pool's free blocks belong to it
    taken: list[Taken]
    used: Any = None

    def drop(self) -> None:
        """Give all of it back."""
        give_back(self.taken, self.used)
        self.graph = None
        # Parts of a block refer to each other, and so would stay until Python looks for cycles.
        self.pool.free_all_blocks()


class _CudaRecording:
    def __init__(self, held: _Held) -> None:
        self._held = held
        weakref.finalize(self, held.drop).atexit = False

    @property
    def nbytes(self) -> int:
        return int(self._held.pool.total_bytes())

    @contextmanager
    def turn(self) -> Iterator[None]:
        import cupy

        stream = cupy.cuda.get_current_stream()
        if self._held.used is not None:
            stream.wait_event(self._held.used)
        try:
            yield
        finally:
            self._held.used = stream.record()

    def replay(self) -> None:
        import cupy

        self._held.graph.launch(cupy.cuda.get_current_stream())
