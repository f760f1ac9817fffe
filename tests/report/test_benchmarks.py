"""What the benchmarks are made of: the paper's masks, and files that are added to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import appending
import attention_cells
import attention_peers
import bench_attention_hopper
import bench_masks
import bench_paper_fusion
import cards
import documents_peer
import flex_masks
import gemm_peers
import numpy as np
import paper_layers
import paper_masks
import pytest
import summary_attention
import summary_hopper

from stof_cupy.errors import ArgumentError
from tests.report.make import record, stamp

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seq", [100, 128, 257])
@pytest.mark.parametrize("name", paper_masks.FORMS)
def test_masks_are_their_rules(name: str, seq: int) -> None:
    made, dense = paper_masks.lowered(name, seq), paper_masks.dense(name, seq)
    np.testing.assert_array_equal(made.toarray(), dense)
    assert dense.diagonal().all()


def test_masks_are_as_sparse_as_the_paper_prints() -> None:
    for name, printed in paper_masks.SPARSITY.items():
        assert abs(1 - paper_masks.lowered(name, 1024).density - printed) < 0.02, name


def test_the_artifacts_masks_by_loops() -> None:
    """Two groups of global tokens; random cells inside of the blocks about the diagonal alone."""
    s = 256
    twice, cells = (paper_masks.dense(f"artifact-{n}", s) for n in ("longformer", "bigbird"))
    chosen = {*range(32), *range(128, 160)}
    for q in range(0, s, 7):
        for k in range(0, s, 5):
            assert twice[q, k] == (abs(q - k) <= 32 or q in chosen or k in chosen)
            if abs(q // 32 - k // 32) > 1 and q >= 32 and k >= 32:
                assert not cells[q, k]
    outside = cells[64:96, 96:128] & (np.arange(96, 128) - np.arange(64, 96)[:, None] > 32)
    assert 20 < outside.sum() < 80  # about a tenth of the half beyond the band


def test_documents_are_told_as_sequences() -> None:
    """FlashAttention's arguments mean the mask; other documents than the mask's are refused."""
    torch = pytest.importorskip("torch")
    attention = torch.nn.functional.scaled_dot_product_attention
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 50, 8, generator=g) for _ in range(3))
    documents = torch.sort(torch.randint(0, 9, (50,), generator=g)).values
    dense = (documents[:, None] == documents) & (torch.arange(50)[:, None] >= torch.arange(50))

    def function(q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, causal: bool, **how: Any) -> Any:
        ends = cu_seqlens_q.tolist()
        longest = max(b - a for a, b in pairwise(ends))
        assert how == {
            "cu_seqlens_k": cu_seqlens_q,
            "max_seqlen_q": longest,
            "max_seqlen_k": longest,
        }
        each = [[x[a:b].transpose(0, 1) for x in (q, k, v)] for a, b in pairwise(ends)]
        made = [attention(*x, is_causal=causal).transpose(0, 1) for x in each]
        return torch.cat(made), None

    cell: Any = SimpleNamespace(shape=(2, 3, 3, 50, 50, 8))
    got = documents_peer.prepared(cell, q, k, v, documents, dense, function)()
    torch.testing.assert_close(got, attention(q, k, v, attn_mask=dense))
    for wrong in (documents // 2, torch.arange(50)):
        with pytest.raises(AssertionError, match="differ"):
            documents_peer.prepared(cell, q, k, v, wrong, dense, function)


@pytest.mark.parametrize("ops", bench_paper_fusion.SEGMENTS.values())
def test_one_by_one_is_one_graph_of_the_segments_operators(ops: tuple[str, ...]) -> None:
    place = paper_layers.site("numpy", 1, 16, {})
    space = paper_layers.layer_space(64, place)
    span = bench_paper_fusion.span_of(space, ops)
    assert span is not None
    best = [next(iter(bench_paper_fusion.timed(space, (at, at + 1)))) for at in range(*span)]
    alone = paper_layers.one_by_one(64, span, best, "numpy")
    assert tuple(n.op for n in alone.graph.nodes() if n.kind in ("CI", "MI")) == ops
    assert all(len(fused.nodes) == 1 for fused in alone.fused) and place.seconds(alone) > 0


@pytest.mark.parametrize("name", ["paper-causal", "paper-longformer", "artifact-sliding"])
def test_blocks_of_flex_attention_are_those_that_ours_cover(name: str) -> None:
    attention = pytest.importorskip("torch.nn.attention.flex_attention")
    form = paper_masks.FORMS[name]
    rule = paper_masks.rule(form.kind, form.reach, form.tokens, {})
    made = attention.create_block_mask(
        lambda b, h, q, k: rule(q, k), None, None, 512, 512, device="cpu"
    )
    ours = bench_masks.blocks(paper_masks.lowered(name, 512), 2)
    np.testing.assert_array_equal(flex_masks.listed(made), ours)


def test_sdpa_is_told_of_the_mask_by_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    told: dict[str, Any] = {}
    monkeypatch.setattr(attention_peers, "_sdpa", lambda cell, backend, **how: told.update(how))
    dense = np.random.default_rng(0).random((40, 56)) < 0.3
    cell: Any = SimpleNamespace(q=np.zeros(1, np.float16), mask=SimpleNamespace(dense=dense))
    attention_peers.sdpa_mask(cell)
    added = told["attn_mask"]
    assert added.dtype == torch.float16 and added.shape == (1, 1, 40, 56)
    expected = np.where(dense, 0.0, -np.inf)
    np.testing.assert_array_equal(added[0, 0].numpy(), expected)


@pytest.mark.parametrize(("queries", "splits"), [(1, {"num_splits": 0}), (8192, {})])
def test_flash_attention_3_may_cut_the_keys_of_few_queries(
    monkeypatch: pytest.MonkeyPatch, queries: int, splits: dict[str, int]
) -> None:
    """Its function for whole sequences cuts none unless it is told to."""
    told: list[dict[str, Any]] = []
    row = SimpleNamespace(transpose=lambda *axes: row)
    module = SimpleNamespace(flash_attn_func=lambda *arrays, **how: told.append(how) or row)
    monkeypatch.setattr(attention_peers, "import_module", {"flash_attn_interface": module}.get)
    monkeypatch.setattr(attention_peers, "_tensors", lambda cell: (row, row, row))
    monkeypatch.setattr(attention_peers, "window", lambda cell, everything: {"causal": False})
    shape, mask = (1, 32, 8, queries, 8192, 128), SimpleNamespace(name="full")
    cell: Any = SimpleNamespace(shape=shape, mask=mask)
    assert attention_peers.fa3(cell)() is row
    assert told == [{"causal": False, **splits}]


@pytest.mark.parametrize("kind", ["bias_gelu", "fold"])
def test_cublaslts_epilogue_is_what_eager_computes(kind: str) -> None:
    torch = pytest.importorskip("torch")
    g = np.random.default_rng(0)
    sizes = {"a": (16, 32), "b": (24, 32), "bias": 24, "weight": 32, "shift": 32}
    arrays = {name: g.standard_normal(size, np.float32) for name, size in sizes.items()}
    cell: Any = SimpleNamespace(kind=kind, residual=None, **arrays)
    got, want = (gemm_peers.PEERS[name](cell)() for name in ("Lt", "eager"))
    torch.testing.assert_close(got, want, atol=1e-3, rtol=0)  # on a CPU its GELU is by erf


@pytest.mark.parametrize("s", [130, 300])
def test_vertical_and_slash_lines_by_loops(s: int) -> None:
    form, pattern, lines = attention_cells._described("vertical-slash", s)
    at = np.arange(s)
    keep = attention_cells.rule(form.kind, 0, 0, lines)(at[:, None], at)
    np.testing.assert_array_equal(pattern.toarray(), keep)
    for q, k in np.random.default_rng(0).integers(0, s, (200, 2)):
        assert keep[q, k] == (q >= k and (lines["vertical"][k] or lines["slash"][q - k]))
    assert lines["vertical"].sum() == lines["slash"].sum() == 64 and keep.diagonal().all()


def hopper_results(path: Path, slow: str = "") -> list[summary_attention.Cell]:
    """Return cells of every benchmark of Hopper's kernel, ours 3 times as fast but where `slow`."""
    records = []
    for function in (n for n in vars(bench_attention_hopper) if n.startswith("bench_")):
        (mark,) = getattr(getattr(bench_attention_hopper, function), "pytestmark", [None, None])[:1]
        for param in mark.args[1]:
            shape, name, dtype, way = param.values
            group = function.removeprefix("bench_").removesuffix("_heavy")
            goal = dict(
                zip(summary_hopper.MASKS, summary_hopper.GOALS.get(shape, ()), strict=False)
            )
            time = goal.get(name, 0.3) if group == "table" else 0.3
            if way.startswith("ours"):
                time *= 0.99 if not slow or slow != name else 3.5
            else:
                time *= 3
            info = {"group": group, "shape": list(shape), "mask": name, "dtype": dtype, "way": way}
            info |= {"device_p50_ms": time, "graph": True, "tflops": 1.0, "gbytes_per_s": 1.0}
            records.append({"extra_info": info | {"kernel": "sm90 tile"}})
    path.write_text(json.dumps({"benchmarks": records}))
    return summary_attention.read(path)


