"""How long does a mask take to build, and how much memory beyond the mask itself?

    pytest benchmarks/bench_masks.py --benchmark-json=out.json

The masks of the peers' anchors (w=256, g=64, blocks of 64, documents of about 512 tokens, a tenth
of all blocks) and some of other kinds, on NumPy. A timed call starts from a function's arguments
and ends with the tiles; random draws are arguments. Peak memory is measured in a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt
from typing import Any

import numpy as np
import pytest
from shapes import LONG_MASK, MASK_NAMES, MASK_SIZES
from timing import note_quantiles, peak_mib

from stof_cupy import masks


def builders(s: int) -> dict[str, Callable[[], masks.Pattern]]:
    """Return a function for each name that makes the pattern from its arguments."""
    rng = np.random.default_rng(0)
    blocks = s // 64
    scattered = (rng.random((blocks, blocks)) < 3 / blocks).nonzero()
    documents = np.sort(rng.integers(0, s // 512, s))
    tenth = ((rng.random((blocks, blocks)) < 0.1) | np.eye(blocks, dtype=bool)).nonzero()
    near = partial(masks.sliding_window, s, window=256)
    height = 2 ** (isqrt(s).bit_length() - 1)
    return {
        "causal": partial(masks.causal, s),
        "sliding": near,
        "causal-sliding": partial(near, causal=True),
        "longformer": partial(masks.longformer, s, window=256, global_tokens=64),
        "bigbird": lambda: masks.bigbird(s, random_blocks=0) | masks.blocks((s, s), *scattered),
        "document": partial(masks.document_ids, documents, causal=True),
        "block10": partial(masks.blocks, (s, s), *tenth),
        "dilated": partial(masks.dilated, s, window=64, dilation=8),
        "strided": partial(masks.strided, s, stride=512),
        "image": partial(masks.neighborhood, (height, s // height), window=13),
        "predicate": lambda: masks.predicate((s, s), _even, within=near()),
    }


def _even(q: Any, k: Any) -> Any:
    return (q + k) & 1 == 0


def record(benchmark: Any, make: Callable[[], masks.Pattern]) -> None:
    """Time the build of a mask, and note its size and the peak of memory."""
    mask = benchmark.pedantic(lambda: make().tobsr(), rounds=10, warmup_rounds=1)
    benchmark.extra_info |= {
        "tiles": mask.ntiles,
        "part_tiles": len(mask.part_col_idx),
        "bitmaps": len(mask.bitmaps),
        "density": mask.density,
        "mask_mib": mask.nbytes / 2**20,
        "peak_mib": peak_mib(lambda: make().tobsr()),
    }
    note_quantiles(benchmark)


@pytest.mark.parametrize("s", MASK_SIZES)
@pytest.mark.parametrize("name", MASK_NAMES)
def bench_build(benchmark: Any, name: str, s: int) -> None:
    record(benchmark, builders(s)[name])


def bench_build_long(benchmark: Any) -> None:
    s, window, tokens = LONG_MASK["s"], LONG_MASK["window"], LONG_MASK["tokens"]
    record(benchmark, lambda: masks.longformer(s, window=window, global_tokens=tokens))
