"""How every operator of the graph is run: the one table that names the calls of :mod:`ops`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.graph import meaning, primitives
from stof_cupy.graph.calls_decoder import DECODER_CALLS
from stof_cupy.graph.turned import normed_by
from stof_cupy.ops._arrays import is_cupy, lasting
from stof_cupy.ops.attention import attend
from stof_cupy.ops.attention_args import Scores
from stof_cupy.ops.elementwise import add, gelu
from stof_cupy.ops.embedding import embedding
from stof_cupy.ops.epilogue import SLAB, Epilogue
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.gemm_fold import merged_statistics, row_statistics
from stof_cupy.ops.norm import layer_norm
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["CALLS", "Told", "told_gemm"]

Array: TypeAlias = Any


def _gemm(
    x: Array,
    w: Array,
    bias: Array | None,
    residual: Array | None,
    statistics: Array | None = None,
    *,
    activation: str | None,
    gated: bool,
    out: Array | None = None,
    constant: bool = False,
) -> Array:
    plain = all(each is None for each in (bias, residual, statistics, activation))
    normed = normed_by(statistics, w)
    epilogue = None if plain else Epilogue(bias, activation, residual, gated=gated, normed=normed)
    return gemm(x, w.T, epilogue=epilogue, out=out, constant=constant)


class Told(NamedTuple):
    """Rows, and means and squares of each 64 columns of them."""

    rows: Array
    parts: Array


def told_gemm(
    x: Array,
    w: Array,
    bias: Array | None,
    residual: Array | None,
    statistics: Array | None = None,
    *,
    activation: str | None,
    multiply: Callable[..., Array] = gemm,
) -> Told:
    """Run the operator; the product itself is `multiply`, a `gemm`."""
    shape = (math.prod(x.shape[:-1]), -(-len(w) // SLAB), 2)
    parts = _empty(x, shape)
    normed = normed_by(statistics, w)
    epilogue = Epilogue(bias, activation, residual, normed=normed, statistics=parts)
    return Told(multiply(x, w.T, epilogue=epilogue), parts)


def _empty(x: Array, shape: tuple[int, ...]) -> Array:
    if not is_cupy(x):
        return np.empty(shape, np.float32)
    import cupy

    return cupy.empty(shape, np.float32)


def _told_statistics(x: Told, *, eps: float, centred: bool) -> Array:
    columns = x.rows.shape[-1]
    found = merged_statistics(x.parts, columns, eps=eps, centred=centred)
    return found.reshape(*x.rows.shape[:-1], 2)


def _row_statistics(x: Array, *, eps: float, centred: bool) -> Array:
    return row_statistics(x, eps=eps, centred=centred).reshape(*x.shape[:-1], 2)


def _attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Any,
    lengths: Array | None,
    table: Array | RelativeBias | None,
    query_at: Array | None = None,
    *,
    scale: float | None,
    softcap: float | None,
    bidirectional: bool,
    max_distance: int,
    out: Array | None = None,
) -> Array:
    bias = table
    if bias is not None and not isinstance(bias, RelativeBias):
        bias = RelativeBias(bias, bidirectional=bidirectional, max_distance=max_distance)
    positions = None if query_at is None else _positions(query_at, k.shape[2])
    scores = Scores(scale=scale, softcap=softcap, bias=bias, positions=positions)
    return attend(q, k, v, mask, scores, kv_lengths=lengths, return_lse=False, out=out)


def _positions(query_at: Array, keys: int) -> tuple[Array, Array]:
    """Return where queries and keys stand; on the host, if queries stand at keys."""
    if is_cupy(query_at):
        return query_at, _numbers(_room(keys), query_at.device.id)[:keys]
    low, high = (query_at.min(), query_at.max()) if query_at.size else (0, 0)
    if low < 0 or high >= max(keys, 1):
        expected = f"positions from 0 to {keys - 1}"
        raise ArgumentError(mismatch("query_at", int(low if low < 0 else high), expected))
    return query_at.astype(np.int64, copy=False), np.arange(keys)


def _room(count: int) -> int:
    """Return the next power of two: few arrays serve all counts."""
    return 1 << max(count - 1, 0).bit_length()


@cache
def _numbers(count: int, device: int) -> Array:
    """Return 0 to ``count - 1``, uploaded once and never dropped: captured runs read it."""
    return lasting(np.arange(count, dtype=np.int32), device)


def _embedding(
    ids: Array,
    table: Array,
    position_table: Array | None,
    token_types: Array | None,
    type_table: Array | None,
    *,
    out: Array | None = None,
) -> Array:
    return embedding(
        ids,
        table,
        position_table=position_table,
        type_table=type_table,
        token_types=token_types,
        out=out,
    )


CALLS: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "gemm": _gemm,
        "row_statistics": _row_statistics,
        "told_gemm": told_gemm,
        "told_rows": lambda x: x.rows,
        "told_statistics": _told_statistics,
        "attention": _attention,
        "layer_norm": layer_norm,
        "add": add,
        "gelu": gelu,
        "embedding": _embedding,
        "split_heads": meaning.split_heads,
        "merge_heads": meaning.merge_heads,
        "matmul": primitives.matmul,
        "scale": primitives.scale,
        "masked": primitives.masked,
        "softmax": primitives.softmax,
        "transpose": primitives.transpose,
        "columns": primitives.columns,
        **DECODER_CALLS,
    }
)
"""How each operator is run, on NumPy and on CuPy arrays: inputs by position, attrs by keyword.

Those of `memory.PLACES` take ``out=`` beside them.
"""
