"""What is read of results files, and what becomes a cell."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stof_cupy.errors import ArgumentError
from stof_cupy.report import read_directory, read_file
from stof_cupy.report.cells import Summary, joined
from stof_cupy.report.other_views import view
from tests.report.make import record, stamp, write

COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results"


def test_a_file_of_one_run(tmp_path: Path) -> None:
    times = [3.0, 1.0, 2.0, 5.0, 4.0]
    path = write(tmp_path / "x.json", [record("a.py::bench_b", "Flex", times, mask=None, s=[1, 2])])
    (timing,) = read_file(path).timings
    assert (timing.bench, timing.way, timing.is_ours) == ("bench_a.py::bench_b", "Flex", False)
    assert timing.key == (("mask", "full"), ("s", "1x2"))
    assert (timing.p20, timing.p50, timing.p80, timing.rounds) == pytest.approx((1.8, 3, 4.2, 5))
    assert timing["s"] == "1x2" and timing["nothing"] is None and timing.wall_s == 1.5
    expected = "A GPU, driver 580.1, 2026-11-28, commit abcdef0"
    assert timing.run.stamp == expected


def test_device_times_are_taken_where_all_ways_have_them(tmp_path: Path) -> None:
    both = [
        record("a.py::bench_b", "ours", [9.0], device=(1, 2, 3), s=1),
        record("a.py::bench_b", "Flex", [8.0], device=(4, 5, 6), s=1),
    ]
    one = [
        record("a.py::bench_c", "ours", [9.0], device=(1, 2, 3), s=1),
        record("a.py::bench_c", "Flex", [8.0], s=1),
    ]
    found = read_file(write(tmp_path / "x.json", [*both, *one])).timings
    assert [each.p50 for each in found] == [2, 5, 9, 8]
    assert [each.rounds for each in found] == [20, 20, 1, 1]
    assert [each.host for each in found] == [9, 8, 9, 8]


def test_older_files_name_ways_by_functions() -> None:
    found = read_file(COMMITTED / "engine_minilm_h100_2026-11-28.json")
    assert {(each.bench, each.way) for each in found.timings} == {
        ("bench_engine.py", "ours"),
        ("bench_engine.py", "transformers"),
    }
    assert all(len(cell.timings) == 2 for cell in joined(found.timings))


def test_other_json_is_passed_over_and_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="results: got"):
        read_directory(tmp_path)
    (tmp_path / "other.json").write_text('{"cells": {}}')
    with pytest.raises(ArgumentError, match="pytest-benchmark wrote"):
        read_file(tmp_path / "other.json")
    (tmp_path / "lines.jsonl").write_text('{"benchmarks": []}\n{"benchmarks": []}\n')
    write(tmp_path / "x.json", [record("a.py::bench_b", "ours", [1.0])])
    assert len(read_directory(tmp_path).timings) == 1
    (tmp_path / "broken.json").write_text('{"benchmarks": [')
    with pytest.raises(ArgumentError, match=r"broken\.json: got JSONDecodeError"):
        read_directory(tmp_path)


@pytest.mark.parametrize("ms", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_refused_by_name(tmp_path: Path, ms: float) -> None:
    records = [record("a.py::bench_b", "ours", [1.0], device=(1.0, ms, 2.0), s=1)]
    with pytest.raises(ArgumentError, match=r"bench_a.py::bench_b\[1-ours\]"):
        read_file(write(tmp_path / "x.json", records))


def test_another_way_of_ours_is_no_peer() -> None:
    found = read_directory(COMMITTED)
    peers = {t.way for t in found.of("bench_gemm.py") if not t.is_ours and t.way != "copy"}
    assert peers == {"matmul", "Lt", "eager", "compile"}


def test_a_ratio_is_of_one_run(tmp_path: Path) -> None:
    stamps = [stamp("2026-11-27"), stamp("2026-11-28")]
    records = [
        record("a.py::bench_b", "ours", [4.0], s=1, run=0),
        record("a.py::bench_b", "Flex", [8.0], s=1, run=0),
        record("a.py::bench_b", "ours", [1.0], s=1, run=1),
        record("a.py::bench_b", "ours", [1.0], s=2, run=1),
    ]
    skipped = [{"fullname": "benchmarks/bench_a.py::bench_b[2-FA3]", "reason": "none", "run": 1}]
    found = read_file(write(tmp_path / "x.json", records, stamps, skipped))
    one, two = joined(found.timings)
    assert (one.run.date, one.ratio()) == ("2026-11-27", 2.0)
    assert (two.run.date, two.ratio()) == ("2026-11-28", None)
    (skip,) = found.skips
    assert (skip.bench, skip.case, skip.reason) == ("bench_a.py::bench_b", "2-FA3", "none")


def test_of_equal_runs_the_newest_counts_and_machines_stay_apart(tmp_path: Path) -> None:
    stamps = [stamp("2026-11-28"), stamp("2026-11-27"), stamp("2026-11-26", gpu="Another")]
    records = [
        record("a.py::bench_b", way, [ms], s=1, run=run)
        for run, times in enumerate(((1.0, 3.0), (1.0, 2.0), (1.0, 1.5)))
        for way, ms in zip(("ours", "Flex"), times, strict=True)
    ]
    cells = joined(read_file(write(tmp_path / "x.json", records, stamps)).timings)
    assert {(cell.run.machine, cell.ratio()) for cell in cells} == {("A GPU", 3), ("Another", 1.5)}


def test_summary_counts_losses_and_names_the_best_of_peers(tmp_path: Path) -> None:
    records = [
        record("a.py::bench_b", way, [ms], s=s)
        for s, times in enumerate(((2.0, 8.0, 4.0), (4.0, 1.0, 2.0), (1.0,)))
        for way, ms in zip(("ours", "FA2", "Flex"), times, strict=False)
    ]
    cells = joined(read_file(write(tmp_path / "x.json", records)).timings)
    assert [cell.best().way for cell in cells[:2]] == ["Flex", "FA2"]
    every, flex = Summary.of(cells), Summary.of(cells, "ours", ("Flex",))
    assert (every.count, every.lost, every.worst, every.best) == (2, 1, 0.25, 2)
    assert every.geomean == pytest.approx(math.sqrt(2 * 0.25))
    assert flex.geomean == pytest.approx(1) and Summary.of(cells[2:]) is None


def test_a_time_with_the_hosts_in_it_is_marked(tmp_path: Path) -> None:
    records = [
        record("paper_attention.py::bench_paper", way, [ms], mask="m", batch=1, seq=128)
        for way, ms in (("ours", 1.0), ("Flex", 2.0))
    ]
    table = view("paper-attention").table(read_file(write(tmp_path / "x.json", records)))
    assert table.rows[0][-1] == "1.00 2.00x Flex" and len(table.notes) == 1
    records[1]["extra_info"]["graph"] = False
    table = view("paper-attention").table(read_file(write(tmp_path / "x.json", records)))
    assert table.rows[0][-1] == "1.00 2.00x Flex*" and "could not be captured" in table.notes[0]


def test_views_of_several_machines_say_which(tmp_path: Path) -> None:
    stamps = [stamp(gpu="One"), stamp(gpu="Two")]
    records = [
        record("paper_attention.py::bench_paper", way, [ms], mask=mask, batch=1, seq=s, run=run)
        for run in (0, 1)
        for mask in ("paper-causal", "artifact-sliding")
        for s in (4096, 128)
        for way, ms in (("ours", 1.0), ("FA2", 2.0 + run), ("Flex", 3.0 + run))
    ]
    results = read_file(write(tmp_path / "x.json", records, stamps))
    for run, fa2 in (("One", "2.00x FA2"), ("Two", "3.00x FA2")):
        table = view("paper-attention").table(results)
        (row,) = (r for r in table.rows if r[0] == "paper-causal" and run in r)
        assert row[-2:] == (f"1.00 {fa2}",) * 2 and table.columns[-2:] == ("128", "4096")
    assert [panel.title for panel in view("paper-attention").picture(results).panels] == [
        *("paper-causal, One", "paper-causal, Two"),
        *("artifact-sliding, One", "artifact-sliding, Two"),
    ]
    summary = view("paper-attention-summary").table(results)
    assert [row[:4] for row in summary.rows[-2:]] == [
        ("all artifact", "One", "2", "2.00x"),
        ("all artifact", "Two", "2", "3.00x"),
    ]
    host = view("paper-host").table(results)
    assert host.rows[0] == ("ours", "One", "0", "0")


def ablation(model: str, run: int, gpu: str = "cuda") -> list[dict[str, Any]]:
    """Return a model's records: both twice as fast as neither, attention alone as fast."""
    named = {"model": model} if model else {}
    times = {"ours": 2.0, "ours, attention alone": 4.0, "ours, neither": 4.0}
    name = "paper_fusion.py::bench_ablation"
    return [
        record(name, way, [ms], backend=gpu, **named, batch=1, seq=128, run=run)
        for way, ms in times.items()
    ]


