"""Pieces for few rows: which there are, and that a graph gives with them what it gives without."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from stof_cupy import models
from stof_cupy.fusion import structured
from stof_cupy.fusion.few_rows import few_row_pieces
from stof_cupy.fusion.rewrites import fuse_epilogues
from stof_cupy.graph import Executor, Graph
from tests.goldens.cases import GEMMA3, GPT2, LLAMA
from tests.graph.test_decoder_graph import decoder, whole


def lowered(config: dict[str, Any]) -> Graph:
    graph = models.build(config, models.random_weights(config)).graph
    return fuse_epilogues(structured(graph))


@pytest.mark.parametrize(
    ("config", "norms", "caches"), [(LLAMA, 6, 3), (GPT2, 0, 3), (GEMMA3, 8, 4)], ids=str
)
def test_pieces_of_decoders(config: dict[str, Any], norms: int, caches: int) -> None:
    found = Counter(piece.nodes[-1].op for piece in few_row_pieces(lowered(config)))
    assert found["attention"] == caches and found["gemm"] == norms


@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_results_are_the_same(arena: bool, cached: bool) -> None:
    graph = fuse_epilogues(structured(decoder()))
    pieces = few_row_pieces(graph)
    assert pieces
    inputs = whole()
    results = []
    for fused in ((), pieces):
        given = dict(inputs)
        if cached:
            shapes = {n: x.shape for n, x in graph.inputs.items() if x.dtype == "cache"}
            given |= {
                n: np.zeros((2, int(s[1]), 7, int(s[3])), np.float32) for n, s in shapes.items()
            }
        executor = Executor(graph, backend="numpy", fused=fused, arena=arena)
        results.append((executor.run(given), given))
    for name in ("hidden", "logits"):
        np.testing.assert_allclose(results[0][0][name], results[1][0][name], atol=1e-6)
    for name in results[0][1]:
        if name.startswith("cache"):
            assert results[0][1][name].any()
            np.testing.assert_array_equal(results[0][1][name], results[1][1][name])


def test_what_others_read_is_no_piece() -> None:
    g = Graph("read twice")
    x = g.input("x", ("batch", "seq", 8), "float")
    y = g.rms_norm(x, g.constant("norm", np.ones(8, np.float32)), eps=1e-6)
    z = g.gemm(y, g.constant("w", np.ones((8, 8), np.float32)))
    g.output("z", g.add(z, y))
    g.output("y", y)
    assert not few_row_pieces(g)
    with_residual = Graph("residual")
    x = with_residual.input("x", ("batch", "seq", 8), "float")
    y = with_residual.rms_norm(x, with_residual.constant("norm", np.ones(8, np.float32)), eps=1e-6)
    y = with_residual.gemm(y, with_residual.constant("w", np.ones((8, 8), np.float32)))
    with_residual.output("z", with_residual.add(y, x))
    assert not few_row_pieces(fuse_epilogues(with_residual))
