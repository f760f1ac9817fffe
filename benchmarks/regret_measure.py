"""Selection's cells on a GPU."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from regret_cells import HEADS, Cell, groups, make_mask
from regret_report import EQ1_TILES, MaskStats, Measured

from stof_cupy import env
from stof_cupy.jit import device, nvrtc
from stof_cupy.jit.cache import Store
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops.attention_calibration import calibrated
from stof_cupy.ops.attention_candidates import KINDS, Candidate, candidates, name_of
from stof_cupy.ops.attention_cuda import prepared
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_fields import Args
from stof_cupy.ops.attention_model import explain
from stof_cupy.ops.attention_timing import graph_us, inputs_of

__all__ = ["measure"]

NEAR = 3.0  # times the best prediction
OTHERS = 2
LONGEST_US = 200e3  # predicted; what takes longer is not among the others
AGAIN = (1.5, 1.15)  # times the best time so far: measured once more
TOLERANCE = 1e-2
TOGETHER = 16  # masks that are made before cells are measured, while nothing else runs
LAST = 20  # seconds before the end in which no more are begun: the longest take 40


@dataclass
class Plan:
    """A cell with its mask, and what is to be timed."""

    cell: Cell
    case: Case
    timed: list[Candidate]
    count: int


def measure(
    path: Path, until: float, commit: str, only: str = "", kinds: Sequence[str] = tuple(KINDS)
) -> list[str]:
    """Measure cells that the file does not have until the time is up; return what was wrong."""
    import cupy

    facts, measured = device.facts(), Measured.read(path)
    kinds = measured.kinds if measured.runs else kinds
    measured.runs.append(
        {
            "gpu": facts.name,
            "facts": asdict(facts),
            "date": time.strftime("%Y-%m-%d"),
            "commit": commit,
            "kernels": list(kinds),
            "nvrtc": nvrtc.load().version,
            "cupy": cupy.__version__,
        }
    )
    start, count = time.time(), compile_all(facts, kinds)
    print(f"{count} kernels compiled in {time.time() - start:.0f} s", flush=True)
    wrong: list[str] = []
    with ThreadPoolExecutor(max(2, (cpu_count() or 2) - 4)) as pool:
        for plans, stats in planned(pool, measured, facts, until, only):
            if not plans:  # the time was up while its mask was made
                break
            key = f"{plans[0].cell.mask}-{plans[0].cell.seq}"
            measured.masks[key] = stats and stats.record
            for plan in plans:
                if time.time() > until:
                    break
                times, difference = measure_cell(plan)
                name = plan.cell.name
                measured.cells[name] = {"us": times, "of": plan.count, "difference": difference}
                if not difference <= TOLERANCE:
                    wrong.append(f"{name}: results differ by {difference}")
                    print(wrong[-1], flush=True)
            measured.write(path)
            cupy.get_default_memory_pool().free_all_blocks()
        pool.shutdown(wait=False, cancel_futures=True)
    return wrong


def compile_all(facts: DeviceFacts, kinds: Sequence[str]) -> int:
    """Compile what the cells may run, in parallel; return how many kernels that are."""
    found = {}
    for dim in HEADS:
        for name in ("full", "causal", "random1"):
            case = Cell(name, 2048, 1, dim).case(make_mask(name, 2048), facts)
            for candidate in candidates(case, kinds):
                found[candidate.spec(case.problem)] = None
                if getattr(candidate, "splits", 1) > 1:
                    found[candidate.combine_spec(case.problem)] = None
    store = Store(env.cache_dir("kernels"))
    with ThreadPoolExecutor(cpu_count()) as pool:
        list(pool.map(lambda spec: store.get(spec, facts.arch), found))
    return len(found)


def planned(
    pool: ThreadPoolExecutor, measured: Measured, facts: DeviceFacts, until: float, only: str
) -> Iterator[tuple[list[Plan], MaskStats | None]]:
    """Yield the plans of cells that have one mask; some masks at a time are made in parallel."""
    todo = [
        missing
        for group in groups()
        if (missing := [c for c in group if only in c.name and c.name not in measured.cells])
    ]

    def plan(group: list[Cell]) -> tuple[list[Plan], MaskStats | None]:
        return plan_group(group, facts, until, measured.kinds)

    while todo and time.time() < until - LAST:
        some, todo = todo[:TOGETHER], todo[TOGETHER:]
        yield from list(pool.map(plan, some))


def plan_group(
    group: list[Cell],
    facts: DeviceFacts,
    until: float = math.inf,
    kinds: Sequence[str] = tuple(KINDS),
) -> tuple[list[Plan], MaskStats | None]:
    """Make the mask of some cells, and the lists that their kernels read, while there is time."""
    mask = make_mask(group[0].mask, group[0].seq)
    plans, tiles = [], set()
    for cell in group:
        case = cell.case(mask, facts)
        every = list(candidates(case, kinds))
        plans.append(Plan(cell, case, to_time(cell, case, every), len(every)))
        tiles |= {(c.tile, _packed(c)) for c in every if hasattr(c, "tile")}
    for plan in plans:
        for candidate in plan.timed if mask is not None else ():
            if time.time() > until:
                return [], None
            if hasattr(candidate, "tile"):
                how = {"packed": True} if _packed(candidate) else {}
                mask.schedule(candidate.tile, layout="accumulator", **how)
            else:
                mask.key_lists()
    return plans, MaskStats.of(mask, tiles)


def _packed(candidate: Candidate) -> bool:
    """Whether the tiles of a candidate are made of keys from anywhere."""
    return getattr(candidate, "packed", False)


def to_time(cell: Cell, case: Case, every: list[Candidate]) -> list[Candidate]:
    """Return the candidates that are timed, the model's choice first."""
    constants = calibrated(case.facts)
    ranked = explain(case, constants, among=every)
    chosen = [each.candidate for each in ranked if each.us <= NEAR * ranked[0].us]
    for select in EQ1_TILES:
        first = explain(case, constants, select=select, among=every)[0]  # type: ignore[arg-type]
        if first.us < LONGEST_US:
            chosen.append(first.candidate)
    others = [e.candidate for e in ranked if e.candidate not in chosen and e.us < LONGEST_US]
    draw = np.random.default_rng([cell.seq, cell.batch, cell.dim, len(cell.mask)])
    picked = draw.choice(len(others), min(OTHERS, len(others)), replace=False)
    return list(dict.fromkeys([*chosen, *(others[i] for i in picked)]))