def test_models_take_the_place_of_bert_where_they_were_measured(tmp_path: Path) -> None:
    stamps = [stamp("2026-11-27"), stamp("2026-11-28"), stamp("2026-11-27", gpu="Another")]
    old, t5, other = ablation("", 0), ablation("t5", 1), ablation("", 2)
    results = read_file(write(tmp_path / "x.json", [*old, *t5, *other], stamps))
    table = view("paper-ablation").table(results)
    names = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert {(row["machine"], row["model"]) for row in names} == {
        ("A GPU", "t5"),
        ("Another", "BERT"),
    }
    picture = view("paper-ablation").picture(results)
    assert [panel.title for panel in picture.panels] == ["t5, cuda, A GPU", "BERT, cuda, Another"]
    assert [(s.name, s.points[0][1]) for s in picture.panels[0].series] == [
        ("both", 2.0),
        ("attention alone", 1.0),
    ]


def test_a_product_counts_once_beside_torch_compile_where_that_was_timed(tmp_path: Path) -> None:
    stamps = [stamp("2026-11-28"), stamp("2026-11-27")]
    ways = {"bench_gemm": ("ours", "Lt"), "bench_compiled_heavy": ("ours", "Lt", "compile")}
    times = {"ours": 2.0, "Lt": 6.0, "compile": 3.0}
    records = [
        record(f"gemm.py::{name}", way, [times[way]], kind="fold", shape=shape, run=run)
        for run, name in enumerate(ways)
        for shape in ("512x8x8", "16x8x8")[: 2 - run]
        for way in ways[name]
    ]
    table = view("gemm-summary").table(read_file(write(tmp_path / "x.json", records, stamps)))
    (row,) = table.rows
    found = dict(zip(table.columns, row, strict=True))
    assert (found["cells"], found["worst"], found["compile"]) == ("2", "1.50x", "1.50x")


def test_no_committed_run_is_without_results() -> None:
    for path in COMMITTED.glob("*.json"):
        content = json.loads(path.read_text())
        if "runs" in content and "benchmarks" in content:
            used = {each["run"] for each in (*content["benchmarks"], *content["skipped"])}
            assert used == {*range(len(content["runs"]))}, path.name
