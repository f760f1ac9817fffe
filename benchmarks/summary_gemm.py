"""What results files of bench_gemm.py say: times, ratios to the best peer, geomeans, bandwidth.

    python benchmarks/summary_gemm.py out.json [more.json ...]

A line is ours in us and TFLOP/s (GB/s for few rows), how many times as fast as the best peer that
is, torch.compile among them where that was timed, and which; then our templates alone, where ours
is something else. A cell of a later file replaces that of an earlier one. Of several runs in a file
ours are the newest one's, and peers that did not run in it stand as they were in the run before: °
marks these.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FEW = 16  # rows, for which weights are streamed
MIB = 2**20
REGRET = 1.05
OWN = ("ours", "templates", "apart")


@dataclass
class Cell:
    """Times of one problem, us, by whose they are."""

    kind: str
    shape: tuple[int, int, int]
    times: dict[str, float] = field(default_factory=dict)
    with_host: set[str] = field(default_factory=set)
    earlier: set[str] = field(default_factory=set)  # peers that were timed in a run before ours
    bandwidth: float = 0.0
    choice: str = ""
    regret: float | None = None  # the model's choice over the fastest of ours that was timed

    @property
    def peer(self) -> tuple[float, str] | None:
        """Return the best peer's time, and which that is."""
        others = {n: t for n, t in self.times.items() if n not in OWN}
        return min((t, n) for n, t in others.items()) if others else None

    @property
    def templates(self) -> float | None:
        """Our templates' time: that of ours where ours is one."""
        return self.times.get("templates", self.times.get("ours"))

    def ratio(self, alone: bool = False) -> float | None:
        """Return how many times as fast as the best peer ours is, or our templates `alone`."""
        mine = self.templates if alone else self.times.get("ours")
        return self.peer[0] / mine if self.peer and mine else None

    def __str__(self) -> str:
        m, n, k = self.shape
        ours = self.times.get("ours", float("nan"))
        speed = f"{self.bandwidth:5.0f} GB/s" if m <= FEW else f"{2e-6 * m * n * k / ours:5.0f} TF"
        star = "*" if "ours" in self.with_host else ""
        text = f"{m:>6} {n:>5}x{k:<5} {ours:9.1f}{star} us {speed:10}"
        if self.peer is not None:
            mark = "*" if self.peer[1] in self.with_host else ""
            mark += "°" if self.peer[1] in self.earlier else ""
            text += f" {self.ratio():5.2f}x {self.peer[1]}{mark} {self.peer[0]:.1f}"
        if "apart" in self.times:
            text += f" | apart {self.times['apart']:.1f}"
        if "templates" in self.times:
            text += f" | templates {self.times['templates']:.1f} {self.ratio(True) or 0:.2f}x"
        return f"{text} | {self.choice}" if self.choice else text


def read(paths: list[Path]) -> tuple[list[Cell], float]:
    """Return the cells of results files, and the copy bandwidth, GB/s, of the last that has it."""
    cells: dict[Any, Cell] = {}
    copy = 0.0
    for path in paths:
        here: dict[Any, Cell] = {}
        for info in _by_run(json.loads(path.read_text())):
            if info.get("way") == "copy":
                copy = info["gbytes_per_s"]
            if "kind" not in info:
                continue
            key = info["kind"], tuple(info["shape"])
            cell = here.setdefault(key, Cell(*key))
            if info["way"] == "ours":
                cell.times = {way: us for way, us in cell.times.items() if way not in OWN}
                cell.earlier = {*cell.times}
            cell.earlier.discard(info["way"])
            cell.times[info["way"]] = 1e3 * info["device_p50_ms"]
            if not info["graph"]:
                cell.with_host.add(info["way"])
            if info["way"] == "ours":
                cell.bandwidth, cell.choice = info["gbytes_per_s"], info["choice"]
                times = {n: t for n, t in info["times"].items() if not n.startswith("cublaslt")}
                if info["model"] in times:
                    cell.regret = times[info["model"]] / min(times.values())
        cells |= here
    return list(cells.values()), copy


