"""Products that turn queries and keys on a GPU: are they right, and faster than two kernels.

PYTHONPATH=. python scratch/turned.py   # about 60 s, most of it NVRTC; one GPU
"""

from __future__ import annotations

import time
from functools import partial
from itertools import product

import cupy
import numpy as np

from stof_cupy.dtypes import as_dtype
from stof_cupy.graph import meaning_decoder, turned
from stof_cupy.graph.frequencies import Frequencies
from stof_cupy.jit.device import facts
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Layout


def made(m: int, n: int, k: int, heads: int, dim: int, neighbours: bool, dtype: str):
    """Return operands on the host, and attributes."""
    rng = np.random.default_rng(m + dim)
    half = dim // 2
    x, w, b = (
        rng.standard_normal(shape).astype(as_dtype(dtype)) for shape in ((1, m, k), (n, k), (n,))
    )
    w = (w.astype(np.float32) / np.sqrt(k)).astype(as_dtype(dtype))
    at = rng.integers(0, 8192, (1, m)).astype(np.int32)
    how = {"frequency": Frequencies(10000.0 ** -(np.arange(half) / half)), "heads": heads}
    return (x, w, at, b), {**how, "head_dim": dim, "interleaved": neighbours, "magnitude": 1.0}


def microseconds(run) -> float:
    """Return the time of a call, of which many are one CUDA graph."""
    run()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        run()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(20):
            run()
        graph = stream.end_capture()
        graph.launch()
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(5):
            graph.launch()
        stop.record()
        stop.synchronize()
    return cupy.cuda.get_elapsed_time(start, stop) * 10


def right() -> None:
    """Compare with the definition in float64."""
    worst = 0.0
    forced = turned.in_one
    for one in (True, False):
        turned.in_one = lambda *_, one=one: one
        for m, dim, neighbours, dtype in product(
            (1, 5, 67, 300), (32, 64, 128, 256), (False, True), ("float16", "bfloat16")
        ):
            host, how = made(m, 4 * dim, 256, 3, dim, neighbours, dtype)
            want = meaning_decoder.turned_gemm(
                *(each.astype(float) if i != 2 else each for i, each in enumerate(host)), **how
            )
            got = turned.turned_gemm(*map(cupy.asarray, host), **how).get().astype(float)
            # Rounded once, or twice where two kernels are; sums are float32.
            budget = (2 if one else 4) * (2.0**-11 if dtype == "float16" else 2.0**-8)
            gap = np.abs(got - want).max() / (np.abs(want).max() * budget)
            worst = max(worst, gap)
            if gap > 1:
                print("WRONG", one, m, dim, neighbours, dtype, gap)
    turned.in_one = forced
    print(f"right: worst error {worst:.2f} of what is allowed")


def fast() -> None:
    """Time one kernel and two, and say which of them is taken."""
    forced = turned.in_one
    print("rows x columns x depth, head dim, layout: one kernel, two kernels, taken")
    for (n, k, heads, dim), neighbours, m in product(
        ((3072, 2048, 40, 64), (6144, 4096, 40, 128)), (False, True), (16, 128, 512, 2048, 8192)
    ):
        host, how = made(m, n, k, heads, dim, neighbours, "bfloat16")
        out = cupy.empty((1, m, n), as_dtype("bfloat16"))
        run = partial(turned.turned_gemm, *map(cupy.asarray, host), **how, out=out)
        times = []
        for one in (True, False):
            turned.in_one = lambda *_, one=one: one
            times.append(microseconds(run))
        turned.in_one = forced
        kind = "neighbours" if neighbours else dim
        problem = Problem("bfloat16", m, n, k, EpilogueKind(bias=True))
        said = forced(problem, kind, heads * dim, Layout(), facts(0))
        taken = "one" if said else "two"
        print(f"{m}x{n}x{k} {dim} {kind}: {times[0]:.1f} {times[1]:.1f} us, {taken}", flush=True)


if __name__ == "__main__":
    begun = time.perf_counter()
    right()
    fast()
    print(f"{time.perf_counter() - begun:.0f} s")