def measure_cell(plan: Plan) -> tuple[dict[str, float], float]:
    """Return the times of a cell's candidates, and by how much their results differ."""
    import cupy

    args = inputs_of(plan.case)
    runs, first, difference = {}, None, 0.0
    for candidate in plan.timed:
        run = prepared(candidate, args)
        args.out.fill(cupy.nan)
        run()
        if first is None:
            first = args.out.copy()
        else:
            difference = max(difference, _difference(args, first))
        runs[name_of(candidate)] = run
    _warm()
    times = {name: graph_us(run) for name, run in runs.items()}
    for near in AGAIN:
        limit = near * min(times.values())
        for name in [name for name, us in times.items() if us <= limit]:
            times[name] = min(times[name], graph_us(runs[name]))
    return {name: round(us, 3) for name, us in times.items()}, difference


def _warm(seconds: float = 0.02) -> None:
    """Keep the GPU busy until its clock is up: it waited for a mask."""
    import cupy

    a = cupy.ones((2048, 2048), np.float16)
    start = time.time()
    while time.time() < start + seconds:
        a @ a
        cupy.cuda.Device().synchronize()


def _difference(args: Args, first: Any) -> float:
    """Return the largest difference to another result; NaN is infinitely far."""
    import cupy

    gap = cupy.abs(args.out - first).max()
    return float(gap) if cupy.isfinite(gap) else sys.float_info.max
