"""What attention kernels are told: the arguments of a call, and the fields made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stof_cupy.dtypes import dtype_name
from stof_cupy.jit.attention_kernels import ScoreKind
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks.device.built import BuiltMask
from stof_cupy.masks.device_schedule import mask_strides
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops._arrays import Array, is_cupy, pointer
from stof_cupy.ops.attention_args import Problem, Scores
from stof_cupy.ops.relative_bias import BEYOND, RelativeBias

__all__ = ["Args", "Launch", "clipped", "common_fields", "kind_of", "without_repeats"]

_LISTS = ("row_ptr", "cols", "bitmap_id", "bitmaps", "order", "overflow")
_LOG2E = math.log2(math.e)
_LEAST_SCALE = 2.0**-126  # 0 times -inf would be NaN; of float32, what is not flushed to 0


@dataclass(frozen=True, eq=False)
class Args:
    """What a call computes, from what, and to where.

    Attributes
    ----------
    problem, mask, scores
        From `attention_args.validate`.
    q, k, v : array
        Of one device, or of NumPy for kernels that were compiled for the CPU. `launches` takes them
        with a unit last stride.
    out : array
        None: to be made.
    lse : array or None
    kv_lengths : array or None
    """

    problem: Problem
    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array | None
    mask: AnyMask | None
    scores: Scores
    kv_lengths: Array | None

    @property
    def on_gpu(self) -> bool:
        """Whether the arrays are CuPy's."""
        return is_cupy(self.q)

    @property
    def xp(self) -> Any:
        """``cupy`` or ``numpy``, where the arrays are."""
        if self.on_gpu:
            import cupy

            return cupy
        return np


class Launch(NamedTuple):
    """A kernel, how many CTAs of it, and its parameters."""

    spec: KernelSpec
    blocks: int
    fields: dict[str, Any]


def kind_of(scores: Scores) -> ScoreKind:
    """Return which kernel the scores need."""
    bias: str | None = None
    relative = isinstance(scores.bias, RelativeBias)
    if not (scores.bias is None or isinstance(scores.bias, RelativeBias)):
        name = dtype_name(scores.bias.dtype)
        bias = "float32" if name == "float64" else name
    return ScoreKind(scores.softcap is not None, bias, scores.alibi is not None, relative)


def common_fields(args: Args, lists: Any, used: list[Array]) -> dict[str, Any]:
    """Return what all attention kernels are told; arrays made for that go to `used`.

    Parameters
    ----------
    args : Args
    lists : Schedule, DeviceSchedule, KeyLists, DeviceKeyLists or None
        Of the mask, where the arrays are; keys of `KeyLists` take the place of `cols`.
    used : list
        Whatever a kernel reads has to live until it is launched.
    """
    problem, lengths, xp = args.problem, args.kv_lengths, args.xp
    if lengths is not None:
        lengths = clipped(lengths, problem.seq_k, xp)
        used.append(lengths)
    fields: dict[str, Any] = {
        "lse": pointer(args.lse),
        "kv_lengths": pointer(lengths),
        "heads": problem.heads,
        "heads_per_kv": problem.heads // problem.kv_heads,
        "seq_q": problem.seq_q,
        "seq_k": problem.seq_k,
        "dim_qk": problem.dim_qk,
        "dim_v": problem.dim_v,
        # Lists of a mask that the GPU builds in this stream are written by a kernel before.
        "early": not isinstance(args.mask, BuiltMask) and lengths is None,
    }
    for name, x in (("q", args.q), ("k", args.k), ("v", args.v), ("out", args.out)):
        _add_tensor(fields, name, x)
    _add_mask(fields, lists, problem)
    _add_scores(fields, args.scores, problem, used, xp)
    return fields


def clipped(lengths: Array, keys: int, xp: Any) -> Array:
    """Return lengths as kernels read them, contiguous int32: themselves, if they are that."""
    if lengths.dtype == np.int32:
        return lengths if lengths.flags.c_contiguous else xp.ascontiguousarray(lengths)
    # A value beyond int32 is to be clipped, not wrapped.
    lengths = lengths.astype(np.int64) if lengths.dtype.itemsize < 4 else lengths
    return xp.ascontiguousarray(xp.clip(lengths, 0, keys), np.int32)


