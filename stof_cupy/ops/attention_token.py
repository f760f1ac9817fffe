"""Attention of one new token of each sequence, from its projections on, in one kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stof_cupy.jit.attention_token import (
    TOKEN_HEAD_DIMS,
    TOKEN_SPLITS,
    attention_token,
    token_floats,
)
from stof_cupy.ops._arrays import Array, device_dtype, empty_in_order_of, pointer
from stof_cupy.ops._counters import counters
from stof_cupy.ops.attention import attention
from stof_cupy.ops.attention_args import Scores
from stof_cupy.ops.attention_fields import clipped
from stof_cupy.ops.attention_token_args import HeadNorms, Token, Turn, check_token, unfit
from stof_cupy.ops.kv_cache import write_caches
from stof_cupy.ops.rms_norm import rms_norm
from stof_cupy.ops.rotary import rotary

__all__ = ["HeadNorms", "Token", "Turn", "arguments", "attend_token", "splits_for", "unfit"]

_LEAST = 128
"""Keys of a split, of several: 16 for each warp. Twice as many are one CTA's: on an H200 256 keys
take two of them about 1 us more, and 512 take one up to 4 us more than four (notes/decoding.md)."""

_LOG2E = math.log2(math.e)


def attend_token(token: Token, *, out: Array | None = None) -> Array:
    """Normalise and turn a token's query and key, write its key and value, and attend to all keys.

    What the operators `rms_norm`, `rotary`, `write_caches` and `attention` do one after the other;
    on CUDA in one kernel, where `unfit` says nothing against it.

    Parameters
    ----------
    token : Token
        * q : ndarray (batch, heads, seq, head_dim); NumPy or CuPy, as all of them. On CUDA float16
          or bfloat16, on NumPy any float.
        * k, v : ndarray (batch, kv_heads, seq, head_dim), kv_heads a divisor of heads.
        * key_cache, value_cache : ndarray (batch, kv_heads, keys, head_dim), changed in place.
        * positions : ndarray of int (batch, seq): the key that each token becomes.
        * turn : Turn, optional: of queries and keys, by positions.
        * norms : HeadNorms, optional: before that.
        * lengths : ndarray of int (batch,), optional: keys at and beyond are masked.
        * scale, softcap : float, optional: as of `attention`.
        * ring : bool: as of `write_caches`.
        * settled : bool: whether what has written caches, positions, lengths and frequencies has
          ended when this kernel is launched, while others before it still run
          (:mod:`stof_cupy.jit.dependent`). They are read then at once. Two such calls in a row, on
          the same caches, are not it.
    out : ndarray, optional
        Where to write the result: shape and dtype of q, contiguous last axis.

    Returns
    -------
    ndarray
        Shape and dtype of q, axes laid out in memory in the order of q's.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError
        If an argument does not fit; nothing has been written then. On CUDA a position outside the
        cache is no error: the token is not written.
    UnsupportedError
        If there is no kernel for the dtype or head dim.

    Examples
    --------
    >>> x, cache = np.ones((1, 1, 1, 2), np.float32), np.zeros((2, 1, 1, 4, 2), np.float32)
    >>> token = Token(x, x, x, *cache, np.array([[2]]), lengths=np.array([3]), scale=0.5)
    >>> attend_token(token).round(3), cache[0, 0, 0, 2]
    (array([[[[0.576, 0.576]]]], dtype=float32), array([1., 1.], dtype=float32))
    """
    where, scores = check_token(token, out)
    if where == "cuda" and not unfit(token, out):
        return _launch(token, scores, out)
    q, k, at = token.q, token.k, token.positions
    if token.norms is not None:
        q, k = (
            rms_norm(x, weight, eps=token.norms.eps)
            for x, weight in ((q, token.norms.q), (k, token.norms.k))
        )
    if token.turn is not None:
        how: Any = {"interleaved": token.turn.interleaved, "magnitude": token.turn.magnitude}
        q, k = (rotary(x, at, token.turn.frequency, **how) for x in (q, k))
    write_caches(k, token.v, token.key_cache, token.value_cache, at, ring=token.ring)
    how = {"scale": token.scale, "softcap": token.softcap, "kv_lengths": token.lengths, "out": out}
    return attention(q, token.key_cache, token.value_cache, **how)


def splits_for(items: int, keys: int, head_dim: int, sm_count: int) -> tuple[int, int]:
    """Return into how many splits a CTA each keys are cut at most, and the keys of one at least.

    No more than run at once, one on an SM, or two where they fit. How many of them there are is up
    to a sequence's length.

    Examples
    --------
    >>> splits_for(3, 128, 64, 132), splits_for(3, 8192, 64, 132), splits_for(8, 32768, 128, 132)
    ((1, 128), (64, 128), (16, 128))
    >>> splits_for(3, 256, 64, 132), splits_for(3, 257, 64, 132)
    ((1, 128), (3, 128))
    """
    at_once = sm_count * (2 if head_dim <= TOKEN_HEAD_DIMS[0] else 1)
    splits = min(-(-keys // _LEAST), at_once // max(items, 1), TOKEN_SPLITS)
    return (1 if keys <= 2 * _LEAST else max(splits, 1)), _LEAST


def _launch(t: Token, scores: Scores, out: Array | None) -> Array:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.device import facts
    from stof_cupy.jit.launch import kernel

    device = t.q.device.id
    with cupy.cuda.Device(device):
        head_dim = next(dim for dim in TOKEN_HEAD_DIMS if dim >= t.q.shape[3])
        run = kernel(attention_token(device_dtype("q", t.q), head_dim), device)
        out = empty_in_order_of(t.q, t.q.shape) if out is None else out
        if not t.q.size:
            return out
        # Named, because a copy has to live until the kernel has been launched.
        places, lengths = t.positions, t.lengths
        if places.dtype != np.int32:
            places = places.astype(np.int32)
        if lengths is not None:
            lengths = clipped(lengths, t.key_cache.shape[2], cupy)
        settled = t.settled and places is t.positions and lengths is t.lengths
        cut = splits_for(t.items, t.key_cache.shape[2], head_dim, facts(device).sm_count)
        partial, counted = None, 0
        if cut[0] > 1:
            partial = cupy.empty((t.items, cut[0], token_floats(head_dim)), np.float32)
            counted = counters(device).take(t.items)
        blocks, fields = arguments(t, scores, places, lengths, out, cut, partial, counted)
        run((blocks,), run.pack(**{**fields, "early": settled}))
    return out


def arguments(
    t: Token,
    scores: Scores,
    positions: Array,
    lengths: Array | None,
    out: Array,
    cut: tuple[int, int],
    partial: Array | None,
    counted: int,
) -> tuple[int, dict[str, Any]]:
    """Return the blocks and the kernel's parameters; it reads nothing early."""
    size, keys = t.q.itemsize, t.key_cache.shape[2]
    axes: dict[str, int] = {}
    for name, x in (("q", t.q), ("k", t.k), ("v", t.v), ("out", out)):
        axes |= {f"{name}_batch": x.strides[0] // size, f"{name}_head": x.strides[1] // size}
    for axis, step in zip(("batch", "head", "key"), t.key_cache.strides[:3], strict=True):
        axes[f"cache_{axis}"] = step // size
    turn, norms, cap = t.turn, t.norms, scores.softcap
    fields: dict[str, Any] = {
        **{"q": pointer(t.q), "k": pointer(t.k), "v": pointer(t.v)},
        "q_norm": 0 if norms is None else pointer(norms.q),
        "k_norm": 0 if norms is None else pointer(norms.k),
        "frequency": 0 if turn is None else pointer(turn.frequency),
        "positions": pointer(positions),
        "lengths": pointer(lengths),
        "key_cache": pointer(t.key_cache),
        "value_cache": pointer(t.value_cache),
        "out": pointer(out),
        "partial": pointer(partial),
        "counters": counted,
        **axes,
        "position_batch": positions.strides[0] // positions.itemsize,
        "items": t.items,
        "kv_heads": t.k.shape[1],
        "group": t.q.shape[1] // t.k.shape[1],
        "octets": t.octets,
        "splits": cut[0],
        "least": cut[1],
        "keys": keys,
        "head_dim": t.q.shape[3],
        "half": 0 if turn is None else len(turn.frequency),
        "interleaved": turn is not None and turn.interleaved,
        "ring": t.ring,
        "early": False,
        "factor": scores.scale * (_LOG2E if cap is None else 1 / cap),
        "cap": 0.0 if cap is None else cap * _LOG2E,
        "magnitude": 1.0 if turn is None else turn.magnitude,
        "eps": 1.0 if norms is None else norms.eps,
    }
    return t.items * cut[0], fields
