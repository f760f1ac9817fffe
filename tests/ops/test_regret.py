"""benchmarks/regret.py without a GPU: its cells, its file and its table."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regret
import regret_measure
import regret_report
from regret_cells import MASKS, Cell, cells, groups, make_mask

from stof_cupy.ops.attention_candidates import SM80, candidates, name_of
from stof_cupy.ops.attention_constants import Constants
from stof_cupy.ops.attention_model import explain
from stof_cupy.ops.attention_times import time_of
from tests.ops.gpus import H100

TRUTH = replace(Constants(), l2=0.45)
"""The GPU of these tests is a model."""


def test_the_grid() -> None:
    every = list(cells())
    assert len(every) == len(set(every)) == 528
    assert all(cell.batch * cell.seq <= 131_072 and Cell.of(cell.name) == cell for cell in every)
    assert groups() == groups()
    first = [group[0] for group in groups()[:40]]
    assert len({cell.mask for cell in first}) > 8 and len({cell.seq for cell in first}) > 6


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_those_of_the_anchors(name: str) -> None:
    s = 1024
    q, k = np.arange(s)[:, None], np.arange(s)
    draw, blocks = np.random.default_rng(0), s // 64
    scattered = draw.random((blocks, blocks)) < 3 / blocks
    documents = np.sort(draw.integers(0, 2, s))
    tenth = (draw.random((blocks, blocks)) < 0.1) | np.eye(blocks, dtype=bool)

    def up(x: Any) -> Any:
        return x.repeat(64, 0).repeat(64, 1)

    expected: dict[str, Any] = {
        "causal": q >= k,
        "sliding": abs(q - k) <= 256,
        "causal-sliding": (q >= k) & (q - k <= 256),
        "longformer": (abs(q - k) <= 256) | (q < 64) | (k < 64),
        "bigbird": (abs(q // 64 - k // 64) <= 1) | (q < 128) | (k < 128) | up(scattered),
        "document": (documents[:, None] == documents) & (q >= k),
        "block10": up(tenth),
    }
    mask = make_mask(name, s)
    if name in expected:
        assert np.array_equal(mask.toarray(), expected[name])
    elif name == "full":
        assert mask is None
    else:
        assert mask.density == pytest.approx(float(name[6:]) / 100, rel=0.05)


@pytest.mark.parametrize("seq", [128, 2048])
def test_every_cell_has_six_candidates(seq: int) -> None:
    for name in MASKS:
        mask = make_mask(name, seq)
        for cell in cells():
            if (cell.mask, cell.seq) == (name, seq):
                assert len(list(candidates(cell.case(mask, H100)))) >= 6


@pytest.fixture(scope="module")
def measured() -> regret_report.Measured:
    runs = [{"gpu": H100.name, "facts": asdict(H100), "date": "today", "commit": "none"}]
    runs[0]["kernels"] = list(SM80)
    made = regret_report.Measured(runs)
    for group in groups():
        if group[0].seq > 1024 or group[0].seq == 256:
            continue
        plans, stats = regret_measure.plan_group(list(group), H100, kinds=SM80)
        made.masks[f"{group[0].mask}-{group[0].seq}"] = stats and stats.record
        for plan in plans:
            times = {name_of(c): time_of(c, plan.case, TRUTH).us for c in plan.timed}
            made.cells[plan.cell.name] = {"us": times, "of": plan.count, "difference": 0.0}
    return made


def test_what_is_timed(measured: Any) -> None:
    for cell, case, every, us in measured.cases():
        mask = make_mask(cell.mask, cell.seq)
        ranked = explain(cell.case(mask, H100), select="sm80")
        counted = explain(case, select="sm80")
        assert [e.candidate for e in ranked] == [e.candidate for e in counted]
        assert [e.us for e in ranked] == pytest.approx([e.us for e in counted])
        names = [e.name for e in ranked if e.us <= 3 * ranked[0].us]
        assert len(every) == len(ranked) == measured.cells[cell.name]["of"]
        assert set(names) <= set(us) and len(us) >= min(len(names) + 2, len(every))
        for select in ("stof-eq1", "stof-eq1-64"):
            how: Any = {"select": select, "among": every}
            first = explain(cell.case(mask, H100), **how)[0]
            assert first.name in us


def test_regret_is_one_for_the_constants_that_made_the_times(
    measured: Any, tmp_path: Any, capsys: Any
) -> None:
    path = tmp_path / "times.json"
    measured.write(path)
    again = regret_report.Measured.read(path)
    assert (again.cells, again.masks) == (measured.cells, measured.masks)
    right = regret_report.regrets(again, TRUTH)
    assert all(each.ratio == pytest.approx(1.0) for each in right["model"])
    assert max(each.ratio or 0 for each in right["stof-eq1"]) > 1.5
    assert regret.main(["--from", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "model " in shown and "stof-eq1-64" in shown and "worst" in shown


@pytest.mark.parametrize("name", ["longformer", "random0.1"])
def test_the_kernel_for_hopper_among_the_candidates(name: str) -> None:
    group = [cell for cell in cells() if (cell.mask, cell.seq, cell.batch) == (name, 1024, 1)]
    plans, stats = regret_measure.plan_group(group, H100)
    for plan in plans:
        every = list(candidates(plan.cell.case(stats, H100)))
        assert every == list(candidates(plan.case)) and len(every) == plan.count
        assert "sm90" in {candidate.kernel for candidate in plan.timed}
        assert name != "random0.1" or any(getattr(each, "packed", False) for each in every)


def test_a_file_of_old_is_of_the_kernels_that_there_were() -> None:
    path = Path(__file__).parents[2] / "benchmarks/results/attention_regret_h100_2026-11-28.json"
    old = regret_report.Measured.read(path)
    assert old.kinds == SM80
    _, _, every, us = next(old.cases())
    assert {each.kernel for each in every} == set(SM80) and len(us) > 1


def test_constants_are_fitted_to_a_file(measured: Any) -> None:
    def mean(constants: Constants) -> float:
        ratios = [each.ratio for each in regret_report.regrets(measured, constants)["model"]]
        return float(np.mean([ratio for ratio in ratios if ratio]))

    found = regret_report.improve(measured, 10, rounds=1)
    assert mean(found) < 1.03 < mean(Constants())
