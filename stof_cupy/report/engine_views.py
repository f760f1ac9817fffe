"""Whole models in our results: stacks, batches of many lengths, the search, and first results."""

from __future__ import annotations

from collections.abc import Sequence

from stof_cupy.report.cells import joined
from stof_cupy.report.machines import machine_column
from stof_cupy.report.pictures import Picture
from stof_cupy.report.results import Results, Timing
from stof_cupy.report.tables import Table, number, ordered
from stof_cupy.report.views import (
    View,
    bars_picture,
    cell_table,
    grid_table,
    ratio_picture,
    stamps,
    value_table,
)

__all__ = ["ENGINE_VIEWS"]

_STACKS = "bench_paper_stacks.py::bench_stacks"
_RAGGED = "bench_ragged.py"
_RAGGED_WAYS = ("packed", "padded", "one by one")
_SEARCH = "bench_search.py::bench_search"


def _engine_picture(results: Results) -> Picture | None:
    return bars_picture(
        joined(results.of("bench_engine.py")),
        "mask",
        lambda cell: f"({cell['batch']}, {cell['seq']})",
        "times as fast as transformers",
    )


def _stacks(results: Results) -> Table | None:
    rows = {"stack": "ms, times as fast as the best peer", "mask": "mask"}
    cells = joined(results.of(_STACKS))
    at = {name: ordered(cell[name] for cell in cells) for name in rows}
    cells.sort(key=lambda cell: [at[name].index(cell[name]) for name in rows])
    return grid_table(cells, rows, "size")


def _stack_picture(results: Results) -> Picture | None:
    return ratio_picture(
        joined(results.of(_STACKS)),
        panel="stack",
        across="size",
        series="mask",
        labels=("(batch, tokens)", ""),
    )


def _ragged(results: Results) -> Table | None:
    """Return ms of each way, and how many times as fast as the others what is packed is."""
    cells = [cell for cell in joined(results.of(_RAGGED)) if cell.timing("ours packed")]
    several = machine_column(cells)
    rows = []
    for cell in cells:
        times = [cell.timing(f"ours {way}") for way in _RAGGED_WAYS]
        packed = cell.timing("ours packed")
        shown = ("" if each is None else number(each.p50) for each in times)
        gains = (
            "" if each is None or packed is None else f"{each.p50 / packed.p50:.2f}x"
            for each in times[1:]
        )
        names = ("model", "backend", *several, "sequences")
        mean = number(float(cell["mean_length"]))
        rows.append((*(cell[name] for name in names), mean, *shown, *gains, _in_a_row(times)))
    columns = ("model", "backend", *several, "sequences", "mean length")
    more = (*(f"{way}, ms" for way in _RAGGED_WAYS), "padded / packed", "one by one / packed")
    last = "padded / packed in a row"
    return Table((*columns, *more, last), tuple(rows), stamps(cells)) if rows else None


def _in_a_row(times: Sequence[Timing | None]) -> str:
    """Return how many times as fast packed runs are as padded ones, waited for once in the end."""
    packed, padded = (each and each.info.get("in_a_row_ms") for each in times[:2])
    return f"{padded / packed:.2f}x" if packed and padded else ""


def _search(results: Results) -> Table | None:
    """Return a row for each search and a column for each layer that was searched."""
    cells = joined(results.of(_SEARCH))
    several = machine_column(cells)
    layers = ordered(_layer(cell.timings[0]) for cell in cells)
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for cell in cells:
        for each in cell.timings:
            at = cell["backend"], *(cell[name] for name in several), each.way.removeprefix("ours ")
            loss = f"{each['loss']:.2%}, {each['most']:.2%}"
            text = f"{loss}; {each['timed']:.0f} ({each['fewer']:.1f}x)"
            found.setdefault(at, {})[_layer(each)] = text
    rows = tuple((*at, *(texts.get(name, "") for name in layers)) for at, texts in found.items())
    note = (
        "Loss against the best of all, mean and at most of ten seeds; settings timed, and how many "
        "times fewer than all that is. Backend model: times are made up."
    )
    columns = ("kernels", *several, "search", *layers)
    return Table(columns, rows, (note, *stamps(cells))) if rows else None


def _layer(timing: Timing) -> str:
    return f"{timing['family']} {timing['batch']}x{timing['seq']}"


def _first(results: Results) -> Table | None:
    return value_table(
        results.of("bench_paper_start.py::bench_first_stack"),
        {
            "stack": "cell",
            "tune": "tune",
            "cache": "state",
            "import, s": "import_s",
            "program, s": "program_s",
            "first run, s": "first_s",
            "first result after the import, s": "result_s",
            "kernels in the cache": "compiled",
            "of 100 more lengths": "by_lengths",
        },
    )


ENGINE_VIEWS = (
    View(
        "engine",
        "all-MiniLM-L6-v2 through the engine",
        "make bench-gpu BENCH=engine",
        lambda results: cell_table(results, ("bench_engine.py",)),
        _engine_picture,
    ),
    View(
        "stacks",
        "Whole layer stacks (Fig. 11)",
        "make bench-gpu BENCH=paper_stacks",
        _stacks,
        _stack_picture,
    ),
    View(
        "ragged",
        "Sequences of 10 to 512 tokens: packed, padded, one by one",
        "make bench-gpu BENCH=ragged",
        _ragged,
    ),
    View(
        "search",
        "What the fusion search finds, and for how many timings",
        "make bench-gpu BENCH=search",
        _search,
    ),
    View(
        "first-stack",
        "The first result of a stack: from an empty cache, and in a second process",
        'make bench-gpu BENCH=paper_start ARGS="-k first_stack"',
        _first,
    ),
)
"""In the order of the report."""
