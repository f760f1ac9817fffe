"""What else the results say: other shapes, other operators, whole models, and where we lose."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from stof_cupy.report.cells import Cell, Summary, joined
from stof_cupy.report.engine_views import ENGINE_VIEWS
from stof_cupy.report.machines import machine_column
from stof_cupy.report.paper_views import PAPER_VIEWS
from stof_cupy.report.pictures import Picture
from stof_cupy.report.results import Results
from stof_cupy.report.tables import Table, number, ordered
from stof_cupy.report.views import (
    View,
    bars_picture,
    cell_table,
    grid_table,
    stamps,
    summary_picture,
    summary_table,
)

__all__ = ["VIEWS", "view"]

_ATTENTION = "bench_attention.py"
_HOPPER = "bench_attention_hopper.py"
_GEMM = "bench_gemm.py"


def _attention_groups(results: Results) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in joined(results.of(_ATTENTION)):
        plain = cell["mask"] in ("full", "causal")
        kind = "" if cell["group"] == "decoding" else ", unmasked" if plain else ", sparse"
        groups[cell["group"] + kind].append(cell)
    return groups


def _hopper(results: Results) -> Table | None:
    cells = [cell for cell in joined(results.of(_HOPPER)) if cell["group"] != "scattered"]
    rows = {"shape": "ms, times as fast as the best peer", "dtype": "type"}
    return grid_table(cells, rows, "name")


def _gemm_groups(results: Results) -> dict[str, list[Cell]]:
    """Return products by kind, each once: beside torch.compile where that was timed."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in joined(replace(each, bench=_GEMM) for each in results.of(_GEMM)):
        groups[cell["kind"]].append(cell)
    return groups


def _cpu_picture(results: Results) -> Picture | None:
    return bars_picture(
        joined(results.of("bench_attention_cpu.py")),
        "shape",
        lambda cell: cell["spec"].partition(":")[0],
        "times as fast as masked NumPy",
    )


def _losses(results: Results) -> Table | None:
    """Return every cell in which a peer is faster, the worst first."""
    found = []
    for cell in joined(results.timings):
        ratio, best, mine = cell.ratio(), cell.best(), cell.mine()
        if ratio is not None and best is not None and mine is not None and ratio < 1:
            found.append((ratio, cell, mine, best))
    found.sort(key=lambda each: each[0])
    several = machine_column([each[1] for each in found])
    rows = tuple(
        (
            cell.bench.removeprefix("bench_").replace(".py::bench_", " ").removesuffix(".py"),
            *(cell[name] for name in several),
            " ".join(f"{name}={value}" for name, value in cell.key),
            number(mine.p50),
            f"{best.way} {number(best.p50)}",
            f"{ratio:.2f}x",
        )
        for ratio, cell, mine, best in found
    )
    columns = ("benchmark", *several, "cell", "ours, ms", "best peer, ms", "ratio")
    return Table(columns, rows, stamps(each[1] for each in found)) if rows else None


def _overview(results: Results) -> Table | None:
    """Return what all benchmarks with a peer come to."""
    cells: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in joined(results.timings):
        cells[cell.bench, cell.run.machine].append(cell)
    rows = []
    for (bench, machine), group in cells.items():
        summary = Summary.of(group)
        if summary is None:
            continue
        peers = ordered(t.way for cell in group for t in cell.timings if not t.is_ours)
        name = bench.removeprefix("bench_").replace(".py::bench_", " ").removesuffix(".py")
        rows.append(
            (
                name,
                machine,
                str(summary.count),
                f"{summary.geomean:.2f}x",
                f"{summary.worst:.2f}x",
                f"{summary.best:.2f}x",
                str(summary.lost),
                ", ".join(peers),
            )
        )
    columns = ("benchmark", "machine", "cells", "geomean", "worst", "best", "slower in", "peers")
    return Table(columns, tuple(rows)) if rows else None


def _runs(results: Results) -> Table | None:
    """Return what runs say of themselves; those that differ in the hour alone are a row."""
    count = Counter(timing.run for timing in results.timings)
    rows: Counter[tuple[str, ...]] = Counter()
    for run in results.runs:
        changed = " with changes" if run.dirty else ""
        versions = ", ".join(f"{name} {version}" for name, version in run.packages.items())
        commit = f"{run.commit[:7]}{changed}"
        rows[run.file, run.machine, run.driver, run.date, commit, versions] += count[run]
    columns = ("file", "machine", "driver", "date", "commit", "timings", "versions")
    body = ((*row[:-1], str(timings), row[-1]) for row, timings in rows.items())
    return Table(columns, tuple(body))


