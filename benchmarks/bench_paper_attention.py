"""Figs. 9 and 10 of the paper: attention of BERT-base's heads under its masks, beside every other.

    make bench-gpu BENCH=paper_attention       within a budget of seconds; again: goes on
    pytest benchmarks/bench_paper_attention.py -m gpu -k "sliding and 4096" --benchmark-json=X.json
    pytest benchmarks/bench_paper_attention.py -m "not gpu"              small, on the CPU

12 heads of 64, S from 128 to 4096, batches of 1, 8 and 16, bfloat16. Masks "paper-" are those of
Table 2, "artifact-" those that the paper's artifact times (paper_masks.py). Everyone gets the same
mask, which is checked element by element, and the same inputs; results are found equal before
anything is timed. How, bench_attention.py says. On the CPU the other is masked NumPy.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import paper_masks
import pytest
from bench_attention import WAYS, record
from bench_attention_cpu import inputs, plain
from shapes import PAPER_BATCHES, PAPER_DIM, PAPER_HEADS, PAPER_LENGTHS
from timing import note_quantiles

from stof_cupy import attention


def grid(machine: str, ways: tuple[str, ...]) -> list[Any]:
    """Return every way of every mask, length and batch; the paper's masks come first."""
    return [
        pytest.param(name, batch, seq, way, id=f"{name}-{batch}x{seq}-{way}")
        for name in paper_masks.FORMS
        for seq in PAPER_LENGTHS[machine]
        for batch in PAPER_BATCHES[machine]
        for way in ways
    ]


@pytest.mark.gpu
@pytest.mark.parametrize(("mask", "batch", "seq", "way"), grid("gpu", WAYS))
def bench_paper(benchmark: Any, mask: str, batch: int, seq: int, way: str) -> None:
    shape = (batch, PAPER_HEADS, PAPER_HEADS, seq, seq, PAPER_DIM)
    record(benchmark, "paper", shape, mask, way)


@pytest.mark.parametrize(("mask", "batch", "seq", "way"), grid("cpu", ("ours", "NumPy")))
def bench_paper_cpu(benchmark: Any, mask: str, batch: int, seq: int, way: str) -> None:
    shape = (batch, PAPER_HEADS, seq, PAPER_DIM)
    record_cpu(benchmark, shape, paper_masks.lowered(mask, seq), way)


def record_cpu(benchmark: Any, shape: tuple[int, int, int, int], mask: Any, way: str) -> None:
    """Time ours or masked NumPy, found equal first."""
    given, dense = inputs(shape), mask.toarray()
    np.testing.assert_allclose(attention(*given, mask), plain(*given, dense), atol=5e-6)
    calls = {"ours": lambda: attention(*given, mask), "NumPy": lambda: plain(*given, dense)}
    benchmark.pedantic(calls[way], rounds=7, warmup_rounds=1)
    note_quantiles(benchmark)
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "default")
    benchmark.extra_info |= {"way": way, "density": mask.density, "blas_threads": threads}
