"""Files of benchmarks/engine_grid.py are of one card, and ratios in them of one run."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import cards
import engine_grid
import engine_profile
import engine_table
import pytest
from engine_stacks import Cell

from stof_cupy.errors import ArgumentError
from stof_cupy.report import read_file

CELL = "vit-b:1x128:full"


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the program on a card of a name, its cells not run."""

    def run(cell: Any, ways: Any, *how: Any) -> dict[str, Any]:
        found = {way: {"p20_ms": 1.0, "p50_ms": 1.0, "p80_ms": 1.0} for way in ways}
        return {"cell": str(cell), "machine": {"gpu": cards[-1]}, "ways": found, "seconds": 1.0}

    def called(card: str, name: str, *args: str) -> None:
        cards.append(card)
        argv = ["x", "--out", str(tmp_path / name), "--ways", "ours,flex", *args]
        monkeypatch.setattr("sys.argv", argv)
        monkeypatch.setattr("cards.gpu", lambda: card)
        engine_grid.main()

    cards: list[str] = []
    monkeypatch.setattr(engine_grid, "run", run)
    return called


def test_each_card_has_a_file(tmp_path: Path, grid: Any) -> None:
    for card in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H200"):
        grid(card, "x_{card}.jsonl", "--next", "1")
    lines = {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in tmp_path.glob("*.jsonl")
    }
    assert {name: len(each) for name, each in lines.items()} == {
        "x_h100.jsonl": 1,
        "x_h200.jsonl": 2,
    }
    assert len({line["cell"] for line in lines["x_h200.jsonl"]}) == 2


def test_another_cards_file_is_shown_and_not_added_to(
    tmp_path: Path, grid: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    grid("NVIDIA H100", "x.jsonl", "--cells", CELL)
    before = (tmp_path / "x.jsonl").read_text()
    with pytest.raises(ArgumentError, match="NVIDIA H100, expected NVIDIA H200"):
        grid("NVIDIA H200", "x.jsonl", "--cells", CELL)
    assert (tmp_path / "x.jsonl").read_text() == before
    capsys.readouterr()
    grid("NVIDIA H200", "x.jsonl", "--table")
    assert CELL in capsys.readouterr().out


def test_lines_say_what_was_measured(
    tmp_path: Path, grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cards.commit", lambda: {"commit": "abcdef0", "dirty": True})
    grid("NVIDIA H200", "x.jsonl", "--cells", CELL)
    grid("NVIDIA H200", "x.jsonl", "--cells", CELL, "--commit", "1234567")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [line["commit"] for line in lines] == ["abcdef0", "1234567"]
    first, second = read_file(tmp_path / "x.jsonl").runs
    assert "commit abcdef0 with changes" in first.stamp
    assert second.commit == "1234567" and not second.dirty


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_git_is_asked_what_is_measured(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    assert cards.commit(tmp_path) == {}
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "a")
    git("tag", "v1")
    clean = cards.commit(tmp_path)
    assert len(clean["commit"]) >= 7 and not clean["dirty"]
    (tmp_path / "a").write_text("2")
    assert cards.commit(tmp_path) == {**clean, "dirty": True}


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


def test_ways_of_two_runs_are_not_compared(tmp_path: Path) -> None:
    path, cell = tmp_path / "grid.jsonl", CELL
    both = {"ours": {"p50_ms": 2.0}, "flex": {"p50_ms": 3.0}}
    lines = [{"cell": cell, "ways": both}, {"cell": cell, "ways": {"ours": {"p50_ms": 1.0}}}]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines[:1]))
    assert engine_table.best_over_ours(engine_table.results(path)[cell]) == 1.5
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    (found,) = engine_table.results(path).values()
    assert engine_table.best_over_ours(found) is None and found["known"] == {"ours", "flex"}
    assert engine_table.results(tmp_path / "none.jsonl") == {}
    path.write_text(path.read_text() + '{"cell": "vit-b:1x')
    with pytest.raises(ArgumentError, match=r"line 3 of .*grid\.jsonl: got .*, expected a cell"):
        engine_table.results(path)


def test_goals_go_by_what_the_card_does() -> None:
    line = {"cell": "bert-base:1x128:full", "ways": {"ours": {"p50_ms": 0.3}}, "seconds": 1.0}
    assert engine_table.scaled_goal(line) == engine_table.GOALS[line["cell"]] == 0.25
    slower = line | {"matmul_tflops": engine_table.GOALS_TFLOPS / 2}
    assert engine_table.scaled_goal(slower) == 0.5
    assert engine_table.row(slower).endswith("goal 0.5  [1 s]")
    assert engine_table.scaled_goal(line | {"cell": CELL}) is None
