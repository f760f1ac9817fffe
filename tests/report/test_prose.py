"""What documents say of results in words, outside of the parts that are generated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from stof_cupy.report import Results, read_directory
from stof_cupy.report.other_views import VIEWS
from stof_cupy.report.tables import Table

ROOT = Path(__file__).parents[2]
CARD = "NVIDIA H200"
HOST = re.compile(
    r"ours ([\d.]+) to ([\d.]+) ms, more than PyTorch's own and FlashInfer's at every length "
    r"\(([\d.]+) to ([\d.]+)\); FlashAttention 3 and 4 take ([\d.]+)\nto ([\d.]+), "
    r"FlexAttention with the latter ([\d.]+) to ([\d.]+)\."
)


@pytest.fixture(scope="module")
def results() -> Results:
    return read_directory(ROOT / "benchmarks" / "results")


def shown(results: Results, name: str) -> Table:
    """Return a view's table."""
    (table,) = (each.table(results) for each in VIEWS if each.name == name)
    assert table is not None
    return table


@pytest.mark.parametrize(
    ("what", "bench"),
    [
        ("attention of the paper's grid", "paper_attention paper"),
        ("attention with a softcap", "attention_scores scores"),
        ("decoding's attention", "attention decoding"),
        ("whole stacks", "paper_stacks stacks"),
    ],
)
def test_how_fast_it_is_is_what_the_overview_says(results: Results, what: str, bench: str) -> None:
    (line,) = (
        line
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith(f"| {what}")
    )
    (row,) = (r for r in shown(results, "overview").rows if r[:2] == (bench, CARD))
    cells, mean, worst, best, slower = row[2:7]
    said = f"{mean[:-1]} ({worst[:-1]} to {best[:-1]}; slower in {slower}"
    assert f" {cells} cells" in line and line.split("|")[3].strip().startswith(said)


def test_what_calls_cost_the_host(results: Results) -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    said = HOST.search(text)
    assert said is not None
    table = {row[0]: [float(each) for each in row[1:]] for row in shown(results, "paper-host").rows}
    torch = ("FA2", "cuDNN", "SDPA-mask", "Flex", "FlashInfer")
    groups: Sequence[Sequence[str]] = (("ours",), torch, ("FA3", "FA4"), ("Flex+FA4",))
    expected = []
    for group in groups:
        every = [each for way in group for each in table[way]]
        expected += [min(every), max(every)]
    assert [float(each) for each in said.groups()] == pytest.approx(expected, abs=0.006)
    assert all(
        ours > peer for way in torch for ours, peer in zip(table["ours"], table[way], strict=True)
    )