def test_goals_of_hoppers_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them are judged by the cells that there are, and no other of ours is a peer."""
    cells = hopper_results(tmp_path / "fast.json")
    found = summary_hopper.goals(cells)
    assert len(found) == 11 and all(line.endswith(": met") for line in found), found
    assert "48 of 48" in found[0] and "36 cells" in found[3]
    slow = summary_hopper.goals(hopper_results(tmp_path / "slow.json", "document"))
    missed = [line for line in slow if line.endswith("NOT met")]
    assert [line.partition(",")[0] for line in missed[1:]] == ["sparse"] * 3 + ["(8", "(1"]
    assert summary_hopper.main([str(tmp_path / "slow.json")]) == 0
    shown = capsys.readouterr().out
    assert "0.3325! 0.86x" in shown and "ours unpacked" in shown
    assert summary_hopper.main(["--cells", str(tmp_path / "fast.json")]) == 0
    assert "set 1.44; sm90 tile" in capsys.readouterr().out
    nothing = summary_hopper.goals([])
    assert nothing[1] == "sparse, any peer: not measured"
    assert all(line.endswith(": not measured") for line in nothing)


def test_targets_of_sm80_are_of_its_kernels_where_both_were_timed() -> None:
    shape = (1, 32, 32, 8192, 8192, 128)
    times = {"ours": 1.0, "ours sm80": 2.5, "FA2": 2.0}
    cell = summary_attention.Cell("anchors", shape, "full", times=times)
    assert cell.ratio() == (2.0, "FA2") and cell.ratio(ours="ours sm80") == (0.8, "FA2")
    assert "NOT met" in summary_attention.targets([cell])[0]
    del times["ours sm80"]
    assert summary_attention.targets([cell])[0].endswith(": met")


def run_of(records: list[dict[str, Any]], date: str) -> dict[str, Any]:
    benchmarks = [{k: v for k, v in each.items() if k != "run"} for each in records]
    return {**stamp(date), "benchmarks": benchmarks}


def test_runs_are_joined_and_what_is_measured_again_is_new(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "grid.json"
    a, b, c = (record("a.py::bench_b", "ours", [1.0], s=s) for s in (1, 2, 3))
    skip = {"fullname": "benchmarks/bench_a.py::bench_b[1-FA3]", "reason": "not installed"}
    content = appending.joined(appending.read(path), run_of([a, b], "2026-11-26"), [skip])
    appending.write(path, content)
    again = record("a.py::bench_b", "ours", [7.0], s=2)
    content = appending.joined(appending.read(path), run_of([again, c], "2026-11-27"), [])
    appending.write(path, content)
    content = appending.read(path)
    assert [run["datetime"][:10] for run in content["runs"]] == ["2026-11-26", "2026-11-27"]
    found = {
        each["params"]["s"]: (each["run"], each["stats"]["data"]) for each in content["benchmarks"]
    }
    assert found == {1: (0, [1e-3]), 2: (1, [7e-3]), 3: (1, [1e-3])}
    assert content["skipped"] == [{**skip, "run": 0}] and content["datetime"][:10] == "2026-11-27"
    installed = {**record("a.py::bench_b", "FA3", [2.0], s=1), "fullname": skip["fullname"]}
    content = appending.joined(content, run_of([installed, a], "2026-11-28"), [])
    assert content["skipped"] == [] and len(content["runs"]) == 2  # nothing is left of the first
    assert sorted(each["run"] for each in content["benchmarks"]) == [0, 0, 1, 1]


def test_a_run_of_fewer_ways_stands_beside_the_one_before() -> None:
    """A peer that is measured later does not take from the others the time of ours beside them."""

    def ways(*names: str) -> list[dict[str, Any]]:
        return [record("a.py::bench_b", way, [1.0], s=1) for way in names]

    none: dict[str, Any] = {"runs": [], "benchmarks": [], "skipped": []}
    skip = {"fullname": "benchmarks/bench_a.py::bench_b[1-FA4]", "reason": "FA4: windows alone"}
    first = appending.joined(none, run_of(ways("ours", "FA2"), "2026-11-26"), [skip])
    both = appending.joined(first, run_of(ways("ours", "Flex"), "2026-11-27"), [])
    found = [(each["params"]["way"], each["run"]) for each in both["benchmarks"]]
    assert found == [("ours", 0), ("FA2", 0), ("ours", 1), ("Flex", 1)]
    assert [each["run"] for each in first["benchmarks"]] == [0, 0]  # it is left as it was
    whole = appending.joined(both, run_of(ways("ours", "FA2", "Flex"), "2026-11-28"), [])
    assert len(whole["benchmarks"]) == 3 and whole["skipped"] == [{**skip, "run": 0}]
    names = [each["fullname"] for each in whole["benchmarks"]]
    order = {name: -at for at, name in enumerate(names)}
    turned = appending.joined(whole, run_of(ways("FA2"), "2026-11-29"), [], order)
    found = [(each["params"]["way"], each["run"]) for each in turned["benchmarks"]]
    assert found == [("Flex", 1), ("FA2", 1), ("FA2", 2), ("ours", 1)]


def test_a_way_of_ours_that_is_no_more_does_not_keep_what_was_beside_it() -> None:
    def ways(*names: str) -> list[dict[str, Any]]:
        return [record("a.py::bench_b", way, [1.0], s=1) for way in names]

    none: dict[str, Any] = {"runs": [], "benchmarks": [], "skipped": []}
    name = "benchmarks/bench_a.py::bench_b[1-{}]".format
    first = appending.joined(none, run_of(ways("ours", "templates", "FA2"), "2026-11-26"), [])
    skip = {"fullname": first["benchmarks"][1]["fullname"], "reason": "ours is one of them"}
    again = appending.joined(first, run_of(ways("ours", "FA2"), "2026-11-27"), [skip])
    assert [each["params"]["way"] for each in again["benchmarks"]] == ["ours", "FA2"]
    # A peer that is left out for a reason keeps its cell: it may only be missing there.
    skip = {"fullname": name("FA2"), "reason": "FA2: No module named 'x'"}
    both = appending.joined(again, run_of(ways("ours"), "2026-11-28"), [skip])
    assert [each["params"]["way"] for each in both["benchmarks"]] == ["ours", "FA2", "ours"]


def test_what_may_have_passed_is_tried_again() -> None:
    name = "benchmarks/bench_a.py::bench_b[1-{}]".format
    reasons = {
        name("a"): "FA2: full and causal alone",
        name("b"): "FA3: ModuleNotFoundError: No module named 'no_such_package'",
        name("c"): "FA4: ModuleNotFoundError: No module named 'json.decoder'",
        name("d"): "failed: ValueError: wrong",
        name("e"): f"{appending.LOST}FlashInfer: CUDARuntimeError",
        name("f"): "FA4: ModuleNotFoundError: No module named 'no_such.part'",
    }
    skipped = [{"fullname": name_, "reason": reason} for name_, reason in reasons.items()]
    content: dict[str, Any] = {"benchmarks": [], "skipped": skipped}
    assert appending.known(content) == set(reasons)
    assert appending.settled(content) == {name(each) for each in "abef"}
    assert appending.lost(content) == {name("e")}


def test_a_file_of_one_run_can_be_added_to(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(run_of([record("a.py::bench_b", "ours", [1.0], s=1)], "2026-11-26")))
    content = appending.read(path)
    assert len(content["runs"]) == 1 and content["benchmarks"][0]["run"] == 0
    assert appending.known(content) == {"benchmarks/bench_a.py::bench_b[1-ours]"}


def test_files_are_named_after_cards() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA H200": "h200",
        "NVIDIA GeForce RTX 4090": "rtx4090",
        "Tesla T4": "t4",
        "": "cpu",
    }
    assert {name: cards.card(name) for name in names} == names
    assert cards.named(Path("a/grid_{card}.json"), "NVIDIA H200") == Path("a/grid_h200.json")
    assert cards.named(Path("a{card}/grid.json"), "NVIDIA H200") == Path("a{card}/grid.json")
    cards.refuse_others(Path("x"), ["A", "A"], "A")
    cards.refuse_others(Path("x"), [], "")
    for there, name in ((["A"], "B"), (["A"], ""), (["", "A"], "A")):
        with pytest.raises(ArgumentError, match=r"\{card\}"):
            cards.refuse_others(Path("x"), there, name)


def test_a_file_of_another_card_is_not_added_to(grid: Path) -> None:
    other = run_of([record("grid.py::bench_grid", "ours", [1.0], s=1)], "2026-11-27")
    (grid / "grid.json").write_text(json.dumps(other))
    before = (grid / "grid.json").read_text()
    done = run(grid, "--results=grid.json")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "A GPU" in done.stderr and (grid / "grid.json").read_text() == before
    run(grid, "--results=grid_{card}.json", "-k", "1 and ours")
    made = [path for path in grid.glob("grid*.json") if path.name != "grid.json"]
    assert [path.name for path in made] == [f"grid_{cards.card(cards.gpu())}.json"]
    assert len(json.loads(made[0].read_text())["benchmarks"]) == 1


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"benchmarks": [{"fulln', '{"cell": 1}\n{"cell": 2}\n']
)
def test_a_file_that_is_broken_is_named_and_left(grid: Path, text: str) -> None:
    (grid / "grid.json").write_text(text)
    done = run(grid, "--results=grid.json")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--results grid.json: got" in done.stderr and "INTERNALERROR" not in done.stderr
    assert (grid / "grid.json").read_text() == text


GRID = """
import pytest

