"""Sparse multi-head attention: softmax(scale q k^T) v over what the mask keeps."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from stof_cupy.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    mismatch,
)
from stof_cupy.jit import catalogue
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks import DeviceMask, MaskStack, as_masks
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
    empty_in_order_of,
    pointer,
    unit_last,
)

__all__ = ["Config", "Problem", "attention"]

_TILE = 64
_LISTS = ("row_ptr", "cols", "bitmap_id", "bitmaps", "order")


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


@dataclass(frozen=True)
class Config:
    """How: the kernel's head-dim class."""

    head_dim: int

    def spec(self, problem: Problem) -> KernelSpec:
        """Return the kernel for `problem`."""
        return catalogue.attention_sm80(problem.dtype, self.head_dim)


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Any = None,
    *,
    scale: float | None = None,
    kv_lengths: Array | None = None,
    return_lse: bool = False,
    out: Array | None = None,
) -> Any:
    """Compute masked scaled dot-product attention, skipping the tiles that the mask leaves empty.

    Source: STOF (arXiv 2506.06095), Algorithm 1.

    Parameters
    ----------
    q : ndarray
        Queries, shape ``(batch, heads, seq_q, head_dim)``; NumPy or CuPy. On CUDA float16 or
        bfloat16 and head dims up to 256; on NumPy any float. Any strides; a last axis that is not
        contiguous is copied.
    k : ndarray
        Keys, shape ``(batch, kv_heads, seq_k, head_dim)`` where `kv_heads` divides `heads`: each
        key head serves ``heads / kv_heads`` consecutive query heads.
    v : ndarray
        Values, shape ``(batch, kv_heads, seq_k, value_dim)``.
    mask : BsrMask, MaskStack, DeviceMask, pattern, bool ndarray or scipy.sparse matrix, optional
        True where a query may attend to a key. Shape ``(seq_q, seq_k)``: one for all batches and
        heads; a MaskStack, DeviceMask or bool ndarray may have leading axes that broadcast to
        ``(batch, heads)``, those of queries where heads share keys. A CuPy array, and a pattern
        that names some, is built on the GPU at every call, which waits for it:
        ``mask.to("cuda", tiles=, bitmaps=)`` and `DeviceMask.rebuild` do not.
    scale : float, optional
        Factor of the scores. Default: ``1 / sqrt(head_dim)``.
    kv_lengths : ndarray of int, optional
        Shape ``(batch,)``, NumPy or CuPy like `q`: keys at and beyond it are masked. Values are
        clipped to ``[0, seq_k]``.
    return_lse : bool
        Also return the natural logarithm of the sum of ``exp(score)``.
    out : ndarray, optional
        Where to write the result: its shape and dtype, contiguous last axis, no overlap with the
        inputs.

    Returns
    -------
    out : ndarray
        Shape ``(batch, heads, seq_q, value_dim)``, dtype of `q`, axes laid out in memory in the
        order of `q`'s.
    lse : ndarray
        Shape ``(batch, heads, seq_q)``, float32; with ``return_lse=True`` only.

    Raises
    ------
    ShapeError, DTypeError, MaskError, ArgumentError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype or head dim.

    Notes
    -----
    A row that may attend to nothing gives output 0 and LSE ``-inf``. What a masked key or value
    holds, NaN and infinities included, reaches no row that it is masked for. Accumulation is in
    float32 (on NumPy in float32 or the inputs' wider type), and equal inputs give bit-equal
    outputs.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 100, 16), np.float32)
    >>> attention(q, k, v, masks.sliding_window(100, window=8)).shape
    (1, 2, 100, 16)
    """
    where, problem, bsr = _validate(q, k, v, mask, kv_lengths, out)
    if scale is None:
        scale = 1.0 / math.sqrt(problem.dim_qk)
    elif not isinstance(scale, numbers.Real) or not abs(scale) <= FLOAT32_MAX / 2:
        raise ArgumentError(mismatch("scale", scale, "a real number that float32 can hold"))
    if where == "numpy":
        from stof_cupy.ops import cpu, cpu_stack

        run: Any = cpu_stack.attention if isinstance(bsr, MaskStack) else cpu.attention
        result = run(
            q, k, v, bsr, scale=scale, kv_lengths=kv_lengths, return_lse=return_lse, out=out
        )
        return result
    return _launch(_choose(problem), problem, q, k, v, bsr, scale, kv_lengths, return_lse, out)


