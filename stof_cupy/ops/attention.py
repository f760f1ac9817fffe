"""Sparse multi-head attention: softmax(scale q k^T) v over what the mask keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit import catalogue
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops._arrays import Array, empty_in_order_of, pointer, unit_last
from stof_cupy.ops.attention_args import Problem, Scores, validate
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["Config", "attend", "attention"]

_TILE = 64
_LISTS = ("row_ptr", "cols", "bitmap_id", "bitmaps", "order")


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
    bias: Array | RelativeBias | None = None,
    alibi: Array | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    kv_lengths: Array | None = None,
    return_lse: bool = False,
    out: Array | None = None,
) -> Any:
    """Compute masked scaled dot-product attention, skipping the tiles that the mask leaves empty.

    The scores are ``softcap * tanh(scale * q k^T / softcap)``, or ``scale * q k^T`` without a cap,
    plus `bias`, plus what `alibi` adds. Source: STOF (arXiv 2506.06095), Algorithm 1.

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
    bias : float ndarray or RelativeBias, optional
        Added to the scores; an array broadcasts to ``(batch, heads, seq_q, seq_k)``. A key whose
        bias is -inf or the lowest finite number of the bias's type is masked.
    alibi : float32 ndarray, optional
        Shape ``(heads,)``: slopes of ALiBi (Press et al., arXiv 2108.12409). Adds ``-alibi[h] * |i
        + seq_k - seq_q - j|`` to the score of query `i` and key `j`: the last query stands at the
        last key, whatever the mask or `kv_lengths`.
    softcap : float, optional
        Positive; bounds the scores, before anything is added, to ``(-softcap, softcap)``.
    sinks : float32 ndarray, optional
        Shape ``(heads,)``: the score of one more key in every row, whose value is 0.
    kv_lengths : ndarray of int, optional
        Shape ``(batch,)``, NumPy or CuPy like `q`: keys at and beyond it are masked. Values are
        clipped to ``[0, seq_k]``.
    return_lse : bool
        Also return the natural logarithm of the sum of ``exp(score)``, sinks included.
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
        If there is no kernel for the dtype or head dim, or, on CUDA so far, for `bias`, `alibi`,
        `softcap` or `sinks`.

    Notes
    -----
    A row that may attend to nothing gives output 0 and LSE ``-inf``, or the head's sink. What a
    masked key or value holds, NaN and infinities included, reaches no row that it is masked for.
    Accumulation is in float32 (on NumPy in float32 or the inputs' wider type), and equal inputs
    give bit-equal outputs.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 100, 16), np.float32)
    >>> attention(q, k, v, masks.sliding_window(100, window=8)).shape
    (1, 2, 100, 16)
    """
    scores = Scores(scale=scale, softcap=softcap, bias=bias, alibi=alibi, sinks=sinks)
    return attend(q, k, v, mask, scores, kv_lengths=kv_lengths, return_lse=return_lse, out=out)


def attend(
    q: Array,
    k: Array,
    v: Array,
    mask: Any,
    scores: Scores,
    *,
    kv_lengths: Array | None,
    return_lse: bool,
    out: Array | None,
) -> Any:
    """Validate, choose and run: what `attention` and `attention_varlen` have in common."""
    where, problem, bsr, scores = validate(q, k, v, mask, scores, kv_lengths, out)
    if where == "numpy":
        from stof_cupy.ops import cpu_attention

        host: Any = bsr  # NumPy arrays with a mask on a device have been refused
        return cpu_attention.attention(
            q, k, v, host, scores, kv_lengths=kv_lengths, return_lse=return_lse, out=out
        )
    config = _choose(problem, scores)
    return _launch(config, problem, q, k, v, bsr, scores.scale, kv_lengths, return_lse, out)


def _choose(problem: Problem, scores: Scores) -> Config:
    """Return the only kernel there is yet, for the smallest head-dim class that fits."""
    for name in ("bias", "alibi", "softcap", "sinks"):
        if getattr(scores, name) is not None:
            hint = "arrays on NumPy take it"
            raise UnsupportedError(mismatch(name, "a value with CuPy arrays", "None", hint))
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
