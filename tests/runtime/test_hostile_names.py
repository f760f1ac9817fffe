"""Names that a user may give, factors beyond every float, and results that are his alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.fusion.norms import fold_norms
from stof_cupy.graph import Graph, Node, meaning
from stof_cupy.runtime import Options, Program

RNG = np.random.default_rng(7)


def weights(*names: str) -> dict[str, Any]:
    return {name: RNG.standard_normal((4, 4)).astype(np.float32) for name in names}


def same(graph: Graph, inputs: dict[str, Any], **options: Any) -> None:
    expected = meaning.evaluate(graph, inputs)
    made = Program(graph, options=Options(**options)).run(inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(made[name], array, rtol=1e-5, atol=1e-5)


def attention(g: Graph, x: Node, *products: Node) -> Node:
    q, k, v = (g.split_heads(each, heads=2) for each in (*products, x))
    return g.merge_heads(g.attention(q, k, v))


def test_merged_weights_of_equal_joined_names_are_different_ones() -> None:
    g = Graph("names")
    c = {name: g.constant(name, each) for name, each in weights("a+b", "c", "a", "b+c").items()}
    x, z = (g.input(name, ("batch", "seq", 4), "float") for name in "xz")
    g.output("one", attention(g, x, g.gemm(x, c["a+b"]), g.gemm(x, c["c"])))
    g.output("two", attention(g, z, g.gemm(z, c["a"]), g.gemm(z, c["b+c"])))
    same(g, {name: RNG.standard_normal((2, 3, 4)).astype(np.float32) for name in "xz"})


def test_a_constant_may_have_the_name_that_merged_ones_get() -> None:
    g = Graph("names")
    c = {name: g.constant(name, each) for name, each in weights("a", "b", "a+b").items()}
    x = g.input("x", ("batch", "seq", 4), "float")
    y = attention(g, x, g.gemm(x, c["a"]), g.gemm(x, c["b"]))
    g.output("y", g.gemm(y, c["a+b"]))
    same(g, {"x": RNG.standard_normal((2, 3, 4)).astype(np.float32)})


def test_folded_norms_of_equal_joined_names_are_different_ones() -> None:
    g = Graph("names")
    x = g.input("x", ("batch", "seq", 4), "float")
    c = {name: g.constant(name, each) for name, each in weights("c", "b*c").items()}
    for gain, weight in (("a*b", "c"), ("a", "b*c")):
        norm = g.constant(gain, RNG.standard_normal(4).astype(np.float32))
        g.output(weight, g.gemm(g.rms_norm(x, norm, eps=1e-6), c[weight]))
    inputs = {"x": RNG.standard_normal((2, 3, 4)).astype(np.float32)}
    expected, made = meaning.evaluate(g, inputs), meaning.evaluate(fold_norms(g), inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(made[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", range(4))
def test_inputs_may_have_the_names_that_values_get(number: int) -> None:
    g = Graph("names")
    x = g.input(f"value{number}", ("batch", "seq", 8), "float")
    y = g.input(f"value{1 - number}" if number < 2 else "value7", ("seq", 8), "float")
    one = g.constant("one", np.ones(8, np.float32))
    w = g.constant("w", np.eye(8, dtype=np.float32))
    z = g.layer_norm(g.add(g.gemm(g.softmax(g.gemm(x, w)), w), x), one, one, eps=1e-5)
    g.output("y", g.layer_norm(g.add(g.gemm(g.gelu(g.add(z, y)), w), z), one, one, eps=1e-5))
    inputs = {x.name: np.ones((1, 3, 8), np.float32), y.name: np.ones((3, 8), np.float32)}
    same(g, inputs, tune="full", tune_seconds=0.5)


@pytest.mark.parametrize("factor", [1e200, 1e-200, 300.0, 1e-4])
def test_factors_whose_product_no_float_holds_stay_apart(factor: float) -> None:
    g = Graph("factors")
    x = g.input("x", ("batch", 2), "float")
    g.output("y", g.scale(g.scale(x, factor=factor), factor=factor))
    (last,) = Program(g).graph.outputs.values()
    assert last.inputs[0] is not None and last.inputs[0].op == "scale"


@pytest.mark.parametrize("where", ["scores", "weights", "queries"])
def test_attention_with_huge_factors_can_be_made(where: str) -> None:
    def scaled(node: Node, here: str) -> Node:
        if where != here:
            return node
        return g.transpose(g.scale(turned(g.scale(node, factor=1e200)), factor=1e200), axes=SWAP)

    def turned(node: Node) -> Node:
        return g.transpose(node, axes=SWAP)

    g = Graph("factors")
    x = g.input("x", ("batch", 2, "seq", 4), "float")
    scores = scaled(g.matmul(scaled(x, "queries"), turned(x)), "scores")
    g.output("y", g.matmul(scaled(g.softmax(scores), "weights"), x))
    assert "y" in Program(g).graph.outputs


SWAP = (0, 1, 3, 2)


def test_softmax_of_no_elements_is_empty() -> None:
    g = Graph("empty")
    g.output("y", g.softmax(g.input("x", ("batch", "seq"), "float")))
    assert Program(g).run({"x": np.ones((2, 0), np.float32)})["y"].shape == (2, 0)


def test_outputs_share_memory_with_nothing() -> None:
    g = Graph("outputs")
    x = g.input("x", ("batch", 2, "seq", 4), "float")
    y = g.kv_cache(x, g.input("at", ("batch", "seq"), "int"))
    z = g.relu(x)
    for name, node in {"y": y, "z": z, "again": z}.items():
        g.output(name, node)
    given = np.ones((1, 2, 3, 4), np.float32)
    made = Program(g).run({"x": given, "at": np.zeros((1, 3), int)})
    arrays = [given, *made.values()]
    for number, one in enumerate(arrays):
        assert not any(np.shares_memory(one, other) for other in arrays[number + 1 :])
