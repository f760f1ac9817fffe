"""The leaf that numbers alone describe: causal masks, windows, chunks, leading keys and queries."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks.bitmap import LOW_BITS, TILE, Words
from stof_cupy.masks.expression import Leaf
from stof_cupy.masks.runs import Runs
from stof_cupy.masks.tiles import Int64s, grid

__all__ = ["Band", "interval_runs", "interval_words"]

_Spans: TypeAlias = tuple[NDArray[Any], NDArray[Any]]


class Band(Leaf):
    """Query ``q`` sees an interval of keys that is a formula of ``q``; no array is held.

    A query of ``[query_start, query_stop)`` sees keys ``[start, stop)``, any other one nothing::

        p = q + offset; chunk = floor(p / size)
        start = max((chunk - before) * size, key_start)
        stop = min((chunk + 1 + after) * size, key_stop), and at most p + 1 if causal

    With a `size` of 1 this is a window of `before` keys back and `after` keys ahead.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    offset : int
        Position of query 0 among the keys, from -2**26 to 2**26.
    size : int
        Positions in a chunk, 1 or more.
    before, after : int, optional
        Chunks seen before and after the own one, of either sign; default all there are.
    causal : bool
        Whether no key after the query is seen.
    key_start, key_stop : int, optional
        Keys that may be seen, default all.
    query_start, query_stop : int, optional
        Queries that may see something, default all.

    Attributes
    ----------
    offset, size, before, after, key_start, key_stop, query_start, query_stop : int
        As above, clipped to what makes a difference: with sides of at most 2**26 no intermediate of
        the formula leaves an int32. Each query of ``[query_start, query_stop)`` does see a key; if
        none does, both are 0.
    causal : bool
        As above.

    Examples
    --------
    >>> band = Band((6, 6), "chunks but for key 0", size=2, before=1, after=0, key_start=1)
    >>> band.toarray().astype(int)
    array([[0, 1, 0, 0, 0, 0],
           [0, 1, 0, 0, 0, 0],
           [0, 1, 1, 1, 0, 0],
           [0, 1, 1, 1, 0, 0],
           [0, 0, 1, 1, 1, 1],
           [0, 0, 1, 1, 1, 1]])
    """

    def __init__(
        self,
        shape: tuple[int, int],
        label: str,
        *,
        offset: int = 0,
        size: int = 1,
        before: int | None = None,
        after: int | None = None,
        causal: bool = False,
        key_start: int = 0,
        key_stop: int | None = None,
        query_start: int = 0,
        query_stop: int | None = None,
    ) -> None:
        super().__init__(shape, label)
        queries, keys = self.shape
        far = queries + keys + abs(offset) + 1  # more than any |p|, and than any |p - k|
        size = min(size, far)
        most = far // size + 2
        before = most if before is None else max(-most, min(before, most))
        after = most if after is None else max(-most, min(after, most))
        key_start = max(0, min(key_start, keys))
        key_stop = keys if key_stop is None else max(0, min(key_stop, keys))
        # start and stop grow with p: key_start < stop from one p on, start < key_stop up to one p,
        # and start < stop, as far as they depend on the chunk, for every p or for none.
        first = (key_start // size - after) * size
        first = max(first, key_start) if causal else first
        last = (-(-key_stop // size) + before) * size
        query_start = max(query_start, first - offset, 0)
        query_stop = min(queries if query_stop is None else query_stop, last - offset, queries)
        never = key_start >= key_stop or before + after < 0 or (causal and before < 0)
        if never or query_start >= query_stop:
            query_start = query_stop = 0
        self.offset: Final = offset
        self.size: Final = size
        self.before: Final = before
        self.after: Final = after
        self.causal: Final = causal
        self.key_start: Final = key_start
        self.key_stop: Final = key_stop
        self.query_start: Final = query_start
        self.query_stop: Final = query_stop

    def _interval(self, query: NDArray[Any]) -> _Spans:
        """Return start and stop of what queries see that are in the range, in their dtype."""
        position = query + self.offset
        start = (position // self.size - self.before) * self.size
        stop = start + (self.before + 1 + self.after) * self.size
        if self.causal:
            np.minimum(stop, position + 1, out=stop)
        np.maximum(start, self.key_start, out=start)
        return start, np.minimum(stop, self.key_stop, out=stop)

    def _classify(self) -> Runs:
        row = np.arange(self.query_start // TILE, -(-self.query_stop // TILE), dtype=np.int64)
        # Both ends grow with the query, so the first and the last query of a tile row say it all.
        first = np.maximum(row * TILE, self.query_start)
        end = np.minimum(row * TILE + TILE, self.query_stop)
        (low, common_stop), (common_start, high) = map(self._interval, (first, end - 1))
        whole = end - first == np.minimum(self.shape[0] - row * TILE, TILE)
        common_stop = np.where(whole, common_stop, 0)
        return interval_runs(self.shape, row, (low, high), (common_start, common_stop))

    def _bits(self, rows: Int64s, cols: Int64s) -> Words:
        # In place and in int32, because it is memory that takes the time.
        query = (rows * TILE).astype(np.int32)[:, None] + np.arange(TILE, dtype=np.int32)
        start, stop = self._interval(query)
        if self.query_start > 0 or self.query_stop < self.shape[0]:
            stop[(query < self.query_start) | (query >= self.query_stop)] = 0
        return interval_words(start, stop, cols)


def interval_runs(shape: tuple[int, int], rows: Int64s, hull: _Spans, common: _Spans) -> Runs:
    """Return the states of a mask whose queries see an interval of keys each.

    Parameters
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    rows : int64 array (n,)
        The tile rows asked about; all others are empty.
    hull, common : pair of int arrays (n,)
        Start and stop of the keys that some query, and that every query of a tile row sees.
    """
    cols = grid(shape)[1]
    base = rows * cols
    may = hull[0] // TILE, -(-hull[1] // TILE)
    # Keys beyond the last decide nothing about a full tile.
    must = -(-common[0] // TILE), np.where(common[1] == shape[1], cols, common[1] // TILE)
    spans = ((base + start, base + np.maximum(start, stop)) for start, stop in (may, must))
    return Runs.from_spans(grid(shape), *spans)


def interval_words(start: NDArray[Any], stop: NDArray[Any], cols: Int64s) -> Words:
    """Return row words ``(n, 64)`` of tiles whose rows see keys ``[start, stop)``, ``(n, 64)``.

    `cols`, int64 ``(n,)``, are the tile columns.
    """
    first = (cols * TILE).astype(np.int32)[:, None]
    before = LOW_BITS[np.clip(start - first, 0, TILE)]
    words: Words = LOW_BITS[np.clip(stop - first, 0, TILE)]
    words &= ~before
    return words
