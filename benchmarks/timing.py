"""What every benchmark notes beside pytest-benchmark's own statistics."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from stof_cupy.testing import time_ms


def note_quantiles(benchmark: Any) -> float:
    """Note the quantiles of a finished benchmark, in ms, and return the median."""
    times = np.array(benchmark.stats.stats.data)
    p20, p50, p80 = np.quantile(times, (0.2, 0.5, 0.8)) * 1e3
    benchmark.extra_info |= {"p20_ms": p20, "p50_ms": p50, "p80_ms": p80}
    return float(p50)


def note_device_time(benchmark: Any, run: Callable[[], Any]) -> None:
    """Note the quantiles of the time between CUDA events around calls of `run`, in ms.

    The host is part of it where it is slower than the GPU.
    """
    import cupy

    quantiles = time_ms(run, xp=cupy)._asdict()
    benchmark.extra_info |= {f"device_{name}_ms": value for name, value in quantiles.items()}


def peak_mib(run: Callable[[], Any]) -> float:
    """Return the most memory that `run` held beyond what was held before it, MiB."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()
