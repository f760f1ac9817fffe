"""What leaves show of themselves, so that others can evaluate them, against their arguments."""

from __future__ import annotations

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.masks.leaves import Blocks, Columns, Diagonals, Intervals, Stored

SHAPES = ((0, 5), (5, 0), (1, 1), (64, 65), (70, 200), (129, 64))


def bits(words: np.ndarray) -> np.ndarray:
    """Bit ``n % 64`` of word ``n // 64`` as element ``n``."""
    assert words.dtype == np.uint64 and not words.flags.writeable
    return (words[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).ravel().astype(bool)


@pytest.mark.parametrize("shape", SHAPES)
def test_bounds_of_intervals(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    given = rng.integers(-9, shape[1] + 9, (2, shape[0]))
    leaf = Intervals(shape, "", *given)
    for start, stop in (leaf.bounds(), leaf.bounds()):
        assert start.dtype == stop.dtype == np.int32 and start.shape == stop.shape == shape[:1]
        assert not (start.flags.writeable or stop.flags.writeable)
        inside = given.clip(0, shape[1])
        empty = inside[0] >= inside[1]
        assert (start[empty] == shape[1]).all() and not stop[empty].any()
        np.testing.assert_array_equal(start[~empty], inside[0, ~empty])
        np.testing.assert_array_equal(stop[~empty], inside[1, ~empty])
        keys = np.arange(shape[1])
        expected = (keys >= given[0][:, None]) & (keys < given[1][:, None])
        np.testing.assert_array_equal(leaf.toarray(), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_words_of_columns(shape: tuple[int, int]) -> None:
    flags = np.random.default_rng(shape[1]).random(shape[1]) < 0.5
    shown = bits(Columns(shape, "", flags).words)
    assert len(shown) == -(-shape[1] // 64) * 64
    np.testing.assert_array_equal(shown[: shape[1]], flags)
    assert not shown[shape[1] :].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_words_of_diagonals(shape: tuple[int, int]) -> None:
    queries, keys = shape
    flags = np.random.default_rng(sum(shape)).random(max(queries + keys - 1, 0)) < 0.5
    leaf = Diagonals(shape, "", flags)
    rows, cols = -(-queries // 64), -(-keys // 64)
    shown = bits(leaf.words)
    assert len(leaf.words) == rows + cols
    if queries and keys:
        difference = np.arange(1 - queries, keys)
        np.testing.assert_array_equal(shown[difference + 64 * rows], flags)
        q, k = np.indices(shape)
        np.testing.assert_array_equal(leaf.toarray(), shown[k - q + 64 * rows])
    assert shown.sum() == (flags.sum() if queries and keys else 0)


def test_listed_blocks() -> None:
    leaf = Blocks((70, 100), "", np.array([3, 0, 3]), np.array([4, 2, 4]), (20, 24))
    assert (leaf.block, leaf.width, leaf.listed.tolist()) == ((20, 24), 5, [2, 3 * 5 + 4])
    assert leaf.listed.dtype == np.int64 and not leaf.listed.flags.writeable


def test_tiles_of_a_stored_mask() -> None:
    tiles = masks.causal(100).tobsr()._tiles
    assert Stored(tiles).tiles is tiles


def test_axes_of_a_neighborhood() -> None:
    made = masks.neighborhood((9, 20), window=(3, 5), dilation=(1, 2), causal=(True, False))
    assert [(axis.size, axis.window, axis.step, axis.causal) for axis in made.axes] == [
        (9, 3, 1, True),
        (20, 5, 2, False),
    ]
