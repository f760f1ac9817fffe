"""Attention of CuPy arrays: the kernel is chosen, told what to do, and launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stof_cupy.jit import device, launch, nvrtc
from stof_cupy.jit.attention_kernels import COMBINE_WARPS, KEYS
from stof_cupy.masks import DeviceMask
from stof_cupy.ops import attention_rowwise as rowwise
from stof_cupy.ops import attention_sm90 as sm90
from stof_cupy.ops import attention_sm90_launches
from stof_cupy.ops._arrays import Array, empty_in_order_of, pointer, unit_last
from stof_cupy.ops.attention_calibration import calibrated
from stof_cupy.ops.attention_candidates import Candidate
from stof_cupy.ops.attention_config import Config
from stof_cupy.ops.attention_constants import Constants
from stof_cupy.ops.attention_demand import Case, Given
from stof_cupy.ops.attention_fields import Args, Launch, common_fields, kind_of
from stof_cupy.ops.attention_folded import folded, folded_bytes
from stof_cupy.ops.attention_model import Estimate, Select, choose, explain

__all__ = ["blockwise_launches", "completed", "estimates", "launches", "prepared", "run"]

_AT_ONCE = 100
"""Blocks that any GPU starts at once, in whatever order."""

_NEAR = 1.25
"""Times the least: what half as many tokens or twice as many may make the least."""


def run(
    args: Args,
    return_lse: bool = False,
    *,
    select: Select = "model",
    candidate: Candidate | None = None,
) -> Any:
    """Choose a kernel and run it on the arrays' device and CuPy's current stream.

    Parameters
    ----------
    args : Args
        Validated; what is written to may be None, and the last axes of any stride.
    return_lse, select
        As `attention`.
    candidate : Candidate, optional
        A legal one: nothing is chosen.
    """
    import cupy

    with cupy.cuda.Device(args.q.device.id):
        if candidate is None:
            case, constants = _case(args)
            candidate = choose(case, constants, select=select)
            if launch.wants_near():
                _ask_for_near(explain(case, constants, select=select), completed(args, return_lse))
        args = completed(args, return_lse)
        if args.out.size:
            prepared(candidate, args)()
    return (args.out, args.lse) if return_lse else args.out


def _ask_for_near(every: Sequence[Estimate], args: Args) -> None:
    """Ask for the kernels that masks of other lengths may well take."""
    near = (each.candidate for each in every if each.us <= _NEAR * every[0].us)
    for candidate in {each.spec(args.problem): each for each in near}.values():
        if isinstance(args.mask, DeviceMask):  # whose lists other kernels build
            prepared(candidate, args)
        else:
            launch.kernel(candidate.spec(args.problem))


def completed(args: Args, return_lse: bool) -> Args:
    """Return the arguments as kernels take them: unit last strides, and somewhere to write to."""
    problem, out = args.problem, args.out
    q, k, v = (unit_last(x) for x in (args.q, args.k, args.v))
    if out is None:
        out = empty_in_order_of(q, (*q.shape[:3], problem.dim_v))
    elif q is args.q and k is args.k and v is args.v and not return_lse:
        return args
    rows = (problem.batch, problem.heads, problem.seq_q)
    lse = args.xp.empty(rows, np.float32) if return_lse else None
    return Args(problem, q, k, v, out, lse, args.mask, args.scores, args.kv_lengths)


def prepared(candidate: Candidate, args: Args) -> Callable[[], None]:
    """Return a function that launches the kernels, which are loaded, on CuPy's current stream."""
    number = args.q.device.id
    every, used = launches(candidate, args)
    calls = [(launch.kernel(spec, number), (blocks,)) for spec, blocks, _ in every]
    params = calls[0][0].pack(**every[0].fields)  # all have the same

    def run(_kept: Any = used) -> None:
        # When these arrays are dropped, CuPy's pool gives them away in the stream's order.
        for call, grid in calls:
            call(grid, params)

    return run


def estimates(args: Args, select: Select) -> tuple[Estimate, ...]:
    """Return what `run` chooses from, see `attention_model.explain`."""
    case, constants = _case(args)
    return explain(case, constants, select=select)


def _case(args: Args) -> tuple[Case, Constants]:
    """Return what a kernel is chosen for, and what is known of the GPU."""
    facts, problem = device.facts(args.q.device.id), args.problem
    if args.mask is None and problem.seq_k < 2**30:
        # As keys are appended, a choice serves for some time; a kernel may be given fewer of them.
        step = max(KEYS, 2 ** (problem.seq_k.bit_length() - 5))
        if problem.seq_k % step:
            problem = replace(problem, seq_k=-(-problem.seq_k // step) * step)
    given = sm90.given(args) if facts.arch == "90a" else Given()
    given = given._replace(folded=folded_bytes(args.scores, args.problem))
    case = Case(problem, args.mask, facts, kind_of(args.scores), nvrtc.load().version, given)
    return case, calibrated(facts)


def launches(candidate: Candidate, args: Args) -> tuple[list[Launch], list[Array]]:
    """Return the launches of a call, and the arrays made for them."""
    if isinstance(candidate, rowwise.Config):
        return rowwise.launches(candidate, args)
    if isinstance(candidate, sm90.Config):
        return attention_sm90_launches.launches(candidate, args)
    return blockwise_launches(candidate, args)


def blockwise_launches(config: Config, args: Args) -> tuple[list[Launch], list[Array]]:
    """Return the launches of the block-wise kernel, and the arrays made for them."""
    problem, mask, used, partial = args.problem, args.mask, [], None
    if config.scores != kind_of(args.scores):
        args = replace(args, scores=folded(args.scores, problem, args.xp))
    cut = config.long_slots * config.heads(problem)
    if cut:
        partial = args.xp.empty(config.partial_floats(problem), np.float32)
        used.append(partial)
    lists: Any = None
    if mask is not None:
        lists = mask.schedule(config.tile, layout="accumulator")
        lists = lists.on_device() if args.on_gpu else lists
    fields = common_fields(args, lists, used)
    fields |= {
        "partial": pointer(partial),
        "mask_rows": config.mask_rows,
        "row_tiles": 1 if lists is None else lists.order.shape[-1],
        "slots": config.slots(problem),
        "long_slots": config.long_slots,
        "splits": config.splits,
        "slice": config.slice,
        "pack": config.pack,
    }
    blocks = config.items(problem) * config.heads(problem)
    if blocks <= _AT_ONCE and not cut:
        fields["order"] = 0
    every = [Launch(config.spec(problem), blocks, fields)]
    if cut:
        warps = cut * config.shape.rows * config.combine_warps(problem)
        every.append(Launch(config.combine_spec(problem), warps // COMBINE_WARPS, fields))
    return every, used
