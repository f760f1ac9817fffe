"""The NumPy backend: the operators on the host, in float32.

float16 and bfloat16 inputs are widened to float32 and rounded once, at the output; float64 stays
float64. Arguments have been validated by the public operators; masks are
:class:`~stof_cupy.masks.BsrMask`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.masks import bitmap
from stof_cupy.ops._arrays import empty_in_order_of

if TYPE_CHECKING:
    from stof_cupy.masks import BsrMask
    from stof_cupy.ops.epilogue import Epilogue

__all__ = ["add", "attention", "embedding", "gelu", "gemm", "layer_norm"]

Array = NDArray[Any]

_SCORES = 1 << 18
"""Scores held at a time (elements): 1 MiB of float32, so that a softmax's passes hit the cache."""


@dataclass(frozen=True)
class _RowTile:
    """Query rows ``start:stop`` and the keys that any of them may see.

    `runs` are ranges of keys, ascending; their scores stand side by side. `parts` are the tiles
    that need their bitmap: where their first score column stands, and the bitmap's number.
    """

    start: int
    stop: int
    runs: tuple[tuple[int, int], ...]
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def keys(self) -> int:
        return sum(stop - start for start, stop in self.runs)

    def before(self, length: int) -> tuple[tuple[int, int], ...]:
        """Return the runs without keys at or after `length`; they lose only columns at the end."""
        return tuple((start, min(stop, length)) for start, stop in self.runs if start < length)


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: BsrMask | None = None,
    *,
    scale: float | None = None,
    kv_lengths: Array | None = None,
    return_lse: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, Array]:
    """Attention over the keys that the mask lists; see :func:`stof_cupy.attention`.

    Each tile of query rows meets its listed keys only: one matrix product per run of adjacent
    tiles, one softmax over exactly those columns, bitmaps applied to part tiles alone. A key with a
    score of -inf counts as masked.
    """
    batch, heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1:3]
    group = heads // kv_heads
    if out is None:
        out = empty_in_order_of(q, (batch, heads, seq_q, v.shape[-1]))
    lse = np.empty((batch, heads, seq_q), np.float32)
    tiles = _dense_tiles(seq_q, seq_k, group) if mask is None else list(_mask_tiles(mask))
    denied = _denied(None if mask is None else mask.bitmaps)
    factor = 1 / math.sqrt(head_dim) if scale is None else float(scale)
    widest = max((group * (tile.stop - tile.start) * tile.keys for tile in tiles), default=0)
    step = max(1, _SCORES // max(1, widest))  # kv heads at a time
    q, grouped_out, grouped_lse = (
        x.reshape(batch, kv_heads, group, *x.shape[2:]) for x in (q, out, lse)
    )
    with np.errstate(all="ignore"):  # infinities and NaN of the input are the caller's
        for b in range(batch):
            length = seq_k if kv_lengths is None else min(max(int(kv_lengths[b]), 0), seq_k)
            for h in range(0, kv_heads, step):
                part = b, slice(h, h + step)
                keys, values = _widened(k[part][:, :length]), _widened(v[part][:, :length])
                finite = bool(np.isfinite(values).all())
                for tile in tiles:
                    rows = (*part, slice(None), slice(tile.start, tile.stop))
                    queries = _widened(q[rows]) * factor
                    result = _attend(queries, keys, values, tile, denied, finite=finite)
                    grouped_out[rows], grouped_lse[rows] = result
    return (out, lse) if return_lse else out


def _attend(
    q: Array, k: Array, v: Array, tile: _RowTile, denied: Callable[[int], Array], *, finite: bool
) -> tuple[Array, Array]:
    """Let scaled queries (kv_heads, group, rows, D) attend to keys (kv_heads, length, D)."""
    kv_heads, group, rows, _ = q.shape
    runs = tile.before(k.shape[1])
    width = sum(stop - start for start, stop in runs)
    scores = np.empty((kv_heads, group * rows, width), q.dtype)
    q = q.reshape(kv_heads, group * rows, -1)
    for start, stop, columns in _side_by_side(runs):
        np.matmul(q, k[:, start:stop].swapaxes(1, 2), out=scores[:, :, columns])
    by_head = scores.reshape(kv_heads, group, rows, width)
    for column, number in tile.parts:
        block = by_head[..., column : column + bitmap.TILE]
        np.copyto(block, -np.inf, where=denied(number)[:rows, : block.shape[-1]])

    kept = None if finite else ~np.isneginf(scores)
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    # In an empty row exp(-inf - 0) is 0, where -inf - -inf would be NaN.
    highest[np.isneginf(highest)] = 0
    scores -= highest
    weights = np.exp(scores, out=scores)
    total = weights.sum(axis=-1, keepdims=True)
    acc = np.zeros((kv_heads, group * rows, v.shape[-1]), q.dtype)
    for start, stop, columns in _side_by_side(runs):
        if kept is None:
            acc += weights[:, :, columns] @ v[:, start:stop]
        else:
            acc += _sum_kept(weights[:, :, columns], v[:, start:stop], kept[:, :, columns])
    acc /= np.where(total == 0, 1, total)
    lse = highest + np.log(total)
    return acc.reshape(kv_heads, group, rows, -1), lse.reshape(kv_heads, group, rows)


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


def _side_by_side(runs: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int, slice]]:
    """Yield each run of keys with the score columns it takes."""
    column = 0
    for start, stop in runs:
        yield start, stop, slice(column, column + stop - start)
        column += stop - start


