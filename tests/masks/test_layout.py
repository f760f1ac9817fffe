"""Accumulator order: a bijection for every tile, and the one that the hardware manual states."""

from __future__ import annotations

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError
from stof_cupy.masks.bitmap import pack_bits
from stof_cupy.masks.layout import accumulator_words, check_tile

# Every tile that a kernel may want: all rows, and columns on both sides of whole words.
TILES = [
    (m, n) for m in range(16, 257, 16) for n in (8, 16, 24, 32, 64, 80, 112, 128, 176, 192, 256)
]


def grid_words(dense: np.ndarray) -> np.ndarray:
    """Words ``(count, n / 8, m / 8)`` of boolean tiles ``(count, m, n)``."""
    count, m, n = dense.shape
    inner = dense.reshape(count, m // 8, 8, n // 8, 8).transpose(0, 3, 1, 2, 4)
    return pack_bits(np.ascontiguousarray(inner).reshape(count, n // 8, m // 8, 64))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_bijection(tile: tuple[int, int]) -> None:
    """Which element each bit holds, read off tiles that spell the elements' numbers in binary."""
    m, n = tile
    number = np.arange(1, m * n + 1).reshape(tile)  # 0 is for padding
    digits = np.arange(int(number.max()).bit_length())
    words = accumulator_words(grid_words((number >> digits[:, None, None]) & 1 != 0))
    assert words.dtype == np.uint32 and words.shape == (len(digits), m // 16, 32, -(-n // 64))
    bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").astype(np.int64)
    held = (bits << digits[:, None, None, None]).sum(axis=0)  # warp, lane, bit
    assert sorted(held[..., : n // 2].ravel()) == list(range(1, m * n + 1))
    assert not held[..., n // 2 :].any()

    # Where PTX says that the accumulators of m16n8 and of m64n* are.
    warp, lane, bit = np.indices((m // 16, 32, n // 2))
    r, j, e = bit // (n // 4), bit % (n // 4) // 2, bit % 2
    row, col = 16 * warp + lane // 4 + 8 * r, 8 * j + 2 * (lane % 4) + e
    np.testing.assert_array_equal(held[..., : n // 2], number[row, col])


@pytest.mark.parametrize("rows", (64, 128, 192))
def test_two_words_a_lane_with_128_columns(rows: int) -> None:
    """One word per row of a thread, as the measured kernels read it: [warpgroup][thread][r]."""
    dense = np.random.default_rng(0).random((3, rows, 128)) < 0.5
    split = dense.reshape(3, rows // 64, 4, 2, 8, 16, 4, 2).transpose(0, 1, 2, 4, 6, 3, 5, 7)
    expected = np.packbits(split.reshape(3, rows // 64, 128, 2, 32), axis=-1, bitorder="little")
    got = accumulator_words(grid_words(dense)).reshape(3, rows // 64, 128, 2)
    np.testing.assert_array_equal(got, expected.view(np.uint32)[..., 0])


def test_more_tiles_than_are_permuted_at_a_time() -> None:
    dense = np.random.default_rng(0).random((300, 128, 256)) < 0.5
    words = accumulator_words(grid_words(dense))
    np.testing.assert_array_equal(words[299], accumulator_words(grid_words(dense[299:]))[0])
    assert accumulator_words(grid_words(dense[:0])).shape == (0, 8, 32, 4)


@pytest.mark.parametrize(
    "tile", [(8, 64), (64, 4), (0, 64), (64, 264), (272, 8), (64,), 64, (64.0, 8)]
)
def test_tiles_that_no_kernel_has(tile: object) -> None:
    with pytest.raises(ArgumentError, match="multiples of 16 and 8, at most 256"):
        check_tile(tile)
