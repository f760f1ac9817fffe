"""What moved is named, what did not is not: in ratios, beyond noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy.cli import main
from stof_cupy.errors import ArgumentError
from stof_cupy.report import compare, read_file
from tests.report.make import record, stamp, write

CELLS = 60


def noisy(
    path: Path,
    seed: int,
    *,
    speed: float = 1.0,
    slower: dict[int, float] | None = None,
    **more: str,
) -> Path:
    """Write cells whose rounds vary by 5 %; a card's speed is everyone's, `slower` ours alone."""
    g = np.random.default_rng(seed)
    records: list[dict[str, Any]] = []
    for s in range(CELLS):
        for way, ms in (("ours", 1.0 * (slower or {}).get(s, 1.0)), ("Flex", 2.0)):
            times = speed * ms * np.exp(0.05 * g.standard_normal(20))
            records.append(record("a.py::bench_b", way, times.tolist(), s=s))
    return write(path, records, [stamp(**more)])


def test_nothing_moves_between_runs_of_the_same_on_a_slower_card(tmp_path: Path) -> None:
    named = 0
    for seed in range(10):
        old = noisy(tmp_path / "old.json", seed)
        new = noisy(tmp_path / "new.json", 100 + seed, speed=1.4)
        found = compare(read_file(old), read_file(new), least=0.0)
        assert len(found.moves) == CELLS
        named += sum(move.moved for move in found.moves)
    assert named <= 2  # of 600: by chance in one comparison of twenty


def test_what_moved_is_named_and_decides_the_status(tmp_path: Path, capsys: Any) -> None:
    old = noisy(tmp_path / "old.json", 0)
    new = noisy(tmp_path / "new.json", 1, speed=0.7, slower={3: 1.5, 4: 0.6})
    found = compare(read_file(old), read_file(new))
    moved = {move.name: move.worse for move in found.moves if move.moved}
    assert moved == {"a.py::bench_b 3 / Flex": True, "a.py::bench_b 4 / Flex": False}
    assert found.moves[0].name.endswith("3 / Flex") and found.worse
    assert main(["report", "--compare", str(old), str(new)]) == 3
    printed = capsys.readouterr().out
    assert "1 worse, 1 better, 58 within noise." in printed
    assert main(["report", "--compare", str(old), str(old)]) == 0


def test_noise_is_that_of_the_rounds(tmp_path: Path) -> None:
    """The same shift of 12 % is seen in calm rounds and not in wild ones."""
    for spread, expected in ((0.002, True), (0.3, False)):
        files = []
        for name, factor in (("old", 1.0), ("new", 1.12)):
            calm = [factor * (1 + spread * x) for x in (-1, -0.5, 0, 0.5, 1)]
            records = [
                record("a.py::bench_b", "ours", calm, s=1),
                record(
                    "a.py::bench_b", "Flex", [1 + spread * x for x in (-1, -0.5, 0, 0.5, 1)], s=1
                ),
            ]
            files.append(read_file(write(tmp_path / f"{name}.json", records)))
        (move,) = compare(*files).moves
        assert move.moved is expected and move.after / move.before == pytest.approx(1 / 1.12)


def test_what_all_peers_scatter_by_between_runs_is_noise(tmp_path: Path) -> None:
    """Calm rounds, but every time of the new run is off by 10 %: nothing is named, 4x is."""
    g, files = np.random.default_rng(0), []
    for name, scatter in (("old", 0.0), ("new", 0.1)):
        records = [
            record(
                "a.py::bench_b", way, [ms * float(np.exp(scatter * g.standard_normal()))] * 9, s=s
            )
            for s in range(CELLS)
            for way, ms in (("ours", 4.0 if (name, s) == ("new", 5) else 1.0), ("Flex", 2.0))
        ]
        files.append(read_file(write(tmp_path / f"{name}.json", records)))
    assert [move.name for move in compare(*files).moves if move.moved] == ["a.py::bench_b 5 / Flex"]


def shifted(path: Path, seed: int, ours: float = 1.0, noise: float = 0.03, **peers: float) -> Path:
    """Write cells of calm rounds, every time off by `noise`; ours and peers are so much slower."""
    g = np.random.default_rng(seed)
    records = [
        record("a.py::bench_b", way, [ms * float(np.exp(noise * g.standard_normal()))] * 9, s=s)
        for s in range(CELLS)
        for way, ms in {
            "ours": ours,
            **{peer: 2 * factor for peer, factor in peers.items()},
        }.items()
    ]
    return write(path, records)


def test_a_mean_shows_what_is_too_little_for_a_cell(tmp_path: Path) -> None:
    old = read_file(shifted(tmp_path / "old.json", 0, Flex=1.0, FA2=1.0))
    new = read_file(shifted(tmp_path / "new.json", 6, ours=1.05, Flex=1.0, FA2=1.0))
    found = compare(old, new)
    assert found.worse and not any(move.moved for move in found.moves)
    assert [move.name for move in found.means if move.worse] == [
        f"a.py::bench_b / {peer}, geomean of 60 cells" for peer in ("FA2", "Flex")
    ]
    assert all(abs(move.log + np.log(1.05)) < 0.03 for move in found.means)
    assert not compare(old, read_file(shifted(tmp_path / "same.json", 2, Flex=1.0, FA2=1.0))).worse


def test_a_peer_that_became_faster_does_not_hide_what_else_moved(tmp_path: Path) -> None:
    """Its change is common to all of its cells: it is not the noise between runs."""
    old = read_file(shifted(tmp_path / "old.json", 0, Flex=1.0, FA2=1.0))
    new = read_file(shifted(tmp_path / "new.json", 1, Flex=0.6, FA2=1.0))
    found = compare(old, new)
    assert all(move.limit < 0.25 for move in found.moves)
    assert {move.name.rpartition(" / ")[2] for move in found.moves if move.moved} == {"Flex"}
    assert [move.name.partition(",")[0] for move in found.means if move.moved] == [
        "a.py::bench_b / Flex"
    ]


def test_a_time_of_ours_that_is_gone_is_worse(tmp_path: Path) -> None:
    def cells(path: Path, *left_out: tuple[int, str]) -> Any:
        records = [
            record("a.py::bench_b", way, [1.0] * 5, s=s)
            for s in range(12)
            for way in ("ours", "Flex")
            if (s, way) not in left_out
        ]
        return read_file(write(path, records))

    old = cells(tmp_path / "old.json")
    found = compare(old, cells(tmp_path / "new.json", (3, "ours")))
    assert found.worse and "Ours was not measured: a.py::bench_b 3 / Flex." in found.table.notes
    found = compare(old, cells(tmp_path / "new.json", *((s, "Flex") for s in range(1, 11))))
    assert not found.worse
    assert "No longer measured: 10 of a.py::bench_b / Flex." in found.table.notes


def test_a_cell_that_ours_failed_in_is_lost_and_one_that_was_not_run_is_not(tmp_path: Path) -> None:
    def cells(*sizes: int) -> list[dict[str, Any]]:
        ways = (("ours", 1.0), ("Flex", 2.0))
        return [record("a.py::bench_b", way, [ms] * 5, s=s) for s in sizes for way, ms in ways]

    old = read_file(write(tmp_path / "old.json", cells(1, 2), [stamp()]))
    for reason, lost in (("failed: AssertionError: wrong", True), ("a choice", False)):
        skipped = [
            {"fullname": f"benchmarks/bench_a.py::bench_b[2-{way}]", "reason": reason, "run": 0}
            for way in ("ours", "Flex")
        ]
        new = read_file(write(tmp_path / "new.json", cells(1), [stamp()], skipped))
        found = compare(old, new)
        assert found.missing == ("a.py::bench_b 2 / Flex",)
        assert found.lost == (found.missing if lost else ()) and found.worse == lost


def test_a_newer_run_of_fewer_peers_is_not_hidden_by_one_of_more(tmp_path: Path) -> None:
    def cells(run: int, ours: float, peers: dict[str, float]) -> list[dict[str, Any]]:
        ways = {"ours": ours, **peers}
        spread = (0.999, 1.0, 1.001) * 5
        return [
            record("a.py::bench_b", way, [ms * x for x in spread], s=s, run=run)
            for s in range(9)
            for way, ms in ways.items()
        ]

    before = cells(0, 1.0, {"Flex": 2.0, "FA3": 1.5})
    old = write(tmp_path / "old.json", before, [stamp("2026-11-27")])
    both = [stamp("2026-11-27"), stamp("2026-11-28")]
    new = write(tmp_path / "new.json", [*before, *cells(1, 1.5, {"Flex": 2.0})], both)
    found = compare(read_file(old), read_file(new))
    assert {move.name.rpartition(" / ")[2] for move in found.moves if move.worse} == {"Flex"}
    assert sum(move.worse for move in found.moves) == 9 and not found.missing


def test_times_of_one_machine_are_compared_where_both_have_them(tmp_path: Path) -> None:
    def ways(ours: float, run: int) -> list[dict[str, Any]]:
        pairs = (("ours", ours), ("Flex", 1.0))
        return [record("a.py::bench_b", way, [ms] * 5, s=1, run=run) for way, ms in pairs]

    cards = [stamp("2026-11-27"), stamp("2026-11-28", gpu="Another")]
    old = read_file(write(tmp_path / "old.json", [*ways(1.0, 0), *ways(3.0, 1)], cards))
    new = read_file(write(tmp_path / "new.json", ways(1.0, 0), cards[:1]))
    (move,) = compare(old, new).moves
    assert move.log == 0.0
    both = compare(old, old)
    assert {move.name for move in both.moves} == {
        f"a.py::bench_b 1 / Flex on {card}" for card in ("A GPU", "Another")
    }


def test_machines_that_only_one_file_has_are_named_and_not_compared(tmp_path: Path) -> None:
    """Of two cards each the newest counts where none is in both; a note says that they differ."""

    def on(name: str, *runs: tuple[str, str, float]) -> Any:
        records = [
            record("a.py::bench_b", way, [ms] * 5, s=1, run=at)
            for at, (_, _, ours) in enumerate(runs)
            for way, ms in (("ours", ours), ("Flex", 1.0))
        ]
        stamps = [stamp(date, gpu=gpu) for gpu, date, _ in runs]
        return read_file(write(tmp_path / f"{name}.json", records, stamps))

    old = on("old", ("H100", "2026-11-28", 1.0), ("A100", "2026-11-27", 5.0))
    new = on("new", ("H200", "2026-11-29", 2.0))
    found = compare(old, new)
    (move,) = found.moves
    assert (move.name, move.before, move.after) == ("a.py::bench_b 1 / Flex", 1.0, 0.5)
    assert "The machine differs: H100 before, H200 now." in found.notes
    assert "Of one file alone, and not compared: A100." in found.notes
    again = on("again", ("H200", "2026-11-30", 7.0), ("A100", "2026-11-29", 5.0))
    found = compare(old, again)
    (move,) = found.moves
    assert (move.before, move.after) == (0.2, 0.2)
    assert found.notes == ("Of one file alone, and not compared: H100, H200.",)


def test_ours_is_lost_on_one_of_two_cards(tmp_path: Path) -> None:
    records = [
        record("a.py::bench_b", way, [1.0] * 5, s=1, run=run)
        for run in (0, 1)
        for way in ("ours", "Flex")
    ]
    cards = [stamp(gpu="H100"), stamp(gpu="H200")]
    old = read_file(write(tmp_path / "old.json", records, cards))
    without = [each for each in records if (each["run"], each["params"]["way"]) != (1, "ours")]
    found = compare(old, read_file(write(tmp_path / "new.json", without, cards)))
    assert found.worse and found.lost == ("a.py::bench_b 1 / Flex on H200",)


def test_least_is_not_worth_a_look(tmp_path: Path) -> None:
    files = [
        read_file(
            write(
                tmp_path / f"{name}.json",
                [record("a.py::bench_b", way, [ms] * 5, s=1) for way, ms in times],
            )
        )
        for name, times in (
            ("old", (("ours", 1.0), ("Flex", 2.0))),
            ("new", (("ours", 1.02), ("Flex", 2.0))),
        )
    ]
    assert not compare(*files).worse
    assert compare(*files, least=0.01).worse
    with pytest.raises(ArgumentError, match="least"):
        compare(*files, least=-1)


def test_what_is_gone_and_what_else_differs_is_said(tmp_path: Path) -> None:
    old = noisy(tmp_path / "old.json", 0, torch="2.10")
    alone = [record("a.py::bench_b", "ours", [1.0], s=1)]
    with pytest.raises(ArgumentError, match="no ratio to a peer"):
        compare(read_file(old), read_file(write(tmp_path / "alone.json", alone)))
    records = [record("a.py::bench_b", way, [1.0], s=1) for way in ("ours", "Flex")]
    new = write(tmp_path / "new.json", records, [stamp(gpu="Another", torch="2.11")])
    text = compare(read_file(old), read_file(new)).table.text
    assert "No longer measured: 59 of a.py::bench_b / Flex." in text
    assert "The machine differs: A GPU before, Another now." in text
    assert "Other versions: torch." in text
