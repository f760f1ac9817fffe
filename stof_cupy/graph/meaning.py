"""What every operator means: dense NumPy in the dtype it is given, nothing skipped, nothing fused.

These functions define the graph language. :func:`evaluate` runs a whole graph through them in
float64, which is what rewrites and executors are checked against.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stof_cupy.ops.relative_bias import RelativeBias

if TYPE_CHECKING:
    from stof_cupy.graph.ir import Graph, Node

__all__ = ["evaluate"]

Array: TypeAlias = "NDArray[Any]"


def gelu(x: Array, *, approximate: str = "none") -> Array:
    """Return x * Phi(x), Phi the normal distribution function."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return np.asarray(0.5 * x * (1 + np.tanh(inner)))
    from scipy.special import erf

    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def gemm(
    x: Array,
    w: Array,
    bias: Array | None,
    residual: Array | None,
    statistics: Array | None = None,
    *,
    activation: str | None = None,
    gated: bool = False,
) -> Array:
    """Return activation(x @ w.T + bias) + residual; gated, of halves of the columns."""
    y = np.asarray(x @ w.T)
    if statistics is not None:
        y = y * statistics[..., 1:]
    if bias is not None:
        y = np.add(y, bias)
    half = y.shape[-1] // 2
    if gated:
        y = _activated(y[..., :half], activation) * y[..., half:]
    else:
        y = _activated(y, activation)
    return y if residual is None else np.add(y, residual)


def row_statistics(x: Array, *, eps: float, centred: bool) -> Array:
    """Return mean and 1 / sqrt(variance + eps) of the last axis; not centred, around 0."""
    mean = x.mean(axis=-1, keepdims=True) * centred
    variance = np.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return np.concatenate([mean, 1 / np.sqrt(variance + eps)], axis=-1)


def told_gemm(*operands: Any, activation: str | None) -> Any:
    """Return gemm's result; `told_rows` and `told_statistics` know what to make of it."""
    return gemm(*operands, activation=activation)


def told_rows(x: Any) -> Array:
    """Return the rows."""
    return np.asarray(x)


def told_statistics(x: Any, *, eps: float, centred: bool) -> Array:
    """Return their row_statistics."""
    return row_statistics(x, eps=eps, centred=centred)


def _activated(y: Array, activation: str | None) -> Array:
    from stof_cupy.graph import meaning_decoder

    if activation in ("relu", "silu"):
        made: Array = getattr(meaning_decoder, activation)(y)
        return made
    if activation is None:
        return y
    return gelu(y, approximate="tanh" if activation == "gelu_tanh" else "none")


def add(x: Array, y: Array) -> Array:
    """Return x + y."""
    return np.asarray(x + y)


def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> Array:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias, over the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + eps) * weight + bias)


def embedding(
    ids: Array,
    table: Array,
    position_table: Array | None,
    token_types: Array | None,
    type_table: Array | None,
) -> Array:
    """Return table[ids] + position_table[arange(seq)] + type_table[token_types]."""
    y = table[ids]
    if position_table is not None:
        y = y + position_table[: ids.shape[1]]
    if type_table is not None and token_types is not None:
        y = y + type_table[token_types]
    return np.asarray(y)


def split_heads(x: Array, *, heads: int) -> Array:
    """View (batch, seq, heads * head_dim) as (batch, heads, seq, head_dim)."""
    batch, seq, width = x.shape
    y: Array = x.reshape(batch, seq, heads, width // heads).transpose(0, 2, 1, 3)
    return y


def merge_heads(x: Array) -> Array:
    """View (batch, heads, seq, head_dim) as (batch, seq, heads * head_dim)."""
    batch, heads, seq, head_dim = x.shape
    y: Array = x.transpose(0, 2, 1, 3).reshape(batch, seq, heads * head_dim)
    return y


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Any,
    lengths: Array | None,
    relative_bias: Array | None = None,
    query_at: Array | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bidirectional: bool = True,
    max_distance: int = 128,
) -> Array:
    """Return softmax(scale * q @ k.T, over kept keys) @ v; rows that keep nothing are 0."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if relative_bias is not None:
        bias = RelativeBias(relative_bias, bidirectional=bidirectional, max_distance=max_distance)
        scores = scores + bias.toarray(scores.shape[2], scores.shape[3], query_at)
    kept = np.ones(scores.shape, bool)
    if mask is not None:
        kept &= np.asarray(mask.toarray() if hasattr(mask, "toarray") else mask, bool)
    if lengths is not None:
        kept &= np.arange(k.shape[2]) < np.asarray(lengths)[:, None, None, None]
    scores = np.where(kept, scores, -np.inf)
    peak = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, 1) @ v)


def evaluate(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Run a graph by the definitions of its operators, in float64.

    Parameters
    ----------
    graph : Graph
    inputs : mapping of str to array_like
        By input name. A mask is a boolean array or has ``toarray()``, and broadcasts to ``(batch,
        heads, queries, keys)``; masks and lengths may be None or absent.

    Returns
    -------
    dict of str to ndarray
        By output name, float64.

    Examples
    --------
    >>> from stof_cupy.graph import Graph
    >>> g = Graph("twice")
    >>> x = g.input("x", ("batch", 2), "float")
    >>> g.output("y", g.add(x, x))
    >>> evaluate(g, {"x": [[1.0, 2.0]]})["y"]
    array([[2., 4.]])
    """
    from stof_cupy.graph.registry import OPS

    def leaf(node: Node) -> Any:
        value = graph.constants[node.name] if node.op == "constant" else inputs.get(node.name)
        if node.dtype in ("mask", "lengths") or value is None:
            return value
        return np.asarray(value, np.int64 if node.dtype == "int" else np.float64)

    values: dict[Node | None, Any] = {None: None}
    for node in graph.nodes():
        if node.op in OPS:
            operands = [values[each] for each in node.inputs]
            values[node] = OPS[node.op].meaning(*operands, **dict(node.attrs))
        else:
            values[node] = leaf(node)
    return {name: values[node] for name, node in graph.outputs.items()}
