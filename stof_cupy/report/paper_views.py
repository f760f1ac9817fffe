"""The paper's experiments (STOF, arXiv 2506.06095, section 6) in our results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from stof_cupy.report.cells import Cell, joined
from stof_cupy.report.pictures import Panel, Picture, Series
from stof_cupy.report.results import Results, Timing
from stof_cupy.report.tables import Table, number
from stof_cupy.report.views import (
    View,
    caption,
    cell_table,
    grid_table,
    ordered,
    ratio_picture,
    stamps,
    summary_table,
    value_table,
)

__all__ = ["PAPER_VIEWS"]

_GRID = "bench_paper_attention.py::bench_paper"
_SCALING = "bench_paper_scaling.py::bench_scaling"
_SEGMENT = "bench_paper_fusion.py::bench_segment"
_ABLATION = "bench_paper_fusion.py::bench_ablation"
_TUNING = ("bench_paper_tuning.py::bench_tuning", "bench_paper_tuning.py::bench_tuning_heavy")
_START = "bench_paper_start.py"
_PEERS = ("FA2", "FA3", "FA4", "cuDNN", "SDPA-mask", "Flex", "Flex+FA4", "FlashInfer")


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


def _grid_summary(results: Results) -> Table | None:
    cells = joined(results.of(_GRID))
    masks = ordered(cell["mask"] for cell in cells)
    groups = {mask: [cell for cell in cells if cell["mask"] == mask] for mask in masks}
    kinds = ("paper", "artifact")
    every = {f"all {k}": [c for c in cells if c["mask"].startswith(f"{k}-")] for k in kinds}
    return summary_table({**groups, **every}, _PEERS)


def _statistics(results: Results, seq: str = "") -> Table | None:
    timings = results.of("bench_paper_masks.py::bench_statistics")
    return value_table(
        [each for each in timings if not seq or each["seq"] == seq],
        {
            "mask": "mask",
            "tokens": "seq",
            "sparsity": _percent("sparsity"),
            "printed in the paper": _percent("printed"),
            "64x64 tiles visited": _percent("tiles"),
            "of them part": _percent("part"),
            "visited in vain": _percent("waste"),
            "KiB": lambda each: float(each["mask_kib"]),
            "built in ms": lambda each: each.p50,
        },
    )


def _percent(name: str) -> Callable[[Timing], str]:
    def read(each: Timing) -> str:
        value = each[name]
        return "" if value is None else f"{100 * float(value):.1f}%"

    return read


def _segments(results: Results) -> Table | None:
    cells = joined(results.of(_SEGMENT))
    rows = []
    for cell in cells:
        fused, alone = cell.timing("ours fused"), cell.timing("ours detached")
        if fused is None or alone is None:
            continue
        spread = fused["worst_over_best"]
        rows.append(
            (
                *(cell[name] for name in ("segment", "backend", "hidden", "batch", "seq")),
                number(alone.p50),
                number(fused.p50),
                f"{alone.p50 / fused.p50:.2f}x",
                f"{fused['settings']}",
                f"{float(spread):.2f}x",
            )
        )
    columns = ("segment", "backend", "hidden", "batch", "tokens", "one by one, ms", "as one, ms")
    more = ("gain", "settings", "worst setting over best")
    return Table((*columns, *more), tuple(rows), stamps(cells)) if rows else None


def _gains(
    results: Results, bench: str, base: str, ways: Sequence[str], label: Callable[[Cell], str]
) -> Picture | None:
    """Return bars of how many times as fast some ways are as another of ours."""
    cells = joined(results.of(bench))
    panels = []
    for backend in ordered(cell["backend"] for cell in cells):
        here = [c for c in cells if c["backend"] == backend and c.timing(base) is not None]
        series = []
        for way in ways:
            points = [
                (label(cell), round(slow.p50 / fast.p50, 4))
                for cell in here
                if (fast := cell.timing(way)) and (slow := cell.timing(base))
            ]
            if points:
                series.append(Series(way.removeprefix("ours, "), tuple(points)))
        if series:
            panels.append(Panel(backend, tuple(series)))
    if not panels:
        return None
    height = f"times as fast as {base.removeprefix('ours').strip(', ')}"
    return Picture("bars", tuple(panels), "", height, even=True, caption=caption(cells))


def _stack(cell: Cell) -> str:
    return f"({cell['batch']}, {cell['seq']})"


def _segment(cell: Cell) -> str:
    return f"{cell['segment']} {cell['hidden']} {_stack(cell)}"


def _tuning(results: Results) -> Table | None:
    return value_table(
        results.of(*_TUNING),
        {
            "backend": "backend",
            "batch": "batch",
            "tokens": "seq",
            "tune": lambda each: "full" if each.bench.endswith("heavy") else "fast",
            "seconds": lambda each: float(each["tuned_s"]),
            "settings timed": "timed",
            "ruled out": "pruned",
            "gain over the rules": lambda each: f"{float(each['gain']):.3f}x",
            "timing": _percent("timing_share"),
            "making": _percent("making_share"),
            "search": _percent("search_share"),
        },
    )


def _choice(results: Results) -> Table | None:
    cells = joined(results.of("bench_paper_tuning.py::bench_choice"))
    return grid_table(cells, {"mask": "ms", "seq": "tokens"}, "step")


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
            panels.append(Panel(kind or axis, _lines(part, axis)))
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


def _pytest(name: str, more: str = "") -> str:
    return f"pytest benchmarks/bench_{name}.py{more} --benchmark-json=out.json"


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
        _grid_summary,
    ),
    View(
        "paper-attention-cpu",
        "Attention of BERT-base's heads on NumPy",
        _pytest("paper_attention", " -m 'not gpu'"),
        partial(_grid, bench=f"{_GRID}_cpu"),
    ),
    View(
        "paper-table2",
        "Sparsity of the masks at 1024 tokens (Table 2)",
        _pytest("paper_masks"),
        partial(_statistics, seq="1024"),
    ),
    View("paper-masks", "Masks at all lengths", _pytest("paper_masks"), _statistics),
    View(
        "paper-segments",
        "Operators as one segment, and one by one (Figs. 3 and 4)",
        _pytest("paper_fusion", " -k segment"),
        _segments,
        lambda results: _gains(results, _SEGMENT, "ours detached", ("ours fused",), _segment),
    ),
    View(
        "paper-ablation",
        "A BERT encoder with sparse attention alone, fusion alone, and both (Fig. 12)",
        _pytest("paper_fusion", " -k ablation"),
        lambda results: cell_table(results, (_ABLATION,)),
        lambda results: _gains(
            results,
            _ABLATION,
            "ours, neither",
            ("ours", "ours, attention alone", "ours, fusion alone"),
            _stack,
        ),
    ),
    View(
        "paper-tuning",
        "What tuning takes, and where it goes (Table 4, Fig. 13)",
        _pytest("paper_tuning"),
        _tuning,
    ),
    View(
        "paper-choice",
        "Choosing attention's kernel, and lowering a mask for it (Fig. 13)",
        _pytest("paper_tuning", " -k choice"),
        _choice,
    ),
    View("import", "Import time", _pytest("paper_start", " -k import"), _imports),
    View("install", "Install size", _pytest("paper_start", " -k install"), _install),
    View(
        "first-result",
        "From the start of a process to the first result",
        _pytest("paper_start", " -k first"),
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
        _pytest("paper_scaling", " -m 'not gpu'"),
        lambda results: cell_table(results, (f"{_SCALING}_cpu",)),
    ),
)
"""In the order of the report."""
