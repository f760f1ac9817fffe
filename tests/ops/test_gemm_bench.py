"""benchmarks/summary_gemm.py and gemm_regret.py without a GPU: their files and their tables."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench_gemm
import device_time
import gemm_cells
import gemm_regret
import numpy as np
import pytest
import summary_gemm

from stof_cupy.ops import gemm_model
from stof_cupy.ops.gemm_choice import name_of
from stof_cupy.ops.gemm_model import Constants
from stof_cupy.ops.gemm_sm90 import Layout
from tests.ops.gpus import H100

TRUTH = replace(Constants(), tensor=0.4, gelu=1.0)
"""The GPU of these tests is a model."""


def written(path: Path, ours: float, cells: list[tuple[str, Any]], **ways: float) -> Path:
    """Write a results file: ours takes `ours` of the best time, others theirs."""
    found: list[Any] = [{"way": "copy", "gbytes_per_s": 3000.0, "facts": asdict(H100)}]
    for kind, shape in cells:
        problem = gemm_cells.problem_of(kind, shape)
        every = gemm_model.explain(problem, Layout(), H100)
        truth = gemm_model.explain(problem, Layout(), H100, TRUTH)
        near = {each.choice for each in (*every[:8], *truth[:8])}
        times = {name_of(each.choice): each.us for each in truth if each.choice in near}
        common = {"kind": kind, "shape": list(shape), "graph": True, "gbytes_per_s": 1500.0}
        best = min(times.values()) / 1e3
        more = {"choice": "c", "model": name_of(every[0].choice), "times": times}
        found.append({**common, **more, "way": "ours", "device_p50_ms": ours * best})
        found += [{**common, "way": w, "device_p50_ms": t * best} for w, t in ways.items()]
    path.write_text(json.dumps({"benchmarks": [{"extra_info": info} for info in found]}))
    return path


def test_the_grid_is_the_issues() -> None:
    assert len(gemm_cells.shapes("plain")) == 6 * 11 + 2
    assert max(n for _, n, _ in gemm_cells.shapes("layer_norm")) == 2048
    assert all(gemm_cells.problem_of("swiglu", s).columns == s[1] for s in [(16, 3072, 768)])


def test_products_that_torch_compiles_have_many_rows() -> None:
    cells = {each.values[:2] for each in bench_gemm.cases(bench_gemm.slow, "plain", least=512)}
    count = Counter(kind for kind, _ in cells)
    assert count == {"bias_gelu": 35, "swiglu": 35, "fold": 35, "layer_norm": 18}
    assert {shape[0] for _, shape in cells} == {512, 4096, 8192, 32_768}


def test_goals(tmp_path: Path) -> None:
    shapes = [(1, 16_384, 2048), (16, 3072, 2048), (512, 768, 768), (8192, 8192, 8192)]
    cells = [("plain", shape) for shape in shapes] + [("bias_gelu", (32_768, 3072, 768))]
    first = written(tmp_path / "a", 1.0, cells, matmul=1.1, Lt=1.2, templates=2.0)
    read, copy = summary_gemm.read([first])
    assert [cell.shape for cell in read] == [shape for _, shape in cells] and copy == 3000
    goals = "\n".join(summary_gemm.goals(read, copy))
    assert "plain: 4 cells, 4 won, geomean 1.100x, worst 1.10x" in goals
    assert "plain, our templates alone, M >= 512: 2 cells, 0 won, geomean 0.550x" in goals
    assert "M = 32768, K <= 1024: 1 cells, 1 won, geomean 1.100x" in goals and "NOT met" in goals
    assert "(1, 16384, 2048): 0.50 of the copy's bandwidth; wanted 0.85: NOT met" in goals
    assert "(16, 3072, 2048): 0.50 of the copy's bandwidth; wanted 0.6: NOT met" in goals
    # A cell of a later file is that file's alone.
    second = written(tmp_path / "b", 1.0, cells[2:3], compile=0.9)
    read, _ = summary_gemm.read([first, second])
    (cell,) = (cell for cell in read if cell.shape == (512, 768, 768))
    assert cell.ratio() == pytest.approx(0.9) and cell.peer is not None
    assert "plain, our templates alone, M >= 512: 2 cells, 1 beside torch.compile, " in "\n".join(
        summary_gemm.goals(read, copy)
    )
    assert cell.peer[1] == "compile" and "0.90x compile" in str(cell)


def test_of_several_runs_ours_are_the_newest(tmp_path: Path) -> None:
    """Templates of an older run are not set beside a newer peer; peers of that run are marked."""
    cell = ("bias_gelu", (512, 768, 768))
    runs = (
        written(tmp_path / "new", 1.0, [cell], Lt=1.2),
        written(tmp_path / "old", 1.5, [cell], Lt=1.3, templates=2.0, compile=1.1),
    )
    every = [json.loads(run.read_text())["benchmarks"] for run in runs]
    joined = [one | {"run": number} for number, run in enumerate(every) for one in run]
    stamps = [{"datetime": "2026-11-29T10"}, {"datetime": "2026-11-29T02"}]
    (tmp_path / "both").write_text(json.dumps({"runs": stamps, "benchmarks": joined}))
    ((found,), _) = summary_gemm.read([tmp_path / "both"])
    assert found.ratio(alone=True) == found.ratio() == pytest.approx(1.1)
    assert found.times["Lt"] == pytest.approx(1.2 * found.times["ours"])
    assert found.earlier == {"compile"} and "1.10x compile° " in str(found)


def test_regret_and_better_constants(tmp_path: Path) -> None:
    shapes = [s for s in gemm_cells.shapes("bias_gelu") if s[0] in (128, 4096)]
    path = written(tmp_path / "a", 1.0, [("bias_gelu", shape) for shape in shapes], Lt=1.0)
    cells, facts = gemm_regret.read([path])
    assert facts == H100 and len(cells) == len(shapes)

    def mean(constants: Constants) -> float:
        return float(np.mean([gemm_regret.regret(cell, facts, constants)[0] for cell in cells]))

    assert mean(TRUTH) == 1.0
    before = mean(Constants())
    assert before > 1.01
    assert mean(gemm_regret.improve(cells, facts)) < 1 + (before - 1) / 3


def test_a_capture_finds_the_memory_that_a_run_gave_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # What flushes L2 is large: made later, it took what a product in pieces had given back, and a
    # capture may not ask for more (32768x2048x8192 was timed with the host's launch).
    did: list[str] = []

    def timed(captured: Any, run: Any, small: bool, *_: Any) -> str:
        captured(1)
        return "time"

    stream = SimpleNamespace(
        synchronize=lambda: None,
        begin_capture=lambda mode: did.append("capture"),
        end_capture=lambda: None,
    )
    cuda = SimpleNamespace(
        Stream=lambda non_blocking: nullcontext(stream),
        Event=None,
        runtime=SimpleNamespace(streamCaptureModeThreadLocal=1),
    )
    fake = SimpleNamespace(cuda=cuda, empty=lambda *_: did.append("flush"))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(device_time, "_timed", timed)
    assert device_time.ours(lambda: did.append("run"), small=False) == "time"
    assert did == ["flush", "run", "capture", "run"]
