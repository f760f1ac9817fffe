"""What attention kernels are told of arrays, masks and scores: the fields of their params."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stof_cupy.masks.schedule import mask_strides
from stof_cupy.ops._arrays import Array, is_cupy, pointer
from stof_cupy.ops.attention_args import Problem, Scores, masking
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["is_wide", "mask_fields", "score_fields", "tensor_fields"]

_LOG2E = math.log2(math.e)


def is_wide(problem: Problem, fields: dict[str, Any]) -> bool:
    """Whether every row of q, k and v is whole, aligned pieces of 16 bytes."""
    aligned = fields["wide_q"] and fields["wide_k"] and fields["wide_v"]
    return bool(aligned and problem.dim_qk % 8 == 0 and problem.dim_v % 8 == 0)


def tensor_fields(**tensors: Array) -> dict[str, int]:
    """Return where the tensors are, their strides in elements, and how wide accesses may be."""
    fields = {}
    for name, x in tensors.items():
        start = fields[name] = pointer(x)
        batch, head, row, _ = x.strides
        for axis, stride in (("batch", batch), ("head", head), ("row", row)):
            fields[f"{name}_{axis}"] = stride // x.itemsize
        common = start | batch | head | row  # its powers of 2 divide all of them
        if name == "out":
            fields["pairs_out"] = common % 4 == 0
        else:
            fields[f"wide_{name}"] = common % 16 == 0
    return fields


def mask_fields(lists: Any, problem: Problem) -> dict[str, int]:
    """Return where the lists are; zeros without a mask."""
    names = ("row_ptr", "cols", "bitmap_id", "bitmaps", "order", "mask_of", "overflow")
    fields = dict.fromkeys((*names, "mask_batch", "mask_head"), 0)
    if lists is not None:
        for name in ("row_ptr", "cols", "bitmap_id", "bitmaps", "order", "overflow"):
            fields[name] = pointer(getattr(lists, name, None))
        if hasattr(lists, "keys"):
            fields["cols"] = pointer(lists.keys)
        if lists.mask_of.size > 1:
            fields["mask_of"] = pointer(lists.mask_of)
            strides = mask_strides(lists.mask_of.shape, problem.batch, problem.heads)
            fields["mask_batch"], fields["mask_head"] = strides
    return fields


def score_fields(scores: Scores, problem: Problem, like: Array) -> tuple[dict[str, Any], list[Any]]:
    """Return the fields of ``cuda/attention/element_scores.cuh``, and the arrays made for them."""
    if is_cupy(like):
        import cupy as xp
    else:
        xp = np
    cap = scores.softcap
    fields: dict[str, Any] = {
        "factor": scores.scale * _LOG2E if cap is None else scores.scale / cap,
        "cap": 0.0 if cap is None else cap * _LOG2E,
        **dict.fromkeys(("bias", "relative", "query_at", "key_at", "reach", "bias_masking"), 0),
        **dict.fromkeys(("bias_batch", "bias_head", "bias_row", "bias_key"), 0),
    }
    kept: list[Any] = []

    def keep(name: str, x: Array | None, dtype: Any) -> None:
        made = None if x is None else xp.ascontiguousarray(xp.asarray(x), dtype)
        kept.append(made)
        fields[name] = pointer(made)

    keep("sinks", scores.sinks, np.float32)
    keep("alibi", scores.alibi, np.float32)
    if isinstance(scores.bias, RelativeBias):
        reach = min(scores.bias.max_distance, problem.seq_q + problem.seq_k)
        keep("relative", scores.bias.by_distance(reach), np.float32)
        fields["reach"] = reach
    elif scores.bias is not None:
        bias = scores.bias
        fields["bias_masking"] = masking(bias.dtype)
        if bias.dtype == np.float64:  # of a broadcast axis, one element
            chosen = tuple(slice(0, 1) if step == 0 else slice(None) for step in bias.strides)
            with np.errstate(over="ignore"):  # below the lowest of float32: masked too
                bias = xp.broadcast_to(bias[chosen].astype(np.float32), bias.shape)
        kept.append(bias)
        fields["bias"] = pointer(bias)
        for axis, step in zip(("batch", "head", "row", "key"), bias.strides, strict=True):
            fields[f"bias_{axis}"] = step // bias.itemsize
    if scores.positions is not None:
        for name, places in zip(("query_at", "key_at"), scores.positions, strict=True):
            keep(name, places, np.int32)
    return fields, kept
