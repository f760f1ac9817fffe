"""Exact rewrites find what is spelled out in any way, and never change what a graph means."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import models
from stof_cupy.fusion import exact, fuse, structured
from stof_cupy.graph import Executor, Graph, Node, meaning
from tests.fusion.stacks import constant

HEADS, DIM = 2, 4
WIDTH = HEADS * DIM


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes() if node.kind in ("CI", "MI"))


def inputs(seed: int = 1) -> dict[str, Any]:
    r = rng(seed)
    kept = r.random((5, 5)) < 0.5
    return {
        "x": r.standard_normal((3, 5, WIDTH)),
        "mask": kept,
        "lengths": np.array([5, 1, 0]),
        **{n: r.standard_normal((3, HEADS, 5, DIM)) for n in "qkv"},
    }


def same(one: Graph, other: Graph, **given: Any) -> None:
    a, b = meaning.evaluate(one, given), meaning.evaluate(other, given)
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-5)


def layer(g: Graph, x: Node, mask: Node | None, seed: int) -> Node:
    """A post-LN encoder layer of primitives alone, weights stored (K, N) as in GPT-2's files."""
    r = rng(seed)

    def linear(y: Node, name: str, wide: int, narrow: int) -> Node:
        w = r.standard_normal((narrow, wide)).astype(np.float32) / 3
        y = g.matmul(y, g.constant(f"{name}{seed}.w", w))
        return g.add(y, g.constant(f"{name}{seed}.b", r.standard_normal(wide)))

    def norm(y: Node, name: str) -> Node:
        gain, shift = (g.constant(f"{name}{seed}.{n}", r.standard_normal(WIDTH)) for n in "gb")
        return g.layer_norm(y, gain, shift, eps=1e-5)

    q, k, v = (g.split_heads(linear(x, n, WIDTH, WIDTH), heads=HEADS) for n in "qkv")
    scores = g.scale(g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2))), factor=DIM**-0.5)
    if mask is not None:
        scores = g.masked(scores, mask)
    context = g.merge_heads(g.matmul(g.softmax(scores), v))
    x = norm(g.add(linear(context, "o", WIDTH, WIDTH), x), "first")
    h = g.gelu(linear(x, "up", 3 * WIDTH, WIDTH))
    return norm(g.add(linear(h, "down", WIDTH, 3 * WIDTH), x), "second")


def test_a_spelled_out_stack_becomes_seven_operators_a_layer() -> None:
    g = Graph("stack")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    mask = g.input("mask", ("seq", "seq"), "mask")
    for seed in range(3):
        x = layer(g, x, mask, seed)
    g.output("y", x)
    fused = fuse(g)
    assert ops(fused) == {"gemm": 12, "attention": 3, "layer_norm": 6}
    assert ops(structured(g)) == {"gemm": 12, "attention": 3, "layer_norm": 6, "add": 6, "gelu": 3}
    given = {name: inputs()[name] for name in ("x", "mask")}
    same(g, fused, **given)
    got = Executor(fused, backend="numpy").run({**given, "x": given["x"].astype(np.float32)})
    np.testing.assert_allclose(got["y"], meaning.evaluate(g, given)["y"], atol=2e-5)


def spelled(steps: list[tuple[str, Any]], turned: str = "transpose") -> Graph:
    """Scores with `steps` between them and softmax."""
    g = Graph("scores")
    q, k, v = (g.input(name, ("batch", HEADS, "seq", DIM), "float") for name in "qkv")
    mask, lengths = (
        g.input("mask", ("seq", "seq"), "mask"),
        g.input("lengths", ("batch",), "lengths"),
    )
    y = g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2)))
    for op, value in steps:
        if op == "scale":
            y = g.scale(y, factor=value)
        else:
            y = g.masked(y, mask if "m" in value else None, lengths if "l" in value else None)
    g.output("y", g.matmul(g.softmax(y), v))
    return g


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.sampled_from([-0.5, 0.5, 2.0, 0.0])),
        st.tuples(st.just("masked"), st.sampled_from(["m", "l", "ml", ""])),
    ),
    max_size=4,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(STEPS)
def test_scales_and_masks_in_any_order(steps: list[tuple[str, Any]]) -> None:
    g = spelled(steps)
    fused = fuse(g)
    masks = [value for op, value in steps if op == "masked"]
    twice = any(sum(letter in value for value in masks) > 1 for letter in "ml")
    after_mask = [
        v
        for i, (op, v) in enumerate(steps)
        if op == "scale" and any(o == "masked" for o, _ in steps[:i])
    ]
    if not twice and all(value > 0 for value in after_mask):
        assert ops(fused) == {"attention": 1}
    if any(value == 0 for value in after_mask):
        return  # 0 times -inf is NaN in either graph
    given = {name: inputs()[name] for name in ("q", "k", "v", "mask", "lengths")}
    with np.errstate(invalid="ignore"):
        same(g, fused, **given)


