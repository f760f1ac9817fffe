"""Which vectors are alike."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["nearest_pairs"]

_BLOCK = 1024
"""Rows compared at a time: memory is this times the number of vectors."""


def nearest_pairs(vectors: np.ndarray[Any, Any], count: int) -> list[tuple[float, int, int]]:
    """Return ``(cosine, i, j)`` of the most alike rows: of each row i, the nearest j > i.

    Parameters
    ----------
    vectors : ndarray, (n, hidden)
        Rows of length 1.
    count : int
        At most so many pairs, most alike first.

    Examples
    --------
    >>> [(i, j) for _, i, j in nearest_pairs(np.eye(3)[[0, 1, 0]], 1)]
    [(0, 2)]
    """
    n = len(vectors)
    best: list[tuple[float, int, int]] = []
    for start in range(0, n - 1, _BLOCK):
        cosines = vectors[start : start + _BLOCK] @ vectors.T
        i = np.arange(start, start + len(cosines))
        cosines[np.arange(n) <= i[:, None]] = -np.inf
        j = cosines.argmax(axis=1)
        best += zip(cosines.max(axis=1).tolist(), i.tolist(), j.tolist(), strict=True)
    return [pair for pair in sorted(best, reverse=True)[:count] if pair[0] > -np.inf]
