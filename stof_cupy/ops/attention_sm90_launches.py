"""Attention on Hopper's own instructions: what its kernels are told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.jit import tensormap
from stof_cupy.jit.attention_kernels import COMBINE_WARPS
from stof_cupy.masks.device.built import UploadedMask
from stof_cupy.masks.layout import GROUP
from stof_cupy.masks.tiles import Int64s
from stof_cupy.ops._arrays import Array, pointer
from stof_cupy.ops._counters import counters
from stof_cupy.ops.attention_args import Problem, masking
from stof_cupy.ops.attention_fields import Args, Launch, common_fields
from stof_cupy.ops.attention_sm90 import Config
from stof_cupy.ops.relative_bias import BEYOND, RelativeBias

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
        Heads, of all batches, that are worked on at a time, after the configuration's long lists;
        0: as the schedule and the L2 have it, see `_order`.
    report : int
        With a bounded configuration: the address of four uint32 of pinned memory, zeros. Before it
        faults the kernel writes there what it waited for (``Wait`` in
        ``cuda/attention/sm90_shape.cuh``), block, thread and parity.
    """
    p, shape, mask, used = args.problem, config.shape, args.mask, []
    lists: Any = None
    lengths: Int64s | None = None
    if mask is not None:
        known = mask.to("cpu") if isinstance(mask, UploadedMask) else mask
        lists = known.schedule(config.tile, layout="accumulator", packed=config.packed)
        lengths = getattr(lists, "lengths", None)
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
    ctas = ctas or _CTAS
    long_slots = config.long_slots
    if not section:
        long_slots, section = _order(config, p, lengths, ctas, l2_bytes)
    partial = None
    if config.partial_floats(p):
        partial = args.xp.empty(config.partial_floats(p), np.float32)
        used.append(partial)
    common = common_fields(args, lists, used)
    fields = common | _score_fields(args, common) | _maps(config, args)
    fields |= {
        "partial": pointer(partial),
        "work": pointer(getattr(lists, "work", None)),
        "groups": pointer(getattr(lists, "groups", None)),
        "counter": counter,
        "report": report,
        "batch": p.batch,
        "section": min(section, p.heads * p.batch),
        "long_slots": long_slots,
        "splits": config.splits,
    }
    if shape.halves and (halves := getattr(lists, "halves", None)) is not None:
        fields["cols"] = pointer(halves)
    spec = config.spec(p)
    told = {name: fields[name] for name, _ in spec.params}
    every = [Launch(spec, min(config.rows(p), ctas), told)]
    if config.cut(p):
        blocks = config.cut(p) * shape.m * config.combine_warps(p) // COMBINE_WARPS
        every.append(Launch(config.combine_spec(p), blocks, told))
    return every, used


def _order(
    config: Config, problem: Problem, lengths: Int64s | None, ctas: int, l2_bytes: int
) -> tuple[int, int]:
    """Return the query tiles of a head that come before those of all others, and a section's heads.

    All that a section reads and writes fits into a third of L2: rows come longest first, so that
    those that share keys may be far apart, and while a section ends the next one has begun. It has
    more heads, as long as their keys and values fit, where the longest rows of the last one would
    end last otherwise. If that is not enough these come first, as many as the configuration says,
    though their keys are then read twice.

    Parameters
    ----------
    config, problem
    lengths : int array (query tiles,) or None
        Key tiles, longest first; None: as many each, or not known.
    ctas : int
        That run at a time.
    l2_bytes : int

    Examples
    --------
    >>> from stof_cupy.jit.attention_sm90 import Sm90Config
    >>> problem = Problem("float16", 1, 32, 32, 8192, 8192, 128, 128)
    >>> config = Config(Sm90Config(128, 128, n=128, warpgroups=2), long_slots=1)
    >>> causal, one_long = np.arange(64, 0, -1), np.array([64] + 63 * [6])
    >>> [_order(config, problem, x, 132, 50 * 2**20) for x in (None, causal, one_long)]
    [(1, 2), (0, 4), (1, 2)]
    """
    p, width = problem, 2 * (problem.dim_qk + problem.dim_v)
    group, all_groups = p.heads // p.kv_heads, p.batch * p.kv_heads  # heads that share keys
    keys = p.seq_k * width
    groups = max(1, l2_bytes // 3 // (keys + group * p.seq_q * width))
    if groups >= all_groups:
        return config.long_slots, all_groups * group
    most = max(groups, l2_bytes * 2 // 3 // keys)
    first, needed = config.long_slots, 1
    if lengths is not None:
        fewest = config.long_slots if config.splits > 1 else 0
        by_first = _needed(lengths, ctas)[fewest : config.long_slots + 1] / group
        found = int(np.argmax(by_first <= most)) if by_first.min() <= most else -1
        first, needed = range(fewest, config.long_slots + 1)[found], math.ceil(by_first[found])
    groups = min(max(groups, min(needed, most)), all_groups)
    even = math.ceil(all_groups / (all_groups // groups))  # nearly as many in the last section
    return first, min(even, most) * group


def _needed(lengths: Int64s, ctas: int) -> NDArray[np.float64]:
    """Return of how many heads the last section has to be lest its longest rows end last.

    These do if they take longer than all of its work and what is left then of the rows before. One
    number for each count of rows that come before all sections, from 0 to all.
    """
    longest = np.append(lengths, 0).astype(np.float64)
    total, squares = (np.maximum(np.cumsum(x[::-1])[::-1], 1) for x in (longest, longest**2))
    needed: NDArray[np.float64] = (longest - squares / (2 * total)) * ctas / total
    return needed


def _score_fields(args: Args, fields: dict[str, Any]) -> dict[str, Any]:
    """Return what makes scores of products, by the names of ``element_scores.cuh``."""
    bias: Any = args.scores.bias
    array = bias is not None and not isinstance(bias, RelativeBias)
    return {
        "relative": fields["distances"],
        "alike": fields["reach"] - BEYOND,
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
        where = pointer(x), dtype, *tensormap.layout(x.shape, x.strides)
        maps[f"map_{name}"] = tensormap.tensor_map(*where, (64, rows, 1, 1))
    return maps
