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
from stof_cupy.fusion.turns import turn_in_products
from stof_cupy.graph import Executor, Graph
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.normed_gemm import normed_gemm
from tests.goldens.cases import GEMMA3, GPT2, LLAMA
from tests.graph.test_decoder_graph import decoder, whole


def lowered(config: dict[str, Any]) -> Graph:
    graph = models.build(config, models.random_weights(config)).graph
    return fuse_epilogues(structured(graph))


@pytest.mark.parametrize(
    ("config", "norms", "caches"), [(LLAMA, 6, 3), (GPT2, 0, 3), (GEMMA3, 8, 4)], ids=str
)
def test_pieces_of_decoders(config: dict[str, Any], norms: int, caches: int) -> None:
    graph = lowered(config)
    found = Counter((piece.nodes[-1].op, len(piece.nodes) > 1) for piece in few_row_pieces(graph))
    assert found["attention", True] == caches and found["gemm", True] == norms
    # All weights of a decoder are constants.
    products = [node for node in graph.nodes() if node.op == "gemm"]
    assert found["gemm", False] == len(products) - norms


def test_products_are_told_that_their_weights_are_constants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[bool] = []

    def product(x: Any, w: Any, *, constant: bool, **how: Any) -> Any:
        told.append(constant)
        return gemm(x, w, **how)

    def normed(x: Any, norm: Any, w: Any, *, constant: bool, **how: Any) -> Any:
        told.append(constant)
        return normed_gemm(x, norm, w, **how)

    monkeypatch.setattr("stof_cupy.graph.calls.gemm", product)
    monkeypatch.setattr("stof_cupy.fusion.few_rows.gemm", product)
    monkeypatch.setattr("stof_cupy.fusion.few_rows.normed_gemm", normed)
    g = Graph("turned")
    x = g.input("x", ("batch", "seq", 8), "float")
    at = g.input("at", ("batch", "seq"), "int")
    y = g.rms_norm(x, g.constant("norm", np.ones(8, np.float32)), eps=1e-6)
    for name, rows in (("normed", y), ("plain", g.add(x, x))):
        y = g.gemm(rows, g.constant(name, np.ones((64, 8), np.float32)))
        q = g.rotary(g.split_heads(y, heads=2), at, frequency=np.ones(16))
        g.output(name, g.attention(q, q, q))
    given = {"x": np.ones((1, 3, 8), np.float32), "at": np.zeros((1, 3), np.int32)}
    for graph, ops in (
        (turn_in_products(g), ["turned_gemm"] * 2),
        (fuse_epilogues(structured(decoder())), ["gemm"] * 5),
    ):
        told.clear()
        products = [node.op for node in graph.nodes() if "gemm" in node.op]
        assert products == ops
        Executor(graph, backend="numpy", fused=few_row_pieces(graph)).run(
            given if graph.dims == g.dims else whole()
        )
        assert told == [True] * len(ops)


def test_weights_that_are_computed_are_no_constants() -> None:
    g = Graph("computed")
    x = g.input("x", ("batch", "seq", 8), "float")
    w = g.constant("w", np.ones((8, 8), np.float32))
    bias = g.constant("bias", np.ones(8, np.float32))
    g.output("y", g.gemm(x, w, bias))
    assert len(few_row_pieces(g)) == 1
    h = Graph("computed")
    x = h.input("x", ("batch", "seq", 8), "float")
    w = h.scale(h.constant("w", np.ones((8, 8), np.float32)), factor=2.0)
    h.output("y", h.gemm(x, w))
    assert not few_row_pieces(h)


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
    assert not _several(g)
    with_residual = Graph("residual")
    x = with_residual.input("x", ("batch", "seq", 8), "float")
    y = with_residual.rms_norm(x, with_residual.constant("norm", np.ones(8, np.float32)), eps=1e-6)
    y = with_residual.gemm(y, with_residual.constant("w", np.ones((8, 8), np.float32)))
    with_residual.output("z", with_residual.add(y, x))
    assert not _several(fuse_epilogues(with_residual))


def _several(graph: Graph) -> bool:
    return any(len(piece.nodes) > 1 for piece in few_row_pieces(graph))
