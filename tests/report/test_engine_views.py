"""What the report says of whole models."""

from __future__ import annotations

from pathlib import Path

from stof_cupy.report import read_file
from stof_cupy.report.cells import joined
from stof_cupy.report.other_views import view
from tests.report.make import ragged, record, searches, write

COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results"


def test_a_stack_is_beside_all_peers(tmp_path: Path) -> None:
    records = [
        record("paper_stacks.py::bench_stacks", way, [9.0], device=(ms, ms, ms), **cell)
        for size in ("16x2048", "1x128")
        for cell in ({"stack": "vit-b", "size": size, "mask": "full"},)
        for way, ms in (("ours", 2.0), ("eager", 5.0), ("flex", 3.0))
    ]
    table = view("stacks").table(read_file(write(tmp_path / "x.json", records)))
    assert table.columns[-2:] == ("1x128", "16x2048")
    assert table.rows == (("vit-b", "full", "2.00 1.50x flex", "2.00 1.50x flex"),)


def test_the_committed_stacks_are_whole() -> None:
    cells = joined(read_file(COMMITTED / "paper_stacks_h200.json").timings)
    ways = {"ours", "eager", "compiled", "flex"}
    assert len(cells) == 73 and all({t.way for t in cell.timings} == ways for cell in cells)
    for timing in (each for cell in cells for each in cell.timings):
        assert timing.rounds >= 10 and timing["cold_s"] > 0 and 0 < timing["error"] < 0.02
        assert timing["matmul_tflops"] > 600 and timing.p20 <= timing.p50 <= timing.p80


def test_packed_is_beside_padded_and_one_by_one(tmp_path: Path) -> None:
    results = read_file(write(tmp_path / "x.json", ragged()))
    table = view("ragged").table(results)
    assert table.columns[2:4] == ("sequences", "mean length")
    assert table.rows == (
        ("minilm", "cuda", "64", "254", "2.00", "3.00", "50.0", "1.50x", "25.00x", ""),
        ("bert-base", "cuda", "64", "254", "7.00", "12.0", "", "1.71x", "", "1.83x"),
    )
    assert view("overview").table(results) is None  # all of them are ours


def test_searches_are_rows_and_layers_columns(tmp_path: Path) -> None:
    results = read_file(write(tmp_path / "x.json", searches()))
    table = view("search").table(results)
    assert table.columns == ("kernels", "search", "bert 1x128", "bert 1x512")
    assert table.rows == (
        ("cuda", "two stages", "0.40%, 0.80%; 32 (2.5x)", "3.00%, 6.00%; 8 (2.5x)"),
        ("cuda", "exhaustive", "0.00%, 0.00%; 32 (2.5x)", ""),
    )
    assert view("overview").table(results) is None and view("losses").table(results) is None


def test_first_results_of_stacks() -> None:
    table = view("first-stack").table(read_file(COMMITTED / "paper_start_h200.json"))
    rows = {row[:3]: row[3:] for row in table.rows}
    empty = rows["bert-base:8x512:longformer", "fast", "empty"]
    assert empty == ("0.537", "0.195", "7.97", "8.17", "25", "0")
    assert len(rows) == 6 and all(row[-1] == "0" for row in table.rows)
