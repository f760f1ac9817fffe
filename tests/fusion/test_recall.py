"""What the cache holds is used again where it can run, and only there."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import StofWarning
from stof_cupy.fusion import structured
from stof_cupy.fusion.bench import PieceSpace, Site
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import NUMPY, machine_of
from stof_cupy.fusion.pieces import pieces
from stof_cupy.fusion.store import SchemeStore
from stof_cupy.fusion.tune import Tuned, tune
from stof_cupy.graph import Executor, Graph
from tests.fusion.test_tune import H100


def block(width: int) -> Graph:
    g = Graph("block")
    x = g.input("x", ("batch", "seq", width), "float")
    w = g.constant("w", np.eye(width, dtype=np.float32))
    one = g.constant("one", np.ones(width, np.float32))
    g.output("y", g.layer_norm(g.add(g.gemm(g.gelu(g.gemm(x, w)), w), x), one, one, eps=1e-5))
    return structured(g)


def spoil(root: Path, **fields: Any) -> None:
    for path in root.iterdir():
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_kernel_is_recalled_where_a_product_may_as_well_choose_its_own(tmp_path: Path) -> None:
    site = Site("cuda", "float16", None, machine_of(H100), {"batch": 1, "seq": 8})
    graph, store = block(256), SchemeStore(tmp_path)
    space = PieceSpace(Chain(graph), pieces(Chain(graph))[0], site)
    assert space.settings((0, 2))[0] == () and len(space.settings((0, 2))) > 1
    tune(graph, site, store=store)
    spoil(tmp_path, scheme="5:06", settings=[[["kernel", 14], ["splits", 1]], [], []])
    (piece,) = tune(graph, site, store=store).report.pieces
    assert piece.cached and piece.settings[0] == (("kernel", 14), ("splits", 1))


def on_numpy(tmp_path: Path, rows: int = 40) -> Tuned:
    site = Site("numpy", "float32", None, NUMPY, {"batch": 1, "seq": rows})
    return tune(block(24), site, store=SchemeStore(tmp_path))


@pytest.mark.parametrize("rows, used", [(16, True), (999, True), (0, False), (-5, False)])
def test_blocks_of_rows_are_recalled_if_there_are_rows(
    rows: int, used: bool, tmp_path: Path
) -> None:
    on_numpy(tmp_path)
    spoil(tmp_path, scheme="5:07", settings=[[], [["rows", rows]]])
    tuned = on_numpy(tmp_path)
    assert tuned.report.pieces[0].cached == used
    x = {"x": np.ones((1, 40, 24), np.float32)}
    run = Executor(tuned.lowered.graph, backend="numpy", fused=tuned.lowered.fused).run
    np.testing.assert_allclose(
        run(x)["y"], Executor(block(24), backend="numpy").run(x)["y"], rtol=1e-5, atol=1e-5
    )


def test_a_segment_of_several_operators_needs_its_setting(tmp_path: Path) -> None:
    on_numpy(tmp_path)
    spoil(tmp_path, scheme="5:07", settings=[[], []])
    assert not on_numpy(tmp_path).report.pieces[0].cached


@pytest.mark.parametrize("text", ["[" * 100_000, '"seconds": 1' + "0" * 400, "", "[]"])
def test_what_json_cannot_be_is_said_once_and_counts_as_absent(text: str, tmp_path: Path) -> None:
    on_numpy(tmp_path)
    for path in tmp_path.iterdir():
        whole = json.loads(path.read_text())
        cut = json.dumps(whole).replace(f'"seconds": {whole["seconds"]}', text)
        path.write_text(cut if "seconds" in text else text)
    with pytest.warns(StofWarning, match="cannot be read"):
        assert not on_numpy(tmp_path).report.pieces[0].cached
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert on_numpy(tmp_path).report.pieces[0].cached


def test_sizes_of_one_class_share_what_was_found(tmp_path: Path) -> None:
    on_numpy(tmp_path, 64)
    assert on_numpy(tmp_path, 33).report.pieces[0].cached
    assert not on_numpy(tmp_path, 65).report.pieces[0].cached
