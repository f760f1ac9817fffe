"""Which kernel a GEMM runs: an analytical model of each one's time.

A tile's step along K takes as long as the busiest of tensor cores, shared memory and L2; a tile has
an epilogue, which ping-pong hides; tiles come in waves; and nothing is faster than the bytes that
have to move. Rates come from the driver and from data sheets; the rest is one table, `Constants`.
Of these the tensor cores', the L2's and the epilogue's were fitted to which way was the fastest of
those timed on an H200 (benchmarks/gemm_regret.py, notes/gemm.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from stof_cupy.jit.catalogue import GEMM_TILES
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS, Sm90Gemm
from stof_cupy.ops import gemm_sm80, gemm_sm90
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_plan import steps_of
from stof_cupy.ops.gemm_sm90 import Layout, Plan

__all__ = [
    "SPLITS",
    "Choice",
    "Constants",
    "Estimate",
    "bandwidth",
    "candidates",
    "choose",
    "choose_norm",
    "clock",
    "epilogue_clk",
    "explain",
    "mma_rate",
    "norm_candidates",
    "predict",
]

SPLITS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
"""Into how many pieces K may be cut."""

_NORMED = 1.4
"""What a kernel that normalises takes of what is predicted (0.9 to 1.6 times on an H200)."""

Choice = Plan | gemm_sm80.Config
"""What the chooser chooses among."""


@dataclass(frozen=True)
class Constants:
    """What the model does not read from the driver.

    Attributes
    ----------
    launch_us : float
        From a kernel's start to its first loads, and from its last stores to its end.
    cluster_us : float
        What starting clusters takes beside that.
    clock : float
        Share of the peak SM clock that is held under load.
    tensor : float
        Share of the tensor rate that is reached when nothing else binds.
    smem_bytes, l2_bytes : float
        Per clock and SM.
    dram : float
        Share of the memory's bandwidth that is reached.
    beside : float
        Share of the shorter of computing and moving that the longer one does not hide.
    start_clk : float
        Clocks from a CTA's first load to its first product, and from a tile to the next.
    plain, bias, gelu, silu, other : float
        Clocks of an SM for 128 values of an epilogue that stores, and of each stage.
    """

    launch_us: float = 3.0
    cluster_us: float = 0.8
    clock: float = 0.85
    tensor: float = 0.85
    smem_bytes: float = 123.0
    l2_bytes: float = 62.0
    dram: float = 0.9
    beside: float = 0.1
    start_clk: float = 1200.0
    plain: float = 10.0
    bias: float = 1.5
    gelu: float = 16.0
    silu: float = 10.0
    other: float = 3.0


@dataclass(frozen=True)
class Estimate:
    """What a candidate is predicted to take.

    Attributes
    ----------
    choice : Plan or gemm_sm80.Config
    us : float
        Microseconds on the GPU, launch included.
    bound : str
        What binds: ``"tensor"``, ``"smem"``, ``"l2"`` or ``"dram"``.
    """

    choice: Choice
    us: float
    bound: str


def candidates(problem: Problem, found: Layout | None, facts: DeviceFacts) -> Iterator[Choice]:
    """Yield every way to compute a problem; the kernel of sm_80 always can."""
    for tile in GEMM_TILES:
        small = gemm_sm80.Config(tile)
        if small.fault(problem) is None:
            yield small
    if facts.arch != "90a":
        return
    for config in GEMM_SM90_CONFIGS:
        if not facts.at_once(config.ctas):
            continue
        for splits in (1, *SPLITS) if config.split else (config.joined,):
            plan = Plan(config, splits)
            if config.split and splits == 1 and not config.swapped:
                continue  # there is one that does not split
            legal = gemm_sm90.fault(plan, problem, found) is None
            if legal and plan.pieces(problem) == splits:
                yield plan
        stream = Plan(config, stream=facts.sm_count)
        if config.split and gemm_sm90.fault(stream, problem, found) is None:
            uneven = math.prod(stream.tiles(problem)) % facts.sm_count
            if uneven and stream.share(problem) > 1:
                yield stream


def explain(
    problem: Problem, found: Layout | None, facts: DeviceFacts, constants: Constants | None = None
) -> tuple[Estimate, ...]:
    """Return the estimates of all candidates, fastest first.

    Examples
    --------
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> best = explain(Problem("bfloat16", 4096, 4096, 4096), Layout(), h100)[0]
    >>> best.choice.config.name, best.bound
    ('128x256_c1', 'tensor')
    """
    constants = constants or Constants()
    every = candidates(problem, found, facts)
    estimates = [predict(each, problem, facts, constants) for each in every]
    return tuple(sorted(estimates, key=lambda each: each.us))


@lru_cache(maxsize=4096)
def choose(problem: Problem, found: Layout | None, facts: DeviceFacts) -> Choice:
    """Return what to run; the last 4096 answers are kept."""
    return explain(problem, found, facts)[0].choice


@lru_cache(maxsize=4096)
def choose_norm(problem: Problem, found: Layout | None, facts: DeviceFacts) -> Plan | None:
    """Return how to compute a product and normalise its rows in one kernel.

    None if there is no such kernel, or two are faster.

    Examples
    --------
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> choose_norm(Problem("bfloat16", 16, 768, 768), Layout(), h100) is None
    True
    """
    constants = Constants()
    legal = list(norm_candidates(problem, found, facts))
    times = [(predict(plan, problem, facts, constants).us, i) for i, plan in enumerate(legal)]
    # Read and written again, and the residual is read then: the product is faster without.
    kind = replace(problem.epilogue, residual=False)
    apart = explain(replace(problem, epilogue=kind), found, facts)[0].us + constants.launch_us
    moved = (6 if problem.epilogue.residual else 4) * problem.m * problem.n
    apart += moved / bandwidth(facts, constants)
    return legal[min(times)[1]] if times and _NORMED * min(times)[0] < apart else None


def norm_candidates(problem: Problem, found: Layout | None, facts: DeviceFacts) -> Iterator[Plan]:
    """Yield every way to compute a product and normalise its rows in one kernel."""
    if facts.arch != "90a":
        return
    for n, turns in product((64, 128, 192, 256), (False, True)):
        plan = Plan(Sm90Gemm(128, n, pingpong=turns, across=-(-problem.n // n)))
        legal = gemm_sm90.fault(plan, problem, found) is None
        if legal and facts.at_once(plan.config.ctas):
            yield plan


def predict(choice: Choice, p: Problem, facts: DeviceFacts, c: Constants) -> Estimate:
    """Return what a candidate takes, by the model."""
    start = c.launch_us
    if isinstance(choice, Plan):
        us, bound = _sm90(choice, p, facts, c)
        start += c.cluster_us if choice.config.ctas > 1 else 0.0
    else:
        us, bound = _sm80(choice, p, facts, c)
    operands = p.m + p.columns
    moved = 2 * (operands * p.k + p.m * p.n * (2 if p.epilogue.residual else 1))
    compulsory = moved / bandwidth(facts, c)
    if compulsory > us:
        us, compulsory, bound = compulsory, us, "dram"
    return Estimate(choice, us + c.beside * compulsory + start, bound)


def _sm90(plan: Plan, p: Problem, facts: DeviceFacts, c: Constants) -> tuple[float, str]:
    """Return microseconds without the launch, and what binds."""
    config = plan.config
    products = config.m * config.n * 64 * 2 / 4096  # clocks of a step
    read = config.m // 64 * 4 * (2048 + 32 * config.n)  # bytes: both operands of each product
    terms = {
        "tensor": products / c.tensor,
        "smem": (read + (config.m + config.n) * 128) / c.smem_bytes,
        "l2": (config.m + config.n / config.cluster) * 128 / c.l2_bytes,
    }
    bound = max(terms, key=lambda name: terms[name])
    steps = plan.split_steps(p)
    busy = steps * terms[bound]
    tail = config.m * config.n / 128 * epilogue_clk(p.epilogue, c)
    if config.swapped:
        tail *= 6  # through shared memory as floats, transposed
    pieces = plan.pieces(p)
    if config.joined > 1:
        sent = config.m * config.n * 4 * (1 - 1 / pieces)
        # Rows that are shared out are those of some warps, each of which has 16.
        tail *= min(1.0, 4 / pieces) if config.by_rows else 1 / pieces
        tail += 2 * sent / 32 + (5000 if config.by_rows else 1500)  # as stacks took them
    elif pieces > 1 and not plan.stream:
        # Everyone writes a piece; the last of a tile reads all of them, out of L2.
        tail += config.m * config.n * 4 * (1 + pieces) / 32 + 2500
    if config.across == 1:
        tail *= 2  # once more over all values
    elif config.across:
        tail = 3 * tail + 4000  # and they wait for each other
    if plan.stream:
        return _streamed(plan, p, terms[bound], tail, c) / clock(facts, c), bound
    rounds = -(-plan.units(p) // facts.at_once(config.ctas))
    if config.pingpong:
        alone = busy + tail + c.start_clk
        clocks = rounds * max(busy, (busy + tail) / 2) + tail + c.start_clk
        clocks = max(clocks, alone)
    else:
        clocks = rounds * (busy + tail) + c.start_clk
    return clocks / clock(facts, c), bound


def _streamed(plan: Plan, p: Problem, step: float, tail: float, c: Constants) -> float:
    """Return the clocks of a stream: whole tiles, and then a share of the rest in few pieces."""
    config, share = plan.config, plan.share(p)
    whole = plan.whole(p) // plan.stream * (steps_of(p) * step + tail)
    segments = share / steps_of(p) + 1  # of a cluster, about
    pieces = plan.pieces(p)
    joined = config.m * config.n * 4 * (1 + pieces) / 32 + 2500
    return whole + share * step + segments * (tail + joined) / 2 + tail + joined + c.start_clk


def _sm80(
    config: gemm_sm80.Config, p: Problem, facts: DeviceFacts, c: Constants
) -> tuple[float, str]:
    """Return microseconds without the launch, and what binds."""
    tile = config.tile
    step = tile.m * tile.n * 64 * 2 / mma_rate(facts) / (0.8 if tile.warp_n == 64 else 0.5)
    tail = tile.m * tile.n / 128 * epilogue_clk(p.epilogue, c)
    rounds = -(-config.blocks(p) // facts.sm_count)
    # CTAs that share an SM hide each other's epilogues.
    hidden = 0.5 if tile.threads == 128 and rounds > 1 else 0.0
    clocks = rounds * (math.ceil(p.k / 64) * step + (1 - hidden) * tail) + 2 * c.start_clk
    return clocks / clock(facts, c), "tensor"


def mma_rate(facts: DeviceFacts) -> float:
    """Return the operations of an SM per clock on mma.sync.

    A Hopper's as two products in one kernel reached them on an H200: 5/8 of what it should do.
    """
    return {(8, 0): 2048.0, (9, 0): 1600.0}.get(facts.compute_capability, 1024.0)


def bandwidth(facts: DeviceFacts, c: Constants) -> float:
    """Return the memory's bytes per microsecond; where the driver does not say, plenty."""
    return facts.memory_clock_khz * 2e3 * facts.memory_bus_bits / 8e6 * c.dram or 1e6


def clock(facts: DeviceFacts, c: Constants) -> float:
    """Return clocks per microsecond."""
    return facts.clock_khz / 1e3 * c.clock


def epilogue_clk(kind: EpilogueKind, c: Constants) -> float:
    """Return the clocks of an SM for 128 sums."""
    clk = c.plain + c.bias * kind.bias + c.other * (kind.residual + kind.normed + kind.statistics)
    clk += c.gelu if kind.rotary else 0.0
    if kind.activation is not None:
        clk += {"gelu": c.gelu, "gelu_tanh": c.silu, "silu": c.silu}.get(kind.activation, 1.0)
    return clk / kind.halves