def _dense_tiles(seq_q: int, seq_k: int, group: int) -> list[_RowTile]:
    """Cut the rows of a call without a mask."""
    rows = max(bitmap.TILE, _SCORES // max(1, group * seq_k))
    runs = ((0, seq_k),)
    return [_RowTile(i, min(i + rows, seq_q), runs) for i in range(0, seq_q, rows)]


def _mask_tiles(mask: BsrMask) -> Iterator[_RowTile]:
    """Lower a mask to its row tiles."""
    size = bitmap.TILE
    seq_q, seq_k = mask.shape
    pointers = mask.load_row_ptr.tolist()
    for i in range(len(pointers) - 1):
        listed = slice(pointers[i], pointers[i + 1])
        columns, numbers = mask.load_col_idx[listed], mask.bitmap_id[listed]
        cuts = np.flatnonzero(np.diff(columns) != 1) + 1
        starts = columns[np.r_[0, cuts]] if len(columns) else columns
        stops = columns[np.r_[cuts - 1, len(columns) - 1]] + 1 if len(columns) else columns
        runs = [
            (start * size, min(stop * size, seq_k))
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        part = np.flatnonzero(numbers >= 0)
        parts = zip((part * size).tolist(), numbers[part].tolist(), strict=True)
        yield _RowTile(i * size, min((i + 1) * size, seq_q), tuple(runs), tuple(parts))


def _denied(bitmaps: Array | None) -> Callable[[int], Array]:
    """Return a function from a bitmap's number to its (64, 64) tile, True where it denies."""
    words = np.empty((0, bitmap.TILE), np.uint64) if bitmaps is None else bitmaps

    @lru_cache(maxsize=256)
    def tile(number: int) -> Array:
        allowed: Array = bitmap.unpack(words[number : number + 1])[0]
        return ~allowed

    return tile


def gemm(
    a: Array, b: Array, *, epilogue: Epilogue | None = None, out: Array | None = None
) -> Array:
    """``activation(a @ b + bias) + residual``; see :func:`stof_cupy.gemm`."""
    rows = _widened(a).reshape(math.prod(a.shape[:-1]), a.shape[-1])
    # A transposed weight goes to BLAS as it is: copying it would cost a tenth of a layer's time.
    acc = rows @ (_widened(b.T).T if b.T.flags.c_contiguous else _widened(b))
    acc = acc.reshape(*a.shape[:-1], b.shape[-1])
    if epilogue is not None:
        if epilogue.bias is not None:
            acc += _widened(epilogue.bias)
        if epilogue.activation is not None:
            acc = _gelu(acc, "tanh" if epilogue.activation == "gelu_tanh" else "none")
        if epilogue.residual is not None:
            acc += _widened(epilogue.residual)
    return _stored(acc, a.dtype, out)


def layer_norm(
    x: Array, weight: Array, bias: Array, *, eps: float, out: Array | None = None
) -> Array:
    """Normalise the last axis; see :func:`stof_cupy.ops.norm.layer_norm`."""
    wide = _widened(x)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    centred /= np.sqrt(variance + eps)
    centred *= _widened(weight)
    centred += _widened(bias)
    return _stored(centred, x.dtype, out)


def add(x: Array, y: Array, *, out: Array | None = None) -> Array:
    """``x + y``, `y` broadcast over leading axes; see :func:`stof_cupy.ops.elementwise.add`."""
    return _stored(_widened(x) + _widened(y), x.dtype, out)


def gelu(x: Array, *, approximate: str = "none", out: Array | None = None) -> Array:
    """GELU, exact or by its tanh approximation; see :func:`stof_cupy.ops.elementwise.gelu`."""
    return _stored(_gelu(_widened(x), approximate), x.dtype, out)


def embedding(
    ids: Array,
    table: Array,
    *,
    position_table: Array | None = None,
    type_table: Array | None = None,
    token_types: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Sum of token, position and type rows; see :func:`stof_cupy.ops.embedding.embedding`."""
    acc = _widened(table[ids])
    if position_table is not None:
        acc += _widened(position_table[: ids.shape[-1]])
    if type_table is not None:
        acc += _widened(type_table[token_types])
    return _stored(acc, table.dtype, out)


def _gelu(x: Array, approximate: str) -> Array:
    """Return GELU as a new array of the type of `x`."""
    result: Array
    if approximate == "tanh":
        result = x * x
        result *= 0.044715
        result += 1
        result *= x
        result *= math.sqrt(2 / math.pi)
        np.tanh(result, out=result)
        result += 1
        result *= 0.5
    else:
        from scipy.special import ndtr

        result = ndtr(x)  # (1 + erf(x / sqrt 2)) / 2 without its cancellation at x << 0
    result *= x
    return result


def _widened(x: Array) -> Array:
    """Return `x` in the type it is computed in, and contiguous: BLAS does not take every stride."""
    return np.ascontiguousarray(x, x.dtype if x.dtype == np.float64 else np.float32)


def _stored(result: Array, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Round a result to the output's type, once."""
    with np.errstate(over="ignore"):  # float16 overflows to inf, as on the GPU
        if out is None:
            return result.astype(dtype, copy=False)
        out[...] = result
    return out
