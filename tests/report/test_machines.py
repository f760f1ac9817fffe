"""Results of two cards stand side by side, and nothing is of both."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stof_cupy.report import Results, read_directory
from stof_cupy.report.other_views import VIEWS, view
from stof_cupy.report.views import View
from tests.report.make import ragged, record, searches, write

COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results"


def more(path: Path) -> Results:
    """Return times of what has no committed results yet."""
    grid = [
        record("paper_attention.py::bench_paper", way, [ms, 2 * ms], mask=mask, batch=1, seq=s)
        for mask in ("paper-causal", "artifact-sliding")
        for s in (128, 4096)
        for way, ms in (("ours", 1.0 + s), ("FA2", 2.0 + s), ("Flex", 3.0 + s))
    ]
    scaling = [
        record("paper_scaling.py::bench_scaling", way, [ms], axis=axis, mask=mask, batch=b, seq=s)
        for axis, mask, b, s in (
            ("seq", "causal", 1, 64),
            ("seq", "causal", 1, 128),
            ("batch", "m", 2, 64),
        )
        for way, ms in (("ours", 1.0), ("FA2", 2.0))
    ]
    products = [
        record("gemm.py::bench_gemm", way, [1.0], m=m) for m in (1, 2) for way in ("ours", "b")
    ]
    for each in products:
        each["extra_info"]["kind"] = "plain"
    write(path / "a.json", [*grid, *scaling, *products, *searches(), *ragged()])
    return read_directory(path)


def elsewhere(results: Results) -> Results:
    """Return the same on other machines, every time another."""
    runs = {run: replace(run, machine=f"{run.machine} II") for run in results.runs}
    for skip in results.skips:
        runs.setdefault(skip.run, replace(skip.run, machine=f"{skip.run.machine} II"))

    def moved(timing: Any) -> Any:
        f = 0.5 + zlib.crc32(f"{timing.bench}{timing.key}{timing.way}".encode()) / 2**32
        names = ("p20", "p50", "p80", "wall_s", "host")
        return replace(
            timing, run=runs[timing.run], **{name: f * getattr(timing, name) for name in names}
        )

    skips = (replace(skip, run=runs[skip.run]) for skip in results.skips)
    return Results(tuple(map(moved, results.timings)), tuple(skips))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results, Results]:
    """Results of some machines, of as many others, and of all."""
    committed, new = read_directory(COMMITTED), more(tmp_path_factory.mktemp("more"))
    known = {timing.bench for timing in committed.timings}
    lacking = [timing for timing in new.timings if timing.bench not in known]
    one = Results((*committed.timings, *lacking), (*committed.skips, *new.skips))
    two = elsewhere(one)
    return one, two, Results((*one.timings, *two.timings), (*one.skips, *two.skips))


def rows(each: View, *results: Results) -> Counter[frozenset[tuple[str, str]]]:
    """Return the rows of a view's tables, without machines."""
    found: Counter[frozenset[tuple[str, str]]] = Counter()
    for some in results:
        table = each.table(some)
        for row in () if table is None else table.rows:
            named = zip(table.columns, row, strict=True)
            found[frozenset(pair for pair in named if pair[0] != "machine")] += 1
    return found


@pytest.mark.parametrize("each", VIEWS, ids=lambda each: each.name)
def test_rows_are_of_one_machine(each: View, three: tuple[Results, Results, Results]) -> None:
    one, two, both = three
    assert rows(each, both) == rows(each, one, two)
    table = each.table(both)
    if table is not None:
        at = table.columns.index("machine")
        second = [row[at].endswith(" II") for row in table.rows]
        assert sum(second) == sum(rows(each, two).values()) and not all(second)


@pytest.mark.parametrize("each", VIEWS, ids=lambda each: each.name)
def test_panels_are_of_one_machine(each: View, three: tuple[Results, Results, Results]) -> None:
    pictures = [each.picture(some) for some in three]
    if pictures[0] is None:
        assert pictures == [None] * 3
        return
    one, two, both = (Counter(panel.series for panel in picture.panels) for picture in pictures)
    assert both == one + two
    titles = [panel.title for panel in pictures[2].panels]
    assert len(set(titles)) == len(titles) and sum(t.endswith(" II") for t in titles) * 2 == len(
        titles
    )


def test_a_view_of_one_machine_has_no_column_for_it(
    three: tuple[Results, Results, Results],
) -> None:
    every, _, _ = three
    for name in ("attention-summary", "paper-host", "paper-table2", "stacks", "paper-segments"):
        found = 0
        for machine in {timing.run.machine for timing in every.timings}:
            timings = tuple(each for each in every.timings if each.run.machine == machine)
            skips = tuple(each for each in every.skips if each.run.machine == machine)
            one = Results(timings, skips)
            two = elsewhere(one)
            alone = view(name).table(one)
            beside = view(name).table(Results((*timings, *two.timings), (*skips, *two.skips)))
            if alone is None or beside is None:
                assert alone is beside
                continue
            assert "machine" not in alone.columns
            assert [each for each in beside.columns if each != "machine"] == list(alone.columns)
            found += 1
        assert found
