"""Attention on Hopper's own instructions: what its kernels are told."""

from __future__ import annotations

from typing import Any

import numpy as np

from stof_cupy.jit import tensormap
from stof_cupy.jit.attention_kernels import COMBINE_WARPS
from stof_cupy.masks.layout import GROUP
from stof_cupy.ops._arrays import Array, pointer
from stof_cupy.ops._counters import counters
from stof_cupy.ops.attention_args import Problem, masking
from stof_cupy.ops.attention_fields import Args, Launch, common_fields
from stof_cupy.ops.attention_sm90 import Config
from stof_cupy.ops.relative_bias import RelativeBias

__all__ = ["launches"]

_L2_BYTES, _CTAS = 50 << 20, 132  # of arrays that are on no GPU


def launches(
    config: Config, args: Args, *, ctas: int = 0, section: int = 0, report: int = 0
) -> tuple[list[Launch], list[Array]]:
    """Return the launches of a call, and the arrays made for them.

    Parameters
    ----------
    config : Config
        A legal one.
    args : Args
    ctas : int
        At most so many; 0: as many as the device runs at a time.
    section : int
        Heads, of all batches, that are worked on at a time; 0: as many as keep to L2.
    report : int
        With a bounded configuration: the address of four uint32 of pinned memory, zeros. Before it
        faults the kernel writes there what it waited for (``Wait`` in
        ``cuda/attention/sm90_shape.cuh``), block, thread and parity.
    """
    p, shape, mask, used = args.problem, config.shape, args.mask, []
    lists: Any = None
    if mask is not None:
        lists = mask.schedule(config.tile, layout="accumulator", packed=config.packed)
        lists = lists.on_device() if args.on_gpu else lists
    l2_bytes = _L2_BYTES
    if args.on_gpu:
        from stof_cupy.jit import device

        facts = device.facts(args.q.device.id)
        ctas, l2_bytes = ctas or facts.sm_count * shape.blocks, facts.l2_bytes
        counter = counters(args.q.device.id).take()
    else:
        used.append(np.zeros(1, np.int32))
        counter = pointer(used[-1])
    partial = None
    if config.partial_floats(p):
        partial = args.xp.empty(config.partial_floats(p), np.float32)
        used.append(partial)
    common = common_fields(args, lists, used)
    fields = common | _score_fields(args, common) | _maps(config, args)
    fields |= {
        "partial": pointer(partial),
        "full_ptr": pointer(getattr(lists, "full_ptr", None)),
        "groups": pointer(getattr(lists, "groups", None)),
        "counter": counter,
        "report": report,
        "batch": p.batch,
        "section": min(section or _section(p, l2_bytes), p.heads * p.batch),
        "long_slots": config.long_slots,
        "splits": config.splits,
    }
    spec = config.spec(p)
    told = {name: fields[name] for name, _ in spec.params}
    every = [Launch(spec, min(config.rows(p), ctas or _CTAS), told)]
    if config.cut(p):
        blocks = config.cut(p) * shape.m * config.combine_warps(p) // COMBINE_WARPS
        every.append(Launch(config.combine_spec(p), blocks, told))
    return every, used


def _section(problem: Problem, l2_bytes: int) -> int:
    """Return how many heads are worked on at a time: their keys and values fit into L2.

    Two thirds of it, because the two halves of a Hopper's L2 hold some lines twice.

    Examples
    --------
    >>> _section(Problem("float16", 1, 32, 32, 8192, 8192, 128, 128), 50 * 2**20)
    8
    """
    head = problem.seq_k * (problem.dim_qk + problem.dim_v) * 2
    return max(1, l2_bytes * 2 // 3 // head) * (problem.heads // problem.kv_heads)


def _score_fields(args: Args, fields: dict[str, Any]) -> dict[str, Any]:
    """Return what makes scores of products, by the names of ``element_scores.cuh``."""
    bias: Any = args.scores.bias
    array = bias is not None and not isinstance(bias, RelativeBias)
    return {
        "relative": fields["distances"],
        "bias_key": fields["bias_col"],
        "bias_masking": masking(bias.dtype) if array else 0,
        "factor": -fields["scale_log2"] if fields["negative"] else fields["scale_log2"],
        "cap": fields["softcap_log2"],
    }


def _maps(config: Config, args: Args) -> dict[str, bytes]:
    """Return the tensor maps."""
    shape, dtype = config.shape, args.problem.dtype
    # The output leaves in the 64 rows of one warpgroup.
    boxes = [("q", args.q, shape.m), ("k", args.k, shape.n), ("v", args.v, shape.n)]
    boxes.append(("out", args.out, 64))
    if config.packed:
        boxes += [("k_group", args.k, GROUP), ("v_group", args.v, GROUP)]
    maps = dict.fromkeys(("map_k_group", "map_v_group"), bytes(128))
    for name, x, rows in boxes:
        where = pointer(x), dtype, *tensormap.layout(x)
        maps[f"map_{name}"] = tensormap.tensor_map(*where, (64, rows, 1, 1))
    return maps
