"""Attention as people write it: whatever the order, it is found where it means attention."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy.fusion import fuse
from stof_cupy.fusion.chain import Chain
from stof_cupy.graph import Executor, Graph, Node, meaning

HEADS, DIM, BATCH, SEQ = 2, 4, 2, 7


@dataclass(frozen=True)
class Way:
    """How one attention is written."""

    axes: int
    scaled: tuple[str, ...]  # of q, k, k.T, weights, values, result
    turned: bool  # scores are computed as keys by queries
    steps: tuple[str, ...]  # between scores and softmax: a scale, a mask, lengths
    back: int  # before which step the scores are turned back
    result: bool  # is computed transposed
    merged: bool  # a product follows


WAYS = st.builds(
    Way,
    st.sampled_from([3, 4, 4]),
    st.lists(st.sampled_from(["q", "k", "kt", "weights", "values", "result"]), max_size=3).map(
        tuple
    ),
    st.booleans(),
    st.lists(st.sampled_from(["scale", "mask", "lengths"]), max_size=4).map(tuple),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)


def spelled(way: Way) -> Graph:
    g = Graph("spelled out")
    shape = ("batch", HEADS, "seq", DIM) if way.axes == 4 else ("batch", "seq", DIM)
    swapped = (0, 1, 3, 2) if way.axes == 4 else (0, 2, 1)

    def swap(x: Node) -> Node:
        return g.transpose(x, axes=swapped)

    def scaled(x: Node, name: str) -> Node:
        return g.scale(x, factor=1.5) if name in way.scaled else x

    q, k, v = (scaled(g.input(name, shape, "float"), name) for name in "qkv")
    mask, n = g.input("mask", ("seq", "seq"), "mask"), g.input("n", ("batch",), "lengths")
    kt = scaled(swap(k), "kt")
    y = g.matmul(swap(kt), swap(q)) if way.turned else g.matmul(q, kt)
    for number, step in enumerate((*way.steps, "softmax")):
        if way.turned and number == min(way.back, len(way.steps), first_mask(way)):
            y = swap(y)
        if step == "softmax":
            y = scaled(g.softmax(y), "weights")
        elif step == "scale":
            y = g.scale(y, factor=0.5)
        elif way.axes == 4:
            y = g.masked(y, *((mask, None) if step == "mask" else (None, n)))
    v = scaled(v, "values")
    y = swap(g.matmul(swap(v), swap(y))) if way.result else g.matmul(y, v)
    y = scaled(y, "result")
    if way.merged:
        rows = g.merge_heads(y) if way.axes == 4 else y
        width = rows.shape[-1]
        w = np.random.default_rng(0).standard_normal((3, width)).astype(np.float32)  # type: ignore[call-overload]
        y = g.gemm(rows, g.constant("w", w))
    g.output("y", y)
    return g


def first_mask(way: Way) -> int:
    """A mask is of queries and keys, in this order."""
    masks = [i for i, step in enumerate(way.steps) if step != "scale" and way.axes == 4]
    return min(masks, default=len(way.steps))


def feeds(graph: Graph, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    sizes = {"batch": BATCH, "seq": SEQ}
    given = {}
    for name, node in graph.inputs.items():
        if name == "mask":
            given[name] = rng.random((SEQ, SEQ)) < 0.6
        elif name == "n":
            given[name] = rng.integers(0, SEQ + 1, BATCH)
        else:
            shape = [sizes.get(dim, dim) for dim in node.shape]  # type: ignore[call-overload]
            given[name] = rng.standard_normal(shape).astype(np.float32)
    return given


@settings(max_examples=150, deadline=None, derandomize=True)
@given(WAYS)
def test_it_is_found_and_means_the_same(way: Way) -> None:
    g = spelled(way)
    fused = fuse(g)
    found = Counter(node.op for node in fused.nodes() if node.kind in ("CI", "MI"))
    scales = 1 if {"weights", "values", "result"} & {*way.scaled} else 0
    if way.merged:  # what scales the values stays where it is, what scales later goes on
        scales = 1 if "values" in way.scaled else 0
    elif "values" in way.scaled and {"weights", "result"} & {*way.scaled}:
        scales = 2
    assert found["attention"] == 1 and found["matmul"] == found["softmax"] == found["masked"] == 0
    assert found["scale"] == scales
    assert found["gemm"] == way.merged
    given = feeds(g)
    got, exact = Executor(fused, backend="numpy").run(given)["y"], meaning.evaluate(g, given)["y"]
    np.testing.assert_allclose(got, exact, atol=3e-5)


def test_one_matrix_of_keys_or_values_for_all_is_no_attention() -> None:
    for place in ("keys", "values"):
        g = Graph("shared")
        q = g.input("q", ("batch", HEADS, "seq", DIM), "float")
        shared = g.input("shared", (DIM, "seq") if place == "keys" else ("seq", DIM), "float")
        kt = shared if place == "keys" else g.transpose(q, axes=(0, 1, 3, 2))
        weights = g.softmax(g.matmul(q, kt))
        g.output("y", g.matmul(weights, q if place == "keys" else shared))
        given = feeds(g)
        got = Executor(fuse(g), backend="numpy").run(given)["y"]
        np.testing.assert_allclose(got, meaning.evaluate(g, given)["y"], atol=3e-6)


@pytest.mark.parametrize("dims", [(300, DIM), (DIM, 300)])
def test_heads_that_no_kernel_takes_stay(dims: tuple[int, int]) -> None:
    g = Graph("wide")
    q = g.input("q", ("batch", HEADS, "seq", dims[0]), "float")
    v = g.input("v", ("batch", HEADS, "seq", dims[1]), "float")
    g.output("y", g.matmul(g.softmax(g.matmul(q, g.transpose(q, axes=(0, 1, 3, 2)))), v))
    assert "attention" not in {node.op for node in fuse(g).nodes()}


def test_two_different_masks_stay_and_one_twice_does_not() -> None:
    for names, left in ((("a", "b"), 0), (("a", "a"), 1)):
        g = Graph("masks")
        q = g.input("q", ("batch", HEADS, "seq", DIM), "float")
        y = g.matmul(q, g.transpose(q, axes=(0, 1, 3, 2)))
        for name in names:
            y = g.scale(g.masked(y, g.input(name, ("seq", "seq"), "mask")), factor=0.5)
        g.output("y", g.matmul(g.softmax(y), q))
        assert [node.op for node in fuse(g).nodes()].count("attention") == left


def test_a_mask_of_scores_that_are_turned_later_is_no_mask_of_theirs() -> None:
    g = Graph("turned mask")
    q = g.input("q", ("batch", HEADS, "seq", DIM), "float")
    mask = g.input("mask", ("seq", "seq"), "mask")
    y = g.masked(g.matmul(q, g.transpose(q, axes=(0, 1, 3, 2))), mask)
    g.output("y", g.matmul(g.softmax(g.transpose(y, axes=(0, 1, 3, 2))), q))
    fused, given = fuse(g), feeds(g)
    assert "attention" not in {node.op for node in fused.nodes()}
    got = Executor(fused, backend="numpy").run(given)["y"]
    np.testing.assert_allclose(got, meaning.evaluate(g, given)["y"], atol=3e-6)


def test_a_segment_may_scale_its_weights() -> None:
    g = Graph("segment")
    q = g.input("q", ("batch", HEADS, "seq", DIM), "float")
    weights = g.softmax(g.matmul(q, g.transpose(q, axes=(0, 1, 3, 2))))
    g.output("y", g.matmul(g.scale(weights, factor=0.5), q))
    found = Chain(g).template(0, 4)
    assert found is not None and found.name == "MHA"
