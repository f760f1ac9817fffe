"""How benchmarks/bench_paper_stacks.py measures a stack, and what is said of its results."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import bench_paper_stacks
import engine_measure
import engine_profile
import pytest
import summary_stacks
from engine_stacks import ANCHORS, GRID, STACKS, Cell

from stof_cupy.errors import ArgumentError
from stof_cupy.report import read_file
from stof_cupy.report.cells import joined
from stof_cupy.runtime import Options
from tests.report.make import record, write

CELL = "vit-b:1x128:full"


@pytest.mark.parametrize("cell", ["bert-base:1x128:full", "bert-base:8x512:longformer"])
def test_each_kernel_of_a_layer_has_a_predicted_time(cell: str) -> None:
    """A product and its norm are one kernel or two, as the model has it."""
    named = Cell.parse(cell)
    graph, mask = engine_profile.layers(named)
    every = engine_profile.predicted(graph, named, mask)
    layer = every[len(every) // 3 : 2 * len(every) // 3]
    products = [label for label, _ in layer if label.startswith("gemm")]
    norms = [label for label, _ in layer if "layer_norm" in label]
    assert (len(products), len(norms)) == (4, 2) and all(us > 0 for _, us in every)


def test_layers_that_are_not_alike_are_not_profiled() -> None:
    with pytest.raises(ArgumentError, match="t5:1x128:full, expected a stack whose layers are"):
        engine_profile.layers(Cell.parse("t5:1x128:full"))


def test_all_cells_are_measured_and_those_of_a_size_follow_each_other() -> None:
    assert {*map(str, bench_paper_stacks.LARGE_FIRST)} == {*map(str, (*GRID, *ANCHORS))}
    assert len(bench_paper_stacks.LARGE_FIRST) == 73
    groups = [(cell.stack.name, cell.seq) for cell in bench_paper_stacks.LARGE_FIRST]
    changes = sum(a != b for a, b in pairwise(groups))
    assert changes + 1 == len(set(groups)) == 19


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A stack of two layers that is timed for a moment."""
    pytest.importorskip("torch")
    monkeypatch.setattr(engine_measure, "SPENT", 1e-9)
    few = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "inner": 96}
    return Cell(replace(STACKS["vit-b"], **few), 2, 64, "sliding")


class Benchmark:
    """pytest-benchmark's fixture, as far as it is used."""

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}
        self.data: list[float] = []
        self.stats = self

    def pedantic(self, run: Any, rounds: int) -> None:
        for _ in range(rounds):
            run()
        self.data = [1e-3] * rounds


@pytest.mark.parametrize("way", ["ours", "eager"])
def test_a_way_is_found_right_and_noted(small: Cell, way: str) -> None:
    made, benchmark = engine_measure.Shared(small, "cpu"), Benchmark()
    bench_paper_stacks.record(benchmark, made, way)
    info = benchmark.extra_info
    assert info["way"] == way and 0 < info["error"] <= engine_measure.ERROR * made.floor < 0.05
    assert info["cold_s"] >= 0 and 0 < info["density"] <= 1 and info["gflop"] > 0
    assert len(benchmark.data) == 10 and ("scheme" in info) == ("tune" in info) == (way == "ours")


def test_what_is_wrong_is_not_timed(small: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a peer it says why there is no time; of ours it is an error."""
    made = engine_measure.Shared(small, "cpu")
    monkeypatch.setattr(bench_paper_stacks, "shared", lambda cell, device: made)
    monkeypatch.setattr(made, "error", lambda got: 3 * made.floor)
    with pytest.raises(pytest.skip.Exception, match="eager: AssertionError: error"):
        bench_paper_stacks.measure(Benchmark(), str(small), "eager", "cpu")
    monkeypatch.setattr(made, "error", lambda got: float("nan"))
    with pytest.raises(AssertionError, match="error nan"):
        made.checked("ours", Options())


def cell_of(path: Path, cell: str, tflops: float = 0.0, **times: float) -> Any:
    """Return a cell as it is read from a file."""
    stack, size, mask = cell.split(":")
    function, named = "paper_stacks.py::bench_stacks", {"stack": stack, "size": size, "mask": mask}
    records = [record(function, way, [ms], **named) for way, ms in times.items()]
    for each in records:
        each["extra_info"] |= {"error": 0.005} | ({"matmul_tflops": tflops} if tflops else {})
    (found,) = joined(read_file(write(path / "x.json", records)).timings)
    return found


def test_goals_go_by_what_the_card_does(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, "bert-base:1x128:full", ours=0.3)
    assert summary_stacks.scaled_goal(cell) == summary_stacks.GOALS["bert-base:1x128:full"] == 0.25
    half = summary_stacks.GOALS_TFLOPS / 2
    slower = cell_of(tmp_path, "bert-base:1x128:full", half, ours=0.3)
    assert summary_stacks.scaled_goal(slower) == 0.5
    assert summary_stacks.row(slower).endswith("goal 0.5  error 0.005")
    assert summary_stacks.scaled_goal(cell_of(tmp_path, CELL, half, ours=0.3)) is None


def test_eager_pytorch_is_not_compiled(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, CELL, ours=2.0, eager=2.5, compiled=4.0, flex=3.0)
    assert "1.50x" in summary_stacks.row(cell)
    assert summary_stacks.lines([cell])[-1].startswith(
        "beside torch.compile: 1 cells, geomean 1.50"
    )
    alone = cell_of(tmp_path, CELL, ours=2.0, eager=2.5)
    assert summary_stacks.lines([alone])[-1] == "nothing beside torch.compile"
