"""The paper's experiments (STOF, arXiv 2506.06095, section 6) in our results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from stof_cupy.report.cells import Cell, joined
from stof_cupy.report.fusion_views import FUSION_VIEWS
from stof_cupy.report.machines import by_machine, machine_column, titled
from stof_cupy.report.pictures import Panel, Picture, Series
from stof_cupy.report.results import Results
from stof_cupy.report.tables import Table, number, ordered
from stof_cupy.report.views import (
    View,
    caption,
    cell_table,
    command,
    grid_table,
    percent,
    ratio_picture,
    stamps,
    summary_picture,
    summary_table,
    value_table,
)

__all__ = ["PAPER_VIEWS"]

_GRID = "bench_paper_attention.py::bench_paper"
_SCALING = "bench_paper_scaling.py::bench_scaling"
_START = "bench_paper_start.py"


def _grid(results: Results, bench: str) -> Table | None:
    rows = {"mask": "ms, times as fast as the best peer", "batch": "batch"}
    return grid_table(joined(results.of(bench)), rows, "seq")


def _grid_picture(results: Results) -> Picture | None:
    return ratio_picture(
        joined(results.of(_GRID)),
        panel="mask",
        across="seq",
        series="batch",
        labels=("sequence length", "batch"),
    )


def _grid_groups(results: Results) -> dict[str, list[Cell]]:
    """Return cells by mask, and all of the paper's masks and of its artifact's."""
    cells = joined(results.of(_GRID))
    masks = ordered(cell["mask"] for cell in cells)
    groups = {mask: [cell for cell in cells if cell["mask"] == mask] for mask in masks}
    every = {
        f"all {kind}": [cell for cell in cells if cell["mask"].startswith(f"{kind}-")]
        for kind in ("paper", "artifact")
    }
    return {**groups, **every}


def _host(results: Results) -> Table | None:
    """Return by how much a call of one sequence and its wait exceed the device's time."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    cells = [cell for cell in joined(results.of(_GRID)) if cell["batch"] == "1"]
    several = machine_column(cells)
    for cell in cells:
        for each in cell.timings:
            added = max(each.host - each.p50, 0.0)
            at = found.setdefault((each.way, cell.run.machine), {})
            at.setdefault(cell["seq"], []).append(added)
    lengths = ordered(cell["seq"] for cell in cells)
    rows = tuple(
        (
            way,
            *(machine for _ in several),
            *(number(median(at[seq])) if seq in at else "" for seq in lengths),
        )
        for (way, machine), at in found.items()
    )
    note = "Median over the masks, of a call of one sequence and its wait, less the device's time."
    return Table(("ms", *several, *lengths), rows, (note, *stamps(cells))) if rows else None


def _statistics(results: Results, seq: str = "") -> Table | None:
    timings = results.of("bench_paper_masks.py::bench_statistics")
    return value_table(
        [each for each in timings if not seq or each["seq"] == seq],
        {
            "mask": "mask",
            "tokens": "seq",
            "sparsity": percent("sparsity"),
            "printed in the paper": percent("printed"),
            "64x64 tiles visited": percent("tiles"),
            "of them part": percent("part"),
            "visited in vain": percent("waste"),
            "KiB": lambda each: float(each["mask_kib"]),
            "built in ms": lambda each: each.p50,
        },
    )


def _imports(results: Results) -> Table | None:
    return value_table(
        results.of(f"{_START}::bench_import"),
        {"import": "package", "ms, the process and its end": lambda each: each.p50},
    )


def _install(results: Results) -> Table | None:
    return value_table(
        results.of(f"{_START}::bench_install"),
        {"installed": "package", "MiB": lambda each: float(each["mib"])},
    )


def _scaling_picture(results: Results) -> Picture | None:
    """Return ms over length by mask, over density, and over the batch, for everyone."""
    cells = joined(results.of(_SCALING))
    panels = []
    for axis in ordered(cell["axis"] for cell in cells):
        here = [cell for cell in cells if cell["axis"] == axis]
        kinds = ordered(cell["mask"] for cell in here) if axis == "seq" else [""]
        for kind in kinds:
            part = [cell for cell in here if not kind or cell["mask"] == kind]
            panels += [
                Panel(titled(kind or axis, machine, cells), _lines(own, axis))
                for machine, own in by_machine(part).items()
            ]
    if not panels:
        return None
    return Picture(
        "lines", tuple(panels), "tokens, density or batch", "ms", log=True, caption=caption(cells)
    )


def _lines(cells: Sequence[Cell], axis: str) -> tuple[Series, ...]:
    ways = ordered(each.way for cell in cells for each in cell.timings)
    lines = []
    for way in ways:
        at = {_at(c, axis): t.p50 for c in cells if (t := c.timing(way)) is not None}
        lines.append(Series(way, tuple((x, float(f"{at[x]:.4g}")) for x in ordered(at))))
    return tuple(lines)


def _at(cell: Cell, axis: str) -> str:
    return cell["mask"].removeprefix("blocks") if axis == "density" else cell[axis]


PAPER_VIEWS = (
    View(
        "paper-attention",
        "Attention of BERT-base's heads (Figs. 9 and 10)",
        "make bench-gpu BENCH=paper_attention",
        partial(_grid, bench=_GRID),
        _grid_picture,
    ),
    View(
        "paper-attention-summary",
        "Attention of BERT-base's heads: geometric means",
        "make bench-gpu BENCH=paper_attention",
        lambda results: summary_table(_grid_groups(results)),
        lambda results: summary_picture(_grid_groups(results)),
    ),
    View(
        "paper-attention-everyone",
        "Attention of BERT-base's heads: everyone's times",
        "make bench-gpu BENCH=paper_attention",
        lambda results: cell_table(results, (_GRID,)),
    ),
    View(
        "paper-host",
        "What the host adds to a call of attention (Fig. 13)",
        "make bench-gpu BENCH=paper_attention",
        _host,
    ),
    View(
        "paper-attention-cpu",
        "Attention of BERT-base's heads on NumPy",
        command("paper_attention", " -m 'not gpu'"),
        partial(_grid, bench=f"{_GRID}_cpu"),
    ),
    View(
        "paper-table2",
        "Sparsity of the masks at 1024 tokens (Table 2)",
        command("paper_masks"),
        partial(_statistics, seq="1024"),
    ),
    View("paper-masks", "Masks at all lengths", command("paper_masks"), _statistics),
    *FUSION_VIEWS,
    View("import", "Import time", command("paper_start", " -k import"), _imports),
    View("install", "Install size", command("paper_start", " -k install"), _install),
    View(
        "first-result",
        "From the start of a process to the first result",
        command("paper_start", " -k first"),
        lambda results: cell_table(results, (f"{_START}::bench_first_result",)),
    ),
    View(
        "scaling",
        "Attention by length, density and batch",
        "make bench-gpu BENCH=paper_scaling",
        lambda results: cell_table(results, (_SCALING,)),
        _scaling_picture,
    ),
    View(
        "scaling-cpu",
        "Attention by length, density and batch, on NumPy",
        command("paper_scaling", " -m 'not gpu'"),
        lambda results: cell_table(results, (f"{_SCALING}_cpu",)),
    ),
)
"""In the order of the report."""
