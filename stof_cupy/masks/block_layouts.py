"""Masks from a layout of blocks: one flag for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from stof_cupy.dtypes import is_cupy
from stof_cupy.errors import DTypeError, mismatch
from stof_cupy.masks.block_arrays import DeviceScores, each, is_numpy, sized
from stof_cupy.masks.block_patterns import blocks
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.mask_stack import MaskStack

__all__ = ["block_layout"]

_FLAGGED = 0.5
"""What the score of a flagged block, 1, is above, and that of another, 0, below."""


def block_layout(
    layout: Any, *, shape: tuple[int, int] | None = None, block: int | tuple[int, int] = 64
) -> Pattern | MaskStack:
    """Each query block sees the key blocks that a layout flags.

    Parameters
    ----------
    layout : bool array (*lead, query blocks, key blocks)
        NumPy or CuPy, at most two leading axes: ``(batch, heads)``.
    shape, block
        As for `score_blocks`.

    Returns
    -------
    Pattern or MaskStack
        A stack for a NumPy layout with leading axes. For a CuPy layout a pattern that only the GPU
        can build, and which then takes what the array holds at that time.

    Raises
    ------
    DTypeError
        If `layout` is no boolean array.
    ShapeError, ArgumentError
        As `score_blocks`.

    Examples
    --------
    >>> block_layout(np.tri(3, dtype=bool), block=2).toarray()[2].astype(int)
    array([1, 1, 1, 1, 0, 0])
    """
    on_gpu = is_cupy(layout)
    if not (on_gpu or is_numpy(layout)) or layout.dtype != np.bool_:
        got = str(getattr(layout, "dtype", type(layout).__name__))
        raise DTypeError(mismatch("layout", got, "a NumPy or CuPy array of booleans"))
    size, sizes = sized("layout", layout, shape, block)
    if on_gpu:
        return DeviceScores(layout, size, sizes, top=None, threshold=_FLAGGED)
    lead = layout.shape[:-2]
    return each("layout", lead, lambda at: blocks(size, *layout[at].nonzero(), block=sizes))
