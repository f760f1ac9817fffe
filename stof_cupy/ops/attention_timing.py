"""Device times of attention kernels, from replays of CUDA graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stof_cupy.dtypes import as_dtype
from stof_cupy.ops._counters import give_back, taking
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.attention_candidates import Candidate
from stof_cupy.ops.attention_cuda import completed, prepared
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_fields import Args

__all__ = ["alone_us", "graph_us", "in_turn_us", "inputs_of", "timer"]

_GRAPH_US = 400.0  # that a graph takes at least, for the clock of events to tell
_MOST_LAUNCHES = 40
_LONG_US = 10e3  # whose times vary little
_HEAVY_US, _REST_S = 100.0, 0.15
"""A GPU that was busy runs what is at least as long slower; after a rest it does not."""


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
    return float(_replays_us([run], repeat)[0].min())


def in_turn_us(runs: Sequence[Callable[[], None]], *, repeat: int = 7) -> list[float]:
    """Return the device times of several runs as `graph_us` does, but of replays in turn, medians.

    A GPU that has been busy for a while runs slower, for the power that it draws: who is timed
    first would look better than the others.

    Parameters
    ----------
    runs, repeat
        As of `graph_us`.

    Returns
    -------
    list of float
        Microseconds of each run.
    """
    return [float(np.median(times)) for times in _replays_us(runs, repeat)] if runs else []


def alone_us(runs: Sequence[Callable[[], None]], nbytes: int, *, repeat: int = 12) -> list[float]:
    """Return the device times of several runs, each by itself, on a GPU that has rested; medians.

    Whoever comes after other work finds little of what it reads in the L2, and no CTA of the run
    before that it could hide behind.

    Parameters
    ----------
    runs
        As of `graph_us`.
    nbytes : int
        Are written before each, so that the L2 holds nothing else.
    repeat : int
        Times that each is timed in a row; twice, the second time in the opposite order.
    """
    import cupy

    here = cupy.cuda.Device()
    flush = cupy.empty(nbytes, np.int8)  # CuPy's pool would keep that of a stream that is gone
    here.synchronize()
    with taking(here.id) as taken, cupy.cuda.Stream(non_blocking=True) as stream:
        graphs = []

        def timed(graph: Any, repeat: int) -> list[float]:
            pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(repeat)]
            for start, end in pairs:
                flush.fill(0)
                start.record()
                graph.launch(stream)
                end.record()
            stream.synchronize()
            return [1e3 * float(cupy.cuda.get_elapsed_time(*pair)) for pair in pairs]

        for run in runs:
            run()
            graphs.append(_graph(run, 1, stream))
        once = [timed(graph, 2)[-1] for graph in graphs]
        times = [list[float]() for _ in graphs]
        for i in (*range(len(graphs)), *reversed(range(len(graphs)))):
            if once[i] > _HEAVY_US:
                time.sleep(_REST_S)
            times[i] += timed(graphs[i], repeat)
    give_back(taken, None)
    return [float(np.median(each)) for each in times]


def _replays_us(runs: Sequence[Callable[[], None]], repeat: int) -> list[np.ndarray]:
    """Return the times of replays of each run's graph, taken in turn, a run."""
    import cupy

    here = cupy.cuda.Device()
    here.synchronize()  # for what other streams have yet to write
    with taking(here.id) as taken, cupy.cuda.Stream(non_blocking=True) as stream:
        graphs = [_captured(run, stream) for run in runs]
        longest = max(us for *_, us in graphs)
        graphs[-1][0].launch(stream)  # while it runs the host gets ahead
        pairs = []
        for _ in range(2 if longest > _LONG_US else repeat):
            for graph, *_ in graphs:
                pairs.append((cupy.cuda.Event(), cupy.cuda.Event()))
                pairs[-1][0].record()
                graph.launch(stream)
                pairs[-1][1].record()
        stream.synchronize()
    give_back(taken, None)  # these graphs have run
    times = np.array([cupy.cuda.get_elapsed_time(*pair) for pair in pairs]).reshape(-1, len(runs))
    return [1e3 * times[:, i] / count for i, (_, count, _) in enumerate(graphs)]


def _captured(run: Callable[[], None], stream: Any) -> tuple[Any, int, float]:
    """Return a graph of as many runs as can be timed, how many, and us of one, about.

    That is a replay's: calls take as long as the host where it is slow, and a graph of few runs for
    that would charge its own start to them.
    """
    import cupy

    run()
    run()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    one = _graph(run, 1, stream)
    one.launch(stream)
    start.record()
    one.launch(stream)
    end.record()
    end.synchronize()
    once = 1e3 * cupy.cuda.get_elapsed_time(start, end)
    count = int(min(max(_GRAPH_US / max(once, 1.0), 1), _MOST_LAUNCHES))
    return _graph(run, count, stream) if count > 1 else one, count, once


def _graph(run: Callable[[], None], count: int, stream: Any) -> Any:
    """Return a graph of `count` runs."""
    stream.begin_capture()
    try:
        for _ in range(count):
            run()
    finally:
        graph = stream.end_capture()
    return graph


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
