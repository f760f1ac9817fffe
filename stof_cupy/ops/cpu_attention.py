"""The NumPy backend's attention: work for listed tiles, BLAS per run of neighbouring ones.

Arguments have been validated by :func:`stof_cupy.attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks import BsrMask, MaskStack
from stof_cupy.ops._arrays import empty_in_order_of
from stof_cupy.ops.attention_args import Scores
from stof_cupy.ops.cpu import widened
from stof_cupy.ops.cpu_scores import ScoreTiles
from stof_cupy.ops.cpu_tiles import SCORES, TileLists

__all__ = ["attention"]

Array = NDArray[Any]


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BsrMask | MaskStack | None,
    scores: Scores,
    *,
    kv_lengths: Array | None,
    return_lse: bool,
    out: Array | None,
) -> Array | tuple[Array, Array]:
    """Attention over the keys that the mask lists; see :func:`stof_cupy.attention`.

    Each tile of query rows meets its listed keys only: one matrix product per run of adjacent
    tiles, one softmax over exactly those columns, bitmaps applied to part tiles alone. Neighbouring
    key heads whose query heads all have the same mask are computed together, others one query head
    at a time. A key with a score of -inf counts as masked.
    """
    batch, heads, seq_q, _ = q.shape
    kv_heads, seq_k = k.shape[1:3]
    if out is None:
        out = empty_in_order_of(q, (batch, heads, seq_q, v.shape[-1]))
    lse = np.empty((batch, heads, seq_q), np.float32)
    distinct: Sequence[BsrMask | None] = mask.masks if isinstance(mask, MaskStack) else (mask,)
    numbers = np.broadcast_to(mask.mask_of if isinstance(mask, MaskStack) else 0, (batch, heads))
    group = heads // kv_heads
    lists = [TileLists(each, seq_q, seq_k, group) for each in distinct]
    made = ScoreTiles(scores, seq_q, seq_k, widened(q[:0]).dtype)
    with np.errstate(all="ignore"):  # infinities and NaN of the input are the caller's
        for b in range(batch):
            length = seq_k if kv_lengths is None else min(max(int(kv_lengths[b]), 0), seq_k)
            for queries, shared, number in _alike(numbers[b], group, lists):
                keys, values = widened(k[b, shared, :length]), widened(v[b, shared, :length])
                finite = bool(np.isfinite(values).all())
                for tile in lists[number].rows:
                    rows, runs = slice(tile.start, tile.stop), tile.before(length)
                    block = _products(widened(q[b, queries, rows]) * made.factor, keys, runs)
                    made.apply(block, b, queries, rows, runs)
                    lists[number].hide(block, tile)
                    result = _softmax(block, values, runs, made.sinks(queries), finite=finite)
                    out[b, queries, rows], lse[b, queries, rows] = result
    return (out, lse) if return_lse else out


def _alike(
    numbers: Array, group: int, lists: list[TileLists]
) -> Iterator[tuple[slice, slice, int]]:
    """Yield the query heads to compute together, their key heads, and their mask's number."""
    start = 0
    while start < len(numbers):
        number = int(numbers[start])
        most = group * max(1, SCORES // max(1, group * lists[number].widest))
        differs = np.flatnonzero(numbers[start : start + most] != number)
        stop = start + int(differs[0]) if len(differs) else min(start + most, len(numbers))
        if start % group or stop - start < group:
            stop = start + 1
        else:
            stop -= stop % group
        yield slice(start, stop), slice(start // group, -(-stop // group)), number
        start = stop


def _products(q: Array, k: Array, runs: list[tuple[slice, slice]]) -> Array:
    """Multiply queries (heads, rows, D) with the runs' keys of (kv_heads, length, D)."""
    heads, rows, dim = q.shape
    width = runs[-1][1].stop if runs else 0
    products = np.empty((len(k), heads // len(k) * rows, width), q.dtype)
    q = q.reshape(len(k), -1, dim)
    for keys, columns in runs:
        np.matmul(q, k[:, keys].swapaxes(1, 2), out=products[:, :, columns])
    return products.reshape(heads, rows, width)


def _softmax(
    scores: Array, v: Array, runs: list[tuple[slice, slice]], sinks: Array | None, *, finite: bool
) -> tuple[Array, Array]:
    """Return outputs (heads, rows, Dv) and LSE of scores (heads, rows, columns), overwritten."""
    heads, rows, width = scores.shape
    kept = None if finite else ~np.isneginf(scores)
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        np.maximum(highest, sinks, out=highest)
    # In an empty row exp(-inf - 0) is 0, where -inf - -inf would be NaN.
    highest[np.isneginf(highest)] = 0
    scores -= highest
    weights = np.exp(scores, out=scores)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - highest)
    acc = np.zeros((len(v), heads // len(v) * rows, v.shape[-1]), scores.dtype)
    weights = weights.reshape(len(v), -1, width) if width else weights[:0]
    for keys, columns in runs:
        if kept is None:
            acc += weights[:, :, columns] @ v[:, keys]
        else:
            seen = kept.reshape(weights.shape)[:, :, columns]
            acc += _sum_kept(weights[:, :, columns], v[:, keys], seen)
    acc = acc.reshape(heads, rows, -1)
    acc /= np.where(total == 0, 1, total)
    return acc, (highest + np.log(total))[..., 0]


def _sum_kept(weights: Array, values: Array, kept: Array) -> Array:
    """Return ``weights @ values`` where NaN and infinities reach only the rows that keep their key.

    In a plain product a masked key still counts, as 0 * NaN.
    """
    acc = weights @ np.where(np.isfinite(values), values, 0)
    seen = kept.astype(weights.dtype)
    for special, where in (
        (np.inf, np.isposinf(values)),
        (-np.inf, np.isneginf(values)),
        (np.nan, np.isnan(values)),
    ):
        acc[seen @ where.astype(weights.dtype) > 0] += special
    return acc
