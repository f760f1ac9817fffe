"""Attention masks: `BsrMask`, the patterns that make them, and the schedules kernels run from.

A pattern is a small expression: patterns combine by ``&``, ``|``, ``^`` and ``~``, are cropped by
``pattern[a:b, c:d]`` and moved by `Pattern.shift`; `Pattern.tobsr` builds the tiles it lists.

* positions: `full`, `causal`, `sliding_window`, `dilated`, `prefix_lm`, `sink_window`, `chunked`
* columns and diagonals: `global_tokens`, `longformer`, `strided`, `fixed`, `vertical_slash`
* blocks: `blocks`, `block_layout`, `bigbird`, `bigbird_hf`
* packed and padded sequences: `document`, `document_ids`, `key_padding`
* images and volumes: `neighborhood`
* scores of blocks: `score_blocks`
* anything else: `predicate`, a function of positions or an expression of arrays; `dense`

``.to("cuda")`` builds a pattern on the GPU, and brings a mask there: `DeviceMask`.

Examples
--------
>>> from stof_cupy import masks
>>> mask = masks.longformer(16384, window=256, global_tokens=64).tobsr()
>>> mask
<BsrMask (16384, 16384): density 0.0387;
tiles: 2284 full, 502 part, 62750 empty; 2 bitmaps, 24,340 bytes>
"""

from __future__ import annotations

from stof_cupy.masks.block_layouts import block_layout
from stof_cupy.masks.block_patterns import bigbird, bigbird_hf, blocks
from stof_cupy.masks.bsr import BsrMask, as_mask
from stof_cupy.masks.dense import dense
from stof_cupy.masks.device.mask import DeviceMask
from stof_cupy.masks.device_schedule import DeviceSchedule
from stof_cupy.masks.drawing import plot, save_plot
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.mask_stack import MaskStack
from stof_cupy.masks.neighborhoods import neighborhood
from stof_cupy.masks.npz import load_npz, save_npz
from stof_cupy.masks.packing import document, document_ids, key_padding
from stof_cupy.masks.patterns import (
    causal,
    chunked,
    dilated,
    full,
    prefix_lm,
    sink_window,
    sliding_window,
)
from stof_cupy.masks.predicates import predicate
from stof_cupy.masks.schedule import Schedule, ScheduleStats
from stof_cupy.masks.scores import score_blocks
from stof_cupy.masks.sparse_patterns import (
    fixed,
    global_tokens,
    longformer,
    strided,
    vertical_slash,
)
from stof_cupy.masks.spec import from_spec, spec_help
from stof_cupy.masks.stacking import as_masks, stack

__all__ = [
    "BsrMask",
    "DeviceMask",
    "DeviceSchedule",
    "MaskStack",
    "Pattern",
    "Schedule",
    "ScheduleStats",
    "as_mask",
    "as_masks",
    "bigbird",
    "bigbird_hf",
    "block_layout",
    "blocks",
    "causal",
    "chunked",
    "dense",
    "dilated",
    "document",
    "document_ids",
    "fixed",
    "from_spec",
    "full",
    "global_tokens",
    "key_padding",
    "load_npz",
    "longformer",
    "neighborhood",
    "plot",
    "predicate",
    "prefix_lm",
    "save_npz",
    "save_plot",
    "score_blocks",
    "sink_window",
    "sliding_window",
    "spec_help",
    "stack",
    "strided",
    "vertical_slash",
]
