"""States of a formula over boxes of positions, and over all tiles without listing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import dtype_name
from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.masks import runs
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.formula_kinds import DTYPES, HIGHEST, LOWEST, Kind
from stof_cupy.masks.formula_parse import Op, Read
from stof_cupy.masks.formula_span import REAL, Span, combined, point, span
from stof_cupy.masks.runs import Runs, States
from stof_cupy.masks.tiles import Int64s, check_count, grid

__all__ = ["Spans", "States", "classify"]

_CHUNK = 1 << 16  # boxes looked at at a time: a few MiB of spans
_SPLIT = 4  # boxes that an unsettled one is split into
_MOST = 2**29  # boxes looked at in all: every one of 2**28 tiles, and the larger ones over them

Ask = Callable[[Int64s, Int64s, Int64s, Int64s], tuple[States, NDArray[np.bool_]]]
"""States of boxes ``i0 <= i <= i1, j0 <= j <= j1``, and which no smaller box would settle."""


class Spans:
    """The reading of a formula that bounds it over boxes.

    Parameters
    ----------
    i, j : Span
        Positions of the boxes.
    kinds : mapping
        Kind of each array and scalar.
    values : mapping, optional
        Where scalars are found; without it they may be anything.
    """

    def __init__(
        self, i: Span, j: Span, kinds: Mapping[str, Kind], values: Mapping[str, Any] | None = None
    ) -> None:
        self._positions = {"i": i, "j": j}
        self._kinds, self._values = kinds, values

    def number(self, value: int | float) -> Span:
        """Return the span of a literal."""
        return REAL if isinstance(value, float) else point(value)

    def name(self, name: str) -> Span:
        """Return the span of a position or a scalar."""
        if name in self._positions:
            return self._positions[name]
        if self._kinds[name] == "float":
            return REAL
        return span(LOWEST, HIGHEST) if self._values is None else point(int(self._values[name]))

    def read(self, node: Read, index: Span) -> Span:
        """Return the span of what an array may hold: its contents are not looked at."""
        stored = DTYPES[dtype_name(self._kinds[node.name])]
        if stored.low is None or stored.high is None:
            return REAL
        return span(stored.low, stored.high, True)

    def op(self, node: Op, args: tuple[Span, ...]) -> Span:
        """Return the span of what an operator gives."""
        return combined(node.symbol, args)


def classify(shape: tuple[int, int], ask: Ask, bound: Runs | None) -> Runs:
    """Return the states of all tiles, asking for rows of tiles and halving what is not settled.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    ask : callable
        The states of boxes.
    bound : Runs, optional
        Only tiles that are not empty here are looked at; all others are empty.

    Raises
    ------
    UnsupportedError
        If so many boxes are not settled that the mask lists more than 2**28 tiles.
    """
    rows, cols = grid(shape)
    if bound is None:
        start = np.arange(rows, dtype=np.int64) * cols
        stop = start + cols
    else:
        start, stop = _listed(bound)
    made = _Segments(shape, ask)
    found = [
        made.settle(start[at : at + _CHUNK], stop[at : at + _CHUNK])
        for at in range(0, len(start) if cols else 0, _CHUNK)
    ]
    start, stop, states = _joined(found)
    full = states == runs.FULL
    return Runs.from_spans((rows, cols), (start, stop), (start[full], stop[full]))


Found = tuple[Int64s, Int64s, States]
"""Segments of a tile row ``[start, stop)`` in row-major order, none of them empty."""


def _listed(bound: Runs) -> tuple[Int64s, Int64s]:
    """Return the runs that are not empty, cut where a row of tiles ends."""
    ends = np.append(bound.starts, bound.grid[0] * bound.grid[1])
    # A row's own start begins a run as well, so that none spans two rows.
    lines = np.arange(bound.grid[0], dtype=np.int64) * bound.grid[1]
    ends = runs.merged(ends, lines)
    kept = bound.at(ends[:-1]) != runs.EMPTY
    return ends[:-1][kept], ends[1:][kept]


def _joined(found: list[Found]) -> Found:
    """Return segments in order, those that touch and are alike as one, without empty ones."""
    none = np.zeros(0, np.int64)
    start, stop, states = (
        np.concatenate(part)
        for part in zip((none, none, none.astype(np.uint8)), *found, strict=True)
    )
    order = np.argsort(start, kind="stable")
    order = order[states[order] != runs.EMPTY]
    start, stop, states = start[order], stop[order], states[order]
    first = np.ones(len(start), bool)
    first[1:] = (start[1:] != stop[:-1]) | (states[1:] != states[:-1])
    last = np.append(first[1:], True)[: len(first)]
    check_count("mask", int(first.sum()))  # a segment is a tile or more
    return start[first], stop[last], states[first]


class _Segments:
    """Segments of rows of tiles, split until each is settled or a single tile."""

    def __init__(self, shape: tuple[int, int], ask: Ask) -> None:
        self._shape, self._ask, self._asked = shape, ask, 0

    def settle(self, start: Int64s, stop: Int64s) -> Found:
        """Return what at most `_CHUNK` segments consist of.

        What is left to split is taken up depth first, so that what waits is `_CHUNK` segments for
        each level.
        """
        self._asked += len(start)
        if self._asked > _MOST:
            hint = "the formula settles no large block of tiles: give `within`"
            raise UnsupportedError(mismatch("mask", "over 2**28 tiles", "at most 2**28", hint))
        cols = grid(self._shape)[1]
        row = start // cols
        i0, j0 = row * TILE, (start - row * cols) * TILE
        i1 = np.minimum(i0 + TILE, self._shape[0]) - 1
        j1 = np.minimum((stop - row * cols) * TILE, self._shape[1]) - 1
        states, final = self._ask(i0, i1, j0, j1)
        final = final | (stop - start == 1)
        found = [(start[final], stop[final], states[final])]
        start, stop = start[~final], stop[~final]
        for at in range(0, len(start), _CHUNK // _SPLIT):
            found.append(
                self.settle(*_split(*(x[at : at + _CHUNK // _SPLIT] for x in (start, stop))))
            )
        return _joined(found)


def _split(start: Int64s, stop: Int64s) -> tuple[Int64s, Int64s]:
    """Return up to `_SPLIT` segments in place of each, none of them without a tile."""
    step = np.arange(_SPLIT + 1)
    ends = start[:, None] + (stop - start)[:, None] * step // _SPLIT
    low, high = ends[:, :-1].ravel(), ends[:, 1:].ravel()
    return low[low < high], high[low < high]
