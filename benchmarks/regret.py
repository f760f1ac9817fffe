"""How much slower is the kernel that attention chooses than the best that it could have chosen?

    python benchmarks/regret.py --out times.json --budget 450    on a GPU; again: goes on
    python benchmarks/regret.py --from times.json [--fit]        table, new constants; anywhere
    python benchmarks/regret.py --list candidates.json           how many candidates a cell has

Cells are masks x lengths x batches x head dims (regret_cells.py), float16. Candidates are every
legal kernel, tile and split; with --sm80 without the kernel for Hopper, and so in a file that was
begun that way. Timed are those predicted within three times of the best, what Eq. 1 of the paper
chooses, and two others at random; a time is that of replays of a CUDA graph. All results of a cell
are compared with each other before.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import regret_cells
import regret_report
from regret_report import Measured

from stof_cupy.jit.device import DeviceFacts
from stof_cupy.ops.attention_calibration import calibrated
from stof_cupy.ops.attention_candidates import KINDS, SM80, candidates, name_of

H100 = DeviceFacts(
    *("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20, 1980000, 80 << 30),
    *(2048, 2619000, 5120),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; 1 if results differ."""
    args = _parser().parse_args(argv)
    if args.list:
        args.list.write_text(json.dumps(listing(), indent=1) + "\n")
        return 0
    if args.out:
        from regret_measure import measure

        kinds = SM80 if args.sm80 else tuple(KINDS)
        wrong = measure(args.out, time.time() + args.budget, args.commit, args.only, kinds)
        measured = Measured.read(args.out)
        regret_report.report(measured, calibrated(measured.facts()))
        return 1 if wrong else 0
    measured = Measured.read(getattr(args, "from"))
    regret_report.report(measured)
    if args.fit:
        constants = regret_report.improve(measured, args.fit)
        regret_report.report(measured, constants)
        print(
            *(f"    {name}: float = {value:.4g}" for name, value in vars(constants).items()),
            sep="\n",
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="X.json", help="measure, and add to this file")
    what.add_argument("--from", type=Path, metavar="X.json", help="report from this file")
    what.add_argument("--list", type=Path, metavar="X.json", help="write how many there are")
    parser.add_argument("--budget", type=float, default=450, help="seconds (default: 450)")
    parser.add_argument("--commit", default="unknown", help="what is measured")
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--sm80", action="store_true", help="without the kernel for Hopper")
    parser.add_argument(
        "--fit", type=int, nargs="?", const=200, metavar="N", help="constants, from N cells"
    )
    return parser


def listing() -> dict[str, object]:
    """Return how many candidates each cell has on an H100, and all their names."""
    counts, names = {}, set()
    for group in regret_cells.groups():
        mask = regret_cells.make_mask(group[0].mask, group[0].seq)
        for cell in group:
            every = [name_of(c) for c in candidates(cell.case(mask, H100))]
            counts[cell.name] = len(every)
            names.update(every)
    return {"gpu": H100.name, "cells": dict(sorted(counts.items())), "names": sorted(names)}


if __name__ == "__main__":
    sys.exit(main())
