"""Sparse multi-head attention: softmax(scale q k^T) v over what the mask keeps."""

from __future__ import annotations

from typing import Any

from stof_cupy.errors import ArgumentError, mismatch
from stof_cupy.masks.check import flag
from stof_cupy.ops._arrays import Array
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.attention_fields import Args
from stof_cupy.ops.attention_model import Select, check_select
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["attend", "attention"]


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
    select: Select = "model",
    explain: bool = False,
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
        Factor of the scores. Default: ``1 / sqrt(head_dim)``. Scores of more than about 10^7 are
        beyond what float32 tells apart; they are rounded, and results finite as long as they are.
    bias : float ndarray or RelativeBias, optional
        Added to the scores; an array broadcasts to ``(batch, heads, seq_q, seq_k)``. A key whose
        bias in an array is -inf or the lowest finite number of the array's type is masked.
    alibi : float32 ndarray, optional
        Shape ``(heads,)``: slopes of ALiBi (Press et al., arXiv 2108.12409). Adds ``-alibi[h] * |i
        + seq_k - seq_q - j|`` to the score of query `i` and key `j`: the last query stands at the
        last key, whatever the mask or `kv_lengths`.
    softcap : float, optional
        Positive, at most 2**64; bounds the scores, before anything is added, to ``(-softcap,
        softcap)``.
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
    select : {"model", "stof-eq1", "stof-eq1-64", "sm80", "sm90"}
        What chooses among the kernels for a GPU: a model of their times, fitted to the GPU by
        ``stof-cupy calibrate`` or else to an H100; or the paper's Eq. 1, with 16x16 blocks as
        printed or 64x64 ones, for row-wise or block-wise, and the model among those. ``"sm80"``:
        the model among the kernels that run on any GPU from sm_80 on, on Hopper too. ``"sm90"``:
        the kernel of Hopper's own instructions, or UnsupportedError where it does not go; without
        queries or keys those of ``"sm80"``, on Hopper. NumPy arrays have one way only, whatever is
        selected.
    explain : bool
        Compute nothing and return what the kernels are predicted to take; for CuPy arrays.

    Returns
    -------
    out : ndarray
        Shape ``(batch, heads, seq_q, value_dim)``, dtype of `q`, axes laid out in memory in the
        order of `q`'s.
    lse : ndarray
        Shape ``(batch, heads, seq_q)``, float32; with ``return_lse=True`` only.
    estimates : tuple of Estimate
        With ``explain=True``, in place of these: for each kernel, tile and split that can run this
        its name, ``us`` and what binds it, in the order of preference; the first is what runs.

    Raises
    ------
    ShapeError, DTypeError, MaskError, ArgumentError, DeviceError
        If an argument does not fit; nothing has been computed then.
    UnsupportedError
        If there is no kernel for the dtype or head dim.

    Notes
    -----
    A row that may attend to nothing gives output 0 and LSE ``-inf``, or the head's sink. What a
    masked key or value holds, NaN and infinities included, reaches no row that it is masked for.
    Accumulation is in float32 (on NumPy in float32 or the inputs' wider type), and equal inputs
    give bit-equal outputs.

    On a GPU, in head dims above 128, an array `bias` and `alibi` are added up before the kernel
    runs, in a float32 array ``(batches that bias differs in, heads, seq_q, seq_k)`` of each call.
    Where that would take more than 1/16 of the GPU's memory the row-wise kernel runs, which needs
    none. A RelativeBias and `alibi` take a table of distances.

    Examples
    --------
    >>> import numpy as np
    >>> from stof_cupy import masks
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 100, 16), np.float32)
    >>> attention(q, k, v, masks.sliding_window(100, window=8)).shape
    (1, 2, 100, 16)

    What an H100 would run, from a machine without a GPU:

    >>> from stof_cupy.jit.device import DeviceFacts
    >>> from stof_cupy.ops.attention_args import Problem
    >>> from stof_cupy.ops.attention_demand import Case
    >>> from stof_cupy.ops.attention_model import explain
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> some = np.random.default_rng(0).random((4096, 4096)) < 0.001
    >>> problem = Problem("float16", 1, 12, 12, 4096, 4096, 64, 64)
    >>> for mask in (masks.BsrMask(some), masks.causal(4096).tobsr()):
    ...     print(explain(Case(problem, mask, h100))[0].candidate.kernel)
    rowwise
    sm90
    """
    scores = Scores(scale=scale, softcap=softcap, bias=bias, alibi=alibi, sinks=sinks)
    how: Any = {"kv_lengths": kv_lengths, "return_lse": return_lse, "out": out}
    return attend(q, k, v, mask, scores, **how, select=select, explain=explain)


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
    select: Select = "model",
    explain: bool = False,
) -> Any:
    """Validate, choose and run: what `attention` and `attention_varlen` have in common."""
    check_select(select)
    return_lse, explain = flag("return_lse", return_lse), flag("explain", explain)
    where, problem, bsr, scores = validate(q, k, v, mask, scores, kv_lengths, out)
    if where == "numpy":
        from stof_cupy.ops import cpu_attention

        if explain:
            hint = "stof_cupy.ops.attention_model.explain needs no arrays"
            raise ArgumentError(mismatch("explain", "NumPy arrays", "CuPy arrays", hint))
        host: Any = bsr  # NumPy arrays with a mask on a device have been refused
        return cpu_attention.attention(
            q, k, v, host, scores, kv_lengths=kv_lengths, return_lse=return_lse, out=out
        )
    from stof_cupy.ops import attention_cuda

    args = Args(problem, q, k, v, out, None, bsr, scores, kv_lengths)
    if explain:
        return attention_cuda.estimates(args, select)
    return attention_cuda.run(args, return_lse, select=select)
