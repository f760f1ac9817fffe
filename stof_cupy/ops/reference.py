"""The oracle: every operator dense, in float64, with nothing skipped. For tests.

With ``precision=`` a type name, what an implementation in that type would store is rounded to it:
the inputs, the softmax weights and the output, while sums stay float64; attention's scores, which
nobody holds in less than float32, are rounded to that. The error of that result is the yardstick
for kernels (:func:`stof_cupy.testing.budget`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stof_cupy.dtypes import as_dtype

__all__ = ["add", "attention", "embedding", "gelu", "gemm", "layer_norm", "rounder"]

Exact = NDArray[np.float64]


def rounder(precision: str | None) -> Callable[[Any], Exact]:
    """Return a function that rounds to `precision` (None: not at all) and gives float64."""

    def rounded(x: Any) -> Exact:
        values = np.asarray(x)
        if precision is not None:
            with np.errstate(over="ignore"):
                values = values.astype(as_dtype(precision))
        return values.astype(np.float64)

    return rounded


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Any = None,
    *,
    scale: float | None = None,
    bias: Any = None,
    alibi: ArrayLike | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    kv_lengths: ArrayLike | None = None,
    return_lse: bool = False,
    precision: str | None = None,
) -> Exact | tuple[Exact, Exact]:
    """Masked softmax attention; all arguments as in :func:`stof_cupy.attention`.

    Parameters
    ----------
    q, k, v : array_like
        ``(batch, heads, seq_q, head_dim)``, ``(batch, kv_heads, seq_k, head_dim)``, ``(batch,
        kv_heads, seq_k, value_dim)``.
    mask : array_like of bool or object with ``toarray()``, optional
        Broadcasts to ``(batch, heads, seq_q, seq_k)``; True may attend.
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.
    bias : array_like of float or object with ``toarray(seq_q, seq_k)``, optional
        Broadcasts to ``(batch, heads, seq_q, seq_k)``; its type's lowest finite number masks, as
        -inf does.
    alibi : array_like, optional
        ``(heads,)``; adds ``-alibi[h] * |i + seq_k - seq_q - j|``.
    softcap : float, optional
        Scores before a bias are ``softcap * tanh(score / softcap)``.
    sinks : array_like, optional
        ``(heads,)``; each adds ``exp(sink)`` to its rows' sums of exponentials.
    kv_lengths : array_like of int, optional
        ``(batch,)``; keys at and after it are masked.
    return_lse : bool
        Also return the natural logarithm of the sum of exponentials, ``(batch, heads, seq_q)``.
    precision : {None, "float16", "bfloat16", "float32"}
        See the module.

    Returns
    -------
    out : float64 array (batch, heads, seq_q, value_dim)
        0 in rows that see no key; masked keys and values do not count, whatever they hold.
    lse : float64 array
        -inf in such rows, or the sink. Only with `return_lse`.

    Examples
    --------
    >>> q = k = np.zeros((1, 1, 2, 4))
    >>> attention(q, k, np.array([[[[1.0], [3.0]]]]), [[True, False], [True, True]]).ravel()
    array([1., 2.])
    """
    rounded = rounder(precision)
    q, k, v = rounded(q), rounded(k), rounded(v)
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    seen = np.ones((q.shape[0], q.shape[1], q.shape[2], k.shape[2]), dtype=bool)
    if mask is not None:
        seen &= np.asarray(mask.toarray() if hasattr(mask, "toarray") else mask, dtype=bool)
    if kv_lengths is not None:
        seen &= np.arange(k.shape[2]) < np.asarray(kv_lengths)[:, None, None, None]

    if hasattr(bias, "toarray"):
        bias = bias.toarray(q.shape[2], k.shape[2])
    if bias is not None:
        bias = np.asarray(bias)
        lowest = np.nextafter(np.array(-np.inf, bias.dtype), np.zeros((), bias.dtype))
        low = max(float(lowest), float(np.finfo(np.float32).min))
        seen &= ~(bias.astype(np.float64) <= low)  # NaN is seen
    sink = -np.inf if sinks is None else np.asarray(sinks, np.float64)[:, None, None]

    with np.errstate(all="ignore"):
        scores = np.einsum("bhqd,bhkd->bhqk", q, k)
        scores *= q.shape[-1] ** -0.5 if scale is None else scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias.astype(np.float64)
        if alibi is not None:
            slopes = np.asarray(alibi, np.float64)[:, None, None]
            i, j = np.ogrid[: q.shape[2], : k.shape[2]]
            scores = scores - slopes * abs(i + k.shape[2] - q.shape[2] - j)
        if precision is not None:
            scores = scores.astype(np.float32).astype(np.float64)
        scores = np.where(seen, scores, -np.inf)
        highest = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sink)
        highest = np.where(np.isneginf(highest), 0, highest)
        weights = np.exp(scores - highest)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - highest)
        weights = rounded(weights)
        out = np.einsum("bhqk,bhkd->bhqd", weights, np.where(np.isfinite(v), v, 0))
        for special in (np.inf, -np.inf, np.nan):  # these reach only the rows that see their key
            here = np.isnan(v) if np.isnan(special) else v == special
            if here.any():
                times = np.einsum("bhqk,bhkd->bhqd", seen.astype(float), here.astype(float))
                out[times > 0] += special
        out = rounded(out / np.where(total == 0, 1, total))
        lse = highest + np.log(total)
    return (out, lse[..., 0]) if return_lse else out


def gemm(
    a: ArrayLike,
    b: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    residual: ArrayLike | None = None,
    gated: bool = False,
    scale: float | None = None,
    precision: str | None = None,
) -> Exact:
    """``activation(scale * a @ b + bias) + residual``, all as in :class:`stof_cupy.Epilogue`.

    Examples
    --------
    >>> gemm([[1.0, 2.0]], [[1.0], [1.0]], bias=[-1.0])
    array([[2.]])
    """
    rounded = rounder(precision)
    out = rounded(a) @ rounded(b)
    if scale is not None:
        out = out * scale
    if bias is not None:
        out = out + rounded(bias)
    gate, rest = np.split(out, 2, -1) if gated else (out, np.ones(1))
    if activation is not None:
        gate = _activation(gate, activation)
    out = gate * rest
    if residual is not None:
        out = out + rounded(residual)
    return rounded(out)


def _activation(x: Exact, name: str) -> Exact:
    if name == "relu":
        return np.where(x < 0, 0, x)
    if name == "silu":
        from scipy.special import expit

        return np.asarray(x * expit(x), np.float64)
    return gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def layer_norm(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike, *, eps: float, precision: str | None = None
) -> Exact:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis.

    Examples
    --------
    >>> layer_norm([[1.0, 3.0]], [1.0, 1.0], [0.0, 10.0], eps=0.0)
    array([[-1., 11.]])
    """
    rounded = rounder(precision)
    x = rounded(x)
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return rounded((x - mean) / np.sqrt(variance + eps) * rounded(weight) + rounded(bias))


