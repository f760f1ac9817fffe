"""How does attention grow with the length, with what the mask keeps, and with the batch?

    pytest benchmarks/bench_paper_scaling.py -m gpu --benchmark-json=out.json
    pytest benchmarks/bench_paper_scaling.py -m "not gpu"          small, on the CPU

12 heads of 64, one thing varied at a time: S under a causal mask, a window of 32 and Longformer's;
the share of 64x64 blocks that are kept; the batch under Longformer's mask. How times are taken,
bench_attention.py says; on the CPU, bench_paper_attention.py.
"""

from __future__ import annotations

from typing import Any

import attention_cells
import paper_masks
import pytest
from bench_attention import WAYS, record
from bench_paper_attention import record_cpu
from shapes import (
    PAPER_DIM,
    PAPER_HEADS,
    SCALING_BATCHES,
    SCALING_DENSITIES,
    SCALING_LENGTHS,
    SCALING_SEQ,
)

NAMES = ("paper-causal", "paper-sliding", "paper-longformer")
CPU_WAYS = ("ours", "NumPy")
Point = tuple[str, int, int]


def points(machine: str, axis: str) -> list[Point]:
    """Return the (mask, batch, seq) of a line."""
    seq = SCALING_SEQ[machine]
    return {
        "seq": [(name, 1, s) for name in NAMES for s in SCALING_LENGTHS[machine]],
        "density": [(f"blocks{share}", 1, seq) for share in SCALING_DENSITIES],
        "batch": [(NAMES[-1], batch, seq // 4) for batch in SCALING_BATCHES[machine]],
    }[axis]


def cases(machine: str, ways: tuple[str, ...]) -> list[Any]:
    return [
        pytest.param(axis, *point, way, id=f"{axis}-{point[0]}-{point[1]}x{point[2]}-{way}")
        for axis in ("seq", "density", "batch")
        for point in points(machine, axis)
        for way in ways
    ]


@pytest.mark.gpu
@pytest.mark.parametrize(("axis", "mask", "batch", "seq", "way"), cases("gpu", WAYS))
def bench_scaling(benchmark: Any, axis: str, mask: str, batch: int, seq: int, way: str) -> None:
    shape = (batch, PAPER_HEADS, PAPER_HEADS, seq, seq, PAPER_DIM)
    record(benchmark, f"scaling-{axis}", shape, mask, way)


@pytest.mark.parametrize(("axis", "mask", "batch", "seq", "way"), cases("cpu", CPU_WAYS))
def bench_scaling_cpu(benchmark: Any, axis: str, mask: str, batch: int, seq: int, way: str) -> None:
    if mask in paper_masks.FORMS:
        lowered = paper_masks.lowered(mask, seq)
    else:
        lowered = attention_cells.random_blocks(seq, float(mask.removeprefix("blocks"))).tobsr()
    record_cpu(benchmark, (batch, PAPER_HEADS, seq, PAPER_DIM), lowered, way)