@pytest.mark.parametrize("read", ["scores", "weights"])
def test_scores_that_something_else_reads_stay(read: str) -> None:
    g = spelled([("scale", 0.5)])
    values = next(node for node in g.nodes() if node.op == "softmax")
    g.output("also", values if read == "weights" else values.inputs[0])
    fused = fuse(g)
    assert "attention" not in ops(fused)
    same(g, fused, **{name: inputs()[name] for name in "qkv"})


def test_keys_may_be_transposed_in_any_way() -> None:
    g = Graph("turned")
    q, v = (g.input(name, ("batch", HEADS, "seq", DIM), "float") for name in "qv")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    w = g.constant("w", rng().standard_normal((WIDTH, WIDTH)))
    rows = g.transpose(g.split_heads(g.gemm(x, w), heads=HEADS), axes=(0, 2, 1, 3))
    y = g.matmul(g.scale(q, factor=3), g.transpose(rows, axes=(0, 2, 3, 1)))
    g.output("y", g.matmul(g.softmax(y), v))
    fused = fuse(g)
    assert ops(fused) == {"attention": 1, "gemm": 1}
    assert "transpose" not in {node.op for node in fused.nodes()}
    assert dict(fused.outputs["y"].attrs)["scale"] == 3
    same(g, fused, **{name: inputs()[name] for name in ("q", "v", "x")})


def test_a_scale_goes_into_attention_or_constants_or_stays() -> None:
    g = Graph("scales")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    w = g.constant("w", rng().standard_normal((WIDTH, WIDTH)).astype(np.float16))
    b = g.constant("b", rng(1).standard_normal(WIDTH))
    heads = g.split_heads(g.scale(g.add(g.gemm(x, w), b), factor=0.5), heads=HEADS)
    g.output("y", g.attention(g.scale(heads, factor=2), g.scale(heads, factor=3), heads))
    g.output("gelu", g.scale(g.gelu(g.gemm(x, g.constant("u", np.eye(WIDTH)))), factor=2))
    fused = fuse(g)
    assert ops(fused) == {"gemm": 2, "attention": 1, "scale": 1}
    same(g, fused, x=inputs()["x"])


def qkv(g: Graph, x: Node, **changes: Any) -> list[Node]:
    made = []
    for n in "qkv":
        w = g.constant(n, rng(ord(n)).standard_normal((WIDTH, WIDTH)))
        bias = g.constant(f"{n}.b", rng(ord(n)).standard_normal(WIDTH))
        made.append(
            g.gemm(changes.get(n, x), w, bias if n not in changes.get("bare", "") else None)
        )
    return made


def test_projections_merge_only_where_that_is_free() -> None:
    def graph(**changes: Any) -> tuple[Graph, list[Node]]:
        g = Graph("qkv")
        x = g.input("x", ("batch", "seq", WIDTH), "float")
        if changes.pop("cross", False):
            changes["q"] = g.gelu(x)
        made = qkv(g, x, **changes)
        g.output("y", g.attention(*(g.split_heads(each, heads=HEADS) for each in made)))
        return g, made

    for changes, left in (({}, 1), ({"cross": True}, 2), ({"bare": "v"}, 2), ({"bare": "qkv"}, 1)):
        g, made = graph(**changes)
        merged = structured(g)
        assert ops(merged)["gemm"] == left, changes
        same(g, merged, x=inputs()["x"])
    g, made = graph()
    g.output("also", g.gelu(made[0]))  # which wants rows side by side
    assert ops(structured(g))["gemm"] == 2
    g, made = graph()
    g.output("also", made[2])
    assert ops(structured(g))["gemm"] == 2


def test_every_rewrite_is_verified_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Graph] = []
    monkeypatch.setattr(exact, "verify", calls.append)
    monkeypatch.setenv("STOF_VERIFY", "1")
    structured(spelled([]))
    assert len(calls) == 2 + len(exact.STRUCTURE)