def _by_run(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what was noted of all benchmarks, the newest run last and of a run ours first."""
    times = [run.get("datetime", "") for run in content.get("runs", ({},))]
    each = sorted(
        content["benchmarks"],
        key=lambda one: (times[one.get("run", 0)], one["extra_info"].get("way") != "ours"),
    )
    return [one["extra_info"] for one in each]


# ---------------------------------------------------------------- the goals


def goals(cells: list[Cell], copy: float) -> list[str]:
    """Return how the goals of the GEMM are met."""
    found: list[str] = []

    def add(
        title: str,
        kind: str,
        geomean: float,
        worst: float,
        belongs: Callable[[tuple[int, int, int]], bool] = lambda shape: shape[0] >= 512,
        alone: bool = False,
    ) -> None:
        chosen = [c for c in cells if c.kind == kind and belongs(c.shape)]
        rated = [(r, c) for c in chosen if (r := c.ratio(alone)) is not None]
        if not rated:
            return
        ratios = [r for r, _ in rated]
        mean, (least, which) = (
            float(np.exp(np.mean(np.log(ratios)))),
            min(rated, key=lambda x: x[0]),
        )
        met = "met" if mean >= geomean and least >= worst else "NOT met"
        won = sum(r >= 1 for r in ratios)
        beside = sum("compile" in c.times for _, c in rated)
        compiled = f", {beside} beside torch.compile" if beside else ""
        found.append(
            f"{title}: {len(ratios)} cells{compiled}, {won} won, geomean {mean:.3f}x, "
            f"worst {least:.2f}x at {'x'.join(map(str, which.shape))}; "
            f"wanted {geomean}x and {worst}x: {met}"
        )

    def every(shape: tuple[int, int, int]) -> bool:
        return True

    add("plain", "plain", 1.0, 0.92, every)
    add("plain, 8192^3", "plain", 1.0, 1.0, lambda s: s == (8192,) * 3)
    add("plain, our templates alone, M >= 512", "plain", 0.97, 0.85, alone=True)
    add("bias + GELU, M >= 512", "bias_gelu", 1.05, 0.98)
    wide = "bias + GELU, M = 32768, K <= 1024"
    add(wide, "bias_gelu", 1.12, 0.98, lambda s: s[0] == 32_768 and s[2] <= 1024)
    add("bias + GELU, our templates alone, M >= 512", "bias_gelu", 0.0, 0.0, alone=True)
    add("SwiGLU, M >= 512", "swiglu", 1.15, 0.98)
    add("bias + residual + LayerNorm, M >= 512", "layer_norm", 1.2, 0.98)
    add("LayerNorm + bias + GELU, M >= 512", "fold", 1.15, 0.98)
    return found + regrets(cells) + bandwidths(cells, copy)


def regrets(cells: list[Cell]) -> list[str]:
    """Return what the model's choice costs where nothing was measured, kind by kind."""
    found = []
    for kind in dict.fromkeys(cell.kind for cell in cells):
        rated = [(c.regret, c) for c in cells if c.kind == kind and c.regret is not None]
        if rated:
            mean, (most, which) = np.mean([r for r, _ in rated]), max(rated, key=lambda x: x[0])
            met = "met" if mean <= REGRET else "NOT met"
            found.append(
                f"the model's regret, {kind}: mean {mean:.3f}, worst {most:.2f} at "
                f"{'x'.join(map(str, which.shape))}; wanted {REGRET}: {met}"
            )
    return found


def bandwidths(cells: list[Cell], copy: float) -> list[str]:
    """Return the shares of the copy bandwidth that products of few rows reach."""
    if not copy:
        return []
    found = [f"copy: {copy:.0f} GB/s"]
    for least, most, wanted in ((32 * MIB, float("inf"), 0.85), (12 * MIB, 32 * MIB, 0.6)):
        rated = [
            (cell.bandwidth / copy, cell)
            for cell in cells
            if cell.kind == "plain"
            and cell.shape[0] <= FEW
            and cell.bandwidth
            and least <= 2 * cell.shape[1] * cell.shape[2] < most
        ]
        for share, cell in rated:
            met = "met" if share >= wanted else "NOT met"
            found.append(
                f"{cell.shape}: {share:.2f} of the copy's bandwidth; wanted {wanted}: {met}"
            )
    return found


def main(paths: list[str]) -> int:
    cells, copy = read([Path(path) for path in paths])
    kind = ""
    for cell in cells:
        if cell.kind != kind:
            kind = cell.kind
            print(kind)
        print(cell)
    print("\n".join(goals(cells, copy)))
    return 0 if paths else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
