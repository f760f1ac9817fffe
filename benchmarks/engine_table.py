"""The table of what engine_grid.py measured: cells, ways and ratios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from engine_stacks import ANCHORS

from stof_cupy.errors import ArgumentError, mismatch

__all__ = ["GOALS", "best_over_ours", "results", "row", "scaled_goal", "table"]

GOALS = dict(zip(map(str, ANCHORS), (1.4, 11.0, 0.25, 12.0, 24.5), strict=True))
"""Milliseconds that the cells are to take that the reference has times of peers for."""
GOALS_TFLOPS = 795.0
"""The rate of an 8192^3 product in bfloat16 on the card that the goals are for."""


def results(path: Path) -> dict[str, Any]:
    """Return the newest line of each cell, and as ``known`` the ways that any line of it has.

    Raises
    ------
    ArgumentError
        If a line is not whole.
    """
    found: dict[str, Any] = {}
    for number, text in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
        try:
            line = json.loads(text)
            cell, ways = line["cell"], line["ways"]
        except (ValueError, KeyError, TypeError):
            what = mismatch(f"line {number} of {path}", repr(text[:40]), "a cell as JSON")
            raise ArgumentError(what) from None
        known = {*ways} | found.get(cell, {}).get("known", set())
        found[cell] = line | {"known": known}
    return found


def row(line: dict[str, Any]) -> str:
    """Return a cell as a line."""
    parts = []
    for way, found in line["ways"].items():
        shown = f"{found['p50_ms']:8.3f}" if "p50_ms" in found else f"  ({found['failed'][:60]})"
        parts.append(f"{way} {shown}")
    ratio = best_over_ours(line)
    gain = "" if ratio is None else f"  {ratio:5.2f}x"
    goal = f"  goal {scaled:.3g}" if (scaled := scaled_goal(line)) else ""
    return f"{line['cell']:28} {'  '.join(parts)}{gain}{goal}  [{line['seconds']:.0f} s]"


def scaled_goal(line: dict[str, Any]) -> float | None:
    """Return the milliseconds that a cell is to take on its card, or None if it has no goal."""
    if line["cell"] not in GOALS:
        return None
    return float(GOALS[line["cell"]] * GOALS_TFLOPS / line.get("matmul_tflops", GOALS_TFLOPS))


def best_over_ours(line: dict[str, Any]) -> float | None:
    """Return the best time of torch.compile over ours, or None where one is missing."""
    times = {way: found.get("p50_ms") for way, found in line["ways"].items()}
    compiled = [t for t in (times.get(way) for way in ("compiled", "flex", "flex-v")) if t]
    mine = times.get("ours")
    return min(compiled) / mine if compiled and mine else None


def table(results: dict[str, Any]) -> list[str]:
    """Return all cells as lines, and what they come to."""
    ratios = [r for r in map(best_over_ours, results.values()) if r is not None]
    lines = [row(line) for line in results.values()]
    if ratios:
        mean = float(np.exp(np.mean(np.log(ratios))))
        lines.append(
            f"{len(ratios)} cells: {mean:.2f}x the best torch.compile by geometric mean, "
            f"{min(ratios):.2f}x at least"
        )
    return lines
