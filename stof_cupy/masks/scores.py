"""Masks from scores of blocks, which a model computes anew for each input."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import dtype_name, is_cupy, is_float
from stof_cupy.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    mismatch,
)
from stof_cupy.masks.block_arrays import DeviceScores, each, is_numpy, score_label, sized
from stof_cupy.masks.block_patterns import blocks
from stof_cupy.masks.check import at_least
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.mask_stack import MaskStack

__all__ = ["score_blocks"]

_ON_GPU = ("float16", "bfloat16", "float32")
_Bools = NDArray[np.bool_]


def score_blocks(
    scores: Any,
    *,
    shape: tuple[int, int] | None = None,
    block: int | tuple[int, int] = 64,
    top: int | None = None,
    threshold: Any = None,
) -> Pattern | MaskStack:
    """Each query block sees the key blocks that score highest, or high enough.

    The scores are the caller's, for instance products of mean-pooled queries and keys, as
    MInference (arXiv 2407.02490) has them for its block-sparse heads. NaN is never kept.

    Parameters
    ----------
    scores : array (*lead, query blocks, key blocks)
        NumPy or CuPy; float16, bfloat16, float32 or, in NumPy alone, float64. At most two leading
        axes, those of attention: ``(batch, heads)``.
    shape : tuple of int, optional
        ``(queries, keys)``, for last blocks that stick out. Default: whole blocks.
    block : int or tuple of int
        Rows and columns of a block; 64 and its multiples need no bitmaps.
    top : int, optional
        How many key blocks a query block keeps, all if there are fewer. Of equal scores the lower
        key block comes first. -inf is never kept: so blocks are forbidden, the future of a causal
        model say, and a query block may keep fewer than `top`.
    threshold : float or array, optional
        Keep scores of at least this; exactly one of `top` and `threshold` is given. An array
        broadcasts to ``(*lead, query blocks)``, one for each row of scores; where it is NaN nothing
        is kept. It is rounded to float32, or to float64 if the scores are float64, and compared in
        that type. On the GPU, a CuPy array is float32.

    Returns
    -------
    Pattern or MaskStack
        A stack for NumPy scores with leading axes. For CuPy scores a pattern that only the GPU can
        build, and which then takes what the arrays hold at that time.

    Raises
    ------
    DTypeError
        If `scores` or `threshold` is no array of floats, or one is NumPy's where CuPy's is needed.
    ShapeError
        If `scores` has too few or too many axes, `shape` does not have that many blocks, or
        `threshold` does not broadcast.
    ArgumentError
        If not exactly one of `top` and `threshold` is given, `top` is negative, `threshold` NaN,
        `block` less than 1, or a leading axis has size 0.
    UnsupportedError
        If CuPy scores are float64, or a CuPy threshold is not float32.
    DeviceError
        If scores and threshold lie on different GPUs; later, if something asks on the CPU for what
        CuPy scores keep.

    Examples
    --------
    >>> scores = np.array([[0.9, -np.inf, -np.inf], [0.2, 0.7, -np.inf], [0.4, 0.1, 0.4]])
    >>> score_blocks(scores, top=2, block=1).toarray().astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 0, 1]])
    >>> score_blocks(scores, threshold=0.4, shape=(150, 192)).tobsr()
    <BsrMask (150, 192): density 0.382; tiles: 4 full, 0 part, 5 empty; 0 bitmaps, 48 bytes>
    """
    on_gpu = is_cupy(scores)
    _check_scores(scores, on_gpu)
    lead, counts = tuple(scores.shape[:-2]), tuple(scores.shape[-2:])
    size, fitting = sized("scores", scores, shape, block)
    if (top is None) == (threshold is None):
        got = f"top={top!r}, threshold={threshold!r}"
        raise ArgumentError(mismatch("top, threshold", got, "exactly one of the two"))
    if top is not None:
        top = min(at_least(0, "top", top), counts[1])
    else:
        threshold = _threshold(threshold, scores, on_gpu)
    if on_gpu:
        return DeviceScores(scores, size, fitting, top=top, threshold=threshold)

    def pattern(at: tuple[int, ...]) -> Pattern:
        least = threshold[at] if isinstance(threshold, np.ndarray) else threshold
        return _pattern(scores[at], size, fitting, top, least)

    return each("scores", lead, pattern)


def _check_scores(scores: Any, on_gpu: bool) -> None:
    if not on_gpu and not is_numpy(scores):
        raise DTypeError(mismatch("scores", type(scores).__name__, "a NumPy or CuPy array"))
    if not is_float(scores.dtype):
        expected = "float16, bfloat16, float32 or float64"
        raise DTypeError(mismatch("scores", f"dtype {dtype_name(scores.dtype)}", expected))
    if on_gpu and dtype_name(scores.dtype) not in _ON_GPU:
        got = f"{dtype_name(scores.dtype)} on CUDA"
        raise UnsupportedError(mismatch("scores", got, " or ".join(_ON_GPU)))


def _threshold(threshold: Any, scores: Any, on_gpu: bool) -> Any:
    """Return a float, or an array of the shape of `scores` without its last axis."""
    wide = np.float64 if dtype_name(scores.dtype) == "float64" else np.float32
    if isinstance(threshold, int | float | np.generic):
        return _one_threshold(threshold, wide)
    if on_gpu and is_cupy(threshold):
        import cupy as xp

        if threshold.dtype != wide:
            got = f"{dtype_name(threshold.dtype)} on CUDA"
            raise UnsupportedError(mismatch("threshold", got, "float32"))
        if threshold.device.id != scores.device.id:
            expected = f"device {scores.device.id} like scores"
            raise DeviceError(mismatch("threshold", f"device {threshold.device.id}", expected))
    else:
        xp = np
        if not is_numpy(threshold):
            expected = "a float, or an array of the kind of scores"
            raise DTypeError(mismatch("threshold", type(threshold).__name__, expected))
        if not is_float(threshold.dtype):
            raise DTypeError(mismatch("threshold", f"dtype {threshold.dtype}", "floats"))
        with np.errstate(over="ignore"):  # beyond float32 it is infinite, and compares as it did
            threshold = threshold.astype(wide)
    wanted = tuple(scores.shape[:-1])
    try:
        return xp.broadcast_to(threshold, wanted)
    except ValueError:
        expected = f"a shape that broadcasts to {wanted}, (*lead, query blocks)"
        raise ShapeError(mismatch("threshold", tuple(threshold.shape), expected)) from None


def _one_threshold(threshold: Any, wide: type[np.floating[Any]]) -> float:
    dtype = np.asarray(threshold).dtype
    if dtype.kind not in "iuf" and not is_float(dtype):
        raise DTypeError(mismatch("threshold", repr(threshold), "a float"))
    with np.errstate(over="ignore"):
        rounded = float(wide(float(threshold)))
    if np.isnan(rounded):
        raise ArgumentError(mismatch("threshold", "NaN", "a number", "nothing compares with it"))
    return rounded


def _pattern(
    scores: NDArray[Any], shape: tuple[int, int], block: tuple[int, int], top: Any, threshold: Any
) -> Pattern:
    """Return what NumPy scores ``(query blocks, key blocks)`` keep."""
    # float32 holds the 16-bit types exactly, and NumPy is faster in it.
    whole = dtype_name(scores.dtype) == "float64"
    wide = scores if whole else scores.astype(np.float32, copy=False)
    if top is None:
        # An array, because NumPy releases differ in the type that a float is compared in.
        kept = wide >= np.asarray(threshold, wide.dtype)[..., None]
    else:
        kept = _highest(wide, top)
    pattern = blocks(shape, *kept.nonzero(), block=block)
    return pattern._named(score_label(scores.shape, top, threshold))


def _highest(scores: NDArray[Any], top: int) -> _Bools:
    """Flag the `top` highest of each row, at most as many as there are columns."""
    rows, cols = scores.shape
    if top == 0 or not rows:
        return np.zeros((rows, cols), bool)
    real = np.where(np.isnan(scores), -np.inf, scores)
    cut = np.partition(real, cols - top, axis=1)[:, cols - top, None]
    above, ties = real > cut, (real == cut) & (cut > -np.inf)
    left = top - above.sum(axis=1, keepdims=True)
    kept: _Bools = above | (ties & (np.cumsum(ties, axis=1, dtype=np.int32) <= left))
    return kept
