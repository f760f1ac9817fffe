"""Passes keep what a graph means, and drop what they are there to drop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy.errors import GraphError
from stof_cupy.graph import Executor, Graph, Node, meaning, passes
from stof_cupy.graph.passes import simplify

RNG = np.random.default_rng(0)


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes() if node.op not in ("input", "constant"))


def same(one: Graph, other: Graph, **inputs: Any) -> None:
    a, b = meaning.evaluate(one, inputs), meaning.evaluate(other, inputs)
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6)


def test_tied_weights_and_equal_small_constants_are_one() -> None:
    big = RNG.standard_normal((300, 300)).astype(np.float32)
    g = Graph("tied")
    x = g.input("x", ("seq", 300), "float")
    first, tied, copy = (
        g.constant(n, a) for n, a in (("a", big), ("b", big[:]), ("c", big.copy()))
    )
    small = [g.constant(f"s{i}", np.ones(300, np.float32)) for i in range(2)]
    y = g.add(g.gemm(x, first, small[0]), g.gemm(x, tied, small[1]))
    g.output("y", g.add(y, g.gemm(x, copy)))
    after = simplify(g)
    assert list(after.constants) == ["a", "s0", "c"]
    assert ops(after) == {"gemm": 2, "add": 2}
    same(g, after, x=RNG.standard_normal((2, 300)))


def test_constants_are_folded_but_never_blown_up() -> None:
    w = RNG.standard_normal((4, 3)).astype(np.float32)
    g = Graph("folded")
    x = g.input("x", ("seq", 4), "float")
    turned = g.transpose(g.constant("w", w), axes=(1, 0))
    bias = g.scale(g.constant("b", np.float32([1, 2, 3])), factor=0.5)
    wide = g.gemm(g.constant("u", np.ones((9, 1))), g.constant("v", np.ones((9, 1))))  # 9 x 9
    g.output("y", g.add(g.gemm(x, turned), bias))
    g.output("wide", wide)
    after = simplify(g)
    assert ops(after) == {"gemm": 2, "add": 1}
    folded = next(a for n, a in after.constants.items() if n.startswith("transpose"))
    assert np.shares_memory(folded, w)
    same(g, after, x=RNG.standard_normal((2, 4)))


def test_what_undoes_itself_is_dropped() -> None:
    g = Graph("undone")
    x = g.input("x", ("batch", "seq", 6), "float")
    y = x
    for _ in range(7):
        y = g.transpose(y, axes=(1, 2, 0))  # 7 = 1 mod 3
    y = g.transpose(y, axes=(2, 0, 1))
    y = g.scale(g.scale(y, factor=4), factor=0.25)
    y = g.merge_heads(g.split_heads(y, heads=3))
    y = g.columns(g.columns(y, start=0, stop=6), start=0, stop=6)
    g.output("y", y)
    g.output("part", g.columns(g.columns(x, start=1, stop=6), start=2, stop=4))
    g.output("heads", g.split_heads(g.merge_heads(g.split_heads(x, heads=3)), heads=2))
    after = simplify(g)
    assert ops(after) == {"columns": 1, "split_heads": 1}
    assert dict(after.outputs["part"].attrs) == {"start": 3, "stop": 5}
    same(g, after, x=RNG.standard_normal((2, 3, 6)))


@st.composite
def graphs(draw: Any) -> Graph:
    g = Graph("any")
    pool: list[Node] = [g.input("x", (2, 3, 4), "float")]
    pool += [g.constant(f"c{i}", RNG.integers(0, 2, (2, 3, 4)) * 1.0) for i in range(2)]
    for _ in range(draw(st.integers(1, 12))):
        one, two = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        axes = draw(st.permutations(range(3)))
        options = [
            lambda one=one, axes=axes: g.transpose(one, axes=axes),
            lambda one=one: g.scale(one, factor=2.0 ** draw(st.integers(-1, 1))),
            lambda one=one, two=two: g.add(one, two if two.shape == one.shape else one),
            lambda one=one: g.columns(one, start=0, stop=one.shape[-1]),
            lambda one=one: g.softmax(one),
        ]
        pool.append(draw(st.sampled_from(options))())
    g.output("y", pool[-1])
    g.output("z", draw(st.sampled_from(pool)))
    return g


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs())
def test_any_graph_means_the_same(g: Graph) -> None:
    after = simplify(g)
    assert len(after.nodes()) <= len(g.nodes())
    assert simplify(after).digest() == after.digest()
    same(g, after, x=np.random.default_rng(1).standard_normal((2, 3, 4)))


def test_spelled_out_attention_runs_on_numpy() -> None:
    g = Graph("spelled")
    q, k, v = (g.input(name, ("batch", 2, "seq", 4), "float") for name in "qkv")
    mask, lengths = g.input("mask", ("seq", "seq"), "mask"), g.input("n", ("batch",), "lengths")
    scores = g.scale(g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2))), factor=0.5)
    g.output("y", g.matmul(g.softmax(g.masked(scores, mask, lengths)), v))
    g.output("fused", g.attention(q, k, v, mask, lengths, scale=0.5))
    inputs: dict[str, Any] = {n: RNG.standard_normal((3, 2, 5, 4), np.float32) for n in "qkv"}
    for kept in (RNG.random((5, 5)) < 0.4, RNG.random((3, 1, 5, 5)) < 0.4, None):
        inputs |= {"mask": kept, "n": np.array([5, 0, 2])}
        got = Executor(g, backend="numpy").run(inputs)
        np.testing.assert_allclose(got["y"], got["fused"], atol=1e-6)


def test_each_pass_is_verified_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Graph] = []
    monkeypatch.setattr(passes, "verify", calls.append)
    g = Graph("g")
    g.output("y", g.scale(g.input("x", ("seq", 4), "float"), factor=3))
    monkeypatch.setenv("STOF_VERIFY", "1")
    simplify(g)
    assert len(calls) == 2 + len(passes.PASSES)


def test_a_graph_that_does_not_verify_is_refused() -> None:
    with pytest.raises(GraphError, match="no output"):
        simplify(Graph("empty"))
