"""Fused graphs mean what the unfused ones mean, and are smaller where they should be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy.errors import GraphError
from stof_cupy.fusion import fuse_epilogues, rewrites
from stof_cupy.graph import Executor, Graph, Node, meaning, verify

WIDTH = 5
ALL = ("gemm", "gelu", "add")


def start() -> tuple[Graph, Node, Node, Node]:
    rng = np.random.default_rng(0)
    g = Graph("g")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    w = g.constant("w", rng.standard_normal((WIDTH, WIDTH)))
    b = g.constant("b", rng.standard_normal(WIDTH))
    return g, x, w, b


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes() if node.op not in ("input", "constant"))


def same(one: Graph, other: Graph) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, WIDTH))
    a, b = meaning.evaluate(one, {"x": x}), meaning.evaluate(other, {"x": x})
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("write", "left"),
    [
        (lambda g, x, w, b: g.add(g.gemm(x, w), b), {"gemm": 1}),
        (lambda g, x, w, b: g.gelu(g.gemm(x, w)), {"gemm": 1}),
        (lambda g, x, w, b: g.gelu(g.gemm(x, w), approximate="tanh"), {"gemm": 1}),
        (lambda g, x, w, b: g.add(g.gemm(x, w), x), {"gemm": 1}),
        (lambda g, x, w, b: g.add(x, g.gemm(x, w)), {"gemm": 1}),
        (lambda g, x, w, b: g.add(x, g.gelu(g.add(g.gemm(x, w), b))), {"gemm": 1}),
        (lambda g, x, w, b: g.add(g.gelu(g.gemm(x, w)), g.gemm(x, w, b)), {"gemm": 2}),
        # What a GEMM cannot hold stays: a second bias, a bias after a GELU, two GELUs.
        (lambda g, x, w, b: g.add(g.add(g.gemm(x, w), b), b), {"gemm": 1, "add": 1}),
        (lambda g, x, w, b: g.add(g.gelu(g.gemm(x, w)), b), {"gemm": 1, "add": 1}),
        (lambda g, x, w, b: g.gelu(g.gelu(g.gemm(x, w))), {"gemm": 1, "gelu": 1}),
        (lambda g, x, w, b: g.gelu(g.add(g.gemm(x, w), x)), {"gemm": 1, "gelu": 1}),
        (lambda g, x, w, b: g.add(g.add(g.gemm(x, w), x), b), {"gemm": 1, "add": 1}),
        # A GEMM that something else reads stays as it is.
        (lambda g, x, w, b: g.add(g.gemm(x, w), g.gemm(x, w)), {"gemm": 1, "add": 1}),
        (lambda g, x, w, b: g.add(g.gelu(g.gemm(x, w)), g.gemm(x, w)), dict.fromkeys(ALL, 1)),
        (lambda g, x, w, b: g.gelu(g.add(x, b)), {"add": 1, "gelu": 1}),
    ],
)  # fmt: skip
def test_what_is_folded_and_what_is_left(write, left) -> None:  # type: ignore[no-untyped-def]
    g, x, w, b = start()
    g.output("y", write(g, x, w, b))
    fused = fuse_epilogues(g)
    assert ops(fused) == left
    same(g, fused)


def test_an_output_counts_as_a_reader() -> None:
    g, x, w, b = start()
    product = g.gemm(x, w)
    g.output("product", product)
    g.output("y", g.gelu(g.add(product, b)))
    fused = fuse_epilogues(g)
    assert ops(fused) == {"gemm": 1, "add": 1, "gelu": 1}
    same(g, fused)


def test_a_smaller_gemm_is_not_the_residual_of_a_larger_array() -> None:
    g = Graph("broadcast")
    x = g.input("x", (2, 3, WIDTH), "float")
    a, w = g.constant("a", np.ones((3, 4))), g.constant("w", np.ones((WIDTH, 4)))
    g.output("y", g.add(x, g.gemm(a, w)))
    assert ops(fuse_epilogues(g)) == {"gemm": 1, "add": 1}
    h = Graph("computed bias")
    x = h.input("x", (2, 3, WIDTH), "float")
    h.output(
        "y",
        h.add(h.gemm(x, h.constant("w", np.ones((WIDTH, WIDTH)))), h.input("b", (WIDTH,), "float")),
    )
    assert ops(fuse_epilogues(h)) == {"gemm": 1, "add": 1}


def test_the_old_graph_and_its_interface_are_kept() -> None:
    g, x, w, b = start()
    g.input("unused", ("batch",), "lengths")
    g.output("y", g.gelu(g.add(g.gemm(x, w), b)))
    g.output("x", x)
    before = g.show()
    fused = fuse_epilogues(g)
    assert g.show() == before
    assert (list(fused.inputs), list(fused.outputs)) == (["x", "unused"], ["y", "x"])
    assert fused.constants["w"] is g.constants["w"]
    assert fuse_epilogues(fused).digest() == fused.digest()


@st.composite
def graphs(draw: Any) -> Graph:
    g, x, w, b = start()
    pool = [x]
    for _ in range(draw(st.integers(1, 14))):
        one, two = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        latest = pool[-1]
        options = [
            lambda latest=latest: g.gemm(latest, w),
            lambda one=one: g.gemm(one, w),
            lambda latest=latest: g.add(latest, b),
            lambda latest=latest: g.gelu(latest),
            lambda one=one: g.gelu(one, approximate="tanh"),
            lambda latest=latest, two=two: g.add(latest, two),
            lambda one=one, two=two: g.add(one, two),
        ]
        pool.append(draw(st.sampled_from(options))())
    g.output("y", pool[-1])
    g.output("z", draw(st.sampled_from(pool)))
    return g


@settings(max_examples=80, deadline=None, derandomize=True)
@given(graphs())
def test_any_graph_means_the_same_fused(g: Graph) -> None:
    fused = fuse_epilogues(g)
    assert len(fused.nodes()) <= len(g.nodes())
    x = np.random.default_rng(1).standard_normal((1, 2, WIDTH)) / 8
    a, b = meaning.evaluate(g, {"x": x}), meaning.evaluate(fused, {"x": x})
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-9 * np.abs(a[name]).max())


def test_the_executor_agrees_fused_and_unfused() -> None:
    g, x, w, b = start()
    y = g.add(x, g.gelu(g.add(g.gemm(x, w), b)))
    g.output("y", g.layer_norm(y, b, b, eps=1e-5))
    x_array = np.random.default_rng(1).standard_normal((3, 7, WIDTH)).astype(np.float32)
    plain, fused = (
        Executor(each, backend="numpy").run({"x": x_array})["y"] for each in (g, fuse_epilogues(g))
    )
    np.testing.assert_allclose(plain, fused, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_cuda_executor_agrees_fused_and_unfused(dtype: str) -> None:
    import cupy

    from stof_cupy import testing
    from stof_cupy.dtypes import as_dtype

    low = as_dtype(dtype)
    g, x, w, b = start()
    rounded = {name: array.astype(low).astype(np.float32) for name, array in g.constants.items()}
    g = Graph("g")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    w, b = g.constant("w", rounded["w"]), g.constant("b", rounded["b"])
    g.output("y", g.add(x, g.gelu(g.add(g.gemm(x, w), b))))
    x_array = testing.random_array(testing.rng(1), (3, 7, WIDTH), dtype)
    exact = meaning.evaluate(g, {"x": x_array.astype(np.float64)})["y"]
    plain = Executor(g, backend="numpy").run(
        {"x": x_array}, observe=lambda _, y: y.astype(low).astype(np.float32)
    )["y"]
    for each in (g, fuse_epilogues(g)):
        got = Executor(each, backend="cuda", dtype=dtype).run({"x": cupy.asarray(x_array)})["y"]
        testing.assert_close(got, exact, plain.astype(low))


def test_verify_runs_after_each_rewrite_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Graph] = []
    monkeypatch.setattr(rewrites, "verify", lambda graph: (calls.append(graph), verify(graph))[1])
    g, x, w, b = start()
    g.output("y", g.add(g.gemm(x, w), b))
    monkeypatch.setenv("STOF_VERIFY", "0")
    fuse_epilogues(g)
    assert len(calls) == 1
    monkeypatch.setenv("STOF_VERIFY", "1")
    fuse_epilogues(g)
    assert len(calls) == 2 + len(rewrites.REWRITES)


def test_a_graph_that_does_not_verify_is_not_fused() -> None:
    with pytest.raises(GraphError, match="no output"):
        fuse_epilogues(Graph("empty"))
