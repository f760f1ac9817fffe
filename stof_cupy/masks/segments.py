"""The leaf of packed sequences: a few numbers a document, none a token."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from stof_cupy.masks.bitmap import Words
from stof_cupy.masks.expression import Leaf
from stof_cupy.masks.leaves import Intervals
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import Int64s

__all__ = ["Segments"]


class Segments(Leaf):
    """Neighbouring queries, a segment of them, see the same keys, or up to their own.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    query_stop : int64 array (segments,)
        One after the last query of each segment, ascending; the last one is the queries there are.
    key_start, key_stop : int64 arrays (segments,)
        What a segment's queries see, inside of the keys; ``start >= stop`` is nothing.
    reach : int64 array (segments,), optional
        If given, query ``q`` sees no key after ``q + reach``.

    Attributes
    ----------
    query_stop, key_start, key_stop, reach
        As above, read-only.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        label: str,
        query_stop: Int64s,
        key_start: Int64s,
        key_stop: Int64s,
        reach: Int64s | None,
    ) -> None:
        super().__init__(shape, label)
        self.query_stop: Final = query_stop
        self.key_start: Final = key_start
        self.key_stop: Final = key_stop
        self.reach: Final = reach
        for array in (query_stop, key_start, key_stop, reach):
            if array is not None:
                array.setflags(write=False)

    @cached_property
    def _intervals(self) -> Intervals:
        """The same, a number a token: what the CPU works with."""
        queries = np.diff(self.query_stop, prepend=0)
        start, stop = np.repeat(self.key_start, queries), np.repeat(self.key_stop, queries)
        if self.reach is not None:
            own = np.arange(1, self.shape[0] + 1)
            stop = np.minimum(stop, own + np.repeat(self.reach, queries))
        return Intervals(self.shape, self._label, start, stop)

    def _classify(self) -> Runs:
        return self._intervals.runs

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        return self._intervals._bits(rows, cols)
