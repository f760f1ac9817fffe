"""Patterns are built in work and memory of the tiles they list, never of the square (T25).

Bounds are several times what a slow core takes, and far below what anything quadratic would.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import UnsupportedError
from stof_cupy.masks import Pattern
from stof_cupy.testing import rng

MIB = 2**20


def sparse(s: int) -> Pattern:
    return masks.sliding_window(s, window=512) | masks.global_tokens(s, 64)


def predicate(s: int) -> Pattern:
    near = masks.sliding_window(s, window=256)
    return masks.predicate((s, s), lambda q, k: (q ^ k) & 1 == 0, within=near)


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
        (lambda: masks.sink_window(1_000_000, sinks=4, window=512).tobsr(), 2.0, 64),
        (lambda: masks.dilated(1_000_000, window=3, dilation=300).tobsr(), 3.0, 64),
        (lambda: masks.strided(131_072, stride=512).tobsr(), 4.0, 64),
        (lambda: masks.neighborhood((512, 256), window=13).tobsr(), 3.0, 32),
        (lambda: predicate(131_072).tobsr(), 3.0, 16),
        (lambda: sparse(1_000_000).crop((5, 131_077), (9, 131_081)).tobsr(), 4.0, 64),
    ],
    ids=[
        *("window", "window-1M", "causal", "composed-1M", "bigbird", "document", "sinks-1M"),
        *("dilated-1M", "strided", "image", "predicate", "cropped-1M"),
    ],
)
def test_long_patterns(make: Callable[[], masks.BsrMask], seconds: float, mib: float) -> None:
    took, peak = cost(make)
    assert took < seconds
    assert peak < mib


@pytest.mark.parametrize(
    ("change", "seconds", "mib"),
    [
        (lambda mask: mask.T, 0.5, 32),
        (lambda mask: mask[33:-70, 33:-70], 2.0, 128),
        (lambda mask: mask.sum(axis=1), 1.0, 32),
        (lambda mask: mask[::1000, :], 1.0, 64),
        (lambda mask: masks.Schedule.of(mask._tiles, layout="accumulator"), 0.5, 32),
        (lambda mask: masks.Schedule.of(mask._tiles, tile=(192, 128), packed=True), 2.0, 64),
    ],
    ids=["transpose", "crop", "sum", "rows", "schedule", "packed"],
)
def test_what_is_made_of_a_mask_of_a_million(
    change: Callable[[masks.BsrMask], object], seconds: float, mib: float
) -> None:
    mask = sparse(1_000_000).tobsr()
    took, peak = cost(lambda: change(mask))  # type: ignore[arg-type, return-value]
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


def test_counts_of_rows_make_less_than_the_bitmaps() -> None:
    mask = masks.BsrMask(rng(0).random((8192, 8192), np.float32) < 0.1)
    expected = mask.toarray().sum(1)
    tracemalloc.start()
    counts = mask.sum(axis=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(counts, expected)
    assert peak < 8192 * 8192 / 8 / 2
