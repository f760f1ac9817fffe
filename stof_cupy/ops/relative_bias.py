"""T5's relative position bias: a number per head for each bucket of distances."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.masks.check import at_least, flag
from stof_cupy.ops._arrays import Array, backend, check_dtype, is_cupy, lasting

__all__ = ["BEYOND", "FixedBias", "RelativeBias", "check_table"]

BEYOND = 288
"""Distances that a tile of keys and a warp's queries may span: 256, 16 and some."""


class RelativeBias:
    """A bias of attention scores that depends on how far the key is from the query.

    Distances are sorted into buckets: half of them for one distance each, the others for ranges
    that grow logarithmically up to `max_distance`, beyond which all distances share one. Source:
    Raffel et al. (arXiv 1910.10683), section 2.1, and the published T5 code for the buckets.
    Nothing of the size ``seq_q x seq_k`` is ever made. Its values are scores: they mask nothing, as
    -inf and the lowest numbers in an array of biases do, and have to be finite.

    Parameters
    ----------
    table : float ndarray (buckets, heads)
        The bias of each bucket and head, as T5 checkpoints hold it; NumPy or CuPy. Not copied.
    bidirectional : bool
        Whether keys after the query have buckets of their own, half of them (an encoder), or share
        the bucket of distance 0 (a decoder).
    max_distance : int
        Where the last bucket begins at the latest.

    Attributes
    ----------
    table, bidirectional, max_distance
        As given.

    Raises
    ------
    DTypeError, ShapeError
        If `table` is no float array of two axes, or has too few or an odd number of buckets.
    ArgumentError
        If `max_distance` does not exceed the distances that have a bucket each.

    Notes
    -----
    Where there are not as many queries as keys, the last query stands at the last key, as when a
    cache of keys is continued. T5 does not scale its scores: pass ``scale=1.0`` with it.

    Examples
    --------
    >>> table = np.arange(8, dtype=np.float32)[:, None]  # the bias is the number of the bucket
    >>> RelativeBias(table, bidirectional=True, max_distance=8).toarray(1, 3)
    array([[[2., 1., 0.]]], dtype=float32)
    >>> RelativeBias(table, bidirectional=False, max_distance=8).toarray(3, 3)[0]
    array([[0., 0., 0.],
           [1., 0., 0.],
           [2., 1., 0.]], dtype=float32)
    """

    def __init__(self, table: Array, *, bidirectional: bool, max_distance: int = 128) -> None:
        backend(table=table)
        check_dtype("table", table)
        self.table = table
        self.bidirectional = flag("bidirectional", bidirectional)
        self.max_distance = at_least(1, "max_distance", max_distance)
        check_table("table", tuple(table.shape), self.bidirectional, self.max_distance)

    @property
    def heads(self) -> int:
        """Number of heads, the last axis of `table`."""
        return int(self.table.shape[1])

    def by_distance(self, reach: int | None = None) -> Array:
        """Return the bias ``(heads, 2 * reach + 1)`` at each distance from -reach to reach.

        Column ``reach + d`` is that of a key `d` places after its query. The columns at both ends
        serve all distances beyond if `reach` is `max_distance`, the default and the most.
        """
        reach = self.max_distance if reach is None else min(reach, self.max_distance)
        if is_cupy(self.table):
            room = min(self.max_distance, 1 << reach.bit_length())  # few arrays serve all reaches
            return self.table[self._buckets_to(room)[room - reach : room + reach + 1]].T
        return self.table[self._bucket(np.arange(-reach, reach + 1))].T

    def for_kernels(self, reach: int) -> tuple[int, Array]:
        """Return from which distance on biases are alike, and a table that goes on beyond.

        Parameters
        ----------
        reach : int
            Larger distances do not occur, so that there may be fewer columns than `max_distance`
            asks for.

        Returns
        -------
        alike : int
        columns : float ndarray (heads, 2 * (alike + BEYOND) + 1)
            As those of `by_distance`.
        """
        alike = min(self.max_distance, 1 << reach.bit_length())  # few arrays serve all reaches
        return alike, self._to(alike + BEYOND)

    def _to(self, reach: int) -> Array:
        """Return what `by_distance` does, but for any reach."""
        if is_cupy(self.table):
            return self.table[self._buckets_to(reach)].T
        return self.table[self._bucket(np.arange(-reach, reach + 1))].T

    def _buckets_to(self, reach: int) -> Array:
        how = (len(self.table), self.bidirectional, self.max_distance)
        return _uploaded(reach, *how, self.table.device.id)

    def toarray(self, seq_q: int, seq_k: int, query_at: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the bias ``(heads, seq_q, seq_k)`` of a NumPy table: for tests.

        `query_at`, int ``(seq_q,)``, are the keys at which queries stand; default: the last ones.
        """
        queries = np.arange(seq_k - seq_q, seq_k) if query_at is None else query_at
        distance = np.arange(seq_k) - queries[:, None]
        bias: NDArray[Any] = np.moveaxis(self.table[self._bucket(distance)], -1, 0)
        return bias

    def _bucket(self, distance: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bucket of each distance from a query to its key."""
        return _buckets(distance, len(self.table), self.bidirectional, self.max_distance)


class FixedBias(RelativeBias):
    """One whose CuPy table nobody writes to: what kernels read is made at once, and never again.

    Attributes
    ----------
    columns : CuPy float32 (heads, 2 * (max_distance + BEYOND) + 1)
    """

    def __init__(self, table: Array, *, bidirectional: bool, max_distance: int) -> None:
        import cupy

        super().__init__(table, bidirectional=bidirectional, max_distance=max_distance)
        self.columns = cupy.ascontiguousarray(self._to(max_distance + BEYOND), np.float32)

    def for_kernels(self, reach: int) -> tuple[int, Array]:
        """Return as `RelativeBias.for_kernels` does, always as many columns."""
        return self.max_distance, self.columns


def check_table(name: str, shape: tuple[int, ...], bidirectional: bool, max_distance: int) -> None:
    """Raise ShapeError or ArgumentError if there is no bias with a table of that shape."""
    sides = 2 if bidirectional else 1
    if len(shape) != 2 or shape[0] < 2 * sides or shape[0] % sides:
        buckets = "2 or more buckets" if sides == 1 else "an even number of buckets from 4 on"
        raise ShapeError(mismatch(name, shape, f"(buckets, heads), {buckets}"))
    exact = shape[0] // sides // 2
    if max_distance <= exact:
        hint = f"distances below {exact} have a bucket each"
        raise ArgumentError(mismatch("max_distance", max_distance, f"more than {exact}", hint))


def _buckets(
    distance: NDArray[np.int64], buckets: int, bidirectional: bool, max_distance: int
) -> NDArray[np.int64]:
    first: Any = np.int64(0)
    away = -distance
    if bidirectional:
        buckets //= 2
        first = np.where(distance > 0, buckets, 0)
        away = np.abs(distance)
    away = np.maximum(away, 0)
    exact = buckets // 2
    growth = np.log(np.maximum(away, exact) / exact) / math.log(max_distance / exact)
    far = exact + (growth * (buckets - exact)).astype(np.int64)
    bucket: NDArray[np.int64] = first + np.where(away < exact, away, np.minimum(far, buckets - 1))
    return bucket


@cache
def _uploaded(reach: int, buckets: int, bidirectional: bool, max_distance: int, device: int) -> Any:
    """Return the buckets of distances from -reach to reach on a device, uploaded once.

    A run that is captured for a CUDA graph can upload nothing, and reads it again whenever it is
    launched: it is never dropped.
    """
    distances = np.arange(-reach, reach + 1)
    return lasting(_buckets(distances, buckets, bidirectional, max_distance), device)