def _skips(results: Results) -> Table | None:
    """Return why benchmarks did not run, and how many."""
    several = machine_column(results.skips)
    count = Counter(
        (skip.bench, *(skip.run.machine for _ in several), skip.reason) for skip in results.skips
    )
    rows = tuple((*what, str(number)) for what, number in count.items())
    columns = ("benchmark", *several, "why it did not run", "cases")
    return Table(columns, rows) if rows else None


def _seconds(results: Results) -> Table | None:
    """Return what a benchmark took as a whole, with inputs, checks and others' compilers."""
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    for timing in results.timings:
        if timing.wall_s:
            spent[timing.bench, timing.run.machine].append(timing.wall_s)
    for skip in results.skips:
        if skip.wall_s:
            spent[skip.bench, skip.run.machine].append(skip.wall_s)
    rows = tuple(
        (bench, machine, str(len(each)), number(sum(each)), number(sum(each) / len(each)))
        for (bench, machine), each in spent.items()
    )
    columns = ("benchmark", "machine", "cases", "seconds", "a case")
    return Table(columns, rows) if rows else None


def _plain(name: str, title: str, bench: str, command: str) -> View:
    return View(name, title, command, lambda results: cell_table(results, (bench,)))


VIEWS = (
    View("overview", "All benchmarks with a peer", "make bench", _overview),
    *PAPER_VIEWS,
    View(
        "attention-summary",
        "Attention at the peers' anchors: geometric means",
        "make bench-gpu BENCH=attention",
        lambda results: summary_table(_attention_groups(results)),
        lambda results: summary_picture(_attention_groups(results)),
    ),
    _plain(
        "attention",
        "Attention at the peers' anchors",
        _ATTENTION,
        "make bench-gpu BENCH=attention",
    ),
    _plain(
        "attention-scores",
        "Attention with a softcap, ALiBi or relative biases",
        "bench_attention_scores.py",
        "make bench-gpu BENCH=attention_scores",
    ),
    View(
        "attention-hopper",
        "Attention on Hopper, beside what was written for Hopper",
        "make bench-gpu BENCH=attention_hopper ARGS=--heavy",
        _hopper,
    ),
    _plain(
        "attention-scattered",
        "Attention on Hopper: scattered keys, packed and not",
        f"{_HOPPER}::bench_scattered",
        'make bench-gpu BENCH=attention_hopper ARGS="-k scattered"',
    ),
    View(
        "attention-cpu",
        "Attention on the CPU",
        "pytest benchmarks/bench_attention_cpu.py --benchmark-json=out.json",
        lambda results: cell_table(results, ("bench_attention_cpu.py",)),
        _cpu_picture,
    ),
    View(
        "gemm-summary",
        "Products with epilogues: geometric means",
        "make bench-gpu BENCH=gemm",
        lambda results: summary_table(_gemm_groups(results)),
        lambda results: summary_picture(_gemm_groups(results)),
    ),
    _plain("gemm", "Products with epilogues", _GEMM, "make bench-gpu BENCH=gemm"),
    *ENGINE_VIEWS,
    _plain(
        "masks-cpu",
        "Building masks on the CPU",
        "bench_masks.py::bench_build",
        "pytest benchmarks/bench_masks.py -m 'not gpu' --benchmark-json=out.json",
    ),
    View(
        "masks-gpu",
        "Building masks on the GPU",
        "make bench-gpu BENCH=masks",
        lambda results: cell_table(results, ("bench_masks.py::bench_device_build",), "measured"),
    ),
    View("losses", "Where a peer is faster", "stof-cupy report --view losses", _losses),
    View("skips", "What did not run", "stof-cupy report --view skips", _skips),
    View("seconds", "What each benchmark takes", "stof-cupy report --view seconds", _seconds),
    View("runs", "Runs", "stof-cupy report --view runs", _runs),
)
"""In the order of the report."""


def view(name: str) -> View | None:
    """Return a view by its name, or None."""
    return next((each for each in VIEWS if each.name == name), None)
