"""Table 2 of the paper, and what its masks are made of: sparsity, tiles, and how long they build.

    pytest benchmarks/bench_paper_masks.py --benchmark-json=out.json

Where the paper prints a sparsity, for 1024 tokens, it is noted beside ours. The timed call starts
from the function's arguments (band, global tokens, random blocks) and ends with the tiles.
"""

from __future__ import annotations

from typing import Any

import paper_masks
import pytest
from shapes import PAPER_LENGTHS
from timing import note_quantiles

TABLE = 1024  # tokens of Table 2


@pytest.mark.parametrize("seq", PAPER_LENGTHS["gpu"])
@pytest.mark.parametrize("mask", paper_masks.FORMS)
def bench_statistics(benchmark: Any, mask: str, seq: int) -> None:
    form = paper_masks.FORMS[mask]
    arrays = paper_masks.draws(form.kind, seq)
    benchmark.pedantic(
        lambda: paper_masks.pattern(form, seq, arrays).tobsr(), rounds=5, warmup_rounds=1
    )
    note_quantiles(benchmark)
    made = paper_masks.lowered(mask, seq)
    stats = made.schedule().stats
    benchmark.extra_info |= {
        "sparsity": 1 - made.density,
        "tiles": made.ntiles / (-(-seq // 64)) ** 2,
        "part": len(made.part_col_idx) / made.ntiles,
        "waste": stats.waste,
        "bitmaps": len(made.bitmaps),
        "mask_kib": made.nbytes / 2**10,
        "printed": paper_masks.SPARSITY.get(mask) if seq == TABLE else None,
    }
