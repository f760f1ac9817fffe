"""What a pattern says of its tiles without looking at elements: runs of empty, part and full.

A mask of ``S`` x ``S`` elements has ``(S / 64)**2`` tiles, too many to list, but a row of tiles of
any usual pattern changes state a handful of times. The states are the three values of Kleene's
logic, so patterns combine by ``minimum`` (and), ``maximum`` (or) and ``2 - state`` (not). `PART`
also means "not known": it is settled by building the tile's bitmap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks.tiles import Int64s, check_count

__all__ = ["EMPTY", "FULL", "PART", "Runs", "States", "agreed", "exclusive", "merged"]

States = NDArray[np.uint8]

EMPTY, PART, FULL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Runs:
    """States of all tiles in row-major order, run-length coded.

    Attributes
    ----------
    grid : tuple of int
        ``(query tiles, key tiles)``.
    starts : int64 array (runs,)
        First tile of each run, ascending; the first is 0 (none if the grid has no tile).
    states : uint8 array (runs,)
        `EMPTY`, `PART` or `FULL`; neighbouring runs differ.
    """

    grid: tuple[int, int]
    starts: Int64s
    states: States

    @classmethod
    def of(cls, grid: tuple[int, int], starts: Int64s, states: States) -> Runs:
        """Build runs from ascending starts whose neighbours may have equal states."""
        keep = np.ones(len(starts), bool)
        keep[1:] = states[1:] != states[:-1]
        return cls(grid, starts[keep], states[keep])

    @classmethod
    def from_spans(
        cls, grid: tuple[int, int], may: tuple[Int64s, Int64s], must: tuple[Int64s, Int64s]
    ) -> Runs:
        """Build runs from spans of tiles ``[start, stop)`` that may overlap and may be empty.

        Parameters
        ----------
        grid : tuple of int
            ``(query tiles, key tiles)``.
        may : pair of int64 arrays
            Spans outside of which every tile is empty.
        must : pair of int64 arrays
            Spans in which every tile is full.

        Examples
        --------
        >>> may, must = (np.array([2]), np.array([8])), (np.array([4]), np.array([6]))
        >>> runs = Runs.from_spans((1, 9), may, must)
        >>> runs.starts, runs.states
        (array([0, 2, 4, 6, 8]), array([0, 1, 2, 1, 0], dtype=uint8))
        """
        total = grid[0] * grid[1]
        starts = merged(np.zeros(1, np.int64), *may, *must)
        starts = starts[starts < total]
        states = np.where(
            _covered(starts, *must), FULL, np.where(_covered(starts, *may), PART, EMPTY)
        )
        return cls.of(grid, starts, states.astype(np.uint8))

    @classmethod
    def from_tiles(cls, grid: tuple[int, int], keys: Int64s, states: States) -> Runs:
        """Build runs of listed tiles, `keys` ascending; all others are empty.

        Examples
        --------
        >>> runs = Runs.from_tiles((1, 9), np.array([2, 3, 6]), np.array([1, 1, 2], np.uint8))
        >>> runs.starts, runs.states
        (array([0, 2, 4, 6, 7]), array([0, 1, 0, 2, 0], dtype=uint8))
        """
        total = grid[0] * grid[1]
        begins = np.diff(keys, prepend=-2) != 1  # after a gap, or at 0
        begins[1:] |= states[1:] != states[:-1]
        ends = np.diff(keys, append=total) != 1  # a gap follows
        lead = np.zeros(int(total > 0 and not (len(keys) and keys[0] == 0)), np.int64)
        starts = np.concatenate([lead, keys[begins], keys[ends] + 1])
        values = np.full(len(starts), EMPTY, np.uint8)
        values[len(lead) : len(lead) + int(begins.sum())] = states[begins]
        order = np.argsort(starts)
        return cls.of(grid, starts[order], values[order])

    @classmethod
    def from_row(cls, grid: tuple[int, int], states: States) -> Runs:
        """Build runs of which all rows are alike; `states` is one row, ``(key tiles,)``."""
        row = cls.of((1, grid[1]), np.arange(grid[1], dtype=np.int64), states)
        check_count("mask", grid[0] * int((row.states != EMPTY).sum()))  # a run is a tile or more
        starts = np.arange(grid[0], dtype=np.int64)[:, None] * grid[1] + row.starts
        return cls.of(grid, starts.ravel(), np.tile(row.states, grid[0]))

    @classmethod
    def from_slices(
        cls, grid: tuple[int, int], source: Runs, low: Int64s, high: Int64s, col: int = 0
    ) -> Runs:
        """Build runs whose tile rows are slices of another mask's tiles.

        Parameters
        ----------
        grid : tuple of int
            ``(query tiles, key tiles)``, neither 0.
        source : Runs
            Where the states come from.
        low, high : int64 arrays (query tiles,)
            Row ``i`` takes tiles ``[low[i], high[i])`` of `source`; none of the slices is empty.
        col : int
            Column of a slice's first tile; columns to its left are like it, and columns to the
            right of the slice like its last tile.

        Examples
        --------
        >>> source = Runs((1, 9), np.array([0, 2, 5]), np.array([0, 1, 2], np.uint8))
        >>> runs = Runs.from_slices((2, 4), source, np.array([1, 4]), np.array([5, 6]))
        >>> runs.starts, runs.states
        (array([0, 1, 5]), array([0, 1, 2], dtype=uint8))
        """
        first = np.searchsorted(source.starts, low, side="right") - 1
        count = np.searchsorted(source.starts, high, side="left") - first
        begin = np.cumsum(count) - count
        run = np.repeat(first - begin, count) + np.arange(int(count.sum()))
        base = np.arange(grid[0], dtype=np.int64) * grid[1]
        starts = source.starts[run] + np.repeat(base + col - low, count)
        starts[begin] = base
        inside = starts < np.repeat(base + grid[1], count)
        return cls.of(grid, starts[inside], source.states[run[inside]])

    def window(self, row: int, col: int, grid: tuple[int, int]) -> Runs:
        """Return the states seen through a window: its tile (i, j) is tile (i + row, j + col).

        Where the window sticks out it shows the nearest tile; neither side is 0.
        """
        rows, cols = self.grid
        at = np.clip(np.arange(grid[0], dtype=np.int64) + row, 0, rows - 1) * cols
        low = min(max(col, 0), cols - 1)
        high = max(min(col + grid[1], cols), low + 1)
        return Runs.from_slices(grid, self, at + low, at + high, max(low - col, 0))

    def at(self, keys: Int64s) -> States:
        """Return the states of tiles `keys`, int64 ``(n,)``."""
        return self.states[np.searchsorted(self.starts, keys, side="right") - 1]

    def combine(self, other: Runs, operation: Callable[[States, States], States]) -> Runs:
        """Combine two states tile by tile with a ufunc."""
        starts = merged(self.starts, other.starts)
        return Runs.of(self.grid, starts, operation(self.at(starts), other.at(starts)))

    def __invert__(self) -> Runs:
        """Swap empty and full."""
        return Runs(self.grid, self.starts, (FULL - self.states).astype(np.uint8))

    def _lengths(self) -> Int64s:
        return np.diff(self.starts, append=self.grid[0] * self.grid[1])

    def count(self) -> int:
        """Return how many tiles are not empty."""
        return int(self._lengths()[self.states != EMPTY].sum())

    def visited(self) -> tuple[Int64s, States]:
        """Return keys, int64 ascending, and states of the tiles that are not empty."""
        chosen = self.states != EMPTY
        starts, lengths = self.starts[chosen], self._lengths()[chosen]
        shift = starts - (np.cumsum(lengths) - lengths)
        keys = np.repeat(shift, lengths)
        keys += np.arange(len(keys))
        return keys, np.repeat(self.states[chosen], lengths)


def exclusive(a: States, b: States) -> States:
    """Return the states of the exclusive or of two masks; the other operators are ufuncs."""
    return np.where((a == PART) | (b == PART), PART, a ^ b).astype(np.uint8)


def agreed(a: States, b: States) -> States:
    """Return what two states have in common: themselves where they are equal, else `PART`."""
    return np.where(a == b, a, PART).astype(np.uint8)


def merged(*keys: Int64s) -> Int64s:
    """Return the distinct keys, ascending; as a stable sort of ascending arrays, it merges them."""
    together = np.sort(np.concatenate(keys), kind="stable")
    distinct = np.ones(len(together), bool)
    distinct[1:] = together[1:] != together[:-1]
    return together[distinct]


def _covered(points: Int64s, starts: Int64s, stops: Int64s) -> NDArray[np.bool_]:
    """Tell which points lie in at least one of the spans ``[start, stop)``."""
    opened = np.searchsorted(np.sort(starts, kind="stable"), points, side="right")
    closed = np.searchsorted(np.sort(stops, kind="stable"), points, side="right")
    covered: NDArray[np.bool_] = opened > closed
    return covered
