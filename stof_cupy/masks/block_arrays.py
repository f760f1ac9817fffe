"""What masks of scores and of layouts of blocks share: their shapes, and their leaf on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.masks.check import at_least, check_shape
from stof_cupy.masks.device.leaf import DeviceLeaf
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.mask_stack import MaskStack

__all__ = ["DeviceScores", "each", "is_numpy", "score_label", "sized"]


class DeviceScores(DeviceLeaf):
    """Blocks that CuPy scores keep, which the GPU finds out; made by `score_blocks`.

    Attributes
    ----------
    shape : tuple of int
        ``(queries, keys)``.
    scores : cupy.ndarray (*lead, query blocks, key blocks)
        float16, bfloat16 or float32, of any strides.
    block : tuple of int
        Rows and columns of a block, no more than the shape has.
    lead : tuple of int
        Leading axes, at most two.
    top : int or None
        How many are kept in each row, at most the key blocks there are.
    threshold : float, float32 array (*lead, query blocks) or None
        What a score needs to be kept, where `top` is None. A float is one that float32 has; an
        array is NumPy's or CuPy's and may have strides of 0.
    """

    def __init__(
        self,
        scores: Any,
        shape: tuple[int, int],
        block: tuple[int, int],
        *,
        top: int | None,
        threshold: Any,
    ) -> None:
        lead, counts = tuple(scores.shape[:-2]), tuple(scores.shape[-2:])
        super().__init__(shape, score_label(counts, top, threshold))
        self.scores: Final = scores
        self.block: Final = block
        self.lead = lead
        self.top: Final = top
        self.threshold: Final = threshold


def is_numpy(x: Any) -> bool:
    """Whether `x` is a NumPy array, and no masked one."""
    return isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray)


def sized(name: str, array: Any, shape: Any, block: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return ``(queries, keys)`` and the block of an array ``(*lead, query blocks, key blocks)``.

    Raises
    ------
    ShapeError
        If it has too few or too many axes, or `shape` does not have that many blocks.
    ArgumentError
        If `block` is less than 1.
    """
    if not 2 <= array.ndim <= 4:
        expected = "(*lead, query blocks, key blocks) with at most two leading axes"
        raise ShapeError(mismatch(name, tuple(array.shape), expected))
    height, width = _sizes(block)
    size = _shape(name, shape, tuple(array.shape[-2:]), (height, width))
    # A block longer than the sequence ends beyond it; so long a number need not fit an int32.
    return size, (min(height, max(size[0], 1)), min(width, max(size[1], 1)))


def each(
    name: str, lead: tuple[int, ...], make: Callable[[tuple[int, ...]], Pattern]
) -> Pattern | MaskStack:
    """Return the pattern of no leading axes, or the masks of all places in a stack.

    Raises
    ------
    ArgumentError
        If a leading axis has size 0.
    """
    if not lead:
        return make(())
    if 0 in lead:
        raise ArgumentError(mismatch(name, f"leading axes {lead}", "some"))
    masks = [make(at).tobsr() for at in np.ndindex(lead)]
    return MaskStack(masks, np.arange(len(masks)).reshape(lead))


def _sizes(block: Any) -> tuple[int, int]:
    both = block if isinstance(block, tuple) else (block, block)
    if len(both) != 2:
        raise ArgumentError(mismatch("block", repr(block), "an integer, or (rows, columns)"))
    return at_least(1, "block", both[0]), at_least(1, "block", both[1])


def _shape(
    name: str, shape: Any, counts: tuple[int, ...], block: tuple[int, int]
) -> tuple[int, int]:
    """Return ``(queries, keys)``, which have so many blocks."""
    if shape is None:
        return check_shape((counts[0] * block[0], counts[1] * block[1]))
    size = check_shape(shape)
    needed = -(-size[0] // block[0]), -(-size[1] // block[1])
    if needed != counts:
        got, expected = f"{counts} blocks", f"{needed} for shape {size} in blocks of {block}"
        raise ShapeError(mismatch(name, got, expected))
    return size


def score_label(counts: tuple[int, ...], top: int | None, threshold: Any) -> str:
    """Return what a pattern of block scores is called."""
    rule = f"top={top}" if top is not None else "threshold=<rows>"
    if isinstance(threshold, float):
        rule = f"threshold={threshold:g}"
    return f"score_blocks(<{counts[0]}x{counts[1]}>, {rule})"
