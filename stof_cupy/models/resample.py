"""Cubic resampling along an axis, as a small matrix: for images, and for grids of positions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["cubic", "resized"]


def cubic(source: int, target: int, *, sharpness: float, smooth: bool) -> NDArray[np.float32]:
    """Return the matrix (target, source) that resamples `source` values to `target`.

    Parameters
    ----------
    source, target : int
    sharpness : float
        The kernel's free parameter (Keys, 1981): -0.5 is Catmull and Rom's and what image libraries
        take, -0.75 what deep-learning frameworks take.
    smooth : bool
        Whether the kernel grows with the step, so that a smaller result has no alias. Without,
        values beyond the ends repeat those at them; with, they are left out.

    Examples
    --------
    >>> cubic(2, 4, sharpness=-0.75, smooth=False).sum(axis=1)
    array([1., 1., 1., 1.], dtype=float32)
    """
    near, weights = _part(source, target, np.s_[:target], sharpness, smooth)
    matrix = np.zeros((target, source), np.float32)
    matrix[:, near] = weights
    return matrix


def _part(
    source: int, target: int, kept: slice, sharpness: float, smooth: bool
) -> tuple[slice, NDArray[np.float32]]:
    """Return which values make the `kept` results, and the matrix that makes them of these."""
    step = source / target
    grown = max(step, 1.0) if smooth else 1.0
    centre = (np.arange(*kept.indices(target)) + 0.5) * step - 0.5
    first = np.floor(centre - 2 * grown).astype(int)
    taps = first[:, None] + np.arange(int(np.ceil(4 * grown)) + 2)
    weights = _kernel((taps - centre[:, None]) / grown, sharpness)
    if smooth:
        weights = np.where((taps >= 0) & (taps < source), weights, 0)
        weights /= weights.sum(axis=1, keepdims=True)
    taps = np.clip(taps, 0, source - 1)
    near = slice(int(taps.min()), int(taps.max()) + 1)
    matrix = np.zeros((len(centre), near.stop - near.start))
    rows = np.broadcast_to(np.arange(len(centre))[:, None], taps.shape)
    np.add.at(matrix, (rows, taps - near.start), weights)
    return near, matrix.astype(np.float32)


def _kernel(x: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def resized(
    grid: NDArray[Any],
    height: int,
    width: int,
    *,
    sharpness: float,
    smooth: bool,
    middle: int | None = None,
) -> NDArray[np.float32]:
    """Return a grid (rows, columns, channels) with as many rows and columns as asked for.

    With `middle` only so many of each are made, those in the middle: a long strip of an image is
    then never there as a whole.
    """
    parts = []
    for source, target in zip(grid.shape[:2], (height, width), strict=True):
        count = target if middle is None else middle
        first = (target - count) // 2
        parts.append(_part(source, target, np.s_[first : first + count], sharpness, smooth))
    (up, rows), (across, columns) = parts
    near = grid[up, across].astype(np.float32)
    made: NDArray[np.float32] = np.einsum("hr,rcd,wc->hwd", rows, near, columns, optimize=True)
    return made
