"""Which vectors are alike."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["nearest_pairs"]

_BLOCK = 1024
"""Rows compared at a time: memory is this times the number of vectors."""


def nearest_pairs(vectors: np.ndarray[Any, Any], count: int) -> list[tuple[float, int, int]]:
    """Return ``(cosine, i, j)``, i < j, of the most alike pairs of rows.

    Parameters
    ----------
    vectors : ndarray, (n, hidden)
        Rows of length 1.
    count : int
        At most so many pairs, most alike first; at least 1.

    Examples
    --------
    >>> [(i, j) for _, i, j in nearest_pairs(np.eye(3)[[0, 1, 0]], 1)]
    [(0, 2)]
    """
    best: list[tuple[float, int, int]] = []
    for start in range(0, len(vectors) - 1, _BLOCK):
        cosines = vectors[start : start + _BLOCK] @ vectors[start:].T
        cosines[(np.tri(*cosines.shape) > 0) | np.isnan(cosines)] = -np.inf
        flat = cosines.ravel()
        most = np.argpartition(flat, -min(count, flat.size))[-count:]
        rows, columns = (start + axis for axis in np.unravel_index(most, cosines.shape))
        best += zip(flat[most].tolist(), rows.tolist(), columns.tolist(), strict=True)
        best = sorted(best, reverse=True)[:count]
    return [pair for pair in best if pair[0] > -np.inf]
