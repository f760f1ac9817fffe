"""What the model's choice among our products costs, and constants under which it costs less.

    python benchmarks/gemm_regret.py out.json [more.json ...] [--improve [SHARE]]

The files are of bench_gemm.py: of each cell the ways that the model expected to be near the best,
timed. Regret is the time of the model's choice over that of the best. ``--improve`` tunes
`gemm_model.Constants` on a share of the cells, half of them by default, and reports on the others.
No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gemm_cells import problem_of

from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops import gemm_ways
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_choice import Choice, name_of
from stof_cupy.ops.gemm_model import Constants
from stof_cupy.ops.gemm_sm90 import Layout

NAMES = tuple(field.name for field in fields(Constants))
STEPS = (1.3, 1.12, 1.05)


class Timed(NamedTuple):
    """A cell: its problem, and what was timed of it, us."""

    title: str
    problem: Problem
    ways: list[tuple[Choice, float]]


def read(paths: Sequence[Path]) -> tuple[list[Timed], DeviceFacts]:
    """Return the cells of results files, and the GPU's facts."""
    facts, cells = None, {}
    for path in paths:
        for each in json.loads(path.read_text())["benchmarks"]:
            info = each["extra_info"]
            if "facts" in info:
                facts = DeviceFacts.from_json(info["facts"])
            if info.get("way") == "ours" and info["kind"] != "layer_norm":
                cells[info["kind"], tuple(info["shape"])] = info["times"]
    if facts is None:
        raise SystemExit("no facts of a GPU in these files: bench_copy writes them")
    return [timed(*key, times, facts) for key, times in cells.items()], facts


def timed(kind: str, shape: Any, times: dict[str, float], facts: DeviceFacts) -> Timed:
    """Return a cell; ways that there are no more are left out."""
    problem = problem_of(kind, shape)
    found = gemm_ways.ways(problem, Layout(), facts)
    every = {name_of(each.choice): each.choice for each in found}
    ways = [(every[name], us) for name, us in times.items() if name in every]
    return Timed(f"{kind} {'x'.join(map(str, shape))}", problem, ways)


def regret(cell: Timed, facts: DeviceFacts, constants: Constants) -> tuple[float, str, str]:
    """Return a cell's regret, what is chosen of what was timed, and the best."""
    best = min(cell.ways, key=lambda each: each[1])
    chosen = min(
        cell.ways, key=lambda each: gemm_ways.predict(each[0], cell.problem, facts, constants)
    )
    return chosen[1] / best[1], name_of(chosen[0]), name_of(best[0])


def report(cells: Sequence[Timed], facts: DeviceFacts, constants: Constants, worst: int) -> None:
    """Print mean and worst regret."""
    found = [(*regret(cell, facts, constants), cell.title) for cell in cells if cell.ways]
    ratios = np.array([each[0] for each in found])
    p50, p95 = np.quantile(ratios, (0.5, 0.95))
    print(
        f"{len(ratios)} cells: mean {ratios.mean():.3f}, median {p50:.3f}, 95 % {p95:.3f}, "
        f"worst {ratios.max():.2f}"
    )
    for ratio, chosen, best, title in sorted(found, reverse=True)[:worst]:
        print(f"  {title:30} {ratio:5.2f}  {chosen}, best {best}")


def improve(cells: Sequence[Timed], facts: DeviceFacts) -> Constants:
    """Return constants tuned to the regret, one at a time, coarse to fine."""
    best = Constants()
    least = cost(cells, facts, best)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for name, factor in [(name, each) for name in NAMES for each in (step, 1 / step)]:
                trial = replace(best, **{name: getattr(best, name) * factor})
                here = cost(cells, facts, trial)
                if here < least - 1e-6:
                    best, least, improved = trial, here, True
    return best


def cost(cells: Sequence[Timed], facts: DeviceFacts, constants: Constants) -> float:
    """Return the mean logarithm of the regret, and twice its square, for the worst."""
    logs = [math.log(regret(cell, facts, constants)[0]) for cell in cells if cell.ways]
    return float(np.mean(logs) + 2 * np.mean(np.square(logs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--improve", nargs="?", type=float, const=0.5)
    parser.add_argument("--worst", type=int, default=12)
    args = parser.parse_args()
    cells, facts = read(args.files)
    report(cells, facts, Constants(), args.worst)
    if args.improve is not None:
        order = np.random.default_rng(0).permutation(len(cells))
        count = max(1, round(args.improve * len(cells)))
        constants = improve([cells[i] for i in order[:count]], facts)
        print(f"tuned on {count} cells: {constants}")
        report([cells[i] for i in order[count:]] or cells, facts, constants, args.worst)


if __name__ == "__main__":
    main()
