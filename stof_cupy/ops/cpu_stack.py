"""The NumPy backend's attention with masks that differ between batches or heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks import MaskStack
from stof_cupy.ops import cpu
from stof_cupy.ops._arrays import empty_in_order_of

__all__ = ["attention"]

Array = NDArray[Any]


def attention(
    q: Array,
    k: Array,
    v: Array,
    masks: MaskStack,
    *,
    scale: float | None = None,
    kv_lengths: Array | None = None,
    return_lse: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, Array]:
    """Attention with a mask per batch, head or both; see :func:`stof_cupy.attention`.

    Neighbouring key heads whose query heads all have the same mask are computed together, others
    one query head at a time.
    """
    batch, heads, seq_q, _ = q.shape
    if out is None:
        out = empty_in_order_of(q, (batch, heads, seq_q, v.shape[-1]))
    lse = np.empty((batch, heads, seq_q), np.float32)
    numbers = np.broadcast_to(masks.mask_of, (batch, heads))
    for b in range(batch):
        own = slice(b, b + 1)
        for queries, keys in _alike(numbers[b], heads // k.shape[1]):
            _, lse[own, queries] = cpu.attention(
                q[own, queries],
                k[own, keys],
                v[own, keys],
                masks.masks[numbers[b, queries.start]],
                scale=scale,
                kv_lengths=None if kv_lengths is None else kv_lengths[own],
                return_lse=True,
                out=out[own, queries],
            )
    return (out, lse) if return_lse else out


def _alike(numbers: Array, group: int) -> Iterator[tuple[slice, slice]]:
    """Yield the query heads to compute together, and their key heads."""
    start = 0
    while start < len(numbers):
        differs = np.flatnonzero(numbers[start:] != numbers[start])
        stop = start + int(differs[0]) if len(differs) else len(numbers)
        if start % group or stop - start < group:
            yield slice(start, start + 1), slice(start // group, start // group + 1)
            start += 1
        else:
            stop -= stop % group
            yield slice(start, stop), slice(start // group, stop // group)
            start = stop
