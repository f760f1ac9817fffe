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
    step = source / target
    grown = max(step, 1.0) if smooth else 1.0
    centre = (np.arange(target) + 0.5) * step - 0.5
    first = np.floor(centre - 2 * grown).astype(int)
    taps = first[:, None] + np.arange(int(np.ceil(4 * grown)) + 2)
    weights = _kernel((taps - centre[:, None]) / grown, sharpness)
    if smooth:
        weights = np.where((taps >= 0) & (taps < source), weights, 0)
        weights /= weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((target, source))
    rows = np.broadcast_to(np.arange(target)[:, None], taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, source - 1)), weights)
    return matrix.astype(np.float32)


def _kernel(x: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def resized(
    grid: NDArray[Any], height: int, width: int, *, sharpness: float, smooth: bool
) -> NDArray[np.float32]:
    """Return a grid (rows, columns, channels) with as many rows and columns as asked for."""
    how: dict[str, Any] = {"sharpness": sharpness, "smooth": smooth}
    rows, columns = (
        cubic(n, m, **how) for n, m in zip(grid.shape[:2], (height, width), strict=True)
    )
    made: NDArray[np.float32] = np.einsum(
        "hr,rcd,wc->hwd", rows, grid.astype(np.float32), columns, optimize=True
    )
    return made