def _validate(
    q: Array, k: Array, v: Array, mask: Any, kv_lengths: Array | None, out: Array | None
) -> tuple[str, Problem, AnyMask | None]:
    """Check every argument and describe the problem."""
    where = backend(q=q, k=k, v=v, kv_lengths=kv_lengths, out=out)
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
    check_no_overlap(out, q=q, k=k, v=v)
    if kv_lengths is not None:
        if kv_lengths.dtype.kind not in "iu":
            raise DTypeError(mismatch("kv_lengths", kv_lengths.dtype.name, "an integer array"))
        check_shape("kv_lengths", kv_lengths, (batch,))
    bsr = None if mask is None else as_masks(mask, (batch, heads, seq_q, seq_k))
    if isinstance(bsr, DeviceMask) and (where == "numpy" or bsr.device != q.device.id):
        got = f"on CUDA device {bsr.device}"
        expected = "on the CPU: mask.to('cpu')" if where == "numpy" else f"on device {q.device.id}"
        raise DeviceError(mismatch("mask", got, f"{expected}, like q"))
    dtype = device_dtype("q", q) if where == "cuda" else q.dtype.name
    return where, Problem(dtype, batch, heads, kv_heads, seq_q, seq_k, dim_qk, dim_v), bsr


def _choose(problem: Problem) -> Config:
    """Return the only kernel there is yet, for the smallest head-dim class that fits."""
    if -(-problem.seq_q // _TILE) * problem.heads * problem.batch >= 2**31:
        size = (problem.batch, problem.heads, problem.seq_q)
        expected = "fewer than 2^31 tiles of 64 queries"
        raise UnsupportedError(mismatch("(batch, heads, seq_q)", size, expected))
    if max(problem.seq_q, problem.seq_k) > 2**31 - _TILE:
        sizes = (problem.seq_q, problem.seq_k)
        raise UnsupportedError(mismatch("(seq_q, seq_k)", sizes, "each at most 2^31 - 64"))
    return Config(catalogue.head_dim_class(max(problem.dim_qk, problem.dim_v)))


def _launch(
    config: Config,
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    mask: AnyMask | None,
    scale: float,
    kv_lengths: Array | None,
    return_lse: bool,
    out: Array | None,
) -> Any:
    """Build the kernel and run it on the arrays' device and CuPy's current stream."""
    import cupy

    from stof_cupy.jit.launch import kernel

    device = q.device.id
    with cupy.cuda.Device(device):
        run = kernel(config.spec(problem), device)
        q, k, v = unit_last(q), unit_last(k), unit_last(v)
        if out is None:
            out = empty_in_order_of(q, (*q.shape[:3], problem.dim_v))
        rows = (problem.batch, problem.heads, problem.seq_q)
        lse = cupy.empty(rows, np.float32) if return_lse else None
        if out.size:
            lengths = kv_lengths
            if lengths is not None:
                if lengths.dtype != np.int32:  # a value beyond int32 is to be clipped, not wrapped
                    lengths = cupy.clip(lengths, 0, problem.seq_k)
                lengths = cupy.ascontiguousarray(lengths, np.int32)
            params = run.pack(
                **_tensor_fields(q, k, v, out),
                **_mask_fields(mask, problem),
                lse=pointer(lse),
                kv_lengths=pointer(lengths),
                heads=problem.heads,
                heads_per_kv=problem.heads // problem.kv_heads,
                seq_q=problem.seq_q,
                seq_k=problem.seq_k,
                dim_qk=problem.dim_qk,
                dim_v=problem.dim_v,
                scale_log2=scale * math.log2(math.e),
            )
            q_tiles = -(-problem.seq_q // _TILE)
            run((q_tiles * problem.heads * problem.batch,), params)
    return (out, lse) if return_lse else out


def _tensor_fields(q: Array, k: Array, v: Array, out: Array) -> dict[str, int]:
    """Return where the tensors are, their strides in elements, and how wide accesses may be."""
    fields = {}
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        address = x.data.ptr
        batch, head, row, _ = x.strides
        fields[name] = address
        fields[f"{name}_batch"] = batch // x.itemsize
        fields[f"{name}_head"] = head // x.itemsize
        fields[f"{name}_row"] = row // x.itemsize
        common = (
            address | batch | head | row
        )  # what divides it divides all of them, as a power of 2
        if x is out:
            fields["pairs_out"] = common % 4 == 0
        else:
            fields[f"wide_{name}"] = common % 16 == 0
    return fields


def _mask_fields(mask: AnyMask | None, problem: Problem) -> dict[str, int]:
    """Return where the lists of the mask are on the current device; zeros without a mask."""
    fields = dict.fromkeys((*_LISTS, "mask_of", "mask_batch", "mask_head", "overflow"), 0)
    if mask is not None:
        lists = mask.schedule().on_device()
        for name in (*_LISTS, "overflow"):
            fields[name] = pointer(getattr(lists, name))
        if lists.mask_of.size > 1:
            fields["mask_of"] = pointer(lists.mask_of)
            strides = lists.mask_strides(problem.batch, problem.heads)
            fields["mask_batch"], fields["mask_head"] = strides
    return fields