WAYS = ("ours", "Flex", "FA3")

@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("s", [1, 2, 3])
def bench_grid(benchmark, s, way):
    if way == "FA3":
        pytest.skip("FA3: not installed")
    if s == 3 and way == "Flex":
        raise ValueError("wrong result")
    benchmark.pedantic(lambda: None, rounds=2)
    benchmark.extra_info["way"] = way
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """A directory with a small grid under the conftest of the benchmarks."""
    pytest.importorskip("pytest_benchmark")
    (tmp_path / "bench_grid.py").write_text(GRID)
    shutil.copy(ROOT / "benchmarks" / "conftest.py", tmp_path)
    names = "python_files = bench_*.py\npython_functions = bench_*\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{names}")
    return tmp_path


def run(grid: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # As no worker of pytest-xdist, in which nothing is benchmarked.
    here = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *args],
        cwd=grid,
        env={**here, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"},
        capture_output=True,
        text=True,
        check=False,
    )


def added(grid: Path, *args: str) -> dict[str, Any]:
    """Return what a file has after one more run."""
    done = run(grid, "--results=grid.json", *args)
    assert (grid / "grid.json").exists(), done.stdout + done.stderr
    content: dict[str, Any] = json.loads((grid / "grid.json").read_text())
    return content


def test_a_grid_is_covered_over_several_runs(grid: Path) -> None:
    content = added(grid, "-k", "1 and ours")
    assert len(content["benchmarks"]) == 1
    content = added(grid)  # the cell that was begun is run as a whole
    names = {each["fullname"]: each["run"] for each in content["benchmarks"]}
    assert len(names) == 5 and set(names.values()) == {0} and len(content["runs"]) == 1
    reasons = {each["fullname"].partition("[")[2]: each["reason"] for each in content["skipped"]}
    assert reasons["1-FA3]"] == "FA3: not installed"
    assert reasons["3-Flex]"].startswith("failed: ValueError: wrong result")
    assert all(each["wall_s"] >= 0 for each in content["benchmarks"])
    assert added(grid, "-k", "1 or 2") == content  # nothing is left to do
    content = added(grid)  # but what failed
    again = {each["fullname"]: each["run"] for each in content["benchmarks"]}
    assert again == {name: int("[3-" in name) for name in names}
    assert added(grid, "--again", "--ways=ours", "-k", "2")["datetime"] > content["datetime"]


