"""Runs on several GPUs that add to one file: none does what another does or has done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.report.test_benchmarks import GRID, added, grid, run

__all__ = ["grid"]

CASES = ("1-ours", "1-Flex", "2-ours", "2-Flex", "3-ours")


def beside(grid: Path, text: str = GRID, *args: str, when: str = "s == 1") -> dict[str, Any]:
    """Return what a file has after a run, beside which another ran from its first cell on."""
    other = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--results=grid.json"]
    begins = (
        "    import os, subprocess\n"
        f"    if {when} and way == 'ours' and not os.environ.get('BESIDE'):\n"
        f"        subprocess.run({[*other, *args]}, env={{**os.environ, 'BESIDE': '1'}})\n"
    )
    text = text.replace('    if way == "FA3"', begins + '    if way == "FA3"', 1)
    (grid / "bench_grid.py").write_text(text)
    return added(grid, *args)


def runs_of(content: dict[str, Any]) -> dict[str, int]:
    """Return the number of the run that has a case, none having it twice."""
    cases = [
        (each["fullname"].partition("[")[2][:-1], each["run"])
        for key in ("benchmarks", "skipped")
        for each in content[key]
    ]
    assert len(dict(cases)) == len(cases)
    return dict(cases)


def test_each_takes_cells_that_no_other_has(grid: Path) -> None:
    found = runs_of(beside(grid))
    first, second = found["1-ours"], found["2-ours"]
    assert first != second and len(found) == 9
    assert all(number == (first if case[0] == "1" else second) for case, number in found.items())


def test_what_is_measured_again_is_shared_as_well(grid: Path) -> None:
    added(grid)
    content = beside(grid, GRID, "--again")
    found = runs_of(content)
    assert len(content["runs"]) == 2 and len(found) == 9
    assert found["1-ours"] != found["2-ours"] == found["3-ours"]


def test_cells_that_go_together_are_one_runs(grid: Path) -> None:
    """The group that the first run has begun is left to it, also what it has not come to."""
    text = GRID.replace("WAYS = (", 'TOGETHER = ("odd",)\nWAYS = (')
    text = text.replace('"s", [1, 2, 3]', '("s", "odd"), [(1, 1), (2, 0), (3, 1)]')
    text = text.replace("(benchmark, s, way)", "(benchmark, s, odd, way)")
    found = runs_of(beside(grid, text))
    assert found["1-1-ours"] == found["3-1-ours"] != found["2-0-ours"]


def test_what_a_run_took_that_was_ended_is_free(grid: Path) -> None:
    text = f"import os\n{GRID}".replace(
        '    if way == "FA3"', '    os._exit(9)\n    if way == "FA3"'
    )
    (grid / "bench_grid.py").write_text(text)
    assert run(grid, "--results=grid.json").returncode == 9
    (grid / "bench_grid.py").write_text(GRID)
    assert {each["fullname"].partition("[")[2][:-1] for each in added(grid)["benchmarks"]} == {
        *CASES
    }


def test_what_another_commit_measured_is_measured_by_this_one(grid: Path) -> None:
    added(grid, "--commit=aaaaaaa", "-k", "1 or 2")
    added(grid, "--commit=bbbbbbb1", "--older", "-k", "1")
    content = added(grid, "--commit=bbbbbbb2", "--older", "-k", "1 or 2")
    ids = [each["commit_info"]["id"] for each in content["runs"]]
    found = {case: ids[number] for case, number in runs_of(content).items() if "FA3" not in case}
    assert found == {
        **dict.fromkeys(("1-ours", "1-Flex"), "bbbbbbb1"),
        **dict.fromkeys(("2-ours", "2-Flex"), "bbbbbbb2"),
    }
    assert json.loads((grid / "grid.json").read_text()) == content
