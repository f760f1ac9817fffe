"""Committed documents and figures say what the committed results say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stof_cupy.cli import main
from stof_cupy.errors import ArgumentError
from stof_cupy.report import read_directory, report_markdown, report_text, rewritten
from stof_cupy.report.document import blocks, drawn
from stof_cupy.report.other_views import VIEWS
from stof_cupy.report.pictures import Panel, Picture, Series, digest_of, draw
from stof_cupy.report.tables import Table, number
from tests.report.make import record, write

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "benchmarks" / "figures"
DOCUMENTS = {"README.md": "benchmarks/figures", "benchmarks/README.md": "figures"}
AGAIN = "make report"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_match_the_results(name: str) -> None:
    text = (ROOT / name).read_text()
    assert text == rewritten(text, read_directory(RESULTS), DOCUMENTS[name]), AGAIN


def test_figures_match_the_results() -> None:
    expected = {name: picture.digest for name, picture in drawn(read_directory(RESULTS))}
    assert {path.name: digest_of(path) for path in FIGURES.glob("*.svg")} == expected, AGAIN


def test_figures_that_documents_show_exist() -> None:
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        for _, part in blocks(text):
            for path in (
                line.split("](")[1][:-1] for line in part.splitlines() if line[:2] == "!["
            ):
                assert (ROOT / name).parent.joinpath(path).is_file(), path


def test_the_benchmarks_readme_has_parts_and_says_what_repeats_them() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    parts = {name for name, _ in blocks(text)}
    assert {"overview", "losses", "runs", "paper-attention"} <= parts
    assert {"attention-hopper", "attention-scattered", "paper-host", "paper-choice"} <= parts
    for bench in ("paper_attention", "paper_fusion", "paper_tuning", "paper_scaling", "masks"):
        assert f"BENCH={bench}" in text
        assert (ROOT / "benchmarks" / f"bench_{bench}.py").is_file()


def test_every_loss_of_the_results_is_in_the_report() -> None:
    """Counted without cells: what of a run is faster than ours at the same thing."""
    results = read_directory(RESULTS)
    mine = {(t.run, t.bench, t.key): t for t in results.timings if t.way in ("ours", "measured")}
    slower = {
        at
        for t in results.timings
        if not t.is_ours and (at := (t.run, t.bench, t.key)) in mine and t.p50 < mine[at].p50
    }
    (losses,) = (each.table(results) for each in VIEWS if each.name == "losses")
    assert losses is not None and len(losses.rows) == len(slower)
    named = {(row[1], row[2]) for row in losses.rows}
    cells = {(at[0].machine, " ".join(map("=".join, at[2]))) for at in slower}
    assert named == cells and all(float(row[-1][:-1]) <= 1 for row in losses.rows)
    lines = {" ".join(line.split()) for line in report_text(results).splitlines()}
    assert all(" ".join(row) in lines for row in losses.rows)


def test_names_of_views_are_their_own() -> None:
    names = [each.name for each in VIEWS]
    assert len(set(names)) == len(names)


def test_a_part_is_written_anew_and_the_rest_is_left(tmp_path: Path) -> None:
    records = [
        record("engine.py::bench_x", way, [ms], batch=b, seq=16, mask="full")
        for b in (1, 2)
        for way, ms in (("ours", 2.0), ("transformers", 1.0))
    ]
    write(tmp_path / "x.json", records)
    results = read_directory(tmp_path)
    parts = ("<!-- report: engine table -->\nold\n", "<!-- report: gemm -->\n")
    text = f"a\n{parts[0]}<!-- end -->\nb\n{parts[1]}<!-- end -->\n"
    new = rewritten(text, results, "figures")
    assert [name for name, _ in blocks(new)] == ["engine", "gemm"]
    engine, gemm = (part for _, part in blocks(new))
    assert "0.50x transformers" in engine and "![" not in engine and "old" not in new
    assert gemm == "Nothing was measured yet.\n" and new.startswith("a\n") and "\nb\n" in new
    assert rewritten(new, results, "figures") == new
    with pytest.raises(ArgumentError, match="view: got 'nonsense'"):
        rewritten("<!-- report: nonsense -->\n<!-- end -->\n", results, "figures")


def test_report_without_a_gpu(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    assert main(["report", "--results", str(RESULTS), "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    markdown = (tmp_path / "report.md").read_text()
    assert markdown == report_markdown(read_directory(RESULTS), "figures")
    for path in (line.split("](")[1][:-1] for line in markdown.splitlines() if line[:2] == "!["):
        assert digest_of(tmp_path / path)
    assert main(["report", "--results", str(RESULTS), "--view", "losses"]) == 0
    assert capsys.readouterr().out.startswith("Where a peer is faster\n")
    assert main(["report", "--results", str(RESULTS), "--view", "nonsense"]) == 1
    assert main(["report", "--results", str(tmp_path / "nowhere")]) == 1


def test_update_writes_documents_and_figures(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "results").mkdir()
    results = tmp_path / "results"
    records = [record("engine.py::bench_x", w, [1.0], batch=1, seq=1, mask="m") for w in "ab"]
    write(results / "x.json", [{**records[0], "extra_info": {"way": "ours"}}, records[1]])
    document = tmp_path / "README.md"
    document.write_text("<!-- report: engine -->\n<!-- end -->\n")
    assert main(["report", "--results", str(results), "--update", str(document)]) == 0
    assert "![all-MiniLM-L6-v2 through the engine](figures/engine.svg)" in document.read_text()
    assert digest_of(tmp_path / "figures" / "engine.svg")
    missing = str(tmp_path / "none.md")
    assert main(["report", "--results", str(results), "--update", missing]) == 1
    assert "an existing file" in capsys.readouterr().err


def test_pictures_carry_what_they_show(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def picture(height: float, kind: Any = "bars", log: bool = False) -> Picture:
        series = Series("ours", (("128", height), ("256", 2.0))), Series("Flex", (("128", 1.0),))
        return Picture(kind, (Panel("causal", series),), "x", "y", log=log, even=True)

    for number_, each in enumerate((picture(1.5), picture(1.5, "lines"), picture(40.0, log=True))):
        path = tmp_path / f"{number_}.svg"
        draw(each, path)
        assert digest_of(path) == each.digest
    first = (tmp_path / "0.svg").read_text()
    draw(picture(1.5), tmp_path / "0.svg")
    assert (tmp_path / "0.svg").read_text() == first
    assert picture(1.5).digest != picture(1.6).digest
    (tmp_path / "other.svg").write_text("<svg/>")
    assert digest_of(tmp_path / "other.svg") == ""


def test_series_of_a_picture_look_different(tmp_path: Path) -> None:
    """Counted in a drawn file, for as many series as any picture of the results has."""
    pytest.importorskip("matplotlib")
    most = max(
        len({series.name for panel in picture.panels for series in panel.series})
        for _, picture in drawn(read_directory(RESULTS))
    )
    assert most > 8  # ours and nine peers
    names = [f"peer {number_}" for number_ in range(most)]
    series = tuple(Series(name, (("128", 1.0), ("256", 2.0))) for name in names)
    draw(Picture("lines", (Panel("causal", series),), "x", "y"), tmp_path / "lines.svg")
    text = (tmp_path / "lines.svg").read_text()
    lines = re.findall(r"stroke: (#\w+); stroke-width: 1\.1;", text)
    assert len(lines) == 2 * most and len(set(lines)) == most  # each in the legend, too
    draw(Picture("bars", (Panel("causal", series),), "x", "y"), tmp_path / "bars.svg")
    bars = set(re.findall(r'style="fill: (#\w+)"', (tmp_path / "bars.svg").read_text()))
    assert set(lines) - {"#000000"} <= bars  # black is what SVG fills with unasked


def test_lines_go_from_small_to_large(tmp_path: Path) -> None:
    """Also where the first series lacks a length, and those of batches of tokens."""
    pytest.importorskip("matplotlib")
    series = (
        Series("full", (("1x128", 1.0), ("16x2048", 1.0))),
        Series("sliding", (("16x2048", 2.0), ("8x512", 1.0), ("1x8192", 3.0))),
    )
    draw(Picture("lines", (Panel("", series),), "x", "y"), tmp_path / "x.svg")
    shown = re.findall(r">(\d+x\d+)</text>", (tmp_path / "x.svg").read_text())
    assert shown == ["1x128", "8x512", "16x2048", "1x8192"]


def test_the_grid_of_stacks_is_sorted() -> None:
    (stacks,) = (each.table(read_directory(RESULTS)) for each in VIEWS if each.name == "stacks")
    assert stacks is not None
    assert stacks.columns[2:] == ("1x128", "8x512", "16x2048", "1x8192")
    rows = [row[0] for row in stacks.rows]
    assert rows == [name for name in dict.fromkeys(rows) for _ in range(rows.count(name))]


def test_tables_line_up() -> None:
    table = Table(
        ("mask", "ms", "peer"), (("causal", "1.25", "FA2"), ("x", "", "Flex")), ("Note.",)
    )
    assert table.text == "mask      ms  peer\ncausal  1.25  FA2\nx             Flex\nNote."
    assert table.markdown.splitlines()[:3] == [
        "| mask | ms | peer |",
        "|---|---:|---|",
        "| causal | 1.25 | FA2 |",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.0012345, "0.00123"), (0.9996, "1.00"), (99.96, "100"), (12345.0, "12300")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text
