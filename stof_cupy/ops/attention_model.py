"""Which kernel attention runs: an analytical model of each one's time.

A kernel's time is that of the resource that it uses most, plus part of the others', plus a launch.
Block-wise: tensor cores, instruction issue and exponentials per tile, L2 per tile, the blocks that
an SM holds, the blocks of the fullest SM, and the longest query tile. Row-wise: rows of K and V
through L2, issue and latency per chunk of keys, and the longest row. Counts come from the mask
(`attention_demand`), rates from the driver, and the rest is one table, `attention_constants`.

The paper's rule (STOF, arXiv 2506.06095, Eq. 1) is there for the record, see `attention_eq1`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

from stof_cupy.errors import ArgumentError, UnsupportedError, mismatch
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.device.built import BuiltMask, UploadedMask
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops.attention_args import Problem
from stof_cupy.ops.attention_candidates import (
    Candidate,
    Kernels,
    candidates,
    head_dim_of,
)
from stof_cupy.ops.attention_constants import Constants, speeds
from stof_cupy.ops.attention_demand import Demand
from stof_cupy.ops.attention_eq1 import stof_eq1

__all__ = ["Estimate", "Select", "choose", "explain", "predict"]

Select = Literal["model", "stof-eq1", "stof-eq1-64"]
"""Who chooses: the model, or Eq. 1 on 16x16 blocks as printed, or on the 64x64 tiles that it counts
elsewhere; Eq. 1 decides row-wise or block-wise, the model then which of those."""


@dataclass(frozen=True)
class Estimate:
    """What a candidate is predicted to take.

    Attributes
    ----------
    candidate : Candidate
    us : float
        Microseconds on the GPU, launch included.
    bound : str
        What binds: ``"tensor"``, ``"issue"``, ``"exp"``, ``"l1"``, ``"l2"``, ``"dram"``,
        ``"latency"`` or ``"longest"``.
    """

    candidate: Candidate
    us: float
    bound: str


def _total(terms: dict[str, float], overlap: float) -> tuple[float, str]:
    """Return the time of work that overlaps but for a share, and what binds."""
    bound = max(terms, key=lambda name: terms[name])
    return terms[bound] + (1 - overlap) * (sum(terms.values()) - terms[bound]), bound


def predict(
    candidate: Candidate, demand: Demand, facts: DeviceFacts, constants: Constants
) -> Estimate:
    """Return the predicted time of a legal candidate."""
    of = _rowwise if candidate.rowwise else _blockwise
    us, bound = of(candidate, demand, facts, constants)
    compulsory = _compulsory(demand.problem) / (
        speeds(facts, constants).dram_bytes * constants.dram
    )
    if compulsory > us:
        us, bound = compulsory, "dram"
    return Estimate(candidate, us + constants.launch_us, bound)


def _compulsory(p: Problem) -> int:
    """Return the bytes of q, k, v and the output."""
    queries = p.batch * p.heads * p.seq_q
    keys = p.batch * p.kv_heads * p.seq_k
    return 2 * (queries + keys) * (p.dim_qk + p.dim_v)


def _blockwise(
    candidate: Candidate, demand: Demand, facts: DeviceFacts, c: Constants
) -> tuple[float, str]:
    """Return microseconds without the launch, and what binds."""
    p, rate = demand.problem, speeds(facts, c)
    dim = head_dim_of(candidate, p)
    rows, keys = candidate.tile
    work = demand.tiles(candidate.tile)
    blocks = max(work.query_tiles * candidate.splits, 1)
    fit = max(candidate.occupancy(dim, facts), 1)

    part = work.part / work.visited if work.visited else 0.0
    warps = candidate.threads // 32
    copies = 4 * 2 * keys * dim * 2 / 16 / candidate.threads
    products = 2 * (keys // 8) * (dim // 16) * 1.75  # mma of both products and their ldmatrix
    masked = part * (1.25 * keys + 12 * keys * dim / 8 / candidate.threads)
    instructions = products + 2.75 * keys + dim / 2 + copies + masked + 60
    terms = {
        "tensor": 4 * rows * keys * dim / (rate.tensor_flops_per_clk * c.tensor),
        "issue": instructions * warps / 4 / c.issue,
        "exp": rows * keys / 16,
        "l2": 2 * keys * dim * 2 * facts.sm_count * rate.clocks / (rate.l2_bytes * c.l2),
    }
    busy, bound = _total(terms, c.overlap)  # of the SM, for one tile
    # Of a block by itself: what one warp of a scheduler waits for, the next one's work can hide.
    serial = terms["tensor"] + terms["issue"]
    alone = busy + max(serial - busy, 0.0) / max(warps / 4, 1) + c.sync_clk

    fullest = -(-blocks // facts.sm_count)  # blocks of the SM that gets most
    together = min(fullest, fit)
    step = max(busy, alone / together)
    mean = work.visited / blocks
    clocks = fullest * (mean * step + c.fixed_clk / together)
    longest = math.ceil(work.longest / candidate.splits) * alone + c.fixed_clk
    if longest > clocks:
        clocks, bound = longest, "longest"
    elif step > busy:
        bound = "latency"
    us = clocks / rate.clocks
    if candidate.splits > 1:
        moved = 2 * candidate.splits * demand.query_rows * 4 * (p.dim_v + 2)
        us += c.combine_us + moved / (rate.l2_bytes * c.l2)
    return us, bound


def _rowwise(
    candidate: Candidate, demand: Demand, facts: DeviceFacts, c: Constants
) -> tuple[float, str]:
    """Return microseconds without the launch, and what binds."""
    p, rate, config = demand.problem, speeds(facts, c), candidate.rowwise
    if config is None:
        raise ArgumentError(mismatch("candidate", candidate.kernel, "a row-wise one"))
    stats, rows = demand.rows(), demand.query_rows
    chunk = 16 * config.pairs
    # Half a chunk of every row is empty; of lists of tiles, each is looked through by its rows.
    chunks = stats.kept / chunk + min(rows, stats.kept) / 2
    visited = demand.tiles((TILE, TILE)).visited
    looks = visited * TILE if config.lists == "tiles" else 0.0
    # Of the four rows of a block, those that keep a key share what they read of it.
    missing = 1 - min(stats.kept / (visited * TILE**2), 1.0) if visited else 1.0
    fresh = (1 - missing**4) / (4 - 4 * missing) if missing < 1 else 1.0
    row_bytes = 32 * (-(-p.dim_qk // 16) + -(-p.dim_v // 16))  # whole sectors
    per_chunk = config.pairs * (70 + 1.7 * config.head_dim)  # as ptxas has them
    starts = rows * 4 / config.block_rows  # of warps
    instructions = 110 * starts + 140 * rows + per_chunk * chunks + 45 * looks
    fit = max(candidate.occupancy(config.head_dim, facts), 1) * 4
    warps = facts.sm_count * min(fit, max(starts / facts.sm_count, 1))
    shared = stats.longest >= 256
    longest = stats.longest / chunk / (4 if shared else 1)
    clocks = {
        "issue": instructions / (facts.sm_count * 4 * c.issue),
        "l1": stats.kept * row_bytes / (64 * facts.sm_count),
        "latency": (rows * c.row_clk + chunks * c.chunk_clk) / warps,
        "longest": longest * c.chunk_clk + c.row_clk * config.block_rows / 4,
    }
    terms = {name: value / rate.clocks for name, value in clocks.items()}
    listed = 4 * stats.kept if config.lists == "keys" else 8 * looks
    moved = stats.kept * row_bytes * fresh + listed
    terms["l2"] = moved / (rate.l2_bytes * c.scattered)
    us, bound = max((value, name) for name, value in terms.items())
    return us + c.row_clk / rate.clocks, bound


def explain(
    problem: Problem,
    mask: AnyMask | None,
    facts: DeviceFacts,
    constants: Constants | None = None,
    kernels: Kernels | None = None,
) -> tuple[Estimate, ...]:
    """Return the estimates of all legal candidates, fastest first.

    Raises
    ------
    UnsupportedError
        If there is none.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> problem = Problem("float16", 1, 12, 12, 2048, 2048, 64, 64)
    >>> explain(problem, masks.causal(2048).tobsr(), h100)[0].candidate.kernel
    'blockwise'
    """
    constants, demand = constants or Constants(), Demand(problem, mask)
    every = candidates(problem, mask, facts, kernels or Kernels())
    found = [predict(each, demand, facts, constants) for each in every]
    if not found:
        dims = f"head dims {problem.dim_qk} and {problem.dim_v}"
        raise UnsupportedError(mismatch("problem", dims, f"one that a kernel fits on {facts.name}"))
    return tuple(sorted(found, key=lambda each: (each.us, each.candidate.kernel)))


def choose(
    problem: Problem,
    mask: AnyMask | None,
    facts: DeviceFacts,
    constants: Constants | None = None,
    kernels: Kernels | None = None,
    *,
    select: Select = "model",
) -> Estimate:
    """Return the candidate to run; kept with the mask, so that asking again costs microseconds.

    Parameters
    ----------
    problem : Problem
    mask : AnyMask or None
        From `attention_args.validate`.
    facts : DeviceFacts
    constants : Constants, optional
        Calibrated ones, see `attention_calibration`.
    kernels : Kernels, optional
        Which there are.
    select : {"model", "stof-eq1", "stof-eq1-64"}
        See `Select`.

    Raises
    ------
    ArgumentError
        If there is no such `select`.
    UnsupportedError
        If no kernel can run the problem on the GPU.
    """
    store, key = _store(mask)
    asked = ("choice", key, problem, facts, constants, kernels, select)
    found: Estimate | None = store.get(asked)
    if found is None:
        if select not in ("model", "stof-eq1", "stof-eq1-64"):
            expected = "'model', 'stof-eq1' or 'stof-eq1-64'"
            raise ArgumentError(mismatch("select", repr(select), expected))
        ranked = explain(problem, mask, facts, constants, kernels)
        if select != "model":
            wanted = stof_eq1(problem, mask, 64 if select.endswith("64") else 16)
            ranked = tuple(e for e in ranked if e.candidate.kernel == wanted) or ranked
        found = store[asked] = ranked[0]
    return found


class _Recent(OrderedDict[Any, Any]):
    """The last few choices of masks that keep none themselves."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        while len(self) > 1024:
            self.popitem(last=False)


_recent = _Recent()


def _store(mask: AnyMask | None) -> tuple[Any, Any]:
    """Return where choices under a mask are kept, and what else they depend on."""
    if mask is None:
        return _recent, None
    if isinstance(mask, BuiltMask):
        return _recent, (mask.capacity, mask.lead)
    source: Any = mask.to("cpu") if isinstance(mask, UploadedMask) else mask
    return source._schedules, isinstance(mask, UploadedMask)