def test_a_bert_encoder_has_six_operators_a_layer() -> None:
    config = {
        "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3,
        "intermediate_size": 40, "vocab_size": 50, "max_position_embeddings": 150,
        "type_vocab_size": 3,
    }  # fmt: skip
    graph = models.build(config, models.random_weights(config)).graph
    fused = fuse(graph)
    assert ops(fused) == {"embedding": 1, "gemm": 8, "attention": 2, "layer_norm": 5}
    ids = rng().integers(0, 50, (2, 33))
    given = {"ids": ids, "token_types": ids % 3, "lengths": np.array([33, 4])}
    same(graph, fused, **given)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_gated_pair_is_one_product(activation: str, biased: bool) -> None:
    g = Graph("gated")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    made = []
    for name in ("gate", "up"):
        y = g.gemm(x, g.constant(name, rng(len(name)).standard_normal((12, WIDTH))))
        made.append(g.add(y, g.constant(f"{name}.b", np.ones(12) / 3)) if biased else y)
    y = g.gated(*made, activation=activation)
    g.output("y", g.add(g.gemm(y, g.constant("down", rng(9).standard_normal((WIDTH, 12)))), x))
    fused = fuse(g)
    assert ops(fused) == {"gemm": 2}
    same(g, fused, x=inputs()["x"])
    assert structured(fused).digest() == fused.digest()
    got = Executor(fused, backend="numpy").run({"x": inputs()["x"].astype(np.float32)})["y"]
    np.testing.assert_allclose(got, meaning.evaluate(g, {"x": inputs()["x"]})["y"], atol=1e-4)


def test_gates_that_cannot_be_one_product_stay() -> None:
    def graph(write: Any) -> Graph:
        g = Graph("gates")
        x = g.input("x", ("batch", "seq", WIDTH), "float")
        v, w = (g.constant(n, rng(ord(n)).standard_normal((WIDTH, WIDTH))) for n in "vw")
        g.output("y", write(g, x, v, w))
        return g

    for write in (
        lambda g, x, v, w: g.gated(g.gemm(x, v), g.gemm(g.gelu(x), w)),
        lambda g, x, v, w: g.gated(g.gemm(x, v), x),
        lambda g, x, v, w: g.gated(g.gemm(x, v), g.gemm(x, v)),
        lambda g, x, v, w: g.gated(g.gemm(x, v), g.gemm(x, w, activation="relu")),
        lambda g, x, v, w: g.add(g.gated(g.gemm(x, v), g.gemm(x, w)), g.gemm(x, w)),
    ):
        g = graph(write)
        fused = fuse(g)
        assert ops(fused)["gated"] == 1
        same(g, fused, x=inputs()["x"])


def test_gated_products_are_not_merged_with_others() -> None:
    g = Graph("two gates")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    heads = [
        g.split_heads(
            g.gemm(x, g.constant(n, rng(ord(n)).standard_normal((2 * WIDTH, WIDTH))),
                   activation="silu", gated=True),
            heads=HEADS,
        )
        for n in "qkv"
    ]  # fmt: skip
    g.output("y", g.attention(*heads))
    fused = fuse(g)
    assert ops(fused)["gemm"] == 3
    same(g, fused, x=inputs()["x"])


def test_layers_may_share_constants_that_are_merged() -> None:
    """Biases of zeros are one constant in all layers; the stack of three is one too."""
    g = Graph("zeros")
    x = g.input("x", ("batch", "seq", 8), "float")
    for i in range(2):
        parts = []
        for name in "qkv":
            w, b = constant(g, f"{i}.{name}", 8, 8), g.constant(f"{i}.{name}.b", np.zeros(8))
            parts.append(g.split_heads(g.add(g.gemm(x, w), b), heads=2))
        x = g.merge_heads(g.attention(*parts))
        up, gate = (constant(g, f"{i}.{name}", 8, 8) for name in ("up", "gate"))
        zeros = [g.constant(f"{i}.{name}.b", np.zeros(8)) for name in ("up", "gate")]
        x = g.gated(g.gemm(x, up, zeros[0]), g.gemm(x, gate, zeros[1]), activation="silu")
    g.output("y", x)
    made = structured(g)
    assert sum(node.op == "gemm" for node in made.nodes()) == 4
    given = {"x": np.random.default_rng(0).standard_normal((2, 3, 8))}
    want = meaning.evaluate(g, given)["y"]
    np.testing.assert_allclose(meaning.evaluate(made, given)["y"], want, atol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_parts_of_one_array_are_merged_where_they_lie(turned: bool) -> None:
    whole = rng().standard_normal((8, 24)).T if turned else rng().standard_normal((24, 8))

    def merged(parts: list[Any]) -> Any:
        g = Graph("parts")
        x = g.input("x", ("batch", "seq", 8), "float")
        named = [g.constant(f"w{i}", part) for i, part in enumerate(parts)]
        g.output("y", g.attention(*(g.split_heads(g.gemm(x, w), heads=2) for w in named)))
        (array,) = structured(g).constants.values()
        return array

    parts = [whole[i : i + 8] for i in (0, 8, 16)]
    assert np.shares_memory(merged(parts), whole)
    np.testing.assert_array_equal(merged(parts), whole)
    for other in (parts[::-1], [parts[0], parts[2], parts[1]], [parts[0].copy(), *parts[1:]]):
        array = merged(other)
        assert not np.shares_memory(array, whole)
        np.testing.assert_array_equal(array, np.concatenate(other))
