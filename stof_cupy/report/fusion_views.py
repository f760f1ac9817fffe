"""The paper's experiments on fusion and its search (STOF, arXiv 2506.06095, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stof_cupy.report.cells import Cell, joined
from stof_cupy.report.machines import by_machine, machine_column, titled
from stof_cupy.report.pictures import Panel, Picture, Series
from stof_cupy.report.results import Results, Timing
from stof_cupy.report.tables import Table, number, ordered
from stof_cupy.report.views import (
    View,
    caption,
    cell_table,
    command,
    grid_table,
    percent,
    stamps,
    value_table,
)

__all__ = ["FUSION_VIEWS"]

_SEGMENT = "bench_paper_fusion.py::bench_segment"
_ABLATION = "bench_paper_fusion.py::bench_ablation"
_TUNING = ("bench_paper_tuning.py::bench_tuning", "bench_paper_tuning.py::bench_tuning_heavy")


def _segments(results: Results) -> Table | None:
    cells = joined(results.of(_SEGMENT))
    several = machine_column(cells)
    names = ("segment", "backend", *several, "hidden", "batch", "seq")
    rows = []
    for cell in cells:
        fused, alone = cell.timing("ours fused"), cell.timing("ours detached")
        if fused is None or alone is None:
            continue
        spread = fused["worst_over_best"]
        rows.append(
            (
                *(cell[name] for name in names),
                number(alone.p50),
                number(fused.p50),
                f"{alone.p50 / fused.p50:.2f}x",
                f"{fused['settings']}",
                f"{float(spread):.2f}x",
            )
        )
    columns = ("segment", "backend", *several, "hidden", "batch", "tokens")
    more = ("one by one, ms", "as one, ms", "gain", "settings", "worst setting over best")
    return Table((*columns, *more), tuple(rows), stamps(cells)) if rows else None


def _segments_picture(results: Results) -> Picture | None:
    """Return the gain of a segment over its operators by width, a panel a segment and machine."""
    measured = [
        cell
        for cell in joined(results.of(_SEGMENT))
        if cell.timing("ours fused") and cell.timing("ours detached")
    ]
    panels = []
    for segment in ordered(cell["segment"] for cell in measured):
        cells = [cell for cell in measured if cell["segment"] == segment]
        for machine, here in by_machine(cells).items():
            lines = []
            for hidden in ordered(cell["hidden"] for cell in here):
                points = tuple(
                    (_stack(cell), round(cell.ratio("ours fused", ("ours detached",)) or 0.0, 4))
                    for cell in here
                    if cell["hidden"] == hidden
                )
                lines.append(Series(f"hidden {hidden}", points))
            panels.append(Panel(titled(segment, machine, measured), tuple(lines)))
    if not panels:
        return None
    height = "times as fast as one by one"
    return Picture("bars", tuple(panels), "", height, even=True, caption=caption(measured))


def _named(timings: Sequence[Timing]) -> tuple[Timing, ...]:
    """Return timings by model; those of older runs, BERT's, where a machine has no others."""
    others = {(each.run.machine, each["backend"]) for each in timings if each["model"]}
    found = []
    for each in timings:
        if each["model"] or (each.run.machine, each["backend"]) not in others:
            key = {"model": "BERT"} | dict(each.key)
            found.append(replace(each, key=tuple(key.items())))
    return tuple(found)


def _ablation(results: Results) -> Table | None:
    """Return the ms of everything in a model, of each half, and of neither."""
    return cell_table(Results(_named(results.of(_ABLATION))), (_ABLATION,))


def _ablation_picture(results: Results) -> Picture | None:
    """Return how many times as fast each half, and both, make a model: a panel each."""
    base = ("ours, neither",)
    cells = joined(_named(results.of(_ABLATION)))
    measured = [cell for cell in cells if cell.timing(*base)]
    panels = []
    for backend, model in dict.fromkeys((cell["backend"], cell["model"]) for cell in measured):
        own = [cell for cell in measured if (cell["backend"], cell["model"]) == (backend, model)]
        for machine, here in by_machine(own).items():
            bars = []
            for way in ("ours", "ours, attention alone", "ours, fusion alone"):
                points = tuple(
                    (_stack(cell), round(cell.ratio(way, base) or 0.0, 4))
                    for cell in here
                    if cell.timing(way) is not None
                )
                name = "both" if way == "ours" else way.removeprefix("ours, ")
                bars += [Series(name, points)] if points else []
            title = titled(f"{model}, {backend}", machine, measured)
            panels.append(Panel(title, tuple(bars)))
    if not panels:
        return None
    height = "times as fast as with neither"
    return Picture("bars", tuple(panels), "", height, even=True, caption=caption(measured))


def _stack(cell: Cell) -> str:
    return f"({cell['batch']}, {cell['seq']})"


def _tuning(results: Results) -> Table | None:
    return value_table(
        _named(results.of(*_TUNING)),
        {
            "model": "model",
            "backend": "backend",
            "batch": "batch",
            "tokens": "seq",
            "tune": lambda each: "full" if each.bench.endswith("heavy") else "fast",
            "seconds": lambda each: float(each["tuned_s"]),
            "settings timed": "timed",
            "ruled out": "pruned",
            "gain over the rules": lambda each: f"{float(each['gain']):.3f}x",
            "timing": percent("timing_share"),
            "making": percent("making_share"),
            "search": percent("search_share"),
        },
    )


def _choice(results: Results) -> Table | None:
    cells = joined(results.of("bench_paper_tuning.py::bench_choice"))
    return grid_table(cells, {"mask": "ms", "seq": "tokens"}, "step")


FUSION_VIEWS = (
    View(
        "paper-segments",
        "Operators as one segment, and one by one (Figs. 3 and 4)",
        command("paper_fusion", " -k segment"),
        _segments,
        _segments_picture,
    ),
    View(
        "paper-ablation",
        "Models with sparse attention alone, fusion alone, and both (Fig. 12)",
        command("paper_fusion", " -k ablation"),
        _ablation,
        _ablation_picture,
    ),
    View(
        "paper-tuning",
        "What tuning takes, and where it goes (Table 4, Fig. 13)",
        command("paper_tuning"),
        _tuning,
    ),
    View(
        "paper-choice",
        "Choosing attention's kernel, and lowering a mask for it (Fig. 13)",
        command("paper_tuning", " -k choice"),
        _choice,
    ),
)
"""In the order of the report."""
