"""The arguments of attention: checked before any work, and described by two small values."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, DeviceError, DTypeError, ShapeError, mismatch
from stof_cupy.masks import DeviceMask, as_masks
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops._arrays import (
    FLOAT32_MAX,
    Array,
    backend,
    check_dtype,
    check_no_overlap,
    check_out,
    check_shape,
    device_dtype,
    is_cupy,
    real,
)
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["Problem", "Scores", "check_given", "masking", "validate"]

_MOST_CAP = 2.0**64  # far above any score, and still within float32 when multiplied


@dataclass(frozen=True)
class Problem:
    """What is to be computed; sizes in elements."""

    dtype: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    dim_qk: int
    dim_v: int

    @property
    def empty(self) -> bool:
        """Whether nothing is multiplied: what there is of the output is zeros."""
        return min(self.batch, self.heads, self.seq_q, self.seq_k) == 0


@dataclass(frozen=True, eq=False)
class Scores:
    """How scores come from products: ``softcap * tanh(scale * q k^T / softcap) + biases``.

    Attributes
    ----------
    scale : float
        Before `validate` it may be None, for ``1 / sqrt(head_dim)``.
    softcap : float or None
    bias : array or RelativeBias or None
        After `validate` an array is broadcast to ``(batch, heads, seq_q, seq_k)``.
    alibi, sinks : float32 array (heads,) or None
    positions : pair of int arrays (seq_q,) and (seq_k,), or None
        Where queries and keys stand, for biases by distance, at most ``seq_q + seq_k`` apart;
        None: query ``i`` stands at key ``i + seq_k - seq_q``. Arrays on the host are uploaded;
        int32 on the device is read when a kernel runs.
    """

    scale: Any = None
    softcap: float | None = None
    bias: Array | RelativeBias | None = None
    alibi: Array | None = None
    sinks: Array | None = None
    positions: tuple[Array, Array] | None = None

    def arrays(self) -> dict[str, Array | None]:
        """Return the arrays by the names of their arguments."""
        bias = self.bias.table if isinstance(self.bias, RelativeBias) else self.bias
        return {"bias": bias, "alibi": self.alibi, "sinks": self.sinks}


def validate(
    q: Array,
    k: Array,
    v: Array,
    mask: Any,
    scores: Scores,
    kv_lengths: Array | None,
    out: Array | None,
) -> tuple[str, Problem, AnyMask | None, Scores]:
    """Check every argument and describe the problem; `attention` says what is raised.

    Returns
    -------
    where : {"numpy", "cuda"}
    problem : Problem
    mask : BsrMask, MaskStack, DeviceMask or None
    scores : Scores
        Complete: the scale chosen, the bias broadcast.
    """
    check_given(q=q, k=k, v=v)
    where = backend(q=q, k=k, v=v, **scores.arrays(), kv_lengths=kv_lengths, out=out)
    check_dtype("q", q)
    check_dtype("k", k, q, "q")
    check_dtype("v", v, q, "q")
    check_shape("q", q, ("batch", "heads", "seq_q", "head_dim"))
    batch, heads, seq_q, dim_qk = q.shape
    check_shape("k", k, (batch, "kv_heads", "seq_k", dim_qk))
    kv_heads, seq_k = k.shape[1:3]
    check_shape("v", v, (batch, kv_heads, seq_k, "value_dim"))
    dim_v = v.shape[3]
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(mismatch("k", f"{kv_heads} heads", f"a divisor of q's {heads}"))
    if dim_qk == 0 or dim_v == 0:
        raise ShapeError(mismatch("head_dim", f"{dim_qk} for q and k, {dim_v} for v", "at least 1"))
    check_out(out, (batch, heads, seq_q, dim_v), q)
    check_no_overlap(out, q=q, k=k, v=v, kv_lengths=kv_lengths, **scores.arrays())
    if kv_lengths is not None:
        if kv_lengths.dtype.kind not in "iu":
            raise DTypeError(mismatch("kv_lengths", kv_lengths.dtype.name, "an integer array"))
        check_shape("kv_lengths", kv_lengths, (batch,))
    with _device_of(q):  # masks of CuPy arrays are built there
        bsr = None if mask is None else as_masks(mask, (batch, heads, seq_q, seq_k))
    if isinstance(bsr, DeviceMask) and (where == "numpy" or bsr.device != q.device.id):
        got = f"on CUDA device {bsr.device}"
        expected = "on the CPU: mask.to('cpu')" if where == "numpy" else f"on device {q.device.id}"
        raise DeviceError(mismatch("mask", got, f"{expected}, like q"))
    dtype = device_dtype("q", q) if where == "cuda" else q.dtype.name
    problem = Problem(dtype, batch, heads, kv_heads, seq_q, seq_k, dim_qk, dim_v)
    return where, problem, bsr, _complete(scores, problem)


def check_given(**arrays: Array | None) -> None:
    """Raise DTypeError if one of the arrays is None."""
    for name, x in arrays.items():
        if x is None:
            raise DTypeError(mismatch(name, None, "a NumPy or CuPy array"))


def _device_of(x: Array) -> AbstractContextManager[Any]:
    """Return a context in which the device of a CuPy array is the current one."""
    if not is_cupy(x):
        return nullcontext()
    import cupy

    device: AbstractContextManager[Any] = cupy.cuda.Device(x.device.id)
    return device


def _complete(scores: Scores, problem: Problem) -> Scores:
    """Return checked scores with the default scale filled in and the bias broadcast."""
    scale, softcap = 1.0 / math.sqrt(problem.dim_qk), scores.softcap
    if scores.scale is not None:
        expected = "a real number of at most 1.7e38, half of float32's largest"
        scale = real("scale", scores.scale, expected)
        if not abs(scale) <= FLOAT32_MAX / 2:
            raise ArgumentError(mismatch("scale", scores.scale, expected))
    if softcap is not None:
        expected = "a positive number up to 2**64, scale / softcap within float32"
        softcap = real("softcap", softcap, expected)
        if not 0 < softcap <= _MOST_CAP or abs(scale / softcap) > FLOAT32_MAX:
            raise ArgumentError(mismatch("softcap", scores.softcap, expected, "None: no cap"))
    for name, x in (("alibi", scores.alibi), ("sinks", scores.sinks)):
        if x is not None:
            if x.dtype != np.float32:
                raise DTypeError(mismatch(name, x.dtype.name, "float32"))
            check_shape(name, x, (problem.heads,))
    bias = scores.bias
    if isinstance(bias, RelativeBias):
        if bias.heads != problem.heads:
            raise ShapeError(mismatch("bias", f"{bias.heads} heads", f"q's {problem.heads}"))
    elif bias is not None:
        bias = _broadcast(bias, (problem.batch, problem.heads, problem.seq_q, problem.seq_k))
    return replace(scores, scale=scale, softcap=softcap, bias=bias)


def _broadcast(bias: Array, shape: tuple[int, int, int, int]) -> Array:
    """Return a view of `bias` of shape ``(batch, heads, seq_q, seq_k)``."""
    if bias.dtype.kind == "b":
        hint = "a bool array says what may attend: mask="
        raise DTypeError(mismatch("bias", "bool", "a float array", hint))
    check_dtype("bias", bias)
    pairs = zip(reversed(bias.shape), reversed(shape), strict=False)
    if bias.ndim > len(shape) or any(got not in (1, size) for got, size in pairs):
        hint = "axes of size 1 broadcast; shapes are (batch, heads, queries, keys)"
        raise ShapeError(mismatch("bias", tuple(bias.shape), shape, hint))
    return np.broadcast_to(bias, shape)  # of a CuPy array, CuPy's


def masking(dtype: Any) -> float:
    """Return the bias of a type at and below which its key is masked: its lowest finite number.

    Additive masks are written with that number as often as with -inf; counted as a score, it would
    give a row of nothing else the mean of all values. float64 is held to the lowest of float32.

    Examples
    --------
    >>> masking(np.dtype(np.float16))
    -65504.0
    """
    infinite = np.array(-np.inf, dtype)
    return max(float(np.nextafter(infinite, np.zeros_like(infinite))), -FLOAT32_MAX)
