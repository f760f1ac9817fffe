"""Attention of CuPy arrays: what the kernels are told, and their launches."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from stof_cupy.dtypes import dtype_name
from stof_cupy.jit.attention_kernels import KEYS, PARTIAL_STATS, TIGHT_NVRTC, ScoreKind
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops._arrays import Array, empty_in_order_of, pointer, unit_last
from stof_cupy.ops.attention_args import Problem, Scores, masking
from stof_cupy.ops.attention_config import Config, choose
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["Launch", "kind_of", "launches", "run"]

_LISTS = ("row_ptr", "cols", "bitmap_id", "bitmaps", "order")
_LOG2E = math.log2(math.e)
_FEW_TERMS = 128  # head dims above leave registers for one term beside the products
_LEAST_SCALE = 2.0**-100  # 0 times -inf would be NaN, and this gives the same scores


class Launch(NamedTuple):
    """A kernel, how many CTAs of it, and its parameters."""

    spec: KernelSpec
    blocks: int
    fields: dict[str, Any]


def run(
    problem: Problem,
    q: Array,
    k: Array,
    v: Array,
    mask: AnyMask | None,
    scores: Scores,
    kv_lengths: Array | None,
    return_lse: bool,
    out: Array | None,
) -> Any:
    """Choose a kernel and run it on the arrays' device and CuPy's current stream.

    Parameters and results are those of `attention`, validated.
    """
    import cupy

    from stof_cupy.jit import device, nvrtc
    from stof_cupy.jit.launch import kernel

    number = q.device.id
    with cupy.cuda.Device(number):
        if max(problem.dim_qk, problem.dim_v) > _FEW_TERMS:
            scores = _folded(scores, problem, cupy)
        old = nvrtc.load().version < TIGHT_NVRTC
        config = choose(problem, kind_of(scores), mask, device.facts(number), old)
        kernel(config.spec(problem), number)  # if it cannot be had, that shows before any work
        q, k, v = unit_last(q), unit_last(k), unit_last(v)
        if out is None:
            out = empty_in_order_of(q, (*q.shape[:3], problem.dim_v))
        rows = (problem.batch, problem.heads, problem.seq_q)
        lse = cupy.empty(rows, np.float32) if return_lse else None
        if out.size:
            arrays = (q, k, v, out, lse, kv_lengths)
            # When these arrays are dropped, CuPy's pool gives them away in the stream's order.
            every, _used = launches(config, problem, arrays, mask, scores, cupy)
            for spec, blocks, fields in every:
                call = kernel(spec, number)
                call((blocks,), call.pack(**fields))
    return (out, lse) if return_lse else out


def launches(
    config: Config,
    problem: Problem,
    arrays: tuple[Array, Array, Array, Array, Array | None, Array | None],
    mask: AnyMask | None,
    scores: Scores,
    xp: Any,
) -> tuple[list[Launch], list[Array]]:
    """Return the launches of a call, and the arrays made for them.

    Parameters
    ----------
    config, problem, mask, scores
        Of the call.
    arrays : tuple
        `q`, `k` and `v` with a unit last stride, `out`, `lse` or None, `kv_lengths` or None.
    xp : module
        Where the arrays are: ``cupy``, or ``numpy`` for kernels that were compiled for the CPU.
    """
    q, k, v, out, lse, kv_lengths = arrays
    heads, slots = config.heads(problem), config.slots(problem)
    cut = config.long_slots * heads
    used, partial = [], None
    if cut:
        row = config.head_dim + PARTIAL_STATS
        partial = xp.empty(cut * config.splits * config.shape.rows * row, np.float32)
        used.append(partial)
    if kv_lengths is not None:
        if kv_lengths.dtype != np.int32:  # a value beyond int32 is to be clipped, not wrapped
            kv_lengths = xp.clip(kv_lengths, 0, problem.seq_k)
        kv_lengths = xp.ascontiguousarray(kv_lengths, np.int32)
        used.append(kv_lengths)
    fields = {
        **_tensor_fields(q, k, v, out),
        **_mask_fields(mask, problem, config, xp),
        **_score_fields(scores, problem, used, xp),
        "lse": pointer(lse),
        "partial": pointer(partial),
        "kv_lengths": pointer(kv_lengths),
        "slots": slots,
        "long_slots": config.long_slots,
        "splits": config.splits,
        "slice": config.slice,
        "heads": problem.heads,
        "heads_per_kv": problem.heads // problem.kv_heads,
        "pack": config.pack,
        "seq_q": problem.seq_q,
        "seq_k": problem.seq_k,
        "dim_qk": problem.dim_qk,
        "dim_v": problem.dim_v,
    }
    items = slots + config.long_slots * (config.splits - 1)
    every = [Launch(config.spec(problem), items * heads, fields)]
    if cut:
        every.append(Launch(config.combine_spec(problem), cut * config.shape.rows // 4, fields))
    return every, used


def kind_of(scores: Scores) -> ScoreKind:
    """Return which kernel the scores need."""
    bias: str | None = None
    relative = isinstance(scores.bias, RelativeBias)
    if not (scores.bias is None or isinstance(scores.bias, RelativeBias)):
        name = dtype_name(scores.bias.dtype)
        bias = "float32" if name == "float64" else name
    return ScoreKind(scores.softcap is not None, bias, scores.alibi is not None, relative)


def _tensor_fields(q: Array, k: Array, v: Array, out: Array) -> dict[str, int]:
    """Return where the tensors are, their strides in elements, and how wide accesses may be."""
    fields = {}
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        address = pointer(x)
        batch, head, row, _ = x.strides
        fields[name] = address
        fields[f"{name}_batch"] = batch // x.itemsize
        fields[f"{name}_head"] = head // x.itemsize
        fields[f"{name}_row"] = row // x.itemsize
        # What divides it divides all of them, as a power of 2.
        fields[f"wide_{name}"] = (address | batch | head | row) % 16 == 0
    return fields


def _mask_fields(mask: AnyMask | None, problem: Problem, config: Config, xp: Any) -> dict[str, int]:
    """Return where the lists of the mask are; zeros without a mask."""
    fields = dict.fromkeys((*_LISTS, "mask_of", "mask_batch", "mask_head", "overflow"), 0)
    fields |= {"mask_rows": config.mask_rows, "row_tiles": 1}
    if mask is not None:
        lists: Any = mask.schedule((config.mask_rows, KEYS), layout="accumulator")
        if xp is not np:
            lists = lists.on_device()
            fields["overflow"] = pointer(lists.overflow)
        for name in _LISTS:
            fields[name] = pointer(getattr(lists, name))
        fields["row_tiles"] = lists.order.shape[-1]
        if lists.mask_of.size > 1:
            fields["mask_of"] = pointer(lists.mask_of)
            strides = lists.mask_strides(problem.batch, problem.heads)
            fields["mask_batch"], fields["mask_head"] = strides
    return fields


def _score_fields(scores: Scores, problem: Problem, used: list[Array], xp: Any) -> dict[str, Any]:
    """Return what the kernel is told of the scores; arrays made for that go to `used`."""
    names = ("bias", "alibi", "distances", "sinks", "query_at", "key_at")
    fields: dict[str, Any] = dict.fromkeys(names, 0)
    fields |= dict.fromkeys(("bias_batch", "bias_head", "bias_row", "bias_col", "reach"), 0)

    def add(name: str, array: Array, dtype: Any = np.float32) -> None:
        used.append(xp.ascontiguousarray(xp.asarray(array), dtype))
        fields[name] = pointer(used[-1])

    for name in ("alibi", "sinks"):
        array = getattr(scores, name)
        if array is not None:
            add(name, array)
    if isinstance(scores.bias, RelativeBias):
        fields["reach"] = min(scores.bias.max_distance, problem.seq_q + problem.seq_k)
        add("distances", scores.bias.by_distance(fields["reach"]))
    elif scores.bias is not None:
        bias = _readable(scores.bias, xp)
        used.append(bias)
        fields["bias"] = pointer(bias)
        for axis, stride in zip(("batch", "head", "row", "col"), bias.strides, strict=True):
            fields[f"bias_{axis}"] = stride // bias.itemsize
    if scores.positions is not None and (fields["alibi"] or fields["distances"]):
        for name, positions in zip(("query_at", "key_at"), scores.positions, strict=True):
            add(name, positions, np.int32)
    factor = abs(scores.scale) * _LOG2E
    cap = 0.0
    if scores.softcap is not None:
        factor, cap = abs(scores.scale) / scores.softcap, scores.softcap * _LOG2E
    fields["negative"] = scores.scale < 0
    fields["scale_log2"] = max(factor, _LEAST_SCALE)
    fields["softcap_log2"] = cap
    return fields


def _folded(scores: Scores, problem: Problem, xp: Any) -> Scores:
    """Return scores of one term: where there are two, a bias array that is their sum."""
    if scores.alibi is None or scores.bias is None:
        return scores
    queries, keys = scores.positions or (
        np.arange(problem.seq_k - problem.seq_q, problem.seq_k),
        np.arange(problem.seq_k),
    )
    distance = xp.asarray(keys) - xp.asarray(queries)[:, None]
    bias = scores.bias
    if isinstance(bias, RelativeBias):
        reach = bias.max_distance
        bias = bias.by_distance(reach)[:, xp.clip(distance, -reach, reach) + reach]
    lowest = masking(bias.dtype)
    bias = xp.where(bias <= lowest, np.float32(-np.inf), bias.astype(np.float32))
    slopes = -scores.alibi[:, None, None]
    total = bias + slopes * abs(distance).astype(np.float32)
    shape = (problem.batch, problem.heads, problem.seq_q, problem.seq_k)
    return replace(scores, alibi=None, bias=xp.broadcast_to(total, shape))


def _readable(bias: Array, xp: Any) -> Array:
    """Return a bias of a type and strides that the kernel reads, without its repeated axes."""
    shape = bias.shape
    wide = abs(bias.strides[3]) // bias.itemsize >= 2**31
    if bias.dtype != np.float64 and not wide:
        return bias
    stored = bias[tuple(slice(0, 1) if step == 0 else slice(None) for step in bias.strides)]
    dtype = np.float32 if bias.dtype == np.float64 else bias.dtype
    return xp.broadcast_to(xp.ascontiguousarray(stored, dtype), shape)