def _add_tensor(fields: dict[str, Any], name: str, x: Array) -> None:
    """Add where a tensor is, its strides in elements, and how wide accesses may be."""
    size = x.itemsize
    batch, head, row, _ = x.strides
    fields[name] = start = pointer(x)
    fields[f"{name}_batch"] = batch // size
    fields[f"{name}_head"] = head // size
    fields[f"{name}_row"] = row // size
    # What divides it divides all of them, as a power of 2.
    common = start | batch | head | row
    fields[f"wide_{name}"] = common % 16 == 0


def _add_mask(fields: dict[str, Any], lists: Any, problem: Problem) -> None:
    """Add where the lists are; zeros without a mask."""
    for name in _LISTS:
        fields[name] = pointer(getattr(lists, name, None))
    fields |= {"mask_of": 0, "mask_batch": 0, "mask_head": 0}
    if lists is None:
        return
    if hasattr(lists, "keys"):
        fields["cols"] = pointer(lists.keys)
    if lists.mask_of.size > 1:
        fields["mask_of"] = pointer(lists.mask_of)
        strides = mask_strides(lists.mask_of.shape, problem.batch, problem.heads)
        fields["mask_batch"], fields["mask_head"] = strides


def _add_scores(
    fields: dict[str, Any], scores: Scores, problem: Problem, used: list[Array], xp: Any
) -> None:
    """Add what makes scores of products; ``scale_log2`` is that of |scale|."""
    names = ("bias", "alibi", "distances", "sinks", "query_at", "key_at", "reach")
    fields |= dict.fromkeys((*names, "bias_batch", "bias_head", "bias_row", "bias_col"), 0)

    def add(name: str, array: Array, dtype: Any = np.float32) -> None:
        used.append(xp.ascontiguousarray(xp.asarray(array), dtype))
        fields[name] = pointer(used[-1])

    if scores.alibi is not None:
        add("alibi", scores.alibi)
    if scores.sinks is not None:
        add("sinks", scores.sinks)
    if isinstance(scores.bias, RelativeBias):
        alike, table = scores.bias.for_kernels(problem.seq_q + problem.seq_k)
        fields["reach"] = alike + BEYOND
        add("distances", table)
    elif scores.bias is not None:
        bias = _readable(scores.bias, xp)
        used.append(bias)
        fields["bias"] = pointer(bias)
        for axis, stride in zip(("batch", "head", "row", "col"), bias.strides, strict=True):
            fields[f"bias_{axis}"] = stride // bias.itemsize
    if scores.positions is not None and (fields["alibi"] or fields["distances"]):
        for name, positions in zip(("query_at", "key_at"), scores.positions, strict=True):
            add(name, positions, np.int32)
    factor, cap = abs(scores.scale) * _LOG2E, 0.0
    if scores.softcap is not None:
        factor, cap = abs(scores.scale) / scores.softcap, scores.softcap * _LOG2E
    fields["negative"] = scores.scale < 0
    fields["scale_log2"] = max(factor, _LEAST_SCALE)
    fields["softcap_log2"] = cap


def _readable(bias: Array, xp: Any) -> Array:
    """Return a bias of a type and strides that kernels read, without its repeated axes."""
    shape = bias.shape
    wide = abs(bias.strides[3]) // bias.itemsize >= 2**31
    if bias.dtype != np.float64 and not wide:
        return bias
    dtype = np.float32 if bias.dtype == np.float64 else bias.dtype
    with np.errstate(over="ignore"):  # below the lowest of float32: masked too
        return xp.broadcast_to(xp.ascontiguousarray(without_repeats(bias), dtype), shape)


def without_repeats(x: Array) -> Array:
    """Return what an array stores: the axes that a broadcast repeats are of size 1."""
    return x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.strides)]
