"""How long does sparse attention take on the host, and through plain masked NumPy?

    pytest benchmarks/bench_attention_cpu.py --benchmark-json=out.json

float32, (batch, heads, seq, head_dim), masks of the peers' anchors: built beforehand, as boolean
arrays for the plain one. Both run in one process with the same BLAS and its threads; results are
compared first. ``OPENBLAS_NUM_THREADS=1`` times one core; more threads, on cores that other
processes use, time the scheduler.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from shapes import CPU_ATTENTION, CPU_ATTENTION_MASKS
from timing import note_quantiles

from stof_cupy import RelativeBias, attention, masks

CASES = [
    pytest.param(shape, spec, id=f"{'x'.join(map(str, shape))}-{spec or 'full'}")
    for shape in CPU_ATTENTION
    for spec in CPU_ATTENTION_MASKS
]


@cache
def inputs(shape: tuple[int, int, int, int]) -> tuple[Any, Any, Any]:
    """Return q, k and v, the same at every call."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape, np.float32) for _ in range(3))
    return q, k, v


@cache
def mask_of(spec: str | None, seq: int) -> masks.BsrMask | None:
    """Return the mask, lowered once."""
    return None if spec is None else masks.from_spec(spec, seq).tobsr()


def plain(q: Any, k: Any, v: Any, dense: Any) -> Any:
    """Attend to every key, and hide those that are masked."""
    scores = np.matmul(q, k.swapaxes(-1, -2))
    scores *= np.float32(q.shape[-1] ** -0.5)
    if dense is not None:
        np.copyto(scores, np.float32(-np.inf), where=~dense)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores @ v


def record(benchmark: Any, shape: Any, spec: str | None, run: Callable[[], Any]) -> None:
    """Time `run`; note its quantiles, the share of kept elements and their GFLOP/s."""
    benchmark.pedantic(run, rounds=7, warmup_rounds=1)
    batch, heads, seq, dim = shape
    mask = mask_of(spec, seq)
    density = 1.0 if mask is None else mask.density
    flop = 4 * batch * heads * seq * seq * dim * density
    benchmark.extra_info |= {
        "density": density,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
        "useful_gflops": flop / note_quantiles(benchmark) / 1e6,
    }


@pytest.mark.parametrize(("shape", "spec"), CASES)
def bench_stof_cupy(benchmark: Any, shape: tuple[int, int, int, int], spec: str | None) -> None:
    mask = mask_of(spec, shape[2])
    record(benchmark, shape, spec, lambda: attention(*inputs(shape), mask))


@pytest.mark.parametrize(("shape", "spec"), CASES)
def bench_plain(benchmark: Any, shape: tuple[int, int, int, int], spec: str | None) -> None:
    mask = mask_of(spec, shape[2])
    dense = None if mask is None else mask.toarray()
    got = attention(*inputs(shape), mask)
    np.testing.assert_allclose(got, plain(*inputs(shape), dense), atol=5e-6)
    record(benchmark, shape, spec, lambda: plain(*inputs(shape), dense))


@pytest.mark.parametrize("feature", ["softcap", "alibi", "bias", "t5", "sinks"])
def bench_scores(benchmark: Any, feature: str) -> None:
    """Time the score modifications under the first mask."""
    shape, spec = CPU_ATTENTION[0], CPU_ATTENTION_MASKS[0]
    rng, heads = np.random.default_rng(1), shape[1]
    how: dict[str, Any] = {
        "softcap": {"softcap": 30.0},
        "alibi": {"alibi": np.exp2(-np.arange(1, heads + 1), dtype=np.float32)},
        "bias": {"bias": rng.standard_normal((1, 1, shape[2], shape[2]), np.float32)},
        "t5": {"bias": RelativeBias(rng.standard_normal((32, heads)), bidirectional=True)},
        "sinks": {"sinks": np.ones(heads, np.float32)},
    }[feature]
    mask = mask_of(spec, shape[2])
    record(benchmark, shape, spec, lambda: attention(*inputs(shape), mask, **how))