def add(x: ArrayLike, y: ArrayLike, *, precision: str | None = None) -> Exact:
    """``x + y``.

    Examples
    --------
    >>> add([1.0, 2.0], 0.5)
    array([1.5, 2.5])
    """
    rounded = rounder(precision)
    return rounded(rounded(x) + rounded(y))


def gelu(x: ArrayLike, *, approximate: str = "none", precision: str | None = None) -> Exact:
    """``x * Phi(x)``, Phi the normal distribution function or, with "tanh", its approximation.

    Examples
    --------
    >>> gelu([0.0, 100.0])
    array([  0., 100.])
    """
    rounded = rounder(precision)
    x = rounded(x)
    if approximate == "tanh":
        return rounded(x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2)
    from scipy.special import ndtr

    return rounded(x * ndtr(x))


def embedding(
    ids: ArrayLike,
    table: ArrayLike,
    *,
    position_table: ArrayLike | None = None,
    type_table: ArrayLike | None = None,
    token_types: ArrayLike | None = None,
    precision: str | None = None,
) -> Exact:
    """Sum the rows of tokens ``ids`` (batch, seq), of their positions and of their types or type 0.

    Examples
    --------
    >>> embedding([[1, 0]], [[1.0], [2.0]], position_table=[[10.0], [20.0], [30.0]])
    array([[[12.],
            [21.]]])
    """
    rounded = rounder(precision)
    ids = np.asarray(ids)
    out = rounded(table)[ids]
    if position_table is not None:
        out = out + rounded(position_table)[np.arange(ids.shape[1])]
    if type_table is not None:
        types = np.zeros_like(ids) if token_types is None else np.asarray(token_types)
        out = out + rounded(type_table)[types]
    return rounded(out)