def test_a_cell_that_is_begun_is_ended_when_the_budget_is_spent(grid: Path) -> None:
    done = run(grid, "--budget=0")
    assert "9 skipped" in done.stdout and "--budget is spent" in done.stdout
    # A benchmark sets the clock forward: by the time that it takes, a busy machine would decide.
    (grid / "bench_grid.py").write_text(
        GRID.replace("rounds=2)", "rounds=2)\n    __import__('conftest')._START -= 1e5")
    )
    content = added(grid, "--budget=1e4")
    assert {each["params"]["s"] for each in content["benchmarks"]} == {1}
    assert len(content["benchmarks"]) == 2 and len(content["skipped"]) == 1


def test_what_is_measured_is_there_when_the_process_dies(grid: Path) -> None:
    text = GRID.replace(
        "    if s == 3 and", "    if s == 3:\n        os._exit(9)\n    if s == 3 and", 1
    )
    text = f"import os\n{text}"
    (grid / "bench_grid.py").write_text(text)
    conftest = (grid / "conftest.py").read_text()
    (grid / "conftest.py").write_text(conftest.replace("_OFTEN = 15.0", "_OFTEN = 0.0"))
    content = added(grid)
    assert {each["params"]["s"] for each in content["benchmarks"]} == {1, 2}
    assert len(content["benchmarks"]) == 4 and len(content["skipped"]) == 2


