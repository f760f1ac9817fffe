"""What results files of bench_attention_hopper.py say, and which goals that meets.

    python benchmarks/summary_hopper.py [--cells] out.json ...

A cell is ours in ms, how many times as fast as the best peer that is, and which; ``!`` marks a time
above what was set for it, ``*`` one with the host's in it, because the call could not be captured.
``--cells`` lists every cell with the kernel that ran and what was set.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from summary_attention import UNMASKED, Cell, read

__all__ = ["GOALS", "goals", "main", "matrix"]

MASKS = (*UNMASKED, "sliding", "causal-sliding", "longformer", "bigbird", "document", "block10")
GOALS = {
    (1, 32, 32, 8192, 8192, 128): (1.44, 0.74, 0.125, 0.085, 0.17, 0.19, 0.095, 0.24),
    (16, 12, 12, 2048, 2048, 64): (0.365, 0.23, 0.12, 0.08, 0.14, 0.13, 0.095, 0.08),
    (1, 16, 16, 32_768, 32_768, 128): (11.9, 5.9, 0.26, 0.17, 0.36, 0.4, 0.19, 1.75),
}
"""Milliseconds that were set, by shape, in the order of `MASKS`."""

DENSE_PEERS = ("FA3", "FA4", "cuDNN")
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
SMALL = ((8, 12, 12, 512, 512, 64), (1, 12, 12, 128, 128, 64))


def goal_of(cell: Cell) -> float | None:
    """Return the milliseconds that were set for a cell of the table, or None."""
    goals = dict(zip(MASKS, GOALS.get(cell.shape, ()), strict=False))
    return goals.get(cell.mask) if cell.group == "table" else None


def text(cell: Cell, way: str = "ours") -> str:
    """Return a time and how it compares with the best peer's."""
    if way not in cell.times:
        return "-"
    goal, found = goal_of(cell), cell.ratio(ours=way)
    over = "!" * (goal is not None and cell.times[way] > goal)
    made = f"{cell.times[way]:.4g}{'*' * (way in cell.with_host)}{over}"
    if found is not None:
        made += f" {found[0]:.2f}x {found[1]}{'*' * (found[1] in cell.with_host)}"
    return made


def label(cell: Cell) -> str:
    """Return a cell's group, shape and type."""
    b, h, _, s, _, d = cell.shape
    return f"{cell.group} ({b},{h},{s},{d}) {SHORT.get(cell.dtype, cell.dtype)}"


def matrix(cells: list[Cell]) -> list[str]:
    """Return a row for each shape and type, a column for each mask; and scattered keys below."""
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for cell in cells:
        if cell.group != "scattered":
            rows[label(cell)][cell.mask] = text(cell)
    names = [name for name in MASKS if any(name in row for row in rows.values())]
    lines = [f"{'ms':28}" + "".join(f"{name:>25}" for name in names)] if rows else []
    lines += [
        f"{title:28}" + "".join(f"{row.get(name, ''):>25}" for name in names)
        for title, row in rows.items()
    ]
    for cell in cells:
        if cell.group == "scattered":
            lines.append(f"{label(cell)} {cell.mask}: {text(cell)}")
            lines += [
                f"{way:>22} {time:9.4g} ms {cell.tflops[way]:7.2f} useful TFLOP/s  "
                f"{cell.kernels.get(way, '')}".rstrip()
                for way, time in cell.times.items()
            ]
    return lines


def every(cells: list[Cell]) -> list[str]:
    """Return a line for each cell: all times, what was set, and the kernel that ran."""
    lines = []
    for cell in cells:
        times = ", ".join(f"{way} {time:.4g}" for way, time in cell.times.items())
        goal = goal_of(cell)
        told = f"; set {goal:g}" if goal is not None else ""
        lines.append(f"{label(cell)} {cell.mask}: {times}{told}; {cell.kernels.get('ours', '?')}")
    return lines


def goals(cells: list[Cell]) -> list[str]:
    """Return how each goal is met."""
    found = []

    def add(title: str, chosen: list[Cell], mean: float, least: float, *peers: str) -> None:
        ratios = [r[0] for cell in chosen if (r := cell.ratio(*peers))]
        if not ratios:
            found.append(f"{title}: not measured")
            return
        geomean, worst = float(np.exp(np.mean(np.log(ratios)))), min(ratios)
        met = "met" if geomean >= mean and worst >= least else "NOT met"
        told = f"geomean {geomean:.3f}x (wanted {mean:g}), worst {worst:.3f}x (wanted {least:g})"
        found.append(f"{title}: {len(ratios)} cells, {told}: {met}")

    set_for = [(c.times["ours"], g) for c in cells if (g := goal_of(c)) and "ours" in c.times]
    under = sum(time <= goal for time, goal in set_for)
    met = "met" if under == len(set_for) else "NOT met"
    counted = f"{under} of {len(set_for)} cells: {met}" if set_for else "not measured"
    found.append(f"the table's milliseconds: {counted}")
    table = [cell for cell in cells if cell.group == "table"]
    sparse = [cell for cell in table if cell.mask not in UNMASKED]
    for dtype in dict.fromkeys(cell.dtype for cell in sparse):
        mine = [cell for cell in sparse if cell.dtype == dtype]
        add(f"sparse, any peer, {SHORT[dtype]}", mine, 2.5, 1.2)
    add("sparse, any peer", sparse, 2.5, 1.2)
    dense = [c for c in cells if c.group in ("table", "dims") and c.mask in UNMASKED]
    for dim in (64, 128, 192, 256):
        wanted = 1.02 if dim <= 128 else 1.0
        mine = [cell for cell in dense if cell.shape[5] == dim]
        add(f"full and causal, head dim {dim}", mine, wanted, wanted, *DENSE_PEERS)
    for shape in SMALL:
        mine = [cell for cell in cells if cell.group == "small" and cell.shape == shape]
        b, h, _, s, _, d = shape
        add(f"({b},{h},{s},{d}), any peer", mine, 1.0, 1.0)
    add("scattered keys, any peer", [c for c in cells if c.group == "scattered"], 1.0, 1.0)
    return found


def main(arguments: list[str]) -> int:
    """Print tables and goals of all files together."""
    paths = [Path(each) for each in arguments if each != "--cells"]
    cells = [cell for path in paths for cell in read(path)]
    listed = every(cells) if "--cells" in arguments else matrix(cells)
    print("\n".join([*listed, *goals(cells)]))
    return 0 if paths else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
