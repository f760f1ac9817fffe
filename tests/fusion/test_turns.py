"""Rotary embeddings of neighbouring heads are one, or of the product, and mean the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stof_cupy import models
from stof_cupy.fusion import fuse, structured
from stof_cupy.fusion.few_rows import few_row_pieces
from stof_cupy.fusion.turns import merge_turns, turn_in_products
from stof_cupy.graph import Executor, Graph, meaning

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 50,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
HALF = (1.0, 0.3)


def turns(graph: Graph) -> int:
    return sum(node.op == "rotary" for node in graph.nodes())


def graph(
    spans: Sequence[tuple[int, int]], frequencies: Sequence[Any] = (HALF, HALF), **how: Any
) -> Graph:
    """Turn columns of one array, in heads of 4, and add up what attention makes of them."""
    g = Graph("turned")
    x = g.input("x", ("batch", "seq", 32), "float")
    at = [g.input(name, ("batch", "seq"), "int") for name in ("at", "other")]
    made = []
    for i, ((start, stop), frequency) in enumerate(zip(spans, frequencies, strict=True)):
        heads = g.split_heads(g.columns(x, start=start, stop=stop), heads=(stop - start) // 4)
        made.append(g.rotary(heads, at[i if how.get("apart") else 0], frequency=frequency))
    if how.get("seen"):
        g.output("turned", made[0])
    g.output("y", g.attention(made[0], made[1], made[1]))
    return g


def given() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    at = rng.integers(0, 60, (2, 5))
    return {"x": rng.standard_normal((2, 5, 32)), "at": at, "other": at + 3}


@pytest.mark.parametrize("spans", [[(0, 16), (16, 24)], [(24, 32), (16, 24)], [(8, 24), (24, 32)]])
def test_neighbours_are_turned_at_once(spans: list[tuple[int, int]]) -> None:
    one = graph(spans)
    other = merge_turns(one)
    assert (turns(one), turns(other)) == (2, 1)
    want = meaning.evaluate(one, given())["y"]
    np.testing.assert_array_equal(meaning.evaluate(other, given())["y"], want)
    feeds = {n: x.astype(np.float32) if n == "x" else x for n, x in given().items()}
    for arena in (False, True):
        run = Executor(other, backend="numpy", arena=arena).run
        np.testing.assert_allclose(run(feeds)["y"], want, atol=1e-5)


@pytest.mark.parametrize(
    "apart",
    [
        graph([(0, 16), (20, 28)]),
        graph([(0, 16), (8, 16)]),
        graph([(0, 16), (16, 24)], [HALF, (1.0, 0.2)]),
        graph([(0, 16), (16, 24)], apart=True),
        graph([(0, 16), (16, 24)], seen=True),
    ],
    ids=["with a gap", "overlapping", "frequencies", "positions", "an output"],
)
def test_others_are_left_as_they_are(apart: Graph) -> None:
    assert merge_turns(apart).digest() == apart.digest()


def test_a_llama_turns_once_a_layer_with_and_without_a_cache() -> None:
    made = models.build(LLAMA, models.random_weights(LLAMA)).graph
    other = structured(made)
    assert (turns(made), turns(other)) == (4, 2)
    rng = np.random.default_rng(1)
    feeds: dict[str, Any] = {
        "ids": rng.integers(0, 50, (2, 7)),
        "positions": np.broadcast_to(np.arange(7), (2, 7)),
        "rows": np.zeros((2, 0), np.int64),
    }
    for cached in (False, True):
        if cached:
            feeds |= {
                f"cache_{kind}.{i}": np.zeros((2, 2, 9, 8), np.float32)
                for kind in "kv"
                for i in range(2)
            } | {"lengths": np.array([7, 7])}
        runs = [Executor(each, backend="numpy").run(feeds)["hidden"] for each in (made, other)]
        np.testing.assert_allclose(runs[1], runs[0], atol=2e-5)


def projected(how: dict[str, Any], *, order: str = "qkv", seen: str = "", **rotary: Any) -> Graph:
    """Project to heads of 32, of which K and V have fewer, and turn Q and K."""
    g = Graph("projected")
    draw = np.random.default_rng(5)
    x = g.input("x", ("batch", "seq", 12), "float")
    at = g.input("at", ("batch", "seq"), "int")
    heads = {"q": how.get("q", 4), "k": 2, "v": 2}
    made: dict[str, Any] = {}
    for name in order:
        rows = 32 * heads[name]
        w, bias = draw.standard_normal((rows, 12)) / 4, draw.standard_normal(rows)
        y = g.gemm(x, g.constant(f"w{name}", w.astype(np.float32)))
        if how.get("bias"):
            y = g.add(y, g.constant(f"b{name}", bias.astype(np.float32)))
        made[name] = g.split_heads(y, heads=heads[name])
    if seen == "product":
        g.output("raw", made["q"])
    q, k = (g.rotary(made[name], at, **{"frequency": FREQUENCY, **rotary}) for name in "qk")
    if seen == "turned":
        g.output("turned", q)
    g.output("y", g.attention(q, k, made["v"]))
    return g


FREQUENCY = tuple((10000.0 ** -(np.arange(16) / 16)).tolist())


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {"x": rng.standard_normal((2, 5, 12)), "at": rng.integers(0, 500, (2, 5))}


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes())


def same(one: Graph, other: Graph) -> None:
    want, got = (meaning.evaluate(each, feeds()) for each in (one, other))
    low = {n: x.astype(np.float32) if n == "x" else x for n, x in feeds().items()}
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-12)
        for arena in (False, True):
            run = Executor(other, backend="numpy", arena=arena).run
            np.testing.assert_allclose(run(low)[name], want[name], atol=2e-5)


@pytest.mark.parametrize(
    ("how", "rotary"),
    [
        ({}, {}),
        ({"bias": True}, {}),
        ({"q": 2}, {}),
        ({"bias": True}, {"interleaved": True}),
        ({}, {"interleaved": True, "frequency": FREQUENCY[:5], "magnitude": 1.5}),
    ],
    ids=["halves", "bias", "one K for each Q", "neighbours", "some neighbours"],
)
def test_a_product_turns_its_heads(how: dict[str, Any], rotary: dict[str, Any]) -> None:
    one = projected(how, **rotary)
    other = structured(one)
    found = ops(other)
    assert (found["turned_gemm"], found["gemm"], found["rotary"]) == (1, 0, 0)
    assert found["merge_heads"] == 0  # views of views are gone
    (node,) = (node for node in other.nodes() if node.op == "turned_gemm")
    assert dict(node.attrs)["heads"] == how.get("q", 4) + 2
    same(one, other)


@pytest.mark.parametrize(
    ("about", "turned", "after"),
    [
        ({"frequency": FREQUENCY[:5]}, [], 1),
        ({"seen": "product"}, [2], 1),  # the keys, whose product is another then
        ({"seen": "turned"}, [], 2),
    ],
    ids=["some halves", "read unturned", "an output"],
)
def test_a_product_does_not_turn_what_it_must_not(about: Any, turned: Any, after: int) -> None:
    one = projected({}, **about)
    other = structured(one)
    products = (node for node in other.nodes() if node.op == "turned_gemm")
    assert [dict(node.attrs)["heads"] for node in products] == turned
    assert ops(other)["rotary"] == after
    same(one, other)


def columns_of_a_product(spans: Sequence[tuple[int, int]], *, turned: int = 0, **how: Any) -> Graph:
    """Turn one of several columns of a product by constants."""
    g = Graph("columns")
    x = g.input("x", ("batch", "seq", 12), "float")
    at = g.input("at", ("batch", "seq"), "int")
    w = np.random.default_rng(0).standard_normal((96, 12)).astype(np.float32)
    residual = g.columns(g.gelu(g.gemm(x, g.constant("w", w))), start=0, stop=96)
    how = {"residual": residual} if how.pop("residual", False) else how
    y = g.gemm(x, g.constant("w", w), **how)
    heads = [
        g.split_heads(g.columns(y, start=start, stop=stop), heads=(stop - start) // 32)
        for start, stop in spans
    ]
    heads[turned] = g.rotary(heads[turned], at, frequency=FREQUENCY)
    g.output("y", g.attention(heads[0], heads[1], heads[1]))
    return g


def test_only_leading_columns_of_plain_products_are_turned() -> None:
    apart = [(0, 32), (32, 64)]
    good = columns_of_a_product(apart)
    assert ops(turn_in_products(good))["turned_gemm"] == 1
    same(good, turn_in_products(good))
    for left in (
        columns_of_a_product(apart, turned=1),
        columns_of_a_product([(0, 64), (32, 96)]),
        columns_of_a_product(apart, activation="gelu"),
        columns_of_a_product(apart, residual=True),
    ):
        assert turn_in_products(left) is left


def test_a_product_whose_heads_are_all_turned() -> None:
    g = Graph("queries")
    x = g.input("x", ("batch", "seq", 12), "float")
    at = g.input("at", ("batch", "seq"), "int")
    w = np.random.default_rng(0).standard_normal((64, 12)).astype(np.float32)
    y = g.gemm(x, g.constant("w", w))
    heads = g.rotary(g.split_heads(y, heads=2), at, frequency=FREQUENCY)
    g.output("y", g.attention(heads, heads, heads))
    assert ops(turn_in_products(g)) == ops(g) - Counter(["gemm", "rotary"]) + Counter(
        ["turned_gemm"]
    )
    same(g, turn_in_products(g))
    g.output("raw", y)
    assert turn_in_products(g) is g


def test_a_llama_whose_products_turn_with_a_cache_and_few_rows() -> None:
    """A LLaMA of heads of 32, run at once and token by token, with pieces for few rows."""
    config = {**LLAMA, "head_dim": 32}
    made = models.build(config, models.random_weights(config)).graph
    other = fuse(made)
    assert ops(other)["turned_gemm"] == 2 and ops(other)["rotary"] == 0
    pieces = few_row_pieces(other)
    assert sum(any(node.op == "turned_gemm" for node in each.nodes) for each in pieces) == 2
    ids = np.random.default_rng(1).integers(0, 50, (2, 7))
    at = np.tile(np.arange(7), (2, 1))
    none = np.zeros((2, 0), np.int64)
    masks = {f"mask.{i}": np.tril(np.ones((7, 7), bool)) for i in (0, 1)}
    want = meaning.evaluate(made, {"ids": ids, "positions": at, "rows": none, **masks})["hidden"]
    for fused in ((), pieces):
        run = Executor(other, backend="numpy", fused=fused).run
        whole = run({"ids": ids, "positions": at, "rows": none, **masks})["hidden"]
        np.testing.assert_allclose(whole, want, atol=2e-5)
        caches = {
            f"cache_{kind}.{i}": np.zeros((2, 2, 7, 32), np.float32)
            for kind in "kv"
            for i in (0, 1)
        }
        steps = [
            run(
                {"ids": ids[:, i : i + 1], "positions": at[:, i : i + 1], "rows": none, **caches}
                | {"lengths": np.array([i + 1, i + 1])}
            )["hidden"]
            for i in range(7)
        ]
        np.testing.assert_allclose(np.concatenate(steps, axis=1), want, atol=2e-5)


def test_layers_may_turn_by_other_frequencies() -> None:
    """As layers with a window do in some models."""
    g = Graph("two layers")
    x = y = g.input("x", ("batch", "seq", 12), "float")
    at = g.input("at", ("batch", "seq"), "int")
    draw = np.random.default_rng(2)
    for i, frequency in enumerate((FREQUENCY, tuple(each / 8 for each in FREQUENCY))):
        q, k, v = (
            g.split_heads(
                g.gemm(x, g.constant(f"{name}{i}", draw.standard_normal((32, 12)) / 4)), heads=1
            )
            for name in "qkv"
        )
        q, k = (g.rotary(each, at, frequency=frequency) for each in (q, k))
        x = g.gemm(g.merge_heads(g.attention(q, k, v)), g.constant(f"o{i}", np.ones((12, 32)) / 9))
    g.output("y", g.add(x, y))
    other = structured(g)
    products = [node for node in other.nodes() if node.op == "turned_gemm"]
    assert len({dict(node.attrs)["frequency"] for node in products}) == len(products) == 2
    same(g, other)
