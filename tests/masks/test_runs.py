"""Run-length coded tile states against plain arrays of states."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stof_cupy.masks.runs import EMPTY, FULL, PART, Runs, exclusive

GRID = st.tuples(st.integers(0, 4), st.integers(0, 6))


def decode(runs: Runs) -> np.ndarray:
    """States of all tiles; checks that the runs are canonical."""
    total = runs.grid[0] * runs.grid[1]
    assert runs.starts.dtype == np.int64 and runs.states.dtype == np.uint8
    assert runs.starts[:1].tolist() == [0][:total]
    assert (np.diff(runs.starts) > 0).all() and (np.diff(runs.states.astype(int)) != 0).all()
    return np.repeat(runs.states, np.diff(runs.starts, append=total))


def encode(grid: tuple[int, int], states: np.ndarray) -> Runs:
    return Runs.of(grid, np.arange(states.size, dtype=np.int64), states.ravel().astype(np.uint8))


@st.composite
def states(draw: st.DrawFn, grid: tuple[int, int]) -> np.ndarray:
    size = grid[0] * grid[1]
    return np.array(draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), np.uint8)


@given(st.data())
def test_coding_and_operators(data: st.DataObject) -> None:
    grid = data.draw(GRID)
    a, b = data.draw(states(grid)), data.draw(states(grid))
    x, y = encode(grid, a), encode(grid, b)
    np.testing.assert_array_equal(decode(x), a)
    np.testing.assert_array_equal(x.at(np.arange(a.size)), a)
    np.testing.assert_array_equal(decode(~x), 2 - a)
    np.testing.assert_array_equal(decode(x.combine(y, np.minimum)), np.minimum(a, b))
    np.testing.assert_array_equal(decode(x.combine(y, np.maximum)), np.maximum(a, b))
    keys, kinds = x.visited()
    np.testing.assert_array_equal(keys, np.flatnonzero(a))
    np.testing.assert_array_equal(kinds, a[a > 0])
    assert x.count() == len(keys)
    np.testing.assert_array_equal(decode(Runs.from_tiles(grid, keys, kinds)), a)


@pytest.mark.parametrize("a", (EMPTY, PART, FULL))
@pytest.mark.parametrize("b", (EMPTY, PART, FULL))
def test_exclusive_is_the_other_three_combined(a: int, b: int) -> None:
    x, y = np.array([a], np.uint8), np.array([b], np.uint8)
    wanted = np.maximum(np.minimum(x, 2 - y), np.minimum(2 - x, y))
    assert exclusive(x, y).tolist() == wanted.tolist()


@given(st.data())
def test_spans_may_overlap(data: st.DataObject) -> None:
    grid = data.draw(GRID)
    size = grid[0] * grid[1]
    ends = st.lists(st.tuples(*[st.integers(0, size)] * 2).map(sorted), max_size=6)
    expected = np.zeros(size, np.uint8)
    spans = []
    for state in (PART, FULL):
        pairs = np.array(data.draw(ends), np.int64).reshape(-1, 2)
        for start, stop in pairs:
            expected[start:stop] = state
        spans.append((pairs[:, 0], pairs[:, 1]))
    np.testing.assert_array_equal(decode(Runs.from_spans(grid, *spans)), expected)


@given(st.data())
def test_rows_that_are_alike(data: st.DataObject) -> None:
    grid = data.draw(GRID)
    row = data.draw(states((1, grid[1])))
    np.testing.assert_array_equal(decode(Runs.from_row(grid, row)), np.tile(row, grid[0]))
