"""What a new token's attention is given: checked, and whether its kernel takes it."""

from __future__ import annotations

from dataclasses import dataclass

from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.jit.attention_token import TOKEN_HEAD_DIMS, TOKEN_HEADS
from stof_cupy.ops._arrays import (
    Array,
    aligned,
    backend,
    check_dtype,
    check_eps,
    check_no_overlap,
    check_shape,
)
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.kv_cache import check_cache
from stof_cupy.ops.rotary import check_turn

__all__ = ["HeadNorms", "Token", "Turn", "check_token", "unfit"]

_MOST_KEYS = 1 << 24


@dataclass(frozen=True, eq=False)
class Turn:
    """A rotary embedding of queries and keys, see :func:`stof_cupy.ops.rotary.rotary`."""

    frequency: Array
    interleaved: bool = False
    magnitude: float = 1.0


@dataclass(frozen=True, eq=False)
class HeadNorms:
    """RMSNorm of each head of queries and of keys, before they are turned: weights (head_dim,)."""

    q: Array
    k: Array
    eps: float


@dataclass(frozen=True, eq=False)
class Token:
    """What `attend_token` is given, as it takes it."""

    q: Array
    k: Array
    v: Array
    key_cache: Array
    value_cache: Array
    positions: Array
    turn: Turn | None = None
    norms: HeadNorms | None = None
    lengths: Array | None = None
    scale: float | None = None
    softcap: float | None = None
    ring: bool = False
    settled: bool = False

    @property
    def octets(self) -> int:
        """CTAs that share the query heads of a group."""
        group: int = self.q.shape[1] // self.k.shape[1]
        return -(-group // TOKEN_HEADS)

    @property
    def items(self) -> int:
        """What is computed apart from each other, in one CTA or in splits."""
        batch, kv_heads = self.k.shape[:2]
        return int(batch * kv_heads * self.octets)


def check_token(t: Token, out: Array | None) -> tuple[str, Scores]:
    """Check all arguments; return the backend, and scale and cap as they are."""
    given = {"q": t.q, "k": t.k, "v": t.v, "positions": t.positions, "lengths": t.lengths}
    if t.turn is not None:
        given["frequency"] = t.turn.frequency
    if t.norms is not None:
        given |= {"q_norm": t.norms.q, "k_norm": t.norms.k}
    backend(**given, key_cache=t.key_cache, value_cache=t.value_cache, out=out)
    scores = Scores(scale=t.scale, softcap=t.softcap)
    where, _, _, scores = validate(t.q, t.key_cache, t.value_cache, None, scores, t.lengths, out)
    if t.k.shape[2:3] != t.q.shape[2:3]:
        got, expected = f"{t.k.shape[2:3]} tokens", f"{t.q.shape[2:3]}, as q"
        raise ShapeError(mismatch("k", got, expected))
    for x, cache in ((t.k, t.key_cache), (t.v, t.value_cache)):
        check_cache(x, cache, t.positions, t.ring)
    if t.turn is not None:
        for x in (t.q, t.k):
            check_turn(x, t.positions, t.turn.frequency, t.turn.magnitude)
    if t.norms is not None:
        check_eps(t.norms.eps)
        for name, weight in (("q_norm", t.norms.q), ("k_norm", t.norms.k)):
            check_dtype(name, weight, t.q, "q")
            check_shape(name, weight, t.q.shape[3:])
    check_no_overlap(out, **given)
    for name, cache in (("key_cache", t.key_cache), ("value_cache", t.value_cache)):
        check_no_overlap(cache, None, name, **given)
    check_no_overlap(t.key_cache, None, "key_cache", value_cache=t.value_cache)
    if where == "numpy" and t.positions.size and not t.ring:
        low, high = int(t.positions.min()), int(t.positions.max())
        if low < 0 or high >= t.key_cache.shape[2]:
            expected = f"from 0 to {t.key_cache.shape[2] - 1}"
            raise ArgumentError(mismatch("positions", low if low < 0 else high, expected))
    return where, scores


def unfit(t: Token, out: Array | None = None) -> str:
    """Say why the kernel does not take checked arguments; empty if it does.

    Examples
    --------
    >>> import numpy as np
    >>> x, cache = np.ones((1, 1, 1, 12), np.float16), np.zeros((2, 1, 1, 16, 12), np.float16)
    >>> unfit(Token(x, x, x, *cache, np.array([[2]])))
    'head_dim 12: a multiple of 8 up to 256'
    """
    head_dim, turn = t.q.shape[3], t.turn
    if t.q.shape[2] != 1:
        return f"{t.q.shape[2]} tokens: one"
    if head_dim % 8 or head_dim > TOKEN_HEAD_DIMS[-1] or t.v.shape[3] != head_dim:
        return f"head_dim {head_dim}: a multiple of 8 up to {TOKEN_HEAD_DIMS[-1]}"
    if turn is not None and not turn.interleaved and len(turn.frequency) % 8:
        return f"{len(turn.frequency)} frequencies: a multiple of 8"
    if t.key_cache.strides != t.value_cache.strides or t.key_cache.shape[2] > _MOST_KEYS:
        return f"caches: of the same strides, up to {_MOST_KEYS} keys"
    rows = [t.q, t.k, t.v, t.key_cache, *([] if out is None else [out])]
    steps = [[s // x.itemsize for s in x.strides[:3]] for x in rows]
    alike = [aligned(x, 16, *each) for x, each in zip(rows, steps, strict=True)]
    alike += [aligned(t.value_cache, 16), *(x.strides[3] == x.itemsize for x in rows)]
    vectors = [] if t.norms is None else [t.norms.q, t.norms.k]
    alike += [x.strides[0] == x.itemsize and aligned(x, 16) for x in vectors]
    if turn is not None:
        alike.append(turn.frequency.strides[0] == 4)
    return "" if all(alike) else "rows: contiguous, aligned to 16 bytes"
