"""Device times of attention kernels, from replays of CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stof_cupy.dtypes import as_dtype
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.attention_candidates import Candidate
from stof_cupy.ops.attention_cuda import completed, prepared
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_fields import Args

__all__ = ["graph_us", "inputs_of", "timer"]

_GRAPH_US = 400.0  # that a graph takes at least, for the clock of events to tell
_MOST_LAUNCHES = 40
_LONG_US = 10e3  # whose times vary little


def graph_us(run: Callable[[], None], *, repeat: int = 7) -> float:
    """Return the device time of what `run` launches, in microseconds: the least of replays.

    The graph holds as many runs as make it long enough to be timed; what they read is in the L2 as
    far as it fits there. The least, because the host may come between two replays, and nothing lets
    a GPU run faster than it can.

    Parameters
    ----------
    run : callable
        Launches on CuPy's current stream; waits for nothing.
    repeat : int
        Replays that are timed; of what takes longer than 10 ms, two.
    """
    import cupy

    def timed(launch: Callable[[], None], times: int) -> float:
        events = [cupy.cuda.Event() for _ in range(times + 1)]
        launch()  # while it runs the host gets ahead
        events[0].record()
        for event in events[1:]:
            launch()
            event.record()
        events[-1].synchronize()
        return 1e3 * float(min(map(cupy.cuda.get_elapsed_time, events, events[1:])))

    cupy.cuda.Device().synchronize()  # for what other streams have yet to write
    with cupy.cuda.Stream(non_blocking=True) as stream:
        run()
        once = timed(run, 2)
        count = int(min(max(_GRAPH_US / max(once, 1.0), 1), _MOST_LAUNCHES))
        stream.begin_capture()
        try:
            for _ in range(count):
                run()
        finally:
            graph = stream.end_capture()
        return timed(graph.launch, 2 if once > _LONG_US else repeat) / count


def inputs_of(case: Case) -> Args:
    """Return random arrays for a case on CuPy's current device."""
    import cupy

    p = case.problem
    queries, keys = (p.batch, p.heads, p.seq_q), (p.batch, p.kv_heads, p.seq_k)
    draw = cupy.random.default_rng(0)
    q, k, v = (
        draw.standard_normal(shape, dtype=np.float32).astype(as_dtype(p.dtype))
        for shape in ((*queries, p.dim_qk), (*keys, p.dim_qk), (*keys, p.dim_v))
    )
    _, _, mask, scores = validate(q, k, v, case.mask, Scores(), None, None)
    args = Args(p, q, k, v, None, None, mask, scores, None)
    return completed(args, return_lse=False)


def timer(candidate: Candidate, case: Case) -> float:
    """Return the microseconds of a candidate on CuPy's current device; plain scores."""
    return graph_us(prepared(candidate, inputs_of(case)))
