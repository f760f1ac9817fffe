"""Rotary embeddings of neighbouring heads are one, and mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stof_cupy import models
from stof_cupy.fusion import structured
from stof_cupy.fusion.turns import merge_turns
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