def test_runs_at_a_time_add_to_one_file(grid: Path) -> None:
    (grid / "meanwhile.py").write_text(GRID)
    other = ["-m", "pytest", "-q", "-c", "pytest.ini", "-p", "no:cacheprovider", "meanwhile.py"]
    more = ["-o", "python_files=*.py", "--results=grid.json", "-k", "2"]
    text = GRID.replace(
        '    if way == "FA3"',
        "    import subprocess, sys\n"
        '    if way == "ours":\n'
        f"        subprocess.run([sys.executable, *{[*other, *more]}], check=True)\n"
        '    if way == "FA3"',
        1,
    )
    (grid / "bench_grid.py").write_text(text)
    content = added(grid, "-k", "1")
    names = [each["fullname"].rpartition("/")[2] for each in content["benchmarks"]]
    expected = {"bench_grid": ("1-ours", "1-Flex"), "meanwhile": ("2-ours", "2-Flex")}
    found = {f"{file}.py::bench_grid[{case}]" for file, cases in expected.items() for case in cases}
    assert len(names) == 4 and set(names) == found
    assert len(content["runs"]) == 2 and len(content["skipped"]) == 2


LOSES = """
import sys
import types


class CUDARuntimeError(Exception):
    pass


def lose():
    def synchronize():
        raise CUDARuntimeError("an illegal memory access was encountered")

    runtime = types.SimpleNamespace(
        deviceSynchronize=synchronize, CUDARuntimeError=CUDARuntimeError
    )
    cuda = types.SimpleNamespace(is_available=lambda: True, runtime=runtime)
    sys.modules["cupy"] = types.SimpleNamespace(cuda=cuda)
"""


def test_nothing_is_measured_after_the_gpu_is_lost(grid: Path) -> None:
    """What took it is left out from then on, and the rest of its cell is not."""
    text = GRID.replace("import pytest", f"{LOSES}\nimport pytest", 1)
    text = text.replace('    if s == 3 and way == "Flex"', '    if s == 2 and way == "Flex"')
    text = text.replace('raise ValueError("wrong', 'lose()\n        raise ValueError("wrong')
    (grid / "bench_grid.py").write_text(text)
    content = added(grid)
    assert {each["params"]["s"] for each in content["benchmarks"]} == {1, 2}
    (reason,) = (e["reason"] for e in content["skipped"] if e["fullname"].endswith("[2-Flex]"))
    assert reason.startswith(f"{appending.LOST}failed: ValueError: wrong")
    content = added(grid)
    assert len(content["benchmarks"]) == 5
    assert [e["fullname"][-8:] for e in content["skipped"] if "Flex" in e["fullname"]] == [
        "[2-Flex]"
    ]
