"""Attention of sequences of different lengths, packed one after another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import is_cupy
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, mismatch
from stof_cupy.masks import as_masks, document
from stof_cupy.masks.check import flag, integers, reaches
from stof_cupy.masks.expression import Pattern
from stof_cupy.masks.positions import Align
from stof_cupy.ops._arrays import Array, backend, check_shape
from stof_cupy.ops.attention import attend
from stof_cupy.ops.attention_args import Scores, check_given
from stof_cupy.ops.attention_model import Select
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["attention_varlen"]

Lengths = Sequence[int] | NDArray[np.integer]


def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    q_lens: Lengths,
    kv_lens: Lengths | None = None,
    mask: Any = None,
    *,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    align: Align | None = None,
    scale: float | None = None,
    bias: Array | RelativeBias | None = None,
    alibi: Array | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    return_lse: bool = False,
    out: Array | None = None,
    select: Select = "model",
    explain: bool = False,
) -> Any:
    """Compute attention within each of several sequences that are packed, not padded.

    One call of `attention` under a mask of documents: a query sees keys of its own sequence only.

    Parameters
    ----------
    q : ndarray
        Queries of all sequences one after another, shape ``(total_q, heads, head_dim)``.
    k, v : ndarray
        Keys ``(total_k, kv_heads, head_dim)`` and values ``(total_k, kv_heads, value_dim)``.
    q_lens : sequence of int or integer ndarray
        Queries of each sequence, 0 or more, on the host; their sum is `total_q`. Of cumulative
        lengths ``cu_seqlens`` they are ``np.diff(cu_seqlens)``.
    kv_lens : sequence of int or integer ndarray, optional
        Keys of each sequence; default `q_lens`.
    mask : BsrMask, MaskStack, DeviceMask, pattern, bool ndarray or scipy.sparse matrix, optional
        Of the packed arrays, ``(total_q, total_k)``, or with a leading axis ``(heads,)``; what it
        keeps within the sequences is seen.
    causal : bool
        Whether a query sees no key after itself.
    window : int or tuple of int, optional
        Reach to each side, or back and ahead, as in `masks.sliding_window`. A ``window_size`` of
        flash_attn is the tuple, as long as it has no -1.
    align : {"top-left", "bottom-right"}, optional
        Whether the first or the last query and key of a sequence stand together, for `causal` and
        `window`; to be named if any ``q_lens`` and ``kv_lens`` differ. flash_attn and FlashInfer
        mean ``"bottom-right"``.
    scale, softcap, sinks
        See `attention`.
    bias : float ndarray or RelativeBias, optional
        An array broadcasts to ``(heads, total_q, total_k)``; a RelativeBias counts distances within
        each sequence, the last query at the last key.
    alibi : float32 ndarray, optional
        Slopes ``(heads,)``; distances as for a RelativeBias.
    return_lse : bool
        Also return the natural logarithm of the sum of ``exp(score)``, sinks included.
    out : ndarray, optional
        As in `attention`.
    select, explain
        See `attention`.

    Returns
    -------
    out : ndarray
        Shape ``(total_q, heads, value_dim)``, dtype of `q`.
    lse : ndarray
        Shape ``(total_q, heads)``, float32; with ``return_lse=True`` only.
    estimates : tuple of Estimate
        With ``explain=True``, in place of these.

    Raises
    ------
    ShapeError, DTypeError, MaskError, ArgumentError, DeviceError, UnsupportedError
        As `attention`; and if lengths are negative, not on the host, or do not add up.

    Notes
    -----
    The masks of the last 8 lists of lengths are kept, so that the layers of a model build them
    once.

    Examples
    --------
    >>> q = k = v = np.random.default_rng(0).standard_normal((7, 2, 16), np.float32)
    >>> attention_varlen(q, k, v, [3, 4], causal=True).shape
    (7, 2, 16)
    """
    check_given(q=q, k=k, v=v)
    backend(q=q, k=k, v=v, out=out)
    check_shape("q", q, ("total_q", "heads", "head_dim"))
    check_shape("k", k, ("total_k", "kv_heads", q.shape[2]))
    check_shape("v", v, (*k.shape[:2], "value_dim"))
    if out is not None:
        check_shape("out", out, (*q.shape[:2], v.shape[2]))
    rows = _lengths("q_lens", q_lens, q.shape[0])
    cols = _lengths("kv_lens", q_lens if kv_lens is None else kv_lens, k.shape[0])
    if len(rows) != len(cols):
        raise ShapeError(mismatch("kv_lens", f"{len(cols)} sequences", f"{len(rows)} as q_lens"))
    if align not in (None, "top-left", "bottom-right"):
        raise ArgumentError(mismatch("align", repr(align), "'top-left' or 'bottom-right'"))
    reach = None if window is None else reaches(window)
    packed: Any = _documents(rows, cols, flag("causal", causal), reach, align)
    if mask is not None:
        packed = as_masks(mask, (1, q.shape[1], q.shape[0], k.shape[0])) & packed
    by_distance = alibi is not None or isinstance(bias, RelativeBias)
    scores = Scores(
        scale=scale,
        softcap=softcap,
        bias=bias,
        alibi=alibi,
        sinks=sinks,
        positions=_positions(rows, cols) if by_distance else None,
    )
    query, key, value, into = (
        None if x is None else x.swapaxes(0, 1)[None] for x in (q, k, v, out)
    )
    how: Any = {"kv_lengths": None, "return_lse": return_lse, "out": into}
    made = attend(query, key, value, packed, scores, **how, select=select, explain=explain)
    if explain:
        return made
    result, lse = made if return_lse else (made, None)
    result = result[0].swapaxes(0, 1) if out is None else out
    return result if lse is None else (result, lse[0].T)


def _lengths(name: str, lens: Any, total: int) -> tuple[int, ...]:
    """Return lengths as a tuple of ints whose sum is `total`."""
    if is_cupy(lens):
        hint = "reading it would wait for the device: lens.get() says that it may"
        raise DTypeError(mismatch(name, "a CuPy array", "integers on the host", hint))
    if lens is None or isinstance(lens, str | bytes):
        raise DTypeError(mismatch(name, repr(lens), "a list of integers, one for each sequence"))
    lengths = tuple(integers(name, lens).tolist())
    if min(lengths, default=0) < 0:
        raise ArgumentError(mismatch(name, min(lengths), "0 or more tokens each"))
    if sum(lengths) != total:
        hint = "of cumulative lengths, give np.diff"
        raise ShapeError(mismatch(name, f"a sum of {sum(lengths)}", f"{total} packed tokens", hint))
    return lengths


@lru_cache(maxsize=8)
def _documents(
    rows: tuple[int, ...],
    cols: tuple[int, ...],
    causal: bool,
    window: tuple[int, int] | None,
    align: Align | None,
) -> Pattern:
    """Return the mask of the sequences; as a pattern, it keeps its tiles."""
    return document(rows, cols, causal=causal, window=window, align=align)


def _positions(rows: tuple[int, ...], cols: tuple[int, ...]) -> tuple[Array, Array]:
    """Return where each query and key stands in its sequence, the last query at the last key."""
    queries = [np.arange(n - m, n) for m, n in zip(rows, cols, strict=True)]
    keys = [np.arange(n) for n in cols]
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *queries]), np.concatenate([none, *keys])
