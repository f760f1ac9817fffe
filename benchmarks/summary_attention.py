"""What a results file of bench_attention.py says: times, ratios to the best peer, geomeans.

    python benchmarks/summary_attention.py out.json

A cell is ours in ms, how many times as fast as the best peer that is, and which peer. ``*`` marks a
time with the host's in it, because the call could not be captured. The targets are of the sm_80
path: of ``ours sm80`` where that was timed, as on a Hopper.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROW = 3  # cells on a line
UNMASKED = ("full", "causal")


@dataclass
class Cell:
    """Times of one problem, ms, by whose they are."""

    group: str
    shape: tuple[int, ...]
    mask: str
    dtype: str = "bfloat16"
    times: dict[str, float] = field(default_factory=dict)
    with_host: set[str] = field(default_factory=set)
    bandwidth: float = 0.0
    read: float = 0.0  # ms, of a kernel that reads the keys and values
    kernels: dict[str, str] = field(default_factory=dict)  # of ways of ours
    tflops: dict[str, float] = field(default_factory=dict)

    def ratio(self, *peers: str, ours: str = "ours") -> tuple[float, str] | None:
        """Return how many times as fast as the best of some peers (default all), and which."""
        theirs = {n: t for n, t in self.times.items() if not n.startswith("ours")}
        others = {n: t for n, t in theirs.items() if not peers or n in peers}
        if ours not in self.times or not others:
            return None
        best = min(others, key=lambda name: others[name])
        return others[best] / self.times[ours], best

    def __str__(self) -> str:
        ours = self.times.get("ours", float("nan"))
        star = "*" if "ours" in self.with_host else ""
        found = self.ratio()
        text = f"{self.mask:>14} {ours:.4g}{star} ms"
        if found is not None:
            text += f" {found[0]:.2f}x {found[1]}{'*' if found[1] in self.with_host else ''}"
        if self.group == "decoding":
            text = f"{text.lstrip()} {self.bandwidth:.0f} GB/s"
            text += f", reading them {self.read:.4g} ms" if self.read else ""
        return text


def read(path: Path) -> list[Cell]:
    """Return the cells of a results file."""
    cells: dict[Any, Cell] = {}
    for each in json.loads(path.read_text())["benchmarks"]:
        info = each["extra_info"]
        if "way" not in info:
            continue
        key = info["group"], tuple(info["shape"]), info["mask"], info.get("dtype", "bfloat16")
        cell = cells.setdefault(key, Cell(*key))
        cell.times[info["way"]] = info["device_p50_ms"]
        cell.tflops[info["way"]] = info["tflops"]
        if "kernel" in info:
            cell.kernels[info["way"]] = info["kernel"]
        if not info["graph"]:
            cell.with_host.add(info["way"])
        if info["way"] == "ours":
            cell.bandwidth = info["gbytes_per_s"]
            cell.read = info.get("read_p50_ms", 0.0)
    return list(cells.values())


def lines(cells: list[Cell]) -> list[str]:
    """Return the table: a few cells on a line, shape by shape."""
    shapes: dict[Any, list[str]] = defaultdict(list)
    for cell in cells:
        shapes[cell.group, cell.shape].append(str(cell))
    table = []
    for (group, (b, h, kv, sq, sk, d)), texts in shapes.items():
        heads, seq = (h if h == kv else f"{h}/{kv}"), (sq if sq == sk else f"{sq}/{sk}")
        title = f"{group} ({b},{heads},{seq},{d})"
        if len(texts) == 1:
            table.append(f"{title} {texts[0].strip()}")
            continue
        table.append(title)
        table += [" |".join(texts[i : i + ROW]) for i in range(0, len(texts), ROW)]
    return table


def targets(cells: list[Cell]) -> list[str]:
    """Return how the targets of the sm_80 path are met."""
    found = []
    ours = "ours sm80" if any("ours sm80" in cell.times for cell in cells) else "ours"

    def add(title: str, chosen: list[Cell], geomean: float, worst: float, *peers: str) -> None:
        ratios = [r[0] for cell in chosen if (r := cell.ratio(*peers, ours=ours))]
        if ratios:
            mean, least = float(np.exp(np.mean(np.log(ratios)))), min(ratios)
            text = f"{title}: {len(ratios)} cells, geomean {mean:.2f}x, worst {least:.2f}x"
            if geomean:
                met = "met" if mean >= geomean and least >= worst else "NOT met"
                text += f"; wanted {geomean}x and {worst}x: {met}"
            found.append(text)

    for group, usual in (("anchors", 1.3), ("small", 1.5)):
        mine = [cell for cell in cells if cell.group == group]
        plain = [cell for cell in mine if cell.mask in UNMASKED]
        sparse = [cell for cell in mine if cell.mask not in UNMASKED]
        if group == "anchors":
            add("anchors, full and causal, FA2", plain, 1.0, 1.0, "FA2")
            add("anchors, sparse, Flex", sparse, usual, 1.0, "Flex")
            add("anchors, sparse, any peer", sparse, 0, 0)
        else:
            names = ("sliding", "longformer", "bigbird", "document")
            add("small, full and causal, any peer", plain, 1.0, 1.0)
            add("small, sparse, any peer", [c for c in sparse if c.mask in names], usual, usual)
    add("elements, any peer", [c for c in cells if c.group == "elements"], 1.5, 1.0)
    add("decoding, any peer", [c for c in cells if c.group == "decoding"], 0, 0)
    return found


def main(paths: list[str]) -> int:
    for path in paths:
        cells = read(Path(path))
        print("\n".join([*lines(cells), *targets(cells)]))
    return 0 if paths else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
