"""Facts of GPUs that are not here, and cases for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stof_cupy.jit.attention_kernels import PLAIN, TIGHT_NVRTC, ScoreKind
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.masks.device.built import BuiltMask, UploadedMask
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_demand import Case

A100 = DeviceFacts(
    *("NVIDIA A100-SXM4-80GB", "80", (8, 0), 108, 166912, 167936, 40 << 20, 1410000, 80 << 30),
    *(2048, 1593000, 5120),
)
H100 = DeviceFacts(
    *("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20, 1980000, 80 << 30),
    *(2048, 2619000, 5120),
)
H200 = replace(  # the same chip with other memory
    H100,
    name="NVIDIA H200",
    l2_bytes=60 << 20,
    memory_bytes=150109880320,
    memory_clock_khz=3201000,
    memory_bus_bits=6016,
    clusters=(132, 66, 39, 30, 22, 17, 15, 15),
)
RTX_4090 = DeviceFacts(
    *("NVIDIA GeForce RTX 4090", "89", (8, 9), 128, 101376, 102400, 72 << 20, 2520000, 24 << 30),
    *(1536, 10501000, 384),
)
L4 = DeviceFacts(
    *("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30),
    *(1536, 6251000, 192),
)
B200 = DeviceFacts(
    *("NVIDIA B200", "100", (10, 0), 148, 232448, 233472, 126 << 20, 1965000, 180 << 30),
    *(2048, 3996000, 8192),
)
GPUS = (A100, H100, H200, RTX_4090, L4, B200)


def case(
    seq: int = 2048,
    mask: Any = None,
    facts: DeviceFacts = H100,
    *,
    dim: int = 64,
    batch: int = 1,
    heads: int = 12,
    scores: ScoreKind = PLAIN,
    nvrtc: tuple[int, int] = TIGHT_NVRTC,
    **other: Any,
) -> Case:
    problem = replace(Problem("float16", batch, heads, heads, seq, seq, dim, dim), **other)
    return Case(problem, mask, facts, scores, nvrtc)


class OnGpu(BuiltMask):
    """As much of a mask that a GPU has built as may be looked at without waiting for it."""

    def __init__(self, capacity: tuple[int, int], lead: tuple[int, ...] = ()) -> None:
        self._capacity, self.lead = capacity, lead

    @property
    def capacity(self) -> tuple[int, int]:
        return self._capacity

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of a mask on the GPU was asked for")


class Copied(UploadedMask):
    """A mask that was copied to a GPU."""

    def __init__(self, source: Any) -> None:
        self._source, self.lead = source, getattr(source, "lead", ())

    def to(self, device: str) -> Any:
        return self._source
