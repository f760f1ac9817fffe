"""Patterns are built in work and memory of the tiles they list, never of the square (T25).

Bounds are several times what a slow core takes, and far below what anything quadratic would.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest

from stof_cupy import masks
from stof_cupy.errors import UnsupportedError
from stof_cupy.masks import Pattern

MIB = 2**20


def sparse(s: int) -> Pattern:
    return masks.sliding_window(s, window=512) | masks.global_tokens(s, 64)


def cost(make: Callable[[], masks.BsrMask]) -> tuple[float, float]:
    """Return the best of three times, seconds, and the peak of extra memory, MiB."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        make()
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    try:
        make()
        return min(times), tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("make", "seconds", "mib"),
    [
        (lambda: sparse(131_072).tobsr(), 0.5, 16),
        (lambda: sparse(1_000_000).tobsr(), 4.0, 64),
        (lambda: masks.causal(131_072).tobsr(), 2.0, 128),
        (lambda: (masks.causal(1_000_000) & sparse(1_000_000)).tobsr(), 4.0, 64),
        (lambda: masks.bigbird(131_072).tobsr(), 1.0, 16),
        (lambda: masks.document([512] * 256, causal=True).tobsr(), 0.5, 16),
    ],
    ids=["window", "window-1M", "causal", "composed-1M", "bigbird", "document"],
)
def test_long_patterns(make: Callable[[], masks.BsrMask], seconds: float, mib: float) -> None:
    took, peak = cost(make)
    assert took < seconds
    assert peak < mib


def test_equal_tiles_are_stored_once() -> None:
    assert len(masks.causal(16_384).tobsr().bitmaps) == 1
    longformer = masks.longformer(16_384, window=256, global_tokens=64).tobsr()
    assert len(longformer.bitmaps) == 2
    assert longformer.nbytes < MIB / 4
    # By the closed form: the band, and the rows and columns of 64 tokens that it does not reach.
    band = 16_384 * 513 - 256 * 257
    assert longformer.nnz == band + 2 * sum(16_384 - 257 - q for q in range(64))


def test_a_mask_bounds_what_a_pattern_builds() -> None:
    """`mask & pattern` does not lower the pattern: causal alone lists 122 million tiles here."""
    window = masks.sliding_window(1_000_000, window=64).tobsr()
    both = window & masks.causal(1_000_000)
    assert both.nnz == masks.sliding_window(1_000_000, window=64, causal=True).nnz


def test_what_cannot_be_listed_is_refused_before_it_is_built() -> None:
    with pytest.raises(UnsupportedError, match=r"at most 2\*\*28"):
        masks.full(2**22).tobsr()
