"""The masks of encoders whose layers see a window, blocks or some tokens with all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, mismatch
from stof_cupy.masks import BsrMask
from stof_cupy.models.target import Target

__all__ = ["Request", "global_rows", "local_mask", "per_sequence", "positions_of"]

Positions = tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """What a run asks of a model's masks.

    Attributes
    ----------
    target : Target
    batch, heads, seq : int
    lengths : int32 array (batch,) on the target, or None
    mask : mask or None
        Lowered: what all layers lose.
    layer_masks : dict of int to mask
        Lowered: what takes the place of a layer's own.
    global_tokens : object
        As a caller gave it.
    """

    target: Target
    batch: int
    heads: int
    seq: int
    lengths: Any
    mask: Any
    layer_masks: Mapping[int, Any]
    global_tokens: Any


def positions_of(request: Request) -> list[Positions]:
    """Return the positions of global tokens: of all sequences, or a list for each.

    Raises
    ------
    DTypeError, ShapeError, ArgumentError
        If they are neither a count, nor positions, nor flags (batch, seq).
    """
    given, seq = request.global_tokens, request.seq
    if given is None:
        return [()]
    array = np.asarray(given.get() if hasattr(given, "get") else given)
    expected = f"a count, positions, or flags ({request.batch}, {seq})"
    if array.dtype == bool:
        if array.shape != (request.batch, seq):
            raise ShapeError(mismatch("global_tokens", array.shape, expected))
        rows = [tuple(int(i) for i in np.flatnonzero(row)) for row in array]
        return rows[:1] if len({*rows}) == 1 else rows
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise DTypeError(mismatch("global_tokens", f"{array.dtype} {array.shape}", expected))
    found = np.arange(int(array)) if array.ndim == 0 else np.unique(array)
    if int(array.min(initial=0)) < 0 or int(found.max(initial=-1)) >= seq:
        raise ArgumentError(mismatch("global_tokens", array.tolist(), f"positions below {seq}"))
    return [tuple(int(i) for i in found)]


def per_sequence(each: list[BsrMask]) -> Any:
    """Return one mask for all, or a stack (batch, 1) of one a sequence."""
    return each[0] if len(each) == 1 else masks.stack(each)[:, None]


@lru_cache(maxsize=256)
def global_rows(seq: int, positions: Positions) -> BsrMask:
    """Return the mask in which these queries see all keys, and no other query sees any."""
    rows = np.asarray(positions, np.int64)
    return masks.blocks((seq, seq), rows, np.zeros_like(rows), block=(1, max(seq, 1))).tobsr()


@lru_cache(maxsize=256)
def local_mask(seq: int, window: int, positions: Positions) -> BsrMask:
    """Return who all other queries see: a window to each side, and the tokens at `positions`."""
    near = masks.sliding_window(seq, window=window)
    if not positions:
        return near.tobsr()
    whole = (near | masks.global_tokens(seq, np.asarray(positions, np.int64))).tobsr()
    kept: BsrMask = whole & ~global_rows(seq, positions)
    return kept
