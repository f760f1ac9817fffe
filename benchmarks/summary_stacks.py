"""What a results file of bench_paper_stacks.py says: ratios to torch.compile, goals, errors.

    python benchmarks/summary_stacks.py benchmarks/results/paper_stacks_h200.json

A line is a cell: everyone's ms, how many times as fast as the better of torch.compile's ours is,
and the goal in ms where the reference has times of peers, for what the card did beside the cell.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from engine_stacks import ANCHORS

from stof_cupy.report import read_file
from stof_cupy.report.cells import Cell, Summary, joined

__all__ = ["COMPILED", "GOALS", "lines", "row", "scaled_goal"]

COMPILED = ("compiled", "flex")
"""Ways of torch.compile; eager PyTorch is beside them."""
GOALS = dict(zip(map(str, ANCHORS), (1.4, 11.0, 0.25, 12.0, 24.5), strict=True))
"""Milliseconds that the cells are to take that the reference has times of peers for."""
GOALS_TFLOPS = 795.0
"""The rate of an 8192^3 product in bfloat16 on the card that the goals are for."""


def named(cell: Cell) -> str:
    """Return a cell's name, as in engine_stacks.py."""
    return f"{cell['stack']}:{cell['size']}:{cell['mask']}"


def row(cell: Cell) -> str:
    """Return a cell as a line."""
    times = (f"{each.way} {each.p50:8.3f}" for each in cell.timings)
    ratio, goal, mine = cell.ratio("ours", COMPILED), scaled_goal(cell), cell.timing("ours")
    error = None if mine is None else mine["error"]
    parts = [
        "" if ratio is None else f"{ratio:5.2f}x",
        "" if goal is None else f"goal {goal:.3g}",
        "" if error is None else f"error {error:.2g}",
    ]
    return "  ".join((f"{named(cell):28}", *times, *filter(None, parts)))


def scaled_goal(cell: Cell) -> float | None:
    """Return the milliseconds that a cell is to take on its card, or None if it has no goal."""
    if named(cell) not in GOALS:
        return None
    return GOALS[named(cell)] * GOALS_TFLOPS / float(cell["matmul_tflops"] or GOALS_TFLOPS)


def lines(cells: list[Cell]) -> list[str]:
    """Return all cells as lines, and what they come to."""
    found = Summary.of(cells, "ours", COMPILED)
    end = "nothing beside torch.compile" if found is None else f"beside torch.compile: {found}"
    return [*map(row, cells), end]


def main() -> None:
    """Show a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="of results")
    results = read_file(parser.parse_args().file)
    print("\n".join(lines(joined(results.of("bench_paper_stacks.py")))))


if __name__ == "__main__":
    main()
