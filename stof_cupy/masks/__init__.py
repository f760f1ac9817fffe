"""Attention masks: `BsrMask`, the patterns that make them, and the schedules kernels run from.

Examples
--------
>>> from stof_cupy import masks
>>> mask = masks.longformer(16384, window=256, global_tokens=64).tobsr()
>>> mask
<BsrMask (16384, 16384): density 0.0387, 2786 of 65536 tiles (2284 full, 502 part, 2 bitmaps)>
"""

from __future__ import annotations

from stof_cupy.masks.block_patterns import bigbird, blocks
from stof_cupy.masks.bsr import BsrMask, as_mask
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.patterns import (
    causal,
    document,
    full,
    global_tokens,
    longformer,
    sliding_window,
)
from stof_cupy.masks.schedule import DeviceSchedule, Schedule, ScheduleStats
from stof_cupy.masks.spec import from_spec, spec_help

__all__ = [
    "BsrMask",
    "DeviceSchedule",
    "Pattern",
    "Schedule",
    "ScheduleStats",
    "as_mask",
    "bigbird",
    "blocks",
    "causal",
    "document",
    "from_spec",
    "full",
    "global_tokens",
    "longformer",
    "sliding_window",
    "spec_help",
]
