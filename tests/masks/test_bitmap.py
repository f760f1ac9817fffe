"""The bit order, written out here once more element by element, against both of its homes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from stof_cupy.masks import bitmap

HEADER = Path(__file__).parents[2] / "cuda" / "mask" / "bitmap.cuh"


def paper_words(tile: np.ndarray) -> list[int]:
    """Words of one boolean tile, by the paper's definition."""
    words = [0] * 64
    for i in range(8):
        for j in range(8):
            for r in range(8):
                for c in range(8):
                    words[j * 8 + i] |= int(tile[8 * i + r, 8 * j + c]) << (r * 8 + c)
    return words


def random_tiles(count: int) -> np.ndarray:
    return np.random.default_rng(0).random((count, 64, 64)) < 0.3


def test_pack_is_the_papers_order() -> None:
    tiles = random_tiles(3)
    assert [[int(w) for w in words] for words in bitmap.pack(tiles)] == [
        paper_words(tile) for tile in tiles
    ]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_unpack_undoes_pack(count: int) -> None:
    tiles = random_tiles(count)
    words = bitmap.pack(tiles)
    assert words.shape == (count, 64) and words.dtype == np.uint64
    np.testing.assert_array_equal(bitmap.unpack(words), tiles)


def test_row_words_are_rows() -> None:
    tiles = random_tiles(4)
    rows = bitmap.row_words(bitmap.pack(tiles))
    bits = (rows[:, :, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    np.testing.assert_array_equal(bits.astype(bool), tiles)
    np.testing.assert_array_equal(bitmap.tile_words(rows), bitmap.pack(tiles))


def test_every_element_has_its_own_bit() -> None:
    """The order is a bijection: 4096 one-element tiles give 4096 different (word, bit) pairs."""
    words = bitmap.pack(np.eye(4096, dtype=bool).reshape(4096, 64, 64))
    assert (bitmap.popcount(words) == 1).all()
    assert len(np.unique(words, axis=0)) == 4096


def test_popcount_and_low_bits() -> None:
    tiles = random_tiles(6)
    np.testing.assert_array_equal(bitmap.popcount(bitmap.pack(tiles)), tiles.sum((1, 2)))
    assert [int(word) for word in bitmap.LOW_BITS] == [2**n - 1 for n in range(65)]


def test_popcounts_of_rows() -> None:
    tiles = np.concatenate([random_tiles(7), np.ones((1, 64, 64), bool)])
    np.testing.assert_array_equal(bitmap.row_popcounts(bitmap.pack(tiles)), tiles.sum(2))


def test_device_header_states_the_same_order() -> None:
    """The header's two expressions, evaluated in Python, place every element where `pack` does."""
    source = HEADER.read_text()
    constants = dict(re.findall(r"constexpr int (kBitmap\w+) = (\d+);", source))
    assert constants == {"kBitmapTile": str(bitmap.TILE), "kBitmapWords": "64"}
    bodies = dict(re.findall(r"constexpr int (\w+)\(int row, int col\) { return (.+); }", source))
    assert set(bodies) == {"bitmap_word", "bitmap_bit"}
    row, col = np.divmod(np.arange(4096), 64)
    word, bit = (
        eval(bodies[name], {"row": row, "col": col}) for name in ("bitmap_word", "bitmap_bit")
    )
    words = bitmap.pack(np.eye(4096, dtype=bool).reshape(4096, 64, 64))
    expected = np.zeros((4096, 64), np.uint64)
    expected[np.arange(4096), word] = np.uint64(1) << bit.astype(np.uint64)
    np.testing.assert_array_equal(words, expected)
